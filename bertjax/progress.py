"""Prints the progress of a command on stderr: a header, and its stages with their durations.

    progress.table("pretrain", {"model": "bert, 109,482,240 parameters", "steps": "1,000,000"})
    with progress.stage("compiling the train step"):
        ...
    with progress.stage("predicting") as done:
        done(32, 1_000)  # "predicting: 32 of 1,000"
"""

import contextlib
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

_LABEL, _WIDTH = 12, 80
_MIN_SECONDS = 1.0  # seconds; the duration of a stage is printed if it takes at least this long
_SECONDS_BETWEEN_REFRESHES, _SECONDS_BETWEEN_LINES = 0.2, 10.0  # on a terminal, in a log file

Done = Callable[[int, int | None], None]
Item = TypeVar("Item")


def table(title: str, rows: Mapping[str, str]) -> None:
    """Prints a title, and one or more lines for each row."""
    print("\n".join([title, *lines(rows)]), file=sys.stderr, flush=True)


def lines(rows: Mapping[str, str], *, prefix: str = "") -> list[str]:
    """Returns the lines of a table, wrapped to 80 columns less the length of `prefix`.

    prefix: text that the caller prints before each line.
    """
    return [
        line
        for label, value in rows.items()
        for line in textwrap.wrap(
            value, _WIDTH - len(prefix), initial_indent=f"{label:<{_LABEL}}",
            subsequent_indent=" " * _LABEL, break_long_words=False, break_on_hyphens=False,
        )
    ]  # fmt: skip


def wrapped(line: str, indent: str = "  ") -> str:
    """Returns `line` wrapped between words at 80 columns; all lines but the first are indented."""
    return textwrap.fill(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


@contextlib.contextmanager
def stage(label: str, *, shown: bool = True) -> Iterator[Done]:
    """Prints `label` when the block starts and, if it took long, its duration when it ends.

    Yields a function (done, total) that the block may call to show its progress; total is None if
    it is unknown. On a terminal the line is overwritten, and erased after a short stage.
    """
    if not shown:
        yield lambda done, total: None
        return
    terminal = sys.stderr.isatty()
    interval = _SECONDS_BETWEEN_REFRESHES if terminal else _SECONDS_BETWEEN_LINES
    start = last_shown = time.perf_counter()

    def show(line: str) -> None:
        if terminal:  # truncate, because a wrapped line cannot be replaced
            line = "\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1]
        print(line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def show_done(done: int, total: int | None) -> None:
        nonlocal last_shown
        now = time.perf_counter()
        if now - last_shown >= interval:
            last_shown = now
            show(f"{label}: {done:,}" + ("" if total is None else f" of {total:,}"))

    show(f"{label} ...")
    try:
        yield show_done
    finally:
        seconds = time.perf_counter() - start
        summary = f"{label}: {seconds:.1f} s\n" if seconds >= _MIN_SECONDS else ""
        print("\r\x1b[K" * terminal + summary, end="", file=sys.stderr, flush=True)


def counted(items: Iterable[Item], done: Done) -> Iterator[Item]:
    """Yields the items, and calls done(number of items so far, None) after each."""
    for number, item in enumerate(items, 1):
        yield item
        done(number, None)
