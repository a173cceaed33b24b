"""Reads labelled files (TSV and CSV with a header, JSON lines, Parquet, TFDS) as records.

    .jsonl .json .ndjson    one JSON object per line
    .parquet                columns of texts, numbers, lists and structs; see `parquet.rows`
    tfds:NAME/CONFIG:SPLIT  a TFDS dataset in ArrayRecord files, read without TensorFlow
    .csv                    a header line, cells split at commas, which may be quoted (RFC 4180)
    anything else           TSV: a header line, cells split at tabs, no quoting (as in GLUE)

Text files may be .gz or .zst. Files are local or gs://. The types of examples convert records to
examples. They find columns by name, try several names for each, and ignore the other columns. Bad
input raises a UserError that names the file and the line.
"""

import collections
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax import errors, schema
from bertjax.data.corpus import corpus_files, indexed, parquet, reader, tables


class Record(NamedTuple):
    """A row of a table.

    where: its place, such as "file:line". fields: {column: value}; values are texts in TSV and CSV,
    and of any JSON type in other files. Missing values are omitted.
    """

    where: str
    fields: dict[str, Any]


class Columns(NamedTuple):
    """For each part of an example, the column names that are tried, in this order.

    texts: alternatives that are tried in this order; each is a tuple with one column for each text.
    refused: columns that raise an error, because only files for another task have them.
    """

    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("index", "idx", "id")
    refused: tuple[str, ...] = ()


def has_fields(path: str) -> bool:
    """Returns whether the path names JSON lines, Parquet or TFDS, whose values may be lists."""
    return path.startswith("tfds:") or _format(path) in ("jsonl", "parquet")


def _format(path: str) -> str | None:
    return reader.SUFFIXES.get(corpus_files.suffix(path))


def records(
    path: str,
    *,
    headerless: Sequence[str] = (),
    skipped: collections.Counter[str] | None = None,
) -> Iterator[Record]:
    """Yields the records of a file or TFDS dataset, in order. Raises UserError if there are none.

    headerless: column names to use for a TSV or CSV file whose first line has none of them.
    skipped: counter of skipped rows. Rows of a TSV or CSV file with more or fewer cells than the
        header are skipped and counted. If it is None, such a row raises UserError.
    """
    if path.startswith("tfds:"):
        rows = _tfds(path)
    elif has_fields(path):
        rows = _parquet(path) if _format(path) == "parquet" else _json_lines(path)
    elif _format(path) == "arrayrecord":
        raise errors.UserError(
            f"{path}: {corpus_files.suffix(path)} is not supported; convert the file to TSV or "
            "JSON lines"
        )
    else:
        rows = _table(path, headerless, skipped)
    empty = True
    for record in rows:
        empty = False
        yield record
    if empty:
        raise errors.UserError(f"{path}: contains no rows")


def _table(
    path: str, headerless: Sequence[str], skipped: collections.Counter[str] | None
) -> Iterator[Record]:
    header: list[str] = []
    separator = "commas" if _format(path) == "csv" else "tabs"
    for number, cells in _quoted(path) if separator == "commas" else _tabs(path):
        if not header:
            header = [cell.strip() for cell in cells]
            if not headerless or set(header) & set(headerless):
                _check_header(path, header)
                continue
            header = list(headerless)
        if len(cells) == len(header):
            yield Record(f"{path}:{number}", dict(zip(header, cells, strict=True)))
        elif not any(cell.strip() for cell in cells):
            raise errors.UserError(f"{path}:{number}: an empty line; remove it")
        elif skipped is not None:
            skipped["rows with more or fewer cells than the header"] += 1
        else:
            raise errors.UserError(
                f"{path}:{number}: the number of cells is {len(cells)}, but the header has "
                f"{len(header)}; {separator} separate cells, so {_ADVICE[separator]}"
            )


_ADVICE = {
    "commas": "a text with a comma must be quoted",
    "tabs": "a text cannot contain a tab",
}


def _tabs(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, cells) of a TSV file."""
    for number, line in _without_blank_end(path):
        yield number, line.split("\t")


def _quoted(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the first line, cells) of the rows of a CSV file, without blank lines."""
    lines = ((number, f"{line}\n".encode(), 0) for number, line in corpus_files.text_lines(path))
    for row in tables.rows(lines, "csv"):
        if row.problem:
            problem = f"not valid CSV ({row.problem}); correct it"
            raise errors.UserError(f"{path}:{row.number}: {problem}")
        if row.cells:
            yield row.number, row.cells


def _without_blank_end(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, line) of a file, without the blank lines at its end."""
    blank: list[int] = []
    for number, line in corpus_files.text_lines(path):
        if not line:
            blank.append(number)
            continue
        yield from ((n, "") for n in blank)
        blank.clear()
        yield number, line


def _check_header(path: str, header: Sequence[str]) -> None:
    duplicates = [name for name, count in collections.Counter(header).items() if count > 1]
    if duplicates or "" in header:
        problem = f"column {duplicates[0]!r} twice" if duplicates else "a column without a name"
        raise errors.UserError(
            f"{path}:1: the header has {problem}; columns are found by their names"
        )


def _json_lines(path: str) -> Iterator[Record]:
    for number, line in corpus_files.text_lines(path):
        if line and not line.isspace():
            value = schema.parse(line, path, "each line is one JSON object", number=number)
            yield Record(f"{path}:{number}", {k: v for k, v in value.items() if v is not None})


def _parquet(path: str) -> Iterator[Record]:
    for index, fields in parquet.rows(path):
        values = {name: value for name, value in fields.items() if value is not None}
        yield Record(f"{path} row {index}", values)


def _tfds(path: str) -> Iterator[Record]:
    data = indexed.opened(path)
    features = data.dataset_info.features
    for index in range(len(data)):
        where = f"{path} record {index}"
        fields = {name: _json_value(value, features[name]) for name, value in data[index].items()}
        yield Record(where, {name: value for name, value in fields.items() if value is not None})


def _json_value(value: Any, feature: Any) -> Any:
    """Converts a TFDS value to JSON types; a label becomes its name, and -1 becomes None."""
    inner = getattr(feature, "feature", feature)  # for a Sequence, the feature of an element
    if isinstance(value, dict):
        return {name: _json_value(part, inner[name]) for name, part in value.items()}
    if isinstance(value, np.ndarray) and value.ndim:
        return [_json_value(part, inner) for part in value]
    if isinstance(value, list | tuple):
        return [_json_value(part, inner) for part in value]
    value = value.item() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, bytes):
        return value.decode("utf-8")
    names = getattr(inner, "names", None)
    if names is None:
        return value
    return names[value] if value >= 0 else None


def column(record: Record, names: Sequence[str]) -> Any:
    """Returns the value of the first of these columns that the record has; None if it has none."""
    return next((record.fields[name] for name in names if name in record.fields), None)


def text(record: Record, name: str, *, empty: bool = False) -> str:
    """Returns the text in column `name`.

    Raises UserError for a value of another type and, unless `empty`, for a blank text.
    """
    value = record.fields[name]
    if not isinstance(value, str):
        raise errors.UserError(
            f"{record.where}: {name!r} must be a string, not {type(value).__name__} {value!r:.40}"
        )
    if not (empty or value.strip()):
        raise errors.UserError(
            f"{record.where}: the text of {name!r} is empty; fill it or remove the row"
        )
    return value


def column_list(record: Record) -> str:
    """Returns the names of a record's columns for a message, shortened if there are many."""
    return ", ".join(map(repr, list(record.fields)[:12]))[:200]


def absent(record: Record, name: str, suggestion: str = "") -> errors.UserError:
    """Returns the error for a record without the column `name`. suggestion: names to suggest."""
    rename = f": rename your columns to {suggestion}" if suggestion else ""
    return errors.UserError(
        f"{record.where}: has no column {name!r}; its columns are {column_list(record)}{rename} "
        "(a TSV or CSV file begins with a line of column names)"
    )


def is_plain(path: str, columns: Columns) -> bool:
    """Returns whether the path is a .txt file with one text per line.

    The first line of such a file has no tab and is not the name of a text column.
    """
    if corpus_files.suffix(path) != ".txt":
        return False
    _, first = next(corpus_files.text_lines(path))
    return "\t" not in first and (first.strip(),) not in columns.texts


def plain(path: str) -> list[tuple[str, str]]:
    """Returns (where, text) of the non-blank lines. Raises UserError if all are blank."""
    lines = corpus_files.text_lines(path)
    pairs = [(f"{path}:{number}", line) for number, line in lines if line.strip()]
    if not pairs:
        raise errors.UserError(f"{path}: contains no text")
    return pairs


def alternative(record: Record, texts: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Returns the first of the alternatives whose columns the record has; see `Columns`.

    Raises UserError if there is none.
    """
    for names in texts:
        if all(name in record.fields for name in names):
            return names
    # Name the missing column of the alternative with the most columns present.
    best = max(texts, key=lambda names: sum(name in record.fields for name in names))
    suggestion = " or ".join(" and ".join(names) for names in texts[:3]) if len(texts) > 1 else ""
    raise absent(record, next(name for name in best if name not in record.fields), suggestion)


def record_id(record: Record, columns: Columns) -> str:
    """Returns the id of a record; "" if it has none."""
    value = column(record, columns.id)
    return "" if value is None else str(value)


def name(record: Record, value: Any) -> str:
    """Converts a text, integer or boolean to a class name. Raises UserError for other types."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | int):
        return str(value).lower()
    raise errors.UserError(f"{record.where}: label {value!r:.40} is neither a name nor an integer")


def number(record: Record, value: Any) -> float:
    """Converts a label to a finite number. Raises UserError if it is not one."""
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if isinstance(value, bool) or not math.isfinite(score):
        raise errors.UserError(f"{record.where}: label {value!r:.40} is not a number")
    return score
