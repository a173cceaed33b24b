"""Detects dead processes: every process of a job keeps a socket open to process 0.

The kernel closes a process's sockets when the process ends for any reason, so a closed socket means
a dead process. If a whole host fails, its sockets are not closed, but it stops sending frames,
which is detected by a timeout. Without the lifeline, a collective waits for a dead process until
the coordination service has missed its heartbeats, and then C++ aborts without naming the process
that died.

The protocol is binary, and every message has a bounded size. Process 0 sends a random challenge on
every new connection. The other side replies with its process number and an HMAC of challenge and
number, whose key is the job's token, so that a recorded reply cannot be reused. The reply must
arrive within `_HANDSHAKE_SECONDS`, and at most `_HELLO.size` bytes are read from a connection until
its reply is verified. At most `_MAX_PENDING` connections may be unverified at a time. After the
reply both sides send frames: a header (kind, exit code, length of the text) and a text of at most
`_MAX_TEXT` bytes. When all processes have connected, process 0 stops listening.
"""

import contextlib
import dataclasses
import errno
import hmac
import ipaddress
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from bertjax import errors

_MAX_BEAT_SECONDS = 1.0  # seconds between two beats
_POLL_SECONDS = 0.1  # seconds to wait for events before `close` is checked
_LINGER_SECONDS = 2.0  # seconds that process 0 waits while the others read why the job ends
_HANDSHAKE_SECONDS = 10.0
_MAX_PENDING = 64  # connections without a reply to the challenge; a newer one evicts the oldest

_CHALLENGE_BYTES = 32
_HELLO = struct.Struct(">I32s")  # process number, HMAC
_ACCEPTED = b"\x01"
_FRAME = struct.Struct(">BBH")  # kind, exit code, bytes of text
_BEAT, _WELCOME, _LEFT, _END = range(4)  # WELCOME: all processes have connected
_MAX_TEXT = 4096


def listen(host: str, port: int) -> list[socket.socket]:
    """Returns servers that listen at the addresses of this machine that `host` resolves to.

    All servers have the same port; for port 0 a free port is chosen. Listens at every address of
    the machine if `host` does not resolve to an address of it that other machines can reach: `host`
    may be the address of a router in between, or this machine's /etc/hosts may map it to a loopback
    address. Raises OSError if the port is taken.
    """
    for attempt in range(8):
        servers: list[socket.socket] = []
        try:
            for address in _addresses(host):
                server_port = servers[0].getsockname()[1] if servers else port
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                try:
                    servers.append(socket.create_server((address, server_port), family=family))
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
            return servers or [_listen_everywhere(port)]
        except OSError as error:
            for server in servers:
                server.close()
            # A port that was free at the first address may be taken at the second.
            if port or error.errno != errno.EADDRINUSE or attempt == 7:
                raise
    raise AssertionError("unreachable")


def _listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _addresses(host: str) -> list[str]:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: a part of the name is empty or too long
        return []
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    loopback = [ip for ip in addresses if ipaddress.ip_address(ip.split("%")[0]).is_loopback]
    return [] if loopback and host not in ("localhost", *loopback) else addresses


def _signature(token: str, challenge: bytes, process: int) -> bytes:
    return hmac.digest(token.encode(), challenge + struct.pack(">I", process), "sha256")


def _frame(kind: int, code: int = 0, text: str = "") -> bytes:
    data = text.encode(errors="replace")[:_MAX_TEXT]
    return _FRAME.pack(kind, code, len(data)) + data


def _receive(connection: socket.socket, count: int) -> bytes:
    """Returns exactly `count` bytes. Raises OSError if the connection closes earlier."""
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        data += chunk
    return data


@dataclasses.dataclass(eq=False)
class _Peer:
    """A connection. process: None until the reply to the challenge is verified."""

    socket: socket.socket
    process: int | None
    challenge: bytes = b""
    # The time of the last frame, or of the connection before the first frame.
    last_frame: float = dataclasses.field(default_factory=time.monotonic)
    has_left: bool = False
    buffer: bytes = b""

    def frames(self) -> Iterator[tuple[int, int, str]]:
        """Removes complete frames from `buffer` and yields (kind, exit code, text) of each.

        Raises ValueError if a frame is invalid.
        """
        while len(self.buffer) >= _FRAME.size:
            kind, code, length = _FRAME.unpack_from(self.buffer)
            if kind > _END or length > _MAX_TEXT:
                raise ValueError(f"no frame: {self.buffer[: _FRAME.size]!r}")
            end = _FRAME.size + length
            if len(self.buffer) < end:
                return
            text, self.buffer = self.buffer[_FRAME.size : end], self.buffer[end:]
            yield kind, code, text.decode(errors="replace")


class Lifeline:
    """The lifeline of one process.

    Process 0 calls `listen`, the others call `connect`; then all call `wait_for_all`.

    heartbeat_timeout: seconds without a frame after which a process is treated as dead. on_end:
    called with (text, exit code) when this process must exit: another process has died or has ended
    the job, or its own lifeline failed. It is called at most once, in the lifeline's thread.
    """

    def __init__(
        self,
        process: int,
        num_processes: int,
        *,
        heartbeat_timeout: float,
        on_end: Callable[[str, int], None],
    ):
        self._process, self._num_processes = process, num_processes
        self._heartbeat_timeout, self._on_end = heartbeat_timeout, on_end
        self._beat_seconds = min(_MAX_BEAT_SECONDS, heartbeat_timeout / 4)
        self._selector = selectors.DefaultSelector()
        self._peers: list[_Peer] = []
        self._servers: list[socket.socket] = []
        self._token = ""
        self._send_lock, self._end_lock = threading.Lock(), threading.Lock()
        self._complete, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="lifeline", daemon=True)
        self.ended = threading.Event()  # set when this process or another one ends the job

    def listen(self, host: str) -> str:
        """Starts to listen at `host`. Returns "PORT TOKEN", the `address` for `connect`."""
        self._token = secrets.token_hex(32)
        self._servers = listen(host, 0)
        port = self._servers[0].getsockname()[1]
        for server in self._servers:
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ)
        self._thread.start()
        return f"{port} {self._token}"

    def connect(self, host: str, address: str, timeout: float) -> None:
        """Connects to process 0 on `host`; repeats a failed handshake for `timeout` seconds.

        Raises OSError if the connection is refused, or if no handshake has succeeded by then.
        """
        port, token = address.split()
        deadline = time.monotonic() + timeout
        while True:
            remaining = max(0.1, deadline - time.monotonic())
            connection = socket.create_connection((host, int(port)), timeout=remaining)
            try:
                connection.settimeout(min(remaining, _HANDSHAKE_SECONDS))
                challenge = _receive(connection, _CHALLENGE_BYTES)
                signature = _signature(token, challenge, self._process)
                connection.sendall(_HELLO.pack(self._process, signature))
                _receive(connection, len(_ACCEPTED))
                break
            except OSError:  # evicted by many other connections; the next attempt may succeed
                connection.close()
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
        self._add(connection, process=0)
        self._thread.start()

    def wait_for_all(self, timeout: float) -> None:
        """Waits until every process has connected. Raises UserError after `timeout` seconds."""
        if self._num_processes > 1 and not self._complete.wait(timeout):
            raise errors.UserError(
                f"not all of the {self._num_processes} processes connected within {timeout:.0f} s: "
                "see the messages of the other processes"
            )

    def fail(self, text: str, code: int) -> bool:
        """Ends the job: the other processes exit with message `text` and exit code `code`.

        Returns False, and does nothing, if the job has ended already.
        """
        with self._end_lock:
            if self.ended.is_set():
                return False
            self.ended.set()
        self._send_all(_frame(_END, code, text))
        return True

    def leave(self) -> None:
        """Announces a normal exit, so that the closed socket is not treated as a failure."""
        self._send_all(_frame(_LEFT))

    def linger(self) -> None:
        """On process 0, waits at most `_LINGER_SECONDS` seconds until the others have disconnected.

        This gives them time to read why the job has ended.
        """
        deadline = time.monotonic() + _LINGER_SECONDS
        while self._process == 0 and self._peers and time.monotonic() < deadline:
            if threading.current_thread() is self._thread:
                self._read_ready()
            else:
                time.sleep(0.01)

    def close(self) -> None:
        """Stops the thread and closes all sockets."""
        self._closing.set()
        self._thread.join()
        for peer in list(self._peers):
            self._drop(peer)
        self._stop_listening()
        self._selector.close()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # otherwise dead processes would not be detected any more
            text = f"{type(error).__name__}: {error}"
            self._end(
                f"process {self._process} of {self._num_processes} stopped: "
                f"its lifeline failed: {text}",
                errors.EXIT_RESTART,
            )

    def _watch(self) -> None:
        last_beat = time.monotonic()
        while not self._closing.is_set():
            self._read_ready()
            now = time.monotonic()
            if now - last_beat >= self._beat_seconds:
                last_beat = now
                self._send_all(_frame(_BEAT))
            for peer in list(self._peers):
                if peer.process is None:
                    if now - peer.last_frame > _HANDSHAKE_SECONDS:
                        self._drop(peer)
                elif now - peer.last_frame > self._heartbeat_timeout and not peer.has_left:
                    self._on_death(peer, f"has not responded for {self._heartbeat_timeout:.0f} s")

    def _read_ready(self) -> None:
        for key, _ in self._selector.select(timeout=_POLL_SECONDS):
            if key.data is None:
                self._accept(key.fileobj)
            elif key.data not in self._peers:
                continue  # dropped while handling an earlier event of this round
            elif key.data.process is None:
                self._read_hello(key.data)
            else:
                self._read_frames(key.data)

    def _accept(self, server: socket.socket) -> None:
        pending = [peer for peer in self._peers if peer.process is None]
        if len(pending) >= _MAX_PENDING:
            self._drop(pending[0])
        try:
            peer = self._add(server.accept()[0], process=None)
        except OSError:  # already closed, or this process is out of file descriptors
            self._closing.wait(_POLL_SECONDS)
            return
        peer.challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        self._send(peer, peer.challenge)

    def _add(self, connection: socket.socket, process: int | None) -> _Peer:
        try:
            connection.settimeout(self._heartbeat_timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            connection.close()
            raise
        peer = _Peer(connection, process)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        return peer

    def _drop(self, peer: _Peer) -> None:
        self._peers.remove(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _stop_listening(self) -> None:
        for server in self._servers:
            self._selector.unregister(server)
            server.close()
        self._servers = []

    def _read_hello(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_HELLO.size - len(peer.buffer))
        except OSError:
            data = b""
        peer.buffer += data
        if data and len(peer.buffer) < _HELLO.size:
            return
        process = self._authenticate(peer) if data else None
        if process is None:
            self._drop(peer)
            return
        self._send(peer, _ACCEPTED)  # NOTE: first, since frames are sent once `process` is set
        peer.process, peer.buffer, peer.last_frame = process, b"", time.monotonic()
        if len([other for other in self._peers if other.process is not None]) == self._num_others():
            self._stop_listening()
            for other in list(self._peers):
                if other.process is None:
                    self._drop(other)
            self._complete.set()
            self._send_all(_frame(_WELCOME))

    def _authenticate(self, peer: _Peer) -> int | None:
        """Returns the process number in the peer's reply; None if the reply is invalid.

        It is invalid if the HMAC is wrong, the number is out of range, or the process has connected
        already.
        """
        process, signature = _HELLO.unpack(peer.buffer)
        if not hmac.compare_digest(signature, _signature(self._token, peer.challenge, process)):
            return None
        connected = [other.process for other in self._peers]
        return process if 0 < process <= self._num_others() and process not in connected else None

    def _num_others(self) -> int:
        return self._num_processes - 1

    def _read_frames(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
            peer.buffer += data
            frames = list(peer.frames())
        except (OSError, ValueError):  # a broken connection, or an invalid frame
            data, frames = b"", []
        if not data:
            self._drop(peer)
            if not peer.has_left:
                self._on_death(peer, "has died")
            return
        peer.last_frame = time.monotonic()
        for kind, code, text in frames:
            if kind == _WELCOME:
                self._complete.set()
            elif kind == _LEFT:
                peer.has_left = True
            elif kind == _END:
                self._end(text, code)

    def _on_death(self, peer: _Peer, reason: str) -> None:
        self._end(f"process {peer.process} of {self._num_processes} {reason}", errors.EXIT_RESTART)

    def _end(self, text: str, code: int) -> None:
        if self.fail(text, code):
            with contextlib.suppress(Exception):  # an error here must not prevent the exit
                self.linger()
            self._on_end(text, code)

    def _send_all(self, data: bytes) -> None:
        for peer in list(self._peers):
            if peer.process is not None:
                self._send(peer, data)

    def _send(self, peer: _Peer, data: bytes) -> None:
        try:
            with self._send_lock:
                peer.socket.sendall(data)
        except OSError:
            pass  # the next read detects the broken connection
