"""Reads CSV and TSV files, whose first line names the columns, as rows of cells.

    .csv    cells may be quoted (RFC 4180); a quoted cell may contain commas, line breaks and ""
    .tsv    no quoting: a cell contains no tab and no line break

    for row in tables.rows(lines, "csv"):
        row.cells       # ["A title", "A text"]

Lines come with their positions, so that a part of a file can be read and bad rows can be located.
Surrogates stand for bytes that are not UTF-8: such a cell is an error only if its column is used.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bertjax import errors
from bertjax.data.corpus import corpus_files, templates

FORMATS = ("csv", "tsv")
# Spreadsheets and databases also write these separators.
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "vertical bars"}


class Row(NamedTuple):
    """A row of a table.

    number: the number of its first line, as in the input of `rows`. cells: its cells, in which
    surrogates stand for bytes that are not UTF-8; [] for a blank line. problem: why the row cannot
    be parsed, else "". end: bytes up to the end of the row, as in the input of `rows`.
    """

    number: int
    cells: list[str]
    problem: str
    end: int


def rows(lines: Iterable[tuple[int, str, int]], form: str) -> Iterator[Row]:
    """Yields the rows of a table, including its header.

    lines: (number, line, bytes up to the end of the line). form: one of FORMATS.
    """
    return _quoted(lines) if form == "csv" else _tabs(lines)


def decoded(lines: Iterable[tuple[int, bytes, int]]) -> Iterator[tuple[int, str, int]]:
    """Yields lines for `rows`; surrogates stand for bytes that are not UTF-8."""
    for number, line, done in lines:
        yield number, line.decode("utf-8", "surrogateescape"), done


def _tabs(lines: Iterable[tuple[int, str, int]]) -> Iterator[Row]:
    for number, line, done in lines:
        text = line.rstrip("\r\n")
        yield Row(number, text.split("\t") if text.strip(" ") else [], "", done)


def _quoted(lines: Iterable[tuple[int, str, int]]) -> Iterator[Row]:
    numbers: list[int] = []  # of the lines of the row
    done = 0

    def texts() -> Iterator[str]:
        nonlocal done
        for number, line, position in lines:
            numbers.append(number)
            done = position
            yield line

    # NOTE: the limit is a setting of the whole process. Its default of 131,072 characters is too
    # small for documents.
    csv.field_size_limit(max(csv.field_size_limit(), corpus_files.MAX_DOCUMENT))
    parser = csv.reader(texts(), strict=True)
    while True:
        cells, problem = [], ""
        numbers.clear()
        try:
            cells = next(parser)
        except StopIteration:
            return
        except csv.Error as error:  # the parser continues with the next line
            problem = str(error)
            if "unexpected end of data" in problem:
                count = errors.count(len(numbers), "line")
                problem = f"a quote is never closed, so the rest of the file, {count}, is one row"
        yield Row(numbers[0], cells, problem, done)


def columns(path: str, form: str) -> tuple[str, ...]:
    """Returns the column names in the first line of a file.

    Raises UserError if the file is empty or its first line cannot be parsed.
    """
    with corpus_files.opened(path) as (file, _):
        lines = corpus_files.lines(file, lambda _: f"{path} line 1")
        first = next(rows(decoded(_positioned(lines)), form), None)
    if first is None:
        raise errors.UserError(f"{path}: the file is empty")
    if first.problem or not first.cells:
        raise errors.UserError(
            f"{path} line 1: {first.problem or 'is blank'}; the first line must name the columns"
        )
    return tuple(cell.strip() for cell in first.cells)


def checked_columns(path: str, form: str, template: templates.Template) -> tuple[str, ...]:
    """Returns `columns`. Raises UserError if they lack a field of the template."""
    names = columns(path, form)
    separator = next((mark for mark in SEPARATORS if mark in names[0]), "")
    if len(names) == 1 and separator and names[0] not in template.columns:
        advice = {"\t": "pass --format=tsv", ",": "pass --format=csv"}
        raise errors.UserError(
            f"{path}: its columns are separated by {SEPARATORS[separator]}; "
            + advice.get(separator, "convert the file to commas or tabs")
        )
    template.check_columns(path, names)
    return names


def record(row: Row, names: Sequence[str], place: Callable[[], str]) -> dict[str, str | bytes]:
    """Returns {column name: cell} of a row. A cell is a str, or bytes if they are not UTF-8.

    place: returns the place of the row. Raises UserError if the row cannot be parsed or has a
    different number of cells.
    """
    if row.problem:
        raise errors.UserError(
            f"{place()}: not valid CSV ({row.problem}); correct it"
        )
    if len(row.cells) != len(names):
        raise errors.UserError(
            f"{place()}: the number of cells is {len(row.cells)}, but the header has {len(names)}; "
            "correct it"
        )
    return dict(zip(names, map(_cell, row.cells), strict=True))


def _cell(text: str) -> str | bytes:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogateescape")
    return text


def boundaries(path: str, unit_bytes: int) -> Iterator[int]:
    """Yields positions in a CSV file at which a row begins, about `unit_bytes` apart.

    NOTE: reads the whole file, because a line break may be inside a quoted cell.
    """
    with corpus_files.opened(path) as (file, _):
        position = unit_bytes
        lines = _positioned(corpus_files.lines(file, lambda _: path))
        for row in rows(decoded(lines), "csv"):
            if row.end >= position:
                yield row.end
                position = row.end - row.end % unit_bytes + unit_bytes


def _positioned(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes, int]]:
    done = 0
    for number, line in enumerate(lines):
        done += len(line)
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line, done
