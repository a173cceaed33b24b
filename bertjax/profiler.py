"""Traces of chosen steps by `jax.profiler`, for TensorBoard's profile plugin or xprof.

    with profiler.StepTrace(profiler.parse("100:102", num_steps), "run/profile") as trace:
        with trace.step(100):
            state, report = train_step(state, batch)
        trace.end(100, report)

Process 0 writes the trace. It sees the devices of its own host only; all others do the same work.
"""

import contextlib
import os
import pathlib
import re
import tempfile

import jax
from etils import epath

from bertjax import errors

NAME = "train_step"  # of the steps in a trace, each with its number
FOLDER = "profile"  # of a workdir


def parse(text: str, num_steps: int) -> range:
    """Returns the steps of "FIRST:LAST", both of them included, as the log numbers them.

    Raises UserError if they are not steps of 1 to `num_steps`.
    """
    found = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1 <= first <= last <= num_steps:
        raise errors.UserError(
            f"--profile={text}: give FIRST:LAST, the first and the last step to trace, with "
            f"1 <= FIRST <= LAST <= config.num_steps = {num_steps}"
        )
    return range(first, last + 1)


class StepTrace:
    """Writes a trace of some steps into a folder; does nothing on other processes than 0."""

    def __init__(self, steps: range, folder: str | os.PathLike):
        self._steps = steps if jax.process_index() == 0 else range(0)
        self._folder = epath.Path(folder)
        self._local: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> "StepTrace":
        return self

    def __exit__(self, *_: object) -> None:
        self._write()  # the run ends before the last of the steps

    def step(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager around all work for a step: its batch, the step, its log."""
        if number not in self._steps:
            return contextlib.nullcontext()
        if self._local is None:
            # jax cannot write to gs://.
            self._local = tempfile.TemporaryDirectory()
            jax.profiler.start_trace(self._local.name)
        return jax.profiler.StepTraceAnnotation(NAME, step_num=number)

    def end(self, number: int, report: object) -> None:
        """After the last of the steps, waits for its `report` and writes the trace."""
        if self._steps and number == self._steps[-1]:
            jax.block_until_ready(report)
            self._write()

    def _write(self) -> None:
        if self._local is None:
            return
        jax.profiler.stop_trace()
        for path in pathlib.Path(self._local.name).rglob("*"):
            if path.is_file():
                copy = self._folder / path.relative_to(self._local.name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        self._local.cleanup()
        self._local, self._steps = None, range(0)
        errors.tell(f"the trace is in {self._folder}: tensorboard --logdir={self._folder}")
