"""SIGTERM as an exception."""

import os
import signal
import sys
import time

import pytest

from bertjax import errors
from bertjax.runtime import signals


class Finalized:
    """Sends SIGTERM to this process when it is deleted: Python discards what that raises."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))


def _wait():
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("send", [Finalized, lambda: os.kill(os.getpid(), signal.SIGTERM)])
def test_sigterm_ends_the_block_wherever_it_arrives(send):
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
    with pytest.raises(errors.Preempted, match="all is kept; run the same command again"):
        with signals.sigterm_raises("all is kept"):
            send()
            _wait()
    assert sys.unraisablehook is hook and signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_what_else_is_discarded_is_reported(monkeypatch):
    class Broken:
        def __del__(self):
            raise ValueError("of mine")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda discarded: seen.append(discarded.exc_value))
    with signals.sigterm_raises("all is kept"):
        Broken()
    assert [str(error) for error in seen] == ["of mine"]
