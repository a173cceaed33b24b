"""The parser of a command and its help text, which is also stored in a file.

    help_texts.stored("plan")            # "usage: bertjax plan [-h] [--config FILE[:ARG]] ..."

`bertjax VERB --help` prints the stored text, because most commands import jax, which takes seconds.
After a change of flags, keys or docstrings, write the files again:

    python -m bertjax.help_texts
"""

import argparse
import importlib
import pathlib
import pkgutil
from types import ModuleType
from typing import NoReturn

from bertjax import commands, errors

FOLDER = pathlib.Path(commands.__path__[0]) / "help"
_WIDTH = 100


class _Parser(argparse.ArgumentParser):
    """A parser that raises UserError for bad flags, so that the command prints a one-line error."""

    def error(self, message: str) -> NoReturn:
        raise errors.UserError(f"{message} (see `{self.prog} --help`)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps to the same width on every terminal, as the stored texts are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH)


def parser(command: ModuleType) -> argparse.ArgumentParser:
    """Returns the parser of the flags of a module of `bertjax.commands`."""
    result = _Parser(
        prog=f"bertjax {_verb(command)}",
        description=command.__doc__,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    command.add_flags(result)
    return result


def rendered(command: ModuleType, config_file: str | None = None) -> str:
    """Returns the help text of a module of `bertjax.commands`.

    config_file: FILE or FILE:ARG, whose values are shown; None: the defaults are shown.
    """
    described = parser(command)
    if hasattr(command, "config_help"):
        described.epilog = "\n".join(command.config_help(config_file))
    return described.format_help()


def stored(verb: str) -> str:
    """Returns the stored help text of a command, which shows the defaults of all keys."""
    return (FOLDER / f"{verb}.txt").read_text(encoding="utf-8")


def _verb(command: ModuleType) -> str:
    return command.__name__.rpartition(".")[2]


def main() -> None:
    """Renders and stores the help text of every command."""
    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        command = importlib.import_module(module.name)
        path = FOLDER / f"{_verb(command)}.txt"
        path.write_text(rendered(command), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
