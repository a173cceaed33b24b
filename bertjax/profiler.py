"""Traces chosen steps with `jax.profiler`, for TensorBoard's profile plugin or xprof.

    with profiler.StepTrace(profiler.parse("100:102", num_steps), "run/profile") as trace:
        with trace.step(100):
            state, report = train_step(state, batch)
        trace.end(100, report)

Process 0 writes the trace, which covers only the devices of its own host. The devices of the other
hosts do the same work.
"""

import contextlib
import os
import pathlib
import re
import tempfile

import jax
from etils import epath

from bertjax import errors

NAME = "train_step"  # name of each step in a trace, shown with the step's number
FOLDER = "profile"  # subfolder of a workdir


def parse(text: str, num_steps: int) -> range:
    """Returns the steps from FIRST to LAST, both included, of a text "FIRST:LAST".

    Steps are numbered from 1, as in the log. Raises UserError unless
    1 <= FIRST <= LAST <= `num_steps`.
    """
    match = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1 <= first <= last <= num_steps:
        raise errors.UserError(
            f"--profile={text}: give FIRST:LAST, the first and the last step to trace, with "
            f"1 <= FIRST <= LAST <= config.num_steps = {num_steps}"
        )
    return range(first, last + 1)


class StepTrace:
    """Writes a trace of some steps to a folder; does nothing in processes other than 0."""

    def __init__(self, steps: range, folder: str | os.PathLike):
        self._steps = steps if jax.process_index() == 0 else range(0)
        self._folder = epath.Path(folder)
        self._local_folder: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> "StepTrace":
        return self

    def __exit__(self, *_: object) -> None:
        self._write()  # in case the run ends before the last step to trace

    def step(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager for all work of a step, from loading its batch to logging."""
        if number not in self._steps:
            return contextlib.nullcontext()
        if self._local_folder is None:
            # jax cannot write to gs://, so `_write` copies the trace.
            self._local_folder = tempfile.TemporaryDirectory()
            jax.profiler.start_trace(self._local_folder.name)
        return jax.profiler.StepTraceAnnotation(NAME, step_num=number)

    def end(self, number: int, report: object) -> None:
        """After the last step to trace, waits for its `report` and writes the trace."""
        if self._steps and number == self._steps[-1]:
            jax.block_until_ready(report)
            self._write()

    def _write(self) -> None:
        if self._local_folder is None:
            return
        jax.profiler.stop_trace()
        for path in pathlib.Path(self._local_folder.name).rglob("*"):
            if path.is_file():
                copy = self._folder / path.relative_to(self._local_folder.name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        self._local_folder.cleanup()
        self._local_folder, self._steps = None, range(0)
        errors.tell(f"the trace is in {self._folder}: tensorboard --logdir={self._folder}")
