"""The stored help texts: they are up to date, and no library is imported to print them."""

import importlib
import subprocess
import sys

import pytest

from bertjax import __main__ as cli
from bertjax import help_texts
from tests.helpers import children

PROGRAM = """
import sys
before = set(sys.modules)
from bertjax import __main__ as cli
codes = [cli.main(words.split()) for words in sys.argv[1:]]
imported = {name.partition(".")[0] for name in set(sys.modules) - before}
print(codes, imported - {"bertjax", *sys.stdlib_module_names})
"""


def _stable(text: str) -> tuple[list[str], str]:
    """Returns the words of the usage, and the rest.

    The line breaks of the usage may differ between versions of Python.
    """
    usage, _, rest = text.partition("\n\n")
    return usage.split(), rest


@pytest.mark.parametrize("verb", cli.VERBS)
def test_the_stored_text_is_up_to_date(verb):
    rendered = help_texts.rendered(importlib.import_module(f"bertjax.commands.{verb}"))
    hint = "the help has changed: run `python -m bertjax.help_texts` and commit the files"
    assert _stable(help_texts.stored(verb)) == _stable(rendered), hint


def test_every_stored_text_is_of_a_command():
    assert {path.stem for path in help_texts.FOLDER.iterdir()} == set(cli.VERBS)


def test_help_version_and_unknown_commands_import_no_library():
    commands = [f"{verb} --help" for verb in cli.VERBS] + ["--help", "--version", "trian"]
    argv = [sys.executable, "-c", PROGRAM, *commands]
    done = subprocess.run(argv, capture_output=True, text=True, env=children.environment())
    assert done.returncode == 0, done.stderr
    codes = [0] * (len(commands) - 1) + [2]
    assert done.stdout.splitlines()[-1] == f"{codes} set()"
    assert all(help_texts.stored(verb) in done.stdout for verb in cli.VERBS)
