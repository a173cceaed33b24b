"""Converts SIGTERM (preemption) and Ctrl-C to a flag that the train loop checks at every step.

Example:
    with signals.StopSignals() as stop:
        for step in ...:
            ...
            if stop.reached(step):
                checkpoints.save(step, ...)
                checkpoints.wait()
                raise errors.Preempted(f"stopped by {stop.requested}")
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

from bertjax import errors

_SECONDS_TO_REPEAT = 0.01


@contextlib.contextmanager
def sigterm_raises(what_is_kept: str) -> Iterator[None]:
    """Makes SIGTERM raise `errors.Preempted` in the block, as Ctrl-C raises KeyboardInterrupt.

    Use it for work that can be stopped at any moment without leaving unusable files. Does nothing
    outside the main thread. what_is_kept: the part of the error message that says what is
    kept, such as "finished runs are kept".

    NOTE: Python discards an exception that is raised inside a finalizer or a callback of the
    garbage collector, and JAX has such a callback. In this case the exception is raised again by a
    timer.
    """

    def stop(*_: object) -> None:
        raise errors.Preempted(f"stopped on request: {what_is_kept}; run the same command again")

    def repeat(discarded: Any) -> None:
        if isinstance(discarded.exc_value, errors.Preempted):
            signal.setitimer(signal.ITIMER_REAL, _SECONDS_TO_REPEAT)
        else:
            old_hook(discarded)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old_hook, sys.unraisablehook = sys.unraisablehook, repeat
    handlers = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = old_hook


class StopSignals:
    """Context manager that treats SIGTERM and the first Ctrl-C as a request to stop.

    A Ctrl-C after such a request raises KeyboardInterrupt. If jax.distributed is initialized, JAX
    itself catches SIGTERM and selects the step at which all processes stop, and the first Ctrl-C is
    converted to SIGTERM. Outside the main thread no handlers are installed, because Python does not
    allow it there.

    requested: the first signal, "SIGTERM" or "SIGINT"; None if there is none. In a job of several
    processes it is "SIGTERM" also if only other processes have received a signal.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._old_handlers: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT]
            if not jax.distributed.is_initialized():  # otherwise this would replace JAX's handler
                numbers.append(signal.SIGTERM)
            self._old_handlers = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers = {}

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested is not None:
            raise KeyboardInterrupt
        if self.requested is None:
            self.requested = signal.Signals(number).name
            if jax.distributed.is_initialized():
                os.kill(os.getpid(), signal.SIGTERM)

    def reached(self, step: int) -> bool:
        """Returns whether to save and stop after `step`.

        Every process must call this at every step. In a job of several processes, all of them get
        True at the same step, which may be later than the signal.
        """
        if jax.distributed.is_initialized():
            stop = multihost_utils.reached_preemption_sync_point(step)
            if stop and self.requested is None:
                self.requested = "SIGTERM"
            return stop
        return self.requested is not None
