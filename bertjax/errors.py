"""The exceptions that a user meets, and lines of progress.

A `UserError` is one line that names the file, record or key and says what to do about it. The
command line prints that line and nothing else; what is not a `UserError` is a bug and keeps its
traceback.
"""

import difflib
import errno
import os
import select
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # raised by writes, which name no file
BEFORE = "bertjax: "  # stands before each line of progress

EXIT_BUG = 1  # of the interpreter, after a traceback
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141  # 128 + SIGPIPE, as a shell reports it
EXIT_RESTART = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again


class UserError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


class Preempted(Exception):
    """The run was asked to stop, saved its state, and goes on when it is started again."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by Ctrl-C, and saved its state first."""


def tell(line: str) -> None:
    """Prints a line of progress on stderr; a terminal gets it cut between words."""
    line = BEFORE + line
    if sys.stderr.isatty():
        line = textwrap.fill(
            line, shutil.get_terminal_size().columns, subsequent_indent=" " * len(BEFORE),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    print(line, file=sys.stderr, flush=True)


def output_is_unread() -> bool:
    """Returns whether stdout or stderr is a pipe whose reader has closed it, as `head` does."""
    for stream in (sys.stdout, sys.stderr):
        try:
            poll = select.poll()
            poll.register(stream.fileno(), 0)  # errors are reported without being asked for
        except (AttributeError, OSError, ValueError):  # closed, or not a file
            continue
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            return True
    return False


def discard_output() -> None:
    """Sends the rest of stdout and stderr to the null device.

    Without this the interpreter's last flush would fail again.
    """
    with open(os.devnull, "wb") as null:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            os.dup2(null.fileno(), stream.fileno())


def of_the_user(error: BaseException) -> bool:
    """Returns whether `error` is bad input or a failing disk, and no bug."""
    if isinstance(error, OSError):
        return error.filename is not None or error.errno in _DISK
    return isinstance(error, UserError)


def one_line(error: BaseException) -> str:
    """What the error says, as one line that names the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be read or written: {error.strerror}"
    return " ".join(str(error).split())


def exit_code(error: BaseException) -> int:
    """The exit code of a command that `error` ends."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, Preempted):
        return EXIT_RESTART
    return EXIT_BAD_INPUT if of_the_user(error) else EXIT_BUG


def near(key: str, known: Sequence[str]) -> list[str]:
    """Those of the known keys, "a.b", that `key` may have been meant for."""
    leaf = key.split(".")[-1]
    by_leaf: dict[str, list[str]] = {}
    for each in known:
        by_leaf.setdefault(each.split(".")[-1], []).append(each)
    close = [leaf] if leaf in by_leaf else difflib.get_close_matches(leaf, by_leaf, n=1)
    return [each for name in close for each in by_leaf[name]][:3]


def hint(meant: Sequence[str]) -> str:
    """The end of a message that something is unknown; "" where nothing is like it."""
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint in front of the list of what there is; "" where nothing is like `name`.

    known: in small letters without hyphens.
    """
    meant = difflib.get_close_matches(name.lower().replace("-", ""), list(known), n=1)
    return f"did you mean {meant[0]}? " if meant else ""


def several(names: Iterable[str], most: int = 10) -> str:
    """The first names in a line, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def file_to_write(flag: str, path: str | None) -> None:
    """UserError where --FLAG is a folder, or in none; found before the work and not after it."""
    if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UserError(f"--{flag}={path}: there is no such folder to write to")
    if path and os.path.isdir(path):
        raise UserError(f"--{flag}={path}: is a folder; name a file")


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Raises UserError unless `ok`: config.KEY has a `value` that is not what is `allowed`."""
    if not ok:
        raise UserError(f"config.{key} = {value!r}: must be {allowed}")
