"""Exceptions whose messages are for users, their exit codes, and functions that write messages.

The message of a `UserError` is one line that names the file, record or key and what to do about it.
The command line prints only that line. It also prints one line for Preempted, Ctrl-C and failed
reads and writes of files. All other exceptions are bugs and keep their tracebacks.
"""

import difflib
import errno
import os
import select
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # of failed writes to open files
PREFIX = "bertjax: "  # prefix of each line of progress

EXIT_BUG = 1  # the interpreter's exit code after a traceback
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141  # 128 + SIGPIPE, as a shell reports it
EXIT_RESTART = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, run the same command again


class UserError(Exception):
    """Raised for bad input. The message is one line: what is wrong, where, and what to do."""


class Preempted(Exception):
    """Raised when a run was stopped and has saved its state; the same command resumes it."""


class Interrupted(KeyboardInterrupt):
    """Raised when a run was stopped by Ctrl-C and has saved its state."""


def tell(line: str) -> None:
    """Prints a line of progress on stderr; on a terminal, wraps it between words."""
    line = PREFIX + line
    if sys.stderr.isatty():
        line = textwrap.fill(
            line, shutil.get_terminal_size().columns, subsequent_indent=" " * len(PREFIX),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    sys.stderr.write(f"{line}\n")  # one write: print has two, and another thread's may come between
    sys.stderr.flush()


def output_is_unread() -> bool:
    """Returns whether stdout or stderr is a pipe whose reader has closed it, as `head` does."""
    for stream in (sys.stdout, sys.stderr):
        try:
            poll = select.poll()
            poll.register(stream.fileno(), 0)  # POLLERR is reported even with an empty mask
        except (AttributeError, OSError, ValueError):  # closed, or not a file
            continue
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            return True
    return False


def discard_output() -> None:
    """Redirects stdout and stderr to the null device.

    Otherwise the interpreter's last flush would fail again.
    """
    with open(os.devnull, "wb") as null:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            os.dup2(null.fileno(), stream.fileno())


def device_memory(error: RuntimeError) -> str:
    """Returns the reason in an error of JAX for too little device memory; "" for another error."""
    text = str(error).partition("\n")[0]
    if not text.startswith("RESOURCE_EXHAUSTED"):
        return ""
    return text.partition(": ")[2].rstrip(".") or text


def of_the_user(error: BaseException) -> bool:
    """Returns whether `error` is due to bad input or a failing disk, and not to a bug."""
    if isinstance(error, OSError):
        return error.filename is not None or error.errno in _DISK_ERRNOS
    return isinstance(error, UserError)


def one_line(error: BaseException) -> str:
    """Returns the error's message as one line; for an OSError, names the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: cannot be read or written: {error.strerror}"
    return " ".join(str(error).split())


def exit_code(error: BaseException) -> int:
    """Returns the exit code of a command that `error` terminates."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, Preempted):
        return EXIT_RESTART
    return EXIT_BAD_INPUT if of_the_user(error) else EXIT_BUG


def near(key: str, known_keys: Sequence[str]) -> list[str]:
    """Returns up to three of `known_keys` ("a.b") that are similar to a misspelt `key`."""
    leaf = key.split(".")[-1]
    by_leaf: dict[str, list[str]] = {}
    for candidate in known_keys:
        by_leaf.setdefault(candidate.split(".")[-1], []).append(candidate)
    close_leaves = [leaf] if leaf in by_leaf else difflib.get_close_matches(leaf, by_leaf, n=1)
    return [candidate for name in close_leaves for candidate in by_leaf[name]][:3]


def hint(names: Sequence[str]) -> str:
    """Returns "; did you mean A or B?" for `names`; "" if there are none."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Returns a hint to print before the list of known names; "" if none is similar to `name`.

    known_names: in lower case without hyphens.
    """
    matches = difflib.get_close_matches(name.lower().replace("-", ""), list(known_names), n=1)
    return f"did you mean {matches[0]}? " if matches else ""


def several(names: Iterable[str], limit: int = 10) -> str:
    """Returns the first `limit` names, separated by commas, and the number of remaining names."""
    names = list(names)
    suffix = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + suffix


def count(number: int, noun: str) -> str:
    """Returns a number of things: "1 step", "1,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(value: object) -> str:
    """Returns the repr of `value`, truncated to about 40 characters, for an error message."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= 40 else text[:37] + "..."
    return repr(text) if isinstance(value, str) else text


def file_to_write(flag: str, path: str | None, **read: str | None) -> None:
    """Raises UserError if `path`, the value of --FLAG, is a folder or its folder does not exist.

    Call it before the work starts, so that the work is not lost to this error.

    read: the values of other flags, by name, that are read. It is an error if `path` is one of
    these files, which would be lost.
    """
    if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise UserError(f"--{flag}={path}: the parent folder does not exist; create it first")
    if path and os.path.isdir(path):
        raise UserError(f"--{flag}={path}: is a folder; give the name of a file")
    for other, read_path in read.items():
        if path and read_path and os.path.exists(path) and os.path.exists(read_path):
            if os.path.samefile(path, read_path):
                raise UserError(f"--{flag}={path}: is the file of --{other}; give another name")


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Raises UserError unless `ok`. allowed: the values that config.KEY may have, in words."""
    if not ok:
        raise UserError(f"config.{key} = {value!r}: must be {allowed}")
