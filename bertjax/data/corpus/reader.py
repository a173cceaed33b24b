"""Reads a corpus: finds the sources that match file patterns and yields their documents.

    .txt            a file is a document, or (text_split="blank") blank lines separate documents
    .jsonl .json    one JSON object per line; its `text_field` is the document
    .arrayrecord    a record is a document: UTF-8 text, or JSON (format="arrayrecord_jsonl")
    tfds:NAME/CONFIG:SPLIT    a TFDS dataset, read without TensorFlow
    builtin         the English text of this Python installation

Text and JSON may be compressed (.gz, .zst). Paths are local or gs://, and may be folders or globs.

    for source in reader.find(["books/*.jsonl", "tfds:wikipedia/20230601.en:train"]):
        for text in reader.documents(source):
            ...

A `Source` is a small object. `split` divides it into parts that other processes can read; together
the parts yield each document exactly once. Bad input raises UserError with the file and the line;
with on_error="skip" bad input is skipped and counted.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertjax import errors
from bertjax.data.corpus import builtin, corpus_files, indexed

SUFFIXES = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
}
FILE_FORMATS = ("txt", "jsonl", "arrayrecord", "arrayrecord_jsonl")
TEXT_SPLITS = ("file", "blank")
ON_ERROR = ("stop", "skip")

# A compressed file cannot be read from the middle. Therefore each of its n parts reads the whole
# file and keeps every n-th document. Decompressing is many times faster than tokenising, so a few
# parts still save time.
_MAX_STRIDE = 8
_BUILTIN_BYTES = 8_000_000  # an estimate

Guard = Callable[[str], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or dataset, or a part of one.

    path: file, "tfds:NAME/CONFIG:SPLIT" or "builtin".
    format: one of FILE_FORMATS, "tfds" or "builtin".
    size: bytes of this part on disk. It is an estimate for "tfds" and "builtin", and for parts of
        compressed and of ArrayRecord files.
    start, stop: the range of the part, in bytes for text and JSON, else in records; stop=None: to
        the end.
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
    on_error: str = "stop",
    skipped: collections.Counter[str] | None = None,
) -> list[Source]:
    """Returns the sources that match the patterns, each once.

    They are in the order of the patterns; the matches of one pattern are sorted.

    Raises UserError if a pattern matches nothing, if a file's suffix implies no format, or if a
    file is empty or unreadable (with on_error="skip" such files are counted in `skipped`).
    """
    sources: dict[str, Source] = {}
    for pattern in inputs:
        if pattern == "builtin":
            sources[pattern] = Source(pattern, "builtin", _BUILTIN_BYTES)
        elif pattern.startswith("tfds:"):
            sources[pattern] = Source(pattern, "tfds", indexed.tfds_bytes(pattern))
        else:
            for path in corpus_files.expand(pattern, lambda path: bool(_known_format(path))):
                kind = _format_of(path) if format == "auto" else format
                with _guard(on_error, skipped, "unreadable or empty files"):
                    sources[path] = Source(path, kind, corpus_files.checked_size(path))
                    if kind.startswith("arrayrecord"):
                        indexed.opened(path)
    if not sources:
        raise errors.UserError(f"--input={','.join(inputs)}: nothing can be read")
    return list(sources.values())


def split(source: Source, unit_bytes: int, *, text_split: str = "file") -> list[Source]:
    """Splits a source into parts of about `unit_bytes` bytes.

    Returns [source] if the source is not larger than that or cannot be split.
    """
    parts = -(-source.size // unit_bytes)
    whole_file = source.format == "txt" and text_split == "file"
    if parts <= 1 or whole_file or source.format == "builtin":
        return [source]
    replace = functools.partial(dataclasses.replace, source)
    if source.format not in ("txt", "jsonl"):
        records = len(indexed.opened(source.path))
        bounds = sorted({records * part // parts for part in range(parts + 1)})
        size = source.size // records
        ranges = itertools.pairwise(bounds)
        return [replace(start=a, stop=b, size=size * (b - a)) for a, b in ranges]
    if corpus_files.is_compressed(source.path):
        parts = min(parts, _MAX_STRIDE)
        return [replace(size=source.size // parts, stride=(i, parts)) for i in range(parts)]
    bounds = {0, source.size}
    with corpus_files.opened(source.path) as (file, _):
        for part in range(1, parts):
            blank = source.format == "txt"
            bounds.add(corpus_files.boundary(file, unit_bytes * part, blank=blank))
    return [replace(start=a, stop=b, size=b - a) for a, b in itertools.pairwise(sorted(bounds))]


def documents(
    source: Source,
    *,
    text_field: str = "text",
    text_split: str = "file",
    on_error: str = "stop",
    skipped: collections.Counter[str] | None = None,
) -> Iterator[str]:
    """Yields the documents of one source (or part), in order. Holds one at a time in memory.

    text_field: the field of a JSON line, JSON record or TFDS example that is the document.
    text_split: a document in plain text is a whole file ("file") or ends at a blank line ("blank").
    on_error: "stop" raises UserError at bad input; "skip" skips it and counts it in `skipped`.
    """
    progress = read(
        source, text_field=text_field, text_split=text_split, on_error=on_error, skipped=skipped
    )
    return (text for text, _ in progress)


def read(
    source: Source,
    *,
    text_field: str,
    text_split: str,
    on_error: str,
    skipped: collections.Counter[str] | None,
) -> Iterator[tuple[str, int]]:
    """Yields (document, how many of the `source.size` bytes have been read); see `documents`."""
    guard = functools.partial(_guard, on_error, skipped)
    if source.format == "builtin":
        return _read_builtin(source)
    if source.format == "jsonl":
        return _read_jsonl(source, text_field, guard)
    if source.format == "txt":
        return _read_blocks(source, guard) if text_split == "blank" else _read_file(source, guard)
    return _read_records(source, text_field, guard)


@contextlib.contextmanager
def _guard(
    on_error: str, skipped: collections.Counter[str] | None, name: str
) -> Iterator[None]:
    """Suppresses a UserError in the body of the `with` statement, unless on_error is "stop".

    Counts it in `skipped` under `name`.
    """
    try:
        yield
    except errors.UserError:
        if on_error == "stop":
            raise
        if skipped is not None:
            skipped[name] += 1


def _read_builtin(source: Source) -> Iterator[tuple[str, int]]:
    done = 0
    for text in builtin.documents():
        done += len(text)
        yield text, min(done, source.size)


def _read_jsonl(source: Source, text_field: str, guard: Guard) -> Iterator[tuple[str, int]]:
    turn, parts = source.stride
    for number, line, done in _lines(source, guard):
        if number % parts != turn or line.isspace():
            continue
        text = None
        with guard("bad JSON lines"):
            text = _json_text(line, text_field, functools.partial(_place, source, number))
        if text is not None:
            yield text, done


def _read_blocks(source: Source, guard: Guard) -> Iterator[tuple[str, int]]:
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
                with guard("documents that are not UTF-8"):
                    data = b"".join(block).rstrip(b"\r\n")
                    text = _decode(data, functools.partial(_place, source), first)
            blocks, block = blocks + 1, []
            if text is not None:
                yield text, done
        done = position


def _read_file(source: Source, guard: Guard) -> Iterator[tuple[str, int]]:
    text = None
    with guard("unreadable files"), corpus_files.opened(source.path) as (file, _):
        data = file.read(corpus_files.MAX_DOCUMENT + 1)
        corpus_files.check_document(len(data), lambda: source.path)
        text = _decode(data, functools.partial(_place, source), 0)
    if text is not None:
        yield text, source.size


def _read_records(source: Source, text_field: str, guard: Guard) -> Iterator[tuple[str, int]]:
    records = indexed.opened(source.path)
    stop = len(records) if source.stop is None else source.stop
    for index in range(source.start, stop):
        text = None
        with guard("bad records"):
            place = functools.partial(_record_place, source, index)
            record = records[index]
            if source.format == "tfds":
                text = _field(record, text_field, place)
            elif source.format == "arrayrecord_jsonl":
                text = _json_text(record, text_field, place)
            else:
                text = _decode(record, place, 0)
        if text is not None:
            yield text, source.size * (index + 1 - source.start) // (stop - source.start)


def _lines(source: Source, guard: Guard) -> Iterator[tuple[int, bytes, int]]:
    """Yields (line number in this part, from 0; line; bytes of the part read so far)."""
    done, parts = 0, source.stride[1]
    with guard("unreadable files"), corpus_files.opened(source.path) as (file, raw):
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


def _json_text(line: bytes, text_field: str, place: Callable[[], str]) -> str:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise errors.UserError(f"{place()}: is not UTF-8; convert the file to UTF-8") from error
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise errors.UserError(
            f"{place()}: not valid JSON ({reason}); correct it, or pass --on_error=skip"
        ) from error
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise errors.UserError(f"{place()}: is a JSON {kind}; each line must be an object")
    return _field(record, text_field, place)


def _field(record: dict[str, Any], text_field: str, place: Callable[[], str]) -> str:
    if text_field not in record:
        fields = ", ".join(record) or "none"
        raise errors.UserError(
            f"{place()}: has no field {text_field!r} (its fields: {fields}); give one of them as "
            "--text_field"
        )
    text = record[text_field]
    if isinstance(text, bytes):
        return _decode(text, lambda _: place(), 0)
    if not isinstance(text, str):
        raise errors.UserError(
            f"{place()}: field {text_field!r} must be a string, but is {text!r:.40}"
        )
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise errors.UserError(f"{place()}: contains an unpaired surrogate") from error
    return text


def _decode(data: bytes, place: Callable[[int], str], first: int) -> str:
    """Decodes UTF-8.

    place: called with a line number; returns the file and line to show in an error message.
    first: the number of the first line of `data`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise errors.UserError(f"{place(line)}: is not UTF-8; convert the file to UTF-8") from error
    return text.replace("\r\n", "\n") if "\r" in text else text


def _place(source: Source, number: int) -> str:
    return f"{source.path} line {corpus_files.lines_before(source.path, source.start) + number + 1}"


def _record_place(source: Source, index: int, _: int = 0) -> str:
    return f"{source.path} record {index}"


def _format_of(path: str) -> str:
    if not _known_format(path):
        with corpus_files.opened(path):
            pass  # raises an error that names the format if the file is binary
        raise errors.UserError(
            f"{path}: the suffix is unknown; pass --format={'|'.join(FILE_FORMATS)}"
        )
    return _known_format(path)


def _known_format(path: str) -> str:
    return SUFFIXES.get(corpus_files.suffix(path), "")
