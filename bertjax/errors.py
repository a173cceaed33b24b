"""The exceptions that a user meets.

A `UserError` is one line that names the file, record or key and says what to do about it. The
command line prints that line and nothing else; what is not a `UserError` is a bug and keeps its
traceback.
"""

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_RESTART = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again


class UserError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


class Preempted(Exception):
    """The run was asked to stop, saved its state, and goes on when it is started again."""


def check(ok: bool, key: str, value: object, allowed: str) -> None:
    """Raises UserError unless `ok`: config.KEY has a `value` that is not what is `allowed`."""
    if not ok:
        raise UserError(f"config.{key} = {value!r}: must be {allowed}")
