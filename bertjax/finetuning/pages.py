"""Writes the page about an output folder: of a fine-tuning, of a sweep, or of a suite.

    pages.write("out/", "out/report.html")

A page is made of the report.json in the folder, and loads nothing from elsewhere.
"""

import os
from collections.abc import Mapping
from typing import Any

from bertjax import errors, files, paths, schema
from bertjax.artifact import loading
from bertjax.finetuning import output_folder, report_page, suite_page, sweep_page

FINETUNING, SWEEP, SUITE = "fine-tuning", "sweep", "suite"
_KINDS = {SWEEP: "combinations", SUITE: "tasks"}  # a key that only this kind of report has


def kind(path: str | os.PathLike) -> str:
    """Returns what the output folder `path` is of; "" if it is none, or not finished."""
    config, report = (paths.of(path) / n for n in (output_folder.CONFIG, output_folder.REPORT))
    if not report.exists():
        return ""
    if config.exists():
        is_own = schema.read_object(config, report_page.REMEDY).get("format") == loading.FINETUNING
        return FINETUNING if is_own else ""
    content = schema.read_object(report, report_page.REMEDY)
    return next((name for name, key in _KINDS.items() if key in content), "")


def write(path: str | os.PathLike, file: str | os.PathLike = "") -> str:
    """Writes the page about the output folder at `path`; returns the name of the file.

    file: by default report.html in the folder. Raises UserError if a file is damaged, or if the
    page cannot be written.
    """
    target = os.fspath(file) or os.path.join(path, output_folder.PAGE)
    name = kind(path)
    if name in _KINDS:
        content = schema.read_object(paths.of(path) / output_folder.REPORT, report_page.REMEDY)
        make = {SWEEP: sweep_page.document, SUITE: suite_page.document}[name]
        text = make(path, content)
    else:
        text = report_page.document(path, report_page.read(path))
    try:
        files.write_text(paths.of(target), text)
    except OSError as error:
        raise errors.UserError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def write_at_end(path: str | os.PathLike, content: Mapping[str, Any] | None = None) -> None:
    """Writes the page of a finished fine-tuning; prints a warning if that fails.

    content: that of report.json if the folder has none, as for a combination that was not chosen.
    """
    try:
        if content is None:
            write(path)
        else:
            text = report_page.document(path, content)
            files.write_text(paths.of(path) / output_folder.PAGE, text)
    except Exception as error:  # the runs are finished, and a page is not worth failing them
        reason = errors.one_line(error) or type(error).__name__
        errors.tell(f"warning: no {output_folder.PAGE} was written: {reason}")
