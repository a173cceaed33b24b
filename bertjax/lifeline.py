"""The lifeline of a job: a socket from every process to process 0. Who breaks it is gone.

Without it a collective waits for a dead process until the coordination service has missed its
heartbeats, and then C++ ends the process without a word on who died and what comes next. A socket
is closed by the kernel the moment its process ends, however it ends; a host that is lost as a whole
falls silent, and that is noticed too.

A message is a line of JSON: {} (a beat), {"hello": process, "token": ...}, {"welcome": true} (all
are there), {"left": true} (goes in peace), {"end": text, "code": exit code} (all shall stop).
"""

import dataclasses
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bertjax import errors

_LONGEST_BEAT = 1.0  # seconds between two signs of life
_POLL = 0.1  # seconds until `close` is noticed
_LINGER = 2.0  # seconds that process 0 leaves the others to read why they shall stop
_STRANGER = 10.0  # seconds that a connection may take to say hello


def listen(port: int) -> socket.socket:
    """A socket that listens on all addresses of this host; port 0 is any free one."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


@dataclasses.dataclass(eq=False)
class _Peer:
    socket: socket.socket
    process: int | None  # None: has not said hello
    heard: float  # time.monotonic() of its last message
    left: bool = False
    unread: bytes = b""


class Lifeline:
    """One end of the line. Process 0 `listen`s, the others `connect`; then all `wait_for_all`.

    silence: seconds without a sign of life after which a process counts as gone. on_end(text,
    code): called once, in a thread, when this process shall stop because of another one.
    """

    def __init__(
        self,
        process: int,
        num_processes: int,
        *,
        silence: float,
        on_end: Callable[[str, int], None],
    ):
        self._process, self._num_processes = process, num_processes
        self._silence, self._on_end = silence, on_end
        self._beat = min(_LONGEST_BEAT, silence / 4)
        self._selector = selectors.DefaultSelector()
        self._peers: list[_Peer] = []
        self._server: socket.socket | None = None
        self._token = ""
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._complete, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lifeline", daemon=True)
        self.ended = threading.Event()  # somebody's end is known

    def listen(self) -> str:
        """Opens the line on process 0; returns the address that `connect` takes: "PORT TOKEN"."""
        self._server = listen(0)
        self._token = secrets.token_hex(16)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread.start()
        return f"{self._server.getsockname()[1]} {self._token}"

    def connect(self, host: str, address: str, timeout: float) -> None:
        """Takes hold of the line that process 0 opened on `host`. Raises OSError."""
        port, token = address.split()
        line = socket.create_connection((host, int(port)), timeout=timeout)
        peer = self._add(line, process=0)
        self._send(peer, {"hello": self._process, "token": token})
        self._thread.start()

    def wait_for_all(self, timeout: float) -> None:
        """Returns when every process holds the line. Raises UserError after `timeout` seconds."""
        if self._num_processes > 1 and not self._complete.wait(timeout):
            raise errors.UserError(
                f"not all of the {self._num_processes} processes came within {timeout:.0f} s: "
                "look at what the others printed"
            )

    def fail(self, text: str, code: int) -> bool:
        """Ends the job: the others stop with `text` and exit code. False: another was first."""
        with self._ending:
            if self.ended.is_set():
                return False
            self.ended.set()
        self._send_all({"end": text, "code": code})
        return True

    def leave(self) -> None:
        """This process will end in peace, and its silence be no alarm."""
        self._send_all({"left": True})

    def linger(self) -> None:
        """On process 0: gives the others the time to read the end before the line breaks."""
        until = time.monotonic() + _LINGER
        while self._process == 0 and self._peers and time.monotonic() < until:
            if threading.current_thread() is self._thread:
                self._read_ready()
            else:
                time.sleep(0.01)

    def close(self) -> None:
        """Lets go of the line."""
        self._closing.set()
        self._thread.join()
        for peer in list(self._peers):
            self._drop(peer)
        if self._server is not None:
            self._server.close()
        self._selector.close()

    def _watch(self) -> None:
        beaten = time.monotonic()
        while not self._closing.is_set():
            self._read_ready()
            now = time.monotonic()
            if now - beaten >= self._beat:
                beaten = now
                self._send_all({})
            for peer in list(self._peers):
                if peer.process is None and now - peer.heard > _STRANGER:
                    self._drop(peer)
                elif now - peer.heard > self._silence and not peer.left:
                    self._gone(peer, f"is gone: silent for {self._silence:.0f} s")

    def _read_ready(self) -> None:
        for key, _ in self._selector.select(timeout=_POLL):
            if key.data is None:
                self._add(key.fileobj.accept()[0], process=None)
            elif key.data in self._peers:
                self._read(key.data)

    def _add(self, line: socket.socket, process: int | None) -> _Peer:
        line.settimeout(self._silence)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(line, process, time.monotonic())
        self._peers.append(peer)
        self._selector.register(line, selectors.EVENT_READ, peer)
        return peer

    def _drop(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
            *lines, peer.unread = (peer.unread + data).split(b"\n")
            messages = [json.loads(line) for line in lines]
        except (OSError, ValueError):  # broken, or a stranger who speaks another language
            data, messages = b"", []
        if not data:
            self._drop(peer)
            if peer.process is not None and not peer.left:
                self._gone(peer, "is gone")
            return
        peer.heard = time.monotonic()
        for message in messages:
            if peer in self._peers:
                self._understand(peer, message)

    def _understand(self, peer: _Peer, message: dict[str, Any]) -> None:
        if peer.process is None:
            if not isinstance(message, dict) or message.get("token") != self._token:
                self._drop(peer)
                return
            peer.process = message["hello"]
            known = [other for other in self._peers if other.process is not None]
            if len(known) == self._num_processes - 1:
                self._complete.set()
                self._send_all({"welcome": True})
        elif "welcome" in message:
            self._complete.set()
        elif "left" in message:
            peer.left = True
        elif "end" in message:
            self._end(message["end"], message["code"])

    def _gone(self, peer: _Peer, what: str) -> None:
        self._end(f"process {peer.process} of {self._num_processes} {what}", errors.EXIT_RESTART)

    def _end(self, text: str, code: int) -> None:
        if self.fail(text, code):
            self.linger()
            self._on_end(text, code)

    def _send_all(self, message: dict[str, Any]) -> None:
        for peer in list(self._peers):
            if peer.process is not None:
                self._send(peer, message)

    def _send(self, peer: _Peer, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                peer.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # what broke it is found by the next read
