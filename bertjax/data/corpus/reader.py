"""Reads a corpus: finds the sources that match file patterns and yields their documents.

    .txt            a file is a document, or (text_split="blank") blank lines separate documents
    .jsonl .json    one JSON object per line; its `text_field` is the document
    .parquet        a row is a document: its column `text_field`; only this column is read
    .csv .tsv       a table whose first line names the columns; a row is a document (see `tables`)
    .arrayrecord    a record is a document: UTF-8 text, or JSON (format="arrayrecord_jsonl")
    tfds:NAME/CONFIG:SPLIT    a TFDS dataset, read without TensorFlow
    builtin         the English text of this Python installation

Text, JSON, CSV and TSV may be compressed (.gz, .zst). Paths are local or gs://, and may be folders
or globs. A `text_template` composes a document from several fields (see `templates`).

    for source in reader.find(["books/*.jsonl", "tfds:wikipedia/20230601.en:train"]):
        for text in reader.documents(source):
            ...

A `Source` is a small object. `split` divides it into parts that other processes can read; together
the parts yield each document exactly once. Bad input raises UserError with the file and the line;
with on_error="skip" it is skipped and counted, and the first case of each kind is told on stderr.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

from bertjax import errors
from bertjax.data.corpus import builtin, corpus_files, indexed, parquet, tables, templates

SUFFIXES = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
}
FILE_FORMATS = ("txt", "jsonl", "arrayrecord", "arrayrecord_jsonl", "parquet", *tables.FORMATS)
TEXT_SPLITS = ("file", "blank")
ON_ERROR = ("stop", "skip")

# A compressed file cannot be read from the middle. Therefore each of its n parts reads the whole
# file and keeps every n-th document. Decompressing is many times faster than tokenising, so a few
# parts still save time.
_MAX_STRIDE = 8
_BUILTIN_BYTES = 8_000_000  # an estimate


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or dataset, or a part of one.

    path: file, "tfds:NAME/CONFIG:SPLIT" or "builtin".
    format: one of FILE_FORMATS, "tfds" or "builtin".
    size: bytes of this part on disk. It is an estimate for "tfds" and "builtin", and for parts of
        compressed and of ArrayRecord files. For "parquet" it is the bytes of all columns,
        decompressed, as the file's footer states them.
    start, stop: the range of the part, in bytes for text, JSON, CSV and TSV, else in records or
        rows; stop=None: to the end.
    stride: (i, n) keeps documents i, i + n, ... of a file that must be read from its beginning.
    """

    path: str
    format: str
    size: int
    start: int = 0
    stop: int | None = None
    stride: tuple[int, int] = (0, 1)


def find(
    inputs: Sequence[str],
    *,
    format: str = "auto",
    text_field: str = templates.DEFAULT_FIELD,
    text_template: str = "",
    language_field: str = "",
    on_error: str = "stop",
    skipped: collections.Counter[str] | None = None,
) -> list[Source]:
    """Returns the sources that match the patterns, each once.

    They are in the order of the patterns; the matches of one pattern are sorted.

    Raises UserError if a pattern matches nothing, if a file's suffix implies no format, or if a
    file is empty or unreadable, or a table lacks the columns of `text_field`, `text_template` or
    `language_field` (with on_error="skip" such files are counted in `skipped`). Also raises
    UserError if there is a `language_field` but a format has no fields.
    """
    template = templates.of(text_field, text_template, language_field)
    sources: dict[str, Source] = {}
    for pattern in inputs:
        if pattern == "builtin":
            template.check_has_fields(pattern, "builtin")
            sources[pattern] = Source(pattern, "builtin", _BUILTIN_BYTES)
        elif pattern.startswith("tfds:"):
            sources[pattern] = Source(pattern, "tfds", indexed.tfds_bytes(pattern))
        else:
            for path in corpus_files.expand(pattern, lambda path: bool(known_format(path))):
                kind = _format_of(path) if format == "auto" else format
                template.check_has_fields(path, kind)
                with _guard(on_error, skipped, corpus_files.UNREADABLE):
                    sources[path] = _source(path, kind, template)
    if not sources:
        raise errors.UserError(f"--input={','.join(inputs)}: nothing can be read")
    return list(sources.values())


def _source(path: str, form: str, template: templates.Template) -> Source:
    """Returns a file as a source. Raises UserError if it is found to be unreadable."""
    if form == "parquet":
        rows, size = parquet.check(path, template)
        return Source(path, form, size, stop=rows)
    source = Source(path, form, corpus_files.checked_size(path))
    if form in tables.FORMATS:
        tables.checked_columns(path, form, template)
    elif form.startswith("arrayrecord"):
        indexed.opened(path)
    return source


def split(source: Source, unit_bytes: int, *, text_split: str = "file") -> list[Source]:
    """Splits a source into parts of about `unit_bytes` bytes.

    Returns [source] if the source is not larger than that or cannot be split.
    """
    parts = -(-source.size // unit_bytes)
    whole_file = source.format == "txt" and text_split == "file"
    if parts <= 1 or whole_file or source.format == "builtin":
        return [source]
    replace = functools.partial(dataclasses.replace, source)
    if source.format == "parquet":
        rows = parquet.split(source.path, unit_bytes)
        return [replace(start=a, stop=b, size=size) for a, b, size in rows]
    if source.format not in ("txt", "jsonl", *tables.FORMATS):
        records = len(indexed.opened(source.path))
        bounds = sorted({records * part // parts for part in range(parts + 1)})
        size = source.size // records
        ranges = itertools.pairwise(bounds)
        return [replace(start=a, stop=b, size=size * (b - a)) for a, b in ranges]
    if corpus_files.is_compressed(source.path):
        parts = min(parts, _MAX_STRIDE)
        return [replace(size=source.size // parts, stride=(i, parts)) for i in range(parts)]
    if source.format == "csv":
        bounds = {0, source.size, *tables.boundaries(source.path, unit_bytes)}
    else:
        bounds = {0, source.size}
        with corpus_files.opened(source.path) as (file, _):
            for part in range(1, parts):
                blank = source.format == "txt"
                bounds.add(corpus_files.boundary(file, unit_bytes * part, blank=blank))
    return [replace(start=a, stop=b, size=b - a) for a, b in itertools.pairwise(sorted(bounds))]


def documents(
    source: Source,
    *,
    text_field: str = templates.DEFAULT_FIELD,
    text_template: str = "",
    text_split: str = "file",
    on_error: str = "stop",
    skipped: collections.Counter[str] | None = None,
) -> Iterator[str]:
    """Yields the documents of one source (or part), in order. Holds one at a time in memory.

    text_field: the field of a JSON line, JSON record or TFDS example, or the column of a table,
        that is the document. A null is an empty document.
    text_template: several fields with text between them, as in "{title}\n{text}"; "": text_field.
    text_split: a document in plain text is a whole file ("file") or ends at a blank line ("blank").
    on_error: "stop" raises UserError at bad input; "skip" skips it and counts it in `skipped`.
    """
    rows = read(
        source,
        text_field=text_field,
        text_template=text_template,
        text_split=text_split,
        on_error=on_error,
        skipped=skipped,
    )
    return (document.text for document in rows)


def read(
    source: Source,
    *,
    text_field: str,
    text_template: str = "",
    language_field: str = "",
    text_split: str,
    on_error: str,
    skipped: collections.Counter[str] | None,
) -> Iterator[templates.Document]:
    """Yields the documents with their positions and languages; see `documents`.

    language_field: the field with the language; "": it is not read.
    """
    guard = functools.partial(_guard, on_error, skipped)
    template = templates.of(text_field, text_template, language_field)
    if source.format == "builtin":
        return _read_builtin(source)
    if source.format == "jsonl":
        return _read_jsonl(source, template, guard)
    if source.format == "parquet":
        return _read_parquet(source, template, guard)
    if source.format in tables.FORMATS:
        return _read_table(source, template, guard)
    if source.format == "txt":
        return _read_blocks(source, guard) if text_split == "blank" else _read_file(source, guard)
    return _read_records(source, template, guard)


@contextlib.contextmanager
def _guard(on_error: str, skipped: collections.Counter[str] | None, name: str) -> Iterator[None]:
    """Suppresses a UserError in the body of the `with` statement, unless on_error is "stop".

    Counts it in `skipped` under `name`, and tells the first one.
    """
    try:
        yield
    except errors.UserError as error:
        if on_error == "stop":
            raise errors.UserError(f"{error}; or leave it out with --on_error=skip") from error
        if skipped is not None:
            if not skipped[name]:
                errors.tell(f"skipped: {error}")
            skipped[name] += 1


def described(skipped: Mapping[str, int]) -> str:
    """Returns "3 bad rows, 1 empty document" for {"bad rows": 3, "empty documents": 1}."""
    cases = ((reason.removesuffix("s"), count) for reason, count in skipped.items() if count)
    return ", ".join(errors.count(count, reason) for reason, count in cases)


def _read_builtin(source: Source) -> Iterator[templates.Document]:
    done = 0
    for text in builtin.documents():
        done += len(text)
        yield templates.Document(text, min(done, source.size))


def _read_jsonl(
    source: Source, template: templates.Template, guard: corpus_files.Guard
) -> Iterator[templates.Document]:
    turn, parts = source.stride
    for number, line, done in _lines(source, guard):
        if number % parts != turn or line.isspace():
            continue
        document = None
        with guard("bad JSON lines"):
            place = functools.partial(_place, source, number)
            document = template.document(template.record_of_json(line, place), done, place)
        if document is not None:
            yield document


def _read_blocks(source: Source, guard: corpus_files.Guard) -> Iterator[templates.Document]:
    """Yields documents that are separated by blank lines."""
    turn, parts = source.stride
    blocks, block, first, done, size = 0, [], 0, 0, 0
    end = [(-1, b"\n", source.size)]  # closes the last block
    for number, line, position in itertools.chain(_lines(source, guard), end):
        if not line.isspace():
            first, size = (first, size) if block else (number, 0)
            block.append(line)
            size += len(line)
            corpus_files.check_document(size, functools.partial(_place, source, first))
        elif block:
            text = None
            if blocks % parts == turn:
                with guard("non-UTF-8 documents"):
                    data = b"".join(block).rstrip(b"\r\n")
                    text = corpus_files.decoded(data, functools.partial(_place, source), first)
            blocks, block = blocks + 1, []
            if text is not None:
                yield templates.Document(text, done)
        done = position


def _read_file(source: Source, guard: corpus_files.Guard) -> Iterator[templates.Document]:
    text = None
    with guard(corpus_files.UNREADABLE), corpus_files.opened(source.path) as (file, _):
        data = file.read(corpus_files.MAX_DOCUMENT + 1)
        corpus_files.check_document(len(data), lambda: source.path)
        text = corpus_files.decoded(data, functools.partial(_place, source), 0)
    if text is not None:
        yield templates.Document(text, source.size)


def _read_parquet(
    source: Source, template: templates.Template, guard: corpus_files.Guard
) -> Iterator[templates.Document]:
    start, stop = source.start, source.stop
    rows = parquet.records(source.path, start, stop, fields=template.columns, guard=guard)
    for index, record in rows:
        document = None
        with guard("bad rows"):
            place = functools.partial(_row_place, source, index)
            done = source.size * (index + 1 - start) // (stop - start)
            document = template.document(record, done, place)
            corpus_files.check_document(len(document.text), place)
        if document is not None:
            yield document


def _read_table(
    source: Source, template: templates.Template, guard: corpus_files.Guard
) -> Iterator[templates.Document]:
    turn, parts = source.stride
    names: tuple[str, ...] = ()
    with guard(corpus_files.UNREADABLE):
        names = tables.checked_columns(source.path, source.format, template)
    lines = tables.decoded(_lines(source, guard))
    rows = tables.rows(lines, source.format) if names else iter(())
    if source.start == 0:
        next(rows, None)  # the header
    for number, row in enumerate(row for row in rows if row.cells or row.problem):
        if number % parts != turn:
            continue
        document = None
        with guard("bad rows"):
            place = functools.partial(_place, source, row.number)
            document = template.document(tables.record(row, names, place), row.end, place)
        if document is not None:
            yield document


def _read_records(
    source: Source, template: templates.Template, guard: corpus_files.Guard
) -> Iterator[templates.Document]:
    records = indexed.opened(source.path)
    stop = len(records) if source.stop is None else source.stop
    for index in range(source.start, stop):
        document = None
        with guard("bad records"):
            place = functools.partial(_record_place, source, index)
            done = source.size * (index + 1 - source.start) // (stop - source.start)
            record = records[index]
            if source.format == "tfds":
                document = template.document(record, done, place)
            elif source.format == "arrayrecord_jsonl":
                document = template.document(template.record_of_json(record, place), done, place)
            else:
                text = corpus_files.decoded(record, place, 0)
                document = templates.Document(text, done)
        if document is not None:
            yield document


def _lines(source: Source, guard: corpus_files.Guard) -> Iterator[tuple[int, bytes, int]]:
    """Yields (line number in this part, from 0; line; bytes of the part read so far)."""
    done, parts = 0, source.stride[1]
    with guard(corpus_files.UNREADABLE), corpus_files.opened(source.path) as (file, raw):
        if source.start:
            file.seek(source.start)
        place = functools.partial(_place, source)
        for number, line in enumerate(corpus_files.lines(file, place)):
            done = done + len(line) if file is raw else raw.tell() // parts
            if number == 0 and source.start == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield number, line, done
            if source.stop is not None and source.start + done >= source.stop:
                return


def _place(source: Source, number: int) -> str:
    return f"{source.path} line {corpus_files.lines_before(source.path, source.start) + number + 1}"


def _record_place(source: Source, index: int, _: int = 0) -> str:
    return f"{source.path} record {index}"


def _row_place(source: Source, index: int) -> str:
    return f"{source.path} row {index}"


def _format_of(path: str) -> str:
    if not known_format(path):
        with corpus_files.opened(path):
            pass  # raises an error that names the format if the file is binary
        raise errors.UserError(
            f"{path}: the suffix is unknown; pass --format={'|'.join(FILE_FORMATS)}"
        )
    return known_format(path)


def known_format(path: str) -> str:
    """Returns the format that the suffix of a file implies; "" if it is unknown."""
    return SUFFIXES.get(corpus_files.suffix(path), "")
