"""Makes a page of the documentation for each verb of the command line.

A page has the verb's summary and the text that `bertjax VERB --help` prints. `conf.py` writes the
pages at the start of each build; git ignores them.

    verb_pages.write("docs/verbs")
"""

import os
import pathlib

from bertjax import __main__ as command_line
from bertjax import help_texts

FOLDER = "verbs"  # of the pages, below docs
INDEX = "index.md"


def write(folder: str | os.PathLike) -> None:
    """Writes the pages into `folder`. A page that has not changed keeps its modification time."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    pages = {INDEX: _index()}
    pages |= {f"{verb}.md": _page(verb, help_texts.stored(verb)) for verb in command_line.VERBS}
    for name, text in pages.items():
        file = folder / name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


def _page(verb: str, text: str) -> str:
    summary = command_line.VERBS[verb]
    return (
        f"# bertjax {verb}\n\n{_sentence(summary)} The text below is the output of "
        f"`bertjax {verb} --help`.\n\n```text\n{text.strip()}\n```\n"
    )


def _index() -> str:
    rows = [f"| [{v}]({v}.md) | {summary} |" for v, summary in command_line.VERBS.items()]
    lines = [
        "# Verbs", "",
        "This page lists the commands of bertjax. `bertjax VERB` and `python -m bertjax VERB` are "
        "the same. The page of a verb shows its flags and examples.", "",
        "| verb | what it does |", "|---|---|", *rows, "",
        "```{toctree}", ":hidden:", "", *command_line.VERBS, "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."
