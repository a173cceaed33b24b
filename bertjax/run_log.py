"""Logs a run to a progress bar, `metrics.jsonl`, TensorBoard and trackers; reads metrics back.

A resumed run continues the logs: entries past the step from which it resumes are dropped, so that
no step appears twice.

Example:
    with run_log.Writers("run/", start_step=0, num_steps=1000) as writers:
        writers.write(50, {"train/loss": 9.1, "learning_rate": 1e-5, "tokens_per_second": 12_300})
    run_log.read_metrics("run/metrics.jsonl")  # [{"step": 50, "train/loss": 9.1, ...}]
"""

import contextlib
import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import jax
import tqdm
from etils import epath

from bertjax import errors, files, schema, trackers
from bertjax import workdir as workdir_lib

BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"


class Writers:
    """The progress bar, files and trackers of one workdir; writes only on process 0."""

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        start_step: int,
        num_steps: int,
        tracking: trackers.Tracking = trackers.NO_TRACKING,
    ):
        self._writers: list[ProgressBar | JsonlWriter | TensorBoardWriter | trackers.Writer] = []
        if jax.process_index() == 0:
            folder = epath.Path(workdir)
            self._writers = [
                JsonlWriter(folder / workdir_lib.METRICS, start_step=start_step),
                TensorBoardWriter(folder / workdir_lib.TENSORBOARD, start_step=start_step),
                ProgressBar(start_step=start_step, num_steps=num_steps),
                trackers.Writer(tracking, folder, start_step=start_step),
            ]

    def __enter__(self) -> "Writers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of `step`. Raises UserError if the files cannot be written."""
        for writer in self._writers:
            writer.write(step, metrics)

    def advance(self, step: int) -> None:
        """Moves the progress bar to `step`, which has no metrics."""
        for writer in self._writers:
            if isinstance(writer, ProgressBar):
                writer.advance(step)

    def note(self, text: str) -> None:
        """Shows on the terminal what is done between two steps, such as "evaluating"."""
        for writer in self._writers:
            if isinstance(writer, ProgressBar):
                writer.note(text)

    def flush(self) -> None:
        """Writes everything to disk. Call it before a save, or a resumed run may lack lines."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        with contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.callback(writer.close)


def print_resumed(workdir: str | os.PathLike, step: int, saved_at: float) -> None:
    """Prints, on process 0, the step from which a run resumes and how many steps it will repeat.

    NOTE: call it before `Writers`, which drops the lines past `step`. saved_at: time.time() of the
    save.
    """
    if jax.process_index() != 0:
        return
    path = epath.Path(workdir) / workdir_lib.METRICS
    logged = max((line["step"] for line in read_metrics(path)), default=0) if path.exists() else 0
    elapsed = tqdm.tqdm.format_interval(time.time() - saved_at)
    repeated = max(logged - step, 0)
    print(
        f"resuming from step {step:,} (saved {elapsed} ago); "
        f"{errors.count(repeated, 'step')} will be repeated",
        file=sys.stderr,
        flush=True,
    )


class JsonlWriter:
    """Writes one JSON object per line: {"step": 50, "train/loss": 9.1, ...}.

    A value that is not finite is written as null.
    """

    def __init__(self, path: str | os.PathLike, *, start_step: int):
        """Keeps the lines of `path` up to and including `start_step` and drops later ones."""
        path = epath.Path(path)
        content = b""
        if path.exists():
            lines = _lines(path)
            content = b"".join(raw + b"\n" for raw, line in lines if line["step"] <= start_step)
        self._file = _GrowingFile(path, content)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of `step`."""
        line = {"step": step} | {name: _rounded(value) for name, value in metrics.items()}
        self._file.append(json.dumps(line).encode() + b"\n")

    def flush(self) -> None:
        """Writes everything to disk."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()


class TensorBoardWriter:
    """Writes scalars for TensorBoard, without TensorFlow, to a new file at each start of the run.

    tensorboardX's SummaryWriter is not used. A second start in the same second would overwrite its
    file, and if a full disk has stopped its thread, it blocks for ever.
    """

    def __init__(self, folder: str | os.PathLike, *, start_step: int):
        """Opens a new file; makes TensorBoard drop entries of earlier files past `start_step`."""
        # Not at the top of the file: this imports PyTorch if it is installed, which takes a second.
        from tensorboardX import record_writer
        from tensorboardX.proto import event_pb2, summary_pb2

        self._checksum, self._event = record_writer.masked_crc32c, event_pb2.Event
        self._summary = summary_pb2.Summary
        folder = epath.Path(folder)
        name = f"events.out.tfevents.{time.time_ns() // 1000:016d}.{socket.gethostname()}"
        self._file = _GrowingFile(folder / name)
        self._append(file_version="brain.Event:2")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._append(step=start_step + 1, session_log=start)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of `step`."""
        for name, value in metrics.items():
            scalar = self._summary.Value(tag=name, simple_value=float(value))
            self._append(step=step, summary=self._summary(value=[scalar]))

    def flush(self) -> None:
        """Writes everything to disk."""
        self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()

    def _append(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields).SerializeToString()
        size = struct.pack("<Q", len(event))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (size, event)]
        self._file.append(size + checksums[0] + event + checksums[1])


class ProgressBar:
    """Shows step, percent, time left, loss, tokens/s and MFU, as a bar or as lines of a log.

    If 1% of the time or more is spent waiting for data, also shows this share.
    """

    def __init__(
        self,
        *,
        start_step: int,
        num_steps: int,
        file: TextIO | None = None,
        seconds_between_lines: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Shows the progress on `file`, by default stderr.

        If `file` is not a terminal, prints plain lines instead of a bar: at most one every
        `seconds_between_lines`, and one for the last step. clock: returns the time in seconds.
        """
        self._file = sys.stderr if file is None else file
        self._first_step, self._num_steps = start_step, num_steps
        self._seconds_between, self._clock = seconds_between_lines, clock
        self._start_time: float | None = None  # set after the first step, to exclude compilation
        self._last_line = -math.inf
        self._formatted: dict[str, str] = {}
        self._bar = None
        self._terminal = self._file.isatty()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows loss and speed of `step`; an evaluation gets a separate line.

        Other metrics, such as the scores of a fine-tuning, are not shown.
        """
        if "eval/loss" in metrics:
            self._write_evaluation(step, metrics)
            return
        formatted = _format_metrics(metrics)
        if not formatted:
            return
        self._formatted |= formatted
        self._begin(step)
        if self._bar is not None:
            self._bar.set_postfix_str(self._shown_metrics(), refresh=False)
            self.advance(step)
            self._bar.refresh()
            return
        now = self._clock()
        due = now - self._last_line >= self._seconds_between
        if due or step >= self._num_steps:
            self._last_line = now
            print(self._line(step, now), file=self._file, flush=True)

    def _write_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        text = f"held-out loss {metrics['eval/loss']:.3f}"
        if "eval/samples" in metrics:
            text += f" of {int(metrics['eval/samples']):,} samples"
        if "eval/ema/loss" in metrics:
            text += f", of the moving average {metrics['eval/ema/loss']:.3f}"
        if self._bar is not None:
            self._bar.clear()
        print(f"{self._position(step)}, {text}", file=self._file, flush=True)
        if self._bar is not None:
            self._bar.set_postfix_str(self._shown_metrics())

    def note(self, text: str) -> None:
        """Shows on a terminal what is done between two steps, such as "evaluating"."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def _begin(self, step: int) -> None:
        if self._start_time is not None:
            return
        self._start_time, self._first_step = self._clock(), step
        if self._terminal:
            self._bar = tqdm.tqdm(
                initial=step,
                total=self._num_steps,
                file=self._file,
                dynamic_ncols=True,
                smoothing=0,  # average over all steps, so that the time left includes evaluations
                bar_format=BAR,
            )

    def advance(self, step: int) -> None:
        """Moves the bar to `step`, which has no metrics."""
        self._begin(step)
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def flush(self) -> None:
        """Flushes the output."""
        self._file.flush()

    def close(self) -> None:
        """Closes the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()

    def _line(self, step: int, now: float) -> str:
        parts = [self._position(step)]
        done, remaining = step - self._first_step, self._num_steps - step
        if done > 0 and remaining > 0:
            seconds = (now - self._start_time) / done * remaining
            parts.append(f"{tqdm.tqdm.format_interval(seconds)} left")
        return ", ".join(filter(None, [*parts, self._shown_metrics()]))

    def _shown_metrics(self) -> str:
        return ", ".join(filter(None, self._formatted.values()))

    def _position(self, step: int) -> str:
        return f"step {step}/{self._num_steps} ({step / self._num_steps:.0%})"


def read_metrics(path: str | os.PathLike) -> list[dict[str, float]]:
    """Returns the lines of a metrics.jsonl, with NaN for null; skips a truncated last line.

    Raises UserError if the file is absent, or if any other line is invalid; the message then
    contains the line number.
    """
    return [line for _, line in _lines(epath.Path(path))]


def _lines(path: epath.Path) -> Iterator[tuple[bytes, dict[str, float]]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise errors.UserError(f"{path}: not found, so there are no metrics") from error
    complete = content.endswith(b"\n")
    lines, remedy = content.splitlines(), "delete that line"
    for number, raw in enumerate(lines, start=1):
        try:
            line = schema.parse(raw, path, remedy, number=number)
            where = f"{path}:{number}"
            values = schema.typed(line, dict[str, schema.Score | None], where, remedy)
            step = schema.typed(line.get("step"), schema.Count, f"{where}: step", remedy)
        except errors.UserError:
            if number == len(lines) and not complete:
                return
            raise
        yield raw, {k: math.nan if v is None else v for k, v in values.items()} | {"step": step}


def _rounded(value: float) -> float | None:
    """Returns `value` with nine digits, enough for an exact float32; None if it is not finite."""
    return float(f"{float(value):.9g}") if math.isfinite(value) else None


def _format_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    formatters: dict[str, Callable[[float], str]] = {
        "train/loss": lambda loss: f"loss {loss:.3f}",
        "tokens_per_second": lambda rate: f"{tqdm.tqdm.format_sizeof(rate)} tokens/s",
        "mfu": lambda share: f"MFU {share:.0%}",
        "data_wait": lambda share: f"{share:.0%} waiting for data" if share >= 0.01 else "",
    }
    return {
        name: formatter(metrics[name]) for name, formatter in formatters.items() if name in metrics
    }


class _GrowingFile:
    """A file to which bytes are appended.

    Bytes are written to a local file at once. Object stores cannot append, so a remote file is
    rewritten as a whole, at most every 30 s, and at `flush` and `close`.
    """

    _SECONDS_BETWEEN_UPLOADS = 30.0

    def __init__(self, path: epath.Path, content: bytes = b""):
        """Creates `path` with `content`, or atomically replaces it."""
        self._path = path
        self._remote = "://" in os.fspath(path)
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(path) as partial:
                partial.write_bytes(content)
            self._file = None if self._remote else open(path, "ab", buffering=0)
        self._content = bytearray(content if self._remote else b"")
        self._uploaded_at = time.monotonic()
        self._uploaded_size = len(self._content)

    def append(self, data: bytes) -> None:
        if self._file is not None:
            with self._writing():
                self._file.write(data)
            return
        self._content += data
        if time.monotonic() - self._uploaded_at >= self._SECONDS_BETWEEN_UPLOADS:
            self.flush()

    def flush(self) -> None:
        """Uploads a remote file if it has grown; a local file is already written."""
        if self._remote and len(self._content) > self._uploaded_size:
            with self._writing():
                self._path.write_bytes(bytes(self._content))
            self._uploaded_at = time.monotonic()
            self._uploaded_size = len(self._content)

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        if self._file is not None:
            self._file.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise errors.UserError(f"cannot write {self._path}: {reason}") from error
