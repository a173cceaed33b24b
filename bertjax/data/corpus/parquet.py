"""Reads columns of Parquet files as records, in bounded memory and from the middle of a file.

    size = parquet.check("a.parquet", template)
    for index, record in parquet.records("a.parquet", 0, size.rows, fields=("title",), guard=guard):
        ...                                          # 0, {"title": "Ants"}

A row group is read page by page, and decoded in batches of about 1 MB. So the memory depends on the
longest document and on the largest page (1 MB, but 1,024 rows at least if Arrow wrote the file),
not on the size of the row group. Only the requested columns are read. Paths are local or gs://.

A row group cannot be read from its middle: to skip rows, they are decoded and discarded.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from bertjax import errors
from bertjax.data.corpus import arrow, corpus_files, templates

_MAGIC = b"PAR1"  # at both ends of a file
_BUFFER_BYTES = 1 << 20  # of a column chunk that is being read
_BATCH_BYTES = 1 << 20  # of a batch, estimated from the mean size of the rows
_MIN_BATCH_ROWS, _BATCH_ROWS = 16, 1024
# Each part of a row group also decodes the rows before it. Decoding is more than a hundred times
# faster than tokenising, so with this many parts it takes about 5% of the time.
_MAX_PARTS = 16


class Size(NamedTuple):
    """The size of a file. bytes: of all columns, decompressed, as the file's footer states them."""

    rows: int
    bytes: int


def check(path: str, template: templates.Template) -> Size:
    """Returns the size of a file. `template` names the columns that will be read.

    Raises UserError if the file is empty, incomplete or not Parquet, or has no row, and if a column
    is missing or is not text.
    """
    with _opened(path) as file:
        schema = file.schema_arrow
        template.check_columns(path, tuple(schema.names))
        for name in template.columns:
            _check_text(path, schema, name, template)
        num_rows = sum(_group_rows(file))
        if not num_rows:
            raise errors.UserError(f"{path}: contains no rows; remove the file")
        return Size(num_rows, sum(_group_sizes(file)))


def _group_rows(file: Any) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def _group_sizes(file: Any) -> list[int]:
    """Returns the decompressed bytes of each row group, all columns together.

    NOTE: the sizes of single columns are not used, because asking pyarrow for the metadata of a
    column ends the process if that metadata is damaged.
    """
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    return [max(group.total_byte_size, group.num_rows, 1) for group in groups]


def _check_text(path: str, schema: Any, name: str, template: templates.Template) -> None:
    if not _is_text(schema.field(name).type):
        texts = ", ".join(field.name for field in schema if _is_text(field.type))[:200]
        advice = template.advice(name) if texts else "convert the column to text"
        raise errors.UserError(
            f"{path}: column {name!r} is of type {schema.field(name).type!s:.80}, but must be text "
            f"(the file's text columns: {texts or 'none'}); {advice}"
        )


def _is_text(kind: Any) -> bool:
    from pyarrow import types  # slow to import, and rarely needed

    if types.is_dictionary(kind):
        kind = kind.value_type
    # A column of type null has no value in any row.
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def split(path: str, unit_bytes: int) -> list[tuple[int, int, int]]:
    """Returns (first row, row after the last, bytes) of parts of about `unit_bytes` bytes.

    A part consists of whole row groups. Only a row group of more than `unit_bytes` bytes is itself
    divided, into at most _MAX_PARTS parts of equal numbers of rows.
    """
    with _opened(path) as file:
        groups = list(zip(_group_rows(file), _group_sizes(file), strict=True))
    parts: list[tuple[int, int, int]] = []
    room = done_rows = 0
    for count, group_bytes in groups:
        if not count:
            continue
        pieces = max(1, min(-(-group_bytes // unit_bytes), _MAX_PARTS, count))
        if parts and group_bytes <= room:
            first, _, part_bytes = parts.pop()
            parts.append((first, done_rows + count, part_bytes + group_bytes))
            room -= group_bytes
        else:
            cuts = [piece * count // pieces for piece in range(pieces + 1)]
            for start, stop in itertools.pairwise(cuts):
                share = group_bytes * stop // count - group_bytes * start // count
                parts.append((done_rows + start, done_rows + stop, share))
            room = max(0, unit_bytes - parts[-1][2])
        done_rows += count
    return parts


def records(
    path: str, start: int, stop: int, *, fields: Sequence[str], guard: corpus_files.Guard
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (row number, {field: value}) of the rows [start, stop) of a file.

    A value is a str, or None; or bytes, if they are not UTF-8. With a `guard` that suppresses
    errors, the rest of a damaged row group is skipped.
    """
    with guard(corpus_files.UNREADABLE), _opened(path) as file:
        first = 0
        groups = zip(_group_rows(file), _group_sizes(file), strict=True)
        for group, (num_rows, size) in enumerate(groups):
            after = first + num_rows
            if first < stop and after > start:
                batch_rows = _batch_rows(num_rows, size)
                place = f"{path} row group {group}"
                with guard("unreadable row groups"), arrow.damage(place):
                    batches = file.iter_batches(
                        batch_rows, row_groups=[group], columns=list(fields), use_threads=False
                    )
                    last = min(stop, after)
                    row = yield from _batch_records(batches, fields, first, start, last)
                    _check_end(place, row - first, last - first)
            first = after
        _check_end(path, min(first, stop), stop)


def _batch_rows(num_rows: int, size: int) -> int:
    return max(_MIN_BATCH_ROWS, min(_BATCH_ROWS, _BATCH_BYTES * num_rows // size))


def _batch_records(
    batches: Iterator[Any], fields: Sequence[str], row: int, start: int, stop: int
) -> Generator[tuple[int, dict[str, Any]], None, int]:
    """Yields the records of batches that are in [start, stop). row: the first row of the batches.

    Returns `stop`, or the row at which the batches end before it.
    """
    for batch in batches:
        skipped = max(0, start - row)
        row += min(skipped, batch.num_rows)
        columns = [_decoded(batch.column(name)) for name in fields]
        for cells in zip(*(column[skipped:] for column in columns), strict=True):
            if row >= stop:
                return row
            yield row, dict(zip(fields, map(_value, cells), strict=True))
            row += 1
    return row


def _check_end(place: str, num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise errors.UserError(
            f"{place}: corrupt (ends after {num_rows} of {expected} rows); copy or download the "
            "file again"
        )


def _decoded(column: Any) -> Any:
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _value(cell: Any) -> str | bytes | None:
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return cell.as_buffer().to_pybytes()


def columns(path: str) -> dict[str, bool]:
    """Returns {column: whether it contains bytes, such as images, which `rows` cannot read}."""
    with _opened(path) as file:
        return {field.name: arrow.holds_bytes(field.type) for field in file.schema_arrow}


def rows(path: str, reads: Callable[[str], bool]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (row number, {column: value}) of all rows, in batches of about 1 MB.

    reads: whether to read a column; columns of bytes are never read. Numbers of classes become
    their names if the file has the metadata that Hugging Face's `datasets` writes; -1 becomes None.
    """
    with _opened(path) as file:
        fields = [field for field in file.schema_arrow if not arrow.holds_bytes(field.type)]
        names = [field.name for field in fields if reads(field.name)]
        classes = arrow.class_names(file.schema_arrow.metadata or {})
        groups = zip(_group_rows(file), _group_sizes(file), strict=True)
        batch_rows = min((_batch_rows(*g) for g in groups if g[0]), default=_BATCH_ROWS)
        row = 0
        with arrow.damage(path):
            for batch in file.iter_batches(batch_rows, columns=names, use_threads=False):
                for values in batch.to_pylist():
                    yield row, arrow.with_names(values, classes, f"{path} row {row}")
                    row += 1
        _check_end(path, row, sum(_group_rows(file)))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Yields a `pyarrow.parquet.ParquetFile`."""
    from pyarrow import parquet  # slow to import, and rarely needed

    with corpus_files.opened_binary(path, "Parquet") as (raw, head):
        if not head.startswith(_MAGIC):
            raise errors.UserError(
                f"{path}: is not a Parquet file; if it is text, pass --format or correct its suffix"
            )
        raw.seek(-min(len(_MAGIC), len(head)), 2)
        if len(head) <= 2 * len(_MAGIC) or raw.read() != _MAGIC:
            raise errors.UserError(
                f"{path}: is an incomplete Parquet file: its end is missing; copy or download it "
                "again"
            )
        raw.seek(0)
        with arrow.damage(path):
            file = parquet.ParquetFile(
                raw,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,  # it would hold all of a row group's requested columns in memory
                page_checksum_verification=True,
            )
        yield file
