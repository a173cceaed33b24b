"""Reads labelled files (TSV and CSV with a header, JSON lines, Parquet, TFDS) as records.

    .jsonl .json .ndjson    one JSON object per line
    .parquet                columns of texts, numbers, lists and structs; see `parquet.rows`
    .arrow                  the same, as Hugging Face's `save_to_disk` writes it; see `arrow.rows`
    tfds:NAME/CONFIG:SPLIT  a TFDS dataset in ArrayRecord files, read without TensorFlow
    .csv                    a header line, cells split at commas, which may be quoted (RFC 4180)
    anything else           TSV: a header line, cells split at tabs, no quoting (as in GLUE)

Text files may be .gz or .zst. Files are local or gs://. A glob, such as train-*-of-00002.parquet,
names the shards of one file. The types of examples convert records to examples; `columns` finds the
columns that they read. Bad input raises a UserError that names the file and the line.
"""

import collections
import glob
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax import errors, schema
from bertjax.data.corpus import arrow, corpus_files, indexed, parquet, reader, tables


class Record(NamedTuple):
    """A row of a table.

    where: its place, such as "file:line". fields: {column: value}; values are texts in TSV and CSV,
    and of any JSON type in other files. Missing values are omitted. columns: the names of all
    columns, also of those that are not read. missing: {column: why it has no value}.
    """

    where: str
    fields: dict[str, Any]
    columns: tuple[str, ...] = ()
    missing: Mapping[str, str] = types.MappingProxyType({})


_BINARY = {"parquet": parquet, "arrow": arrow}  # {format: module with `columns` and `rows`}
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)")  # as in train-00000-of-00002.parquet
BYTES = "contains bytes, not text or numbers: convert the column"
_FILL = ": fill it or remove the row"
_UNNAMED = "Unnamed: 0"  # pandas' name for the first column of a header that does not name it


def has_fields(path: str) -> bool:
    """Returns whether the path names a format whose values may be lists, so not TSV or CSV."""
    return path.startswith("tfds:") or _format(path) in ("jsonl", *_BINARY)


def _format(path: str) -> str | None:
    suffix = corpus_files.suffix(path)
    return "arrow" if suffix == ".arrow" else reader.SUFFIXES.get(suffix)


def records(
    path: str,
    *,
    reads: Callable[[str], bool] = lambda name: True,
    headerless: Sequence[str] = (),
    skipped: collections.Counter[str] | None = None,
) -> Iterator[Record]:
    """Yields the records of a file or TFDS dataset, in order. Raises UserError if there are none.

    path: a glob stands for all the files that match, in the order of their names.
    reads: whether to read a column; other columns of Parquet files are left out, to save time.
    headerless: column names to use for a TSV or CSV file whose first line has none of them.
    skipped: counter of skipped rows. Rows of a TSV or CSV file with more or fewer cells than the
        header are skipped and counted. If it is None, such a row raises UserError.
    """
    empty = True
    for file in _files(path):
        for record in _of_file(file, reads, headerless, skipped):
            empty = False
            yield record
    if empty:
        raise errors.UserError(f"{path}: contains no rows")


def _of_file(
    path: str,
    reads: Callable[[str], bool],
    headerless: Sequence[str],
    skipped: collections.Counter[str] | None,
) -> Iterator[Record]:
    if path.startswith("tfds:"):
        return _tfds(path)
    if has_fields(path):
        return _binary(path, reads) if _format(path) in _BINARY else _json_lines(path)
    if _format(path) == "arrayrecord":
        raise errors.UserError(
            f"{path}: {corpus_files.suffix(path)} is not supported; convert the file to TSV or "
            "JSON lines"
        )
    return _table(path, headerless, skipped)


def _files(path: str) -> list[str]:
    """Returns the files of a path or glob. Raises UserError if a numbered shard is missing."""
    if path.startswith("tfds:") or not glob.has_magic(path):
        return [path]
    files = corpus_files.expand(path, lambda name: True)
    numbers: dict[tuple[str, str], set[int]] = {}
    for match in filter(None, map(_SHARD.fullmatch, files)):
        numbers.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, total), there in numbers.items():
        absent = sorted(set(range(int(total))) - there)
        if absent:
            raise errors.UserError(
                f"{path}: {len(absent)} of {int(total)} files are missing, the first is "
                f"{stem}-{absent[0]:05d}-of-{total}; copy or download them again"
            )
    return files


def _table(
    path: str, headerless: Sequence[str], skipped: collections.Counter[str] | None
) -> Iterator[Record]:
    header: list[str] = []
    separator = "commas" if _format(path) == "csv" else "tabs"
    for number, cells in _quoted(path) if separator == "commas" else _tabs(path):
        if not header:
            header = [cell.strip() for cell in cells]
            if not headerless or set(header) & set(headerless):
                header[0] = header[0] or _UNNAMED * (len(header) > 1)
                _check_header(path, header)
                names = tuple(header)
                continue
            header = list(headerless)
            names = tuple(header)
        if len(cells) == len(header):
            yield Record(f"{path}:{number}", dict(zip(header, cells, strict=True)), names)
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
    lines = ((number, f"{line}\n", 0) for number, line in corpus_files.text_lines(path))
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
            advice = "each line is one JSON object (jq -c '.[]' writes a list as such lines)"
            value = schema.parse(line, path, advice, number=number)
            yield _without_nulls(f"{path}:{number}", value, tuple(value))


def _binary(path: str, reads: Callable[[str], bool]) -> Iterator[Record]:
    module = _BINARY[_format(path)]
    columns = module.columns(path)
    of_bytes = {name: BYTES for name, holds_bytes in columns.items() if holds_bytes}
    for index, fields in module.rows(path, reads):
        null = "is null, or the class number -1"
        yield _without_nulls(f"{path} row {index}", fields, tuple(columns), null, of_bytes)


def _without_nulls(
    where: str,
    fields: dict[str, Any],
    columns: tuple[str, ...],
    null: str = "is null",
    missing: Mapping[str, str] = types.MappingProxyType({}),
) -> Record:
    if None in fields.values():
        nulls = {name: null + _FILL for name, value in fields.items() if value is None}
        missing = {**missing, **nulls}
        fields = {name: value for name, value in fields.items() if value is not None}
    return Record(where, fields, columns, missing)


def _tfds(path: str) -> Iterator[Record]:
    data = indexed.opened(path)
    features = data.dataset_info.features
    for index in range(len(data)):
        where = f"{path} record {index}"
        fields = {name: _json_value(value, features[name]) for name, value in data[index].items()}
        yield _without_nulls(where, fields, tuple(fields), "is null, or the class number -1")


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


def plain(path: str) -> list[tuple[str, str]]:
    """Returns (where, text) of the non-blank lines, and tells how many blank lines are between.

    Raises UserError if all lines are blank.
    """
    numbered = [(number, line) for number, line in corpus_files.text_lines(path) if line.strip()]
    if not numbered:
        raise errors.UserError(f"{path}: contains no text")
    blank = numbered[-1][0] - len(numbered)
    if blank:
        errors.tell(f"{path}: {errors.count(blank, 'blank line')}, left out")
    return [(f"{path}:{number}", line) for number, line in numbered]


def name(record: Record, value: Any) -> str:
    """Converts a text, whole number or boolean to a class name. Raises UserError for other types.

    A whole number may be a float, as in columns in which pandas found a missing value.
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int):
        return str(value).lower()
    raise errors.UserError(
        f"{record.where}: label {value!r:.40} is neither a name nor a whole number"
    )


def number(record: Record, value: Any) -> float:
    """Converts a label to a finite number. Raises UserError if it is not one."""
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if isinstance(value, bool) or not math.isfinite(score):
        raise errors.UserError(f"{record.where}: label {value!r:.40} is not a number")
    return score
