"""The lifeline ends all processes when one dies, and no stranger can disturb it."""

import contextlib
import os
import resource
import socket
import struct
import threading

import pytest

from bertjax import errors
from bertjax.runtime import lifeline

SECONDS = 30  # nothing takes so long


class Job:
    """The lifelines of several processes, all in this one; `ends` has what each was told."""

    def __init__(self, count, silence=SECONDS, attack=lambda port: None):
        self.ends = {process: None for process in range(count)}
        self._told = threading.Condition()
        self.lines = [
            lifeline.Lifeline(
                p, count, heartbeat_timeout=silence, on_end=lambda *end, p=p: self._tell(p, end)
            )
            for p in range(count)
        ]
        self.address = self.lines[0].listen("127.0.0.1")
        attack(int(self.address.split()[0]))
        for line in self.lines[1:]:
            line.connect("127.0.0.1", self.address, SECONDS)
        for line in self.lines:
            line.wait_for_all(SECONDS)

    def _tell(self, process, end):
        with self._told:
            self.ends[process] = end
            self._told.notify_all()

    def wait_for_ends(self, *processes):
        with self._told:
            assert self._told.wait_for(lambda: all(self.ends[p] for p in processes), SECONDS)

    def check_alive(self):
        """The members still hear each other, and nobody has ended the job."""
        assert not any(self.ends.values())
        self.lines[1].fail("still heard", 1)
        self.wait_for_ends(0)
        assert self.ends[0] == ("still heard", 1)

    def close(self):
        for line in self.lines:
            line.close()


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(lifeline, "_LINGER_SECONDS", 0.1)  # nobody closes the socket when told
    with contextlib.ExitStack() as stack:

        def start(*args, **kwargs):
            made = Job(*args, **kwargs)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture
def waiting(monkeypatch):
    """Process 0's lifeline, which waits for process 1; `told` is set when the job ends."""
    told, ends = threading.Event(), []
    line = lifeline.Lifeline(
        0, 2, heartbeat_timeout=SECONDS, on_end=lambda *end: (ends.append(end), told.set())
    )
    line.told, line.ends = told, ends
    line.address = line.listen("127.0.0.1")
    line.port = int(line.address.split()[0])
    yield line
    line.close()


@contextlib.contextmanager
def stranger(port):
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as line:
        yield line, lifeline._receive(line, lifeline._CHALLENGE_BYTES)


def hello(challenge, token, process=1):
    return lifeline._HELLO.pack(process, lifeline._signature(token, challenge, process))


def is_dropped(line):
    with contextlib.suppress(ConnectionResetError):
        return line.recv(100) == b""
    return True


def wait_until(condition):
    for _ in range(SECONDS * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("never came true")


@pytest.mark.parametrize("dead", [0, 2])
def test_a_dead_process_ends_all_others_with_a_restart(job, dead):
    made = job(4)
    others = [process for process in range(4) if process != dead]
    made.lines[dead].close()  # what the kernel does
    made.wait_for_ends(*others)
    expected = (f"process {dead} of 4 has died", errors.EXIT_RESTART)
    assert [made.ends[process] for process in others] == [expected] * 3


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_process_is_told_to_all_others_once(job, failing):
    made = job(3)
    assert made.lines[failing].fail("disk full", errors.EXIT_BAD_INPUT)
    others = [process for process in range(3) if process != failing]
    made.wait_for_ends(*others)
    assert [made.ends[p] for p in others] == [("disk full", errors.EXIT_BAD_INPUT)] * 2
    assert made.ends[failing] is None, "it says so itself"
    assert not made.lines[others[0]].fail("what follows from it", 1)


def test_a_long_text_is_truncated(job):
    made = job(2)
    made.lines[1].fail("\ud800" + "x" * 100_000, 1)
    made.wait_for_ends(0)
    assert made.ends[0] == ("?" + "x" * (lifeline._MAX_TEXT - 1), 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_normal_exit_is_no_failure(job, first):
    made = job(3)
    made.lines[first].leave()
    for process in range(3):
        made.lines[process].leave()
    made.lines[first].close()
    made.close()
    assert made.ends == {0: None, 1: None, 2: None}


def test_a_silent_process_is_gone(waiting):
    waiting._heartbeat_timeout = 0.2
    with stranger(waiting.port) as (mute, challenge):
        mute.sendall(hello(challenge, waiting._token))
        waiting.wait_for_all(SECONDS)
        assert waiting.told.wait(SECONDS)
    assert waiting.ends == [("process 1 of 2 has not responded for 0 s", errors.EXIT_RESTART)]


def test_beats_keep_a_quiet_job_alive(job):
    silence = 2.0  # seconds; a machine that is shared may stop for most of one
    made = job(2, silence=silence)
    heard = made.lines[0]._peers[0].last_frame
    for _ in range(200):
        if made.lines[0]._peers[0].last_frame - heard > 1.2 * silence:
            break
        threading.Event().wait(0.05)
    assert made.ends == {0: None, 1: None}


def test_a_process_that_never_comes_is_an_error_in_time(waiting):
    with pytest.raises(errors.UserError, match=r"not all of the 2 processes connected within 0 s"):
        waiting.wait_for_all(0.01)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_thread_that_fails_ends_all_processes_with_its_reason(job, failing, monkeypatch):
    made = job(3)

    def broken():
        raise ZeroDivisionError("of mine")

    monkeypatch.setattr(made.lines[failing], "_read_ready", broken)
    made.wait_for_ends(0, 1, 2)
    text = f"process {failing} of 3 stopped: its lifeline failed: ZeroDivisionError: of mine"
    assert set(made.ends.values()) == {(text, errors.EXIT_RESTART)}


# Attacks. Before the job is complete anybody may connect; afterwards nobody can.


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"hello": 1, "token": "guess"}\n',
        b"[" * 100_000 + b"\n",  # JSON of so many levels is a RecursionError
        b"x" * 10_000_000,  # a line without an end
        bytes(lifeline._HELLO.size),
        lifeline._HELLO.pack(2**32 - 1, b"y" * 32),
    ],
    ids=["nothing", "http", "json", "nested json", "endless line", "zeros", "a wrong token"],
)
def test_a_stranger_is_dropped_and_the_job_starts(job, words):
    def attack(port):
        with stranger(port) as (line, _):
            with contextlib.suppress(OSError):  # dropped before it has sent all
                line.sendall(words)
                line.shutdown(socket.SHUT_WR)
            assert is_dropped(line)

    job(2, attack=attack).check_alive()


def test_half_a_hello_and_then_the_end_is_dropped(job):
    def attack(port):
        with stranger(port) as (line, _):
            line.sendall(bytes(lifeline._HELLO.size - 1))

    job(2, attack=attack).check_alive()


def test_a_recorded_hello_is_worthless(waiting):
    with stranger(waiting.port) as (_, recorded), stranger(waiting.port) as (second, _):
        second.sendall(hello(recorded, waiting._token))
        assert is_dropped(second)
        assert not waiting._complete.is_set()


@pytest.mark.parametrize("process", [0, 2, 2**32 - 1])
def test_a_process_that_the_job_does_not_have_is_dropped(waiting, process):
    with stranger(waiting.port) as (line, challenge):
        line.sendall(hello(challenge, waiting._token, process))
        assert is_dropped(line)


def test_a_process_number_is_taken_once():
    line = lifeline.Lifeline(0, 3, heartbeat_timeout=SECONDS, on_end=lambda *end: None)
    port = int(line.listen("127.0.0.1").split()[0])
    with stranger(port) as (first, one), stranger(port) as (second, other):
        first.sendall(hello(one, line._token))
        assert lifeline._receive(first, 1) == lifeline._ACCEPTED
        second.sendall(hello(other, line._token))
        assert is_dropped(second)
    line.close()


def test_hundreds_of_silent_connections_use_few_files(job):
    opened = []

    def attack(port):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
        wait_until(lambda: len(os.listdir("/proc/self/fd")) - before >= 300)
        assert len(os.listdir("/proc/self/fd")) - before <= 300 + 2 * lifeline._MAX_PENDING

    job(2, attack=attack).check_alive()
    for line in opened:
        line.close()


def test_a_slow_stranger_has_a_deadline(waiting, monkeypatch):
    monkeypatch.setattr(lifeline, "_HANDSHAKE_SECONDS", 0.3)
    with stranger(waiting.port) as (line, _):
        with contextlib.suppress(OSError):
            for _ in range(lifeline._HELLO.size - 1):  # each byte would renew a naive deadline
                line.sendall(b"\0")
                threading.Event().wait(0.05)
        assert is_dropped(line)


def test_without_file_descriptors_the_thread_lives(waiting):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as line:
        lowest = os.dup(line.fileno())  # all below are in use
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            line.connect(("127.0.0.1", waiting.port))
            line.settimeout(0.3)
            with pytest.raises(TimeoutError):  # it waits in the kernel's queue
                line.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        line.settimeout(SECONDS)
        challenge = lifeline._receive(line, lifeline._CHALLENGE_BYTES)
        line.sendall(hello(challenge, waiting._token))
        waiting.wait_for_all(SECONDS)


def test_a_complete_job_listens_no_more(job):
    made = job(2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(made.address.split()[0])), timeout=SECONDS)
    made.check_alive()


@pytest.mark.parametrize(
    "words",
    [b"\xff" * 100, struct.pack(">BBH", lifeline._END, 1, 2**16 - 1) + b"x" * 9000],
    ids=["no frame", "a text too long"],
)
def test_a_member_that_sends_garbage_is_gone(waiting, words):
    with stranger(waiting.port) as (line, challenge):
        line.sendall(hello(challenge, waiting._token))
        waiting.wait_for_all(SECONDS)
        line.sendall(words)
        assert waiting.told.wait(SECONDS)
    assert waiting.ends == [("process 1 of 2 has died", errors.EXIT_RESTART)]


def test_a_member_that_dies_in_the_middle_of_a_frame_is_gone(waiting):
    with stranger(waiting.port) as (line, challenge):
        half = lifeline._frame(lifeline._END, 2, "words")[:-1]
        line.sendall(hello(challenge, waiting._token) + half)
        waiting.wait_for_all(SECONDS)
    assert waiting.told.wait(SECONDS)
    assert waiting.ends == [("process 1 of 2 has died", errors.EXIT_RESTART)]


def test_a_member_comes_through_a_flood(job, monkeypatch):
    monkeypatch.setattr(lifeline, "_MAX_PENDING", 1)  # every stranger evicts whoever waits
    stop = threading.Event()

    def flood(port):
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                stop.wait(0.002)

    def attack(port):
        flooding = threading.Thread(target=flood, args=(port,))
        flooding.start()
        threads.append(flooding)

    threads = []
    try:
        made = job(3, attack=attack)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    made.check_alive()


def test_servers_bind_to_the_address_of_the_job(monkeypatch):
    def bound(host):
        servers = lifeline.listen(host, 0)
        assert len({server.getsockname()[1] for server in servers}) == 1, "the same port on each"
        addresses = {server.getsockname()[0] for server in servers}
        for server in servers:
            server.close()
        return addresses

    assert bound("127.0.0.1") == {"127.0.0.1"}
    assert "127.0.0.1" in bound("localhost") <= {"127.0.0.1", "::1"}
    everywhere = [{"::"}, {"0.0.0.0"}]
    assert bound("192.0.2.1") in everywhere, "an address of a router, not of this machine"

    def resolve(host, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(lifeline.socket, "getaddrinfo", resolve)
    assert bound("host0") in everywhere, "the others resolve the name in another way"
