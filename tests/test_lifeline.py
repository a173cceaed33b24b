"""The lifeline: who breaks it, or falls silent, ends the job of all, and each learns why."""

import contextlib
import json
import socket
import threading

import pytest

from bertjax import errors, lifeline

SECONDS = 30  # nothing takes so long


class Job:
    """The lifelines of several processes, all in this one; `ends` has what each was told."""

    def __init__(self, count, silence=SECONDS):
        self.ends = {process: None for process in range(count)}
        self._told = threading.Condition()
        self.lines = [
            lifeline.Lifeline(
                p, count, silence=silence, on_end=lambda *end, p=p: self._tell(p, end)
            )
            for p in range(count)
        ]
        self.address = self.lines[0].listen()
        for line in self.lines[1:]:
            line.connect("localhost", self.address, SECONDS)
        for line in self.lines:
            line.wait_for_all(SECONDS)

    def _tell(self, process, end):
        with self._told:
            self.ends[process] = end
            self._told.notify_all()

    def wait_for_ends(self, *processes):
        with self._told:
            assert self._told.wait_for(lambda: all(self.ends[p] for p in processes), SECONDS)

    def close(self):
        for line in self.lines:
            line.close()


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(lifeline, "_LINGER", 0.1)  # here nobody hangs up when it is told to
    with contextlib.ExitStack() as stack:

        def start(*args, **kwargs):
            made = Job(*args, **kwargs)
            stack.callback(made.close)
            return made

        yield start


@pytest.mark.parametrize("dead", [0, 2])
def test_a_dead_process_ends_all_others_with_a_restart(job, dead):
    made = job(4)
    others = [process for process in range(4) if process != dead]
    made.lines[dead].close()  # what the kernel does
    made.wait_for_ends(*others)
    expected = (f"process {dead} of 4 is gone", errors.EXIT_RESTART)
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


@pytest.mark.parametrize("first", [0, 1])
def test_who_leaves_in_peace_is_no_alarm(job, first):
    made = job(3)
    made.lines[first].leave()
    for process in range(3):
        made.lines[process].leave()
    made.lines[first].close()
    made.close()
    assert made.ends == {0: None, 1: None, 2: None}


def test_a_silent_process_is_gone():
    told = threading.Event()
    ends = []
    line = lifeline.Lifeline(0, 2, silence=0.2, on_end=lambda *end: (ends.append(end), told.set()))
    port, token = line.listen().split()
    with socket.create_connection(("localhost", int(port))) as mute:
        hello = {"hello": 1, "token": token}
        mute.sendall(json.dumps(hello).encode() + b"\n")
        line.wait_for_all(SECONDS)
        assert told.wait(SECONDS)
    line.close()
    assert ends == [("process 1 of 2 is gone: silent for 0 s", errors.EXIT_RESTART)]


def test_beats_keep_a_quiet_job_alive(job):
    made = job(2, silence=0.4)
    heard = made.lines[0]._peers[0].heard
    for _ in range(200):
        if made.lines[0]._peers[0].heard - heard > 1.0:
            break
        threading.Event().wait(0.05)
    assert made.ends == {0: None, 1: None}


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"3\n", b'{"hello": 1}\n', b""])
def test_a_stranger_is_shown_out_and_nothing_else_happens(job, words):
    made = job(2)
    port = int(made.address.split()[0])
    with socket.create_connection(("localhost", port), timeout=SECONDS) as stranger:
        stranger.sendall(words)
        if not words:
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    made.lines[1].fail("still heard", 1)
    made.wait_for_ends(0)
    assert made.ends[0] == ("still heard", 1)


def test_a_process_that_never_comes_is_an_error_in_time():
    line = lifeline.Lifeline(0, 2, silence=SECONDS, on_end=lambda *end: None)
    line.listen()
    with pytest.raises(errors.UserError, match=r"not all of the 2 processes came within 0 s"):
        line.wait_for_all(0.01)
    line.close()
