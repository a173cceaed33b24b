"""Logs the steps of a run without making the device wait."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from bertjax import metrics, run_log, trackers
from bertjax.runtime import dispatch

UNLOGGED = "unlogged"  # key in a checkpoint's meta: sums over the steps since the last log line


def prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Returns {"PREFIX/NAME": value}."""
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


class StepLog:
    """Logs the steps without making the device wait: reads a step's metrics while the next runs.

    The logged losses are means over the steps since the last line: the sum of sums divided by the
    sum of weights, without skipped steps. A checkpoint that is saved between two lines contains the
    sums so far, so that a run that is killed and restarted writes the same lines.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        start: int,
        num_steps: int,
        scales: Mapping[str, float],
        *,
        log_every: int,
        tracking: trackers.Tracking = trackers.NO_TRACKING,
        unlogged: Mapping[str, Sequence[float]] = MappingProxyType({}),
        max_bad_steps: int = 0,
        diverged: Callable[[int, int], None] = lambda step, in_row: None,
        on_loss: Callable[[float], None] = lambda loss: None,
        more: Callable[[int], Mapping[str, float]] = lambda step: {},
    ):
        """Opens the logs of a run that starts or resumes at step `start`.

        scales: {loss term: factor} in the sum that is minimised. unlogged: the sums stored in the
        checkpoint from which the run resumes (key UNLOGGED). diverged: called with (step, number of
        non-finite steps in a row) once that number reaches `max_bad_steps`; never called if
        `max_bad_steps` is 0. on_loss: called with the loss of each finite step. more: returns
        further metrics of a step to log.
        """
        self._writers = run_log.Writers(
            workdir, start_step=start, num_steps=num_steps, tracking=tracking
        )
        self._num_steps, self._scales, self._log_every = num_steps, scales, log_every
        self._max_bad_steps, self._diverged, self._on_loss = max_bad_steps, diverged, on_loss
        self._more = more
        self._sums: metrics.Terms = dict(unlogged)
        self._pending: tuple[int, dict[str, jax.Array]] | None = None
        self._synchronous = dispatch.one_at_a_time()
        self._restart_clock()

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._writers.close()

    def step(
        self,
        number: int,
        report: dict[str, jax.Array],
        tokens: int,
        flops: float = 0,
        *,
        timed: bool = True,
    ) -> None:
        """Logs the previous step. Call it when step `number` has been dispatched.

        On a CPU, which runs one step at a time, logs step `number` itself. tokens, flops: the
        step's tokens and model FLOPs, from which the speed is computed. timed: False if the step
        had to be compiled; the speed then leaves out all time and tokens until now.
        """
        if not self._synchronous:
            self._log_pending()
        self._pending = number, report
        self._tokens += tokens
        self._flops += flops
        if not timed:
            jax.block_until_ready(report["loss"])
            self._restart_clock()
        if self._synchronous:
            self._log_pending()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Logs the last dispatched step; stops the clock during the block, which does not train."""
        self._log_pending()
        self._writers.flush()
        self._seconds += time.perf_counter() - self._clock_start
        yield
        self._clock_start = time.perf_counter()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time of the block as waiting for data: its share is the metric data_wait."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    def note(self, text: str) -> None:
        """Shows on the terminal what is done between two steps, such as "evaluating"."""
        self._writers.note(text)

    def unlogged(self) -> dict[str, list[float]]:
        """Returns sums and weights of the steps since the last line, for a checkpoint's meta."""
        return {name: list(term) for name, term in self._sums.items()}

    def heldout(self, step: int, values: Mapping[str, float], name: str = "eval") -> None:
        """Writes held-out metrics as "NAME/METRIC"."""
        self._writers.write(step, prefixed(name, values))
        self._writers.flush()

    def _log_pending(self) -> None:
        if self._pending is None:
            return
        (number, report), self._pending = self._pending, None
        data = jax.device_get({name: report[name] for name in ("skipped_in_row", "terms", "loss")})
        in_row = int(data["skipped_in_row"])
        if not in_row:
            self._sums = metrics.add(self._sums or None, jax.tree.map(float, data["terms"]))
            self._on_loss(float(data["loss"]))
        if number % self._log_every == 0 or number == self._num_steps:
            self._write(number, report)
        else:
            self._writers.advance(number)
        if 0 < self._max_bad_steps <= in_row:
            self._diverged(number, in_row)

    def _write(self, number: int, report: dict[str, jax.Array]) -> None:
        names = ("learning_rate", "grad_norm", "skipped")
        other_metrics = {name: float(jax.device_get(report[name])) for name in names}
        values = metrics.means(self._sums)
        loss = metrics.total_loss(values, self._scales) if values else math.nan
        # The last step is logged even in the middle of a period. The period's sums are then kept.
        if number % self._log_every == 0:
            self._sums = {}
        seconds = self._seconds + time.perf_counter() - self._clock_start
        line = prefixed("train", {"loss": loss, **values}) | other_metrics | self._more(number)
        if self._tokens:
            line["tokens_per_second"] = self._tokens / seconds
            line["data_wait"] = self._waited / seconds
            mfu = metrics.mfu(self._flops / seconds) if self._flops else None
            if mfu is not None:
                line["mfu"] = mfu
        self._writers.write(number, line)
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._seconds = self._waited = self._tokens = self._flops = 0.0
        self._clock_start = time.perf_counter()
