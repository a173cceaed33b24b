"""Reading a corpus: from file patterns to documents, whatever the container.

    .txt            a file is a document, or (text_split="blank") blank lines separate documents
    .jsonl .json    one JSON object a line, its `text_field` is the document
    .arrayrecord    one document a record: UTF-8 text, or JSON (format="arrayrecord_jsonl")
    tfds:NAME/CONFIG:SPLIT    a TFDS dataset, read without TensorFlow
    builtin         the English text of this Python installation

Text and JSON also as .gz and .zst; paths may be local or gs://, and may be folders or globs.

    sources = corpus.find(["books/*.jsonl", "tfds:wikipedia/20230601.en:train"])
    for source in sources:
        for text in corpus.documents(source):
            ...

A `Source` is a small value; `split` cuts it into parts which can be read in other processes. Together
the parts give each document exactly once. Bad input is a UserError that names the file and the line,
or with on_error="skip" it is left out and counted.
"""

import collections
import contextlib
import dataclasses
import functools
import glob
import gzip
import io
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import zstandard
from array_record.python import array_record_module
from etils import epath

from bertjax import errors
from bertjax.data import builtin

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

# A compressed file cannot be entered in the middle: every part reads it all and keeps each n-th
# document. Decompressing is many times faster than tokenising, so a few parts still pay.
_MAX_STRIDE = 8
_BUILTIN_BYTES = 8_000_000  # for progress only
_RECORDS_A_READ = 16
_PIECE = 1 << 20
_CORRUPT = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or dataset, or a part of one.

    path: file, "tfds:name/config:split" or "builtin".
    format: one of FILE_FORMATS, "tfds" or "builtin".
    size: bytes of this part on disk; an estimate for parts of compressed files and TFDS.
    start, stop: the part, in bytes for text and JSON, in records otherwise; stop=None is the end.
    stride: (i, n) keeps documents i, i + n, ... of a file that has to be read from its beginning.
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
    """The sources that the patterns name, each once, in the order given and sorted within a pattern.

    UserError if a pattern matches nothing, a format cannot be told, or a file is empty or unreadable
    (with on_error="skip" such files are counted in `skipped`).
    """
    found: dict[str, Source] = {}
    for pattern in inputs:
        if pattern == "builtin":
            found[pattern] = Source("builtin", "builtin", _BUILTIN_BYTES)
        elif pattern.startswith("tfds:"):
            found[pattern] = Source(pattern, "tfds", _tfds_bytes(pattern))
        else:
            for path in _expand(pattern):
                with _bad_input(on_error, skipped, "unreadable or empty files"):
                    found[path] = Source(path, _format_of(path, format), _checked_size(path))
    if not found:
        raise errors.UserError(
            f"no file to read in {' '.join(inputs)}" if inputs else "no input was given"
        )
    return list(found.values())


def split(source: Source, unit_bytes: int, *, text_split: str = "file") -> list[Source]:
    """Parts of about `unit_bytes` bytes each; the source alone where it cannot be cut."""
    parts = -(-source.size // unit_bytes)
    if parts <= 1 or source.format == "builtin":
        return [source]
    if source.format in ("tfds", "arrayrecord", "arrayrecord_jsonl"):
        records = _record_count(source)
        bounds = sorted({records * part // parts for part in range(parts + 1)})
        return [
            dataclasses.replace(source, start=a, stop=b, size=source.size * (b - a) // records)
            for a, b in itertools.pairwise(bounds)
        ]
    if source.format == "txt" and text_split == "file":
        return [source]
    if _is_compressed(source.path):
        parts = min(parts, _MAX_STRIDE)
        size = source.size // parts
        return [dataclasses.replace(source, size=size, stride=(i, parts)) for i in range(parts)]
    with _open(source.path) as (file, _):
        blank = source.format == "txt"
        inner = {_boundary(file, unit_bytes * part, blank) for part in range(1, parts)}
    bounds = sorted(inner | {0, source.size})
    return [
        dataclasses.replace(source, start=a, stop=b, size=b - a)
        for a, b in itertools.pairwise(bounds)
    ]


def documents(
    source: Source,
    *,
    text_field: str = "text",
    text_split: str = "file",
    on_error: str = "stop",
    skipped: collections.Counter[str] | None = None,
) -> Iterator[str]:
    """The documents of one source (or part), in order. One document is held at a time.

    text_field: the field of a JSON line, JSON record or TFDS example that is the document.
    text_split: for plain text, "file" (a file is a document) or "blank" (blank lines separate them).
    on_error: "stop" raises UserError at bad input, "skip" leaves it out and counts it in `skipped`.
    """
    return (
        text
        for text, _ in read(
            source,
            text_field=text_field,
            text_split=text_split,
            on_error=on_error,
            skipped=skipped,
        )
    )


def read(
    source: Source,
    *,
    text_field: str = "text",
    text_split: str = "file",
    on_error: str = "stop",
    skipped: collections.Counter[str] | None = None,
) -> Iterator[tuple[str, int]]:
    """As `documents`, with the bytes of `source.size` that were read so far, for progress."""
    guard = functools.partial(_bad_input, on_error, skipped)
    if source.format == "builtin":
        done = 0
        for text in builtin.documents():
            done += len(text)
            yield text, min(done, source.size)
    elif source.format == "tfds":
        yield from _read_tfds(source, text_field, guard)
    elif source.format.startswith("arrayrecord"):
        yield from _read_arrayrecord(source, text_field, guard)
    elif source.format == "jsonl":
        yield from _read_jsonl(source, text_field, guard)
    elif text_split == "blank":
        yield from _read_blocks(source, guard)
    else:
        yield from _read_text(source, guard)


Guard = Callable[[str], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _bad_input(
    on_error: str, skipped: collections.Counter[str] | None, what: str
) -> Iterator[None]:
    """Lets UserError pass, or counts it under `what`."""
    try:
        yield
    except errors.UserError:
        if on_error == "stop":
            raise
        if skipped is not None:
            skipped[what] += 1


# --- files: text and JSON -------------------------------------------------------------------------


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
    """Documents that are separated by blank lines."""
    turn, parts = source.stride
    blocks, block, first, done = 0, [], 0, 0
    end = [(-1, b"\n", source.size)]  # closes the last block
    for number, line, position in itertools.chain(_lines(source, guard), end):
        if not line.isspace():
            first = first if block else number
            block.append(line)
        elif block:
            text = None
            if blocks % parts == turn:
                with guard("documents that are not UTF-8"):
                    text = _decode(b"".join(block), functools.partial(_place, source), first)
            blocks, block = blocks + 1, []
            if text is not None:
                yield text, done
        done = position


def _read_text(source: Source, guard: Guard) -> Iterator[tuple[str, int]]:
    text = None
    with guard("unreadable or corrupt files"), _open(source.path) as (file, _):
        text = _decode(file.read(), functools.partial(_place, source), 0)
    if text is not None:
        yield text, source.size


def _lines(source: Source, guard: Guard) -> Iterator[tuple[int, bytes, int]]:
    """(line number in this part from 0, line, bytes of the part read so far)."""
    done, parts = 0, source.stride[1]
    with guard("unreadable or corrupt files"), _open(source.path) as (file, raw):
        if source.start:
            file.seek(source.start)
        for number, line in enumerate(file):
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
        raise errors.UserError(f"{place()}: not UTF-8 (byte {error.start} of it)") from error
    except (ValueError, RecursionError) as error:
        hint = "; one object a line is read, not an array" if line.lstrip()[:1] == b"[" else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise errors.UserError(f"{place()}: not valid JSON ({reason}){hint}") from error
    return _field(record, text_field, place)


def _field(record: Any, text_field: str, place: Callable[[], str]) -> str:
    if not isinstance(record, dict):
        raise errors.UserError(f"{place()}: not a JSON object but {type(record).__name__}")
    if text_field not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise errors.UserError(
            f"{place()}: no field {text_field!r}; it has {fields}: name the right one as --text_field"
        )
    text = record[text_field]
    if isinstance(text, bytes):
        return _decode(text, lambda _: place(), 0)
    if not isinstance(text, str):
        raise errors.UserError(f"{place()}: field {text_field!r} is not text")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise errors.UserError(f"{place()}: holds half a surrogate pair, no text") from error
    return text


def _decode(data: bytes, place: Callable[[int], str], first: int) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise errors.UserError(f"{place(line)}: not UTF-8; convert the file to UTF-8") from error
    return text.replace("\r\n", "\n") if "\r" in text else text


def _place(source: Source, number: int) -> str:
    """The line as a reader counts it. Lines before a part are counted when an error needs them."""
    return f"{source.path} line {_lines_before(source.path, source.start) + number + 1}"


@functools.lru_cache(maxsize=4)
def _lines_before(path: str, start: int) -> int:
    lines = 0
    if start:
        with _open(path) as (file, _):
            while start and (piece := file.read(min(start, _PIECE))):
                lines += piece.count(b"\n")
                start -= len(piece)
    return lines


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """(file of decompressed bytes, file on disk). What goes wrong in reading becomes a UserError."""
    try:
        with epath.Path(path).open("rb") as raw:
            if path.endswith(".gz"):
                yield gzip.GzipFile(fileobj=raw), raw
            elif path.endswith((".zst", ".zstd")):
                decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
                stream = decompressor.stream_reader(raw, read_across_frames=True)
                yield io.BufferedReader(stream, _PIECE), raw
            else:
                yield raw, raw
    except _CORRUPT as error:
        raise errors.UserError(f"{path}: truncated or corrupt ({error}); replace the file") from error
    except OSError as error:
        reason = error.strerror or error
        raise errors.UserError(f"{path}: cannot be read ({reason})") from error


def _is_compressed(path: str) -> bool:
    return path.endswith((".gz", ".zst", ".zstd"))


def _boundary(file: BinaryIO, position: int, blank: bool) -> int:
    """The first line start after `position`; with `blank`, the first one that follows a blank line."""
    file.seek(position)
    whole = False  # whether `line` begins at the start of a line: long lines come in pieces
    while line := file.readline(_PIECE):
        ended = line.endswith(b"\n")
        if ended and (not blank or (whole and line.isspace())):
            break
        whole = ended
    return file.tell()


# --- records: ArrayRecord and TFDS ----------------------------------------------------------------


def _read_arrayrecord(source: Source, text_field: str, guard: Guard) -> Iterator[tuple[str, int]]:
    reader = _arrayrecord(source.path)
    stop = reader.num_records() if source.stop is None else source.stop
    for index in range(source.start, stop):
        text = None
        with guard("bad records"):
            place = f"{source.path} record {index}"
            try:
                (data,) = reader.read([index])
            except RuntimeError as error:
                raise errors.UserError(f"{place}: corrupt ({error})") from error
            if source.format == "arrayrecord_jsonl":
                text = _json_text(data, text_field, lambda place=place: place)
            else:
                text = _decode(data, lambda _, place=place: place, 0)
        if text is not None:
            yield text, source.size * (index + 1 - source.start) // (stop - source.start)


def _read_tfds(source: Source, text_field: str, guard: Guard) -> Iterator[tuple[str, int]]:
    data = _tfds(source.path)
    stop = len(data) if source.stop is None else source.stop
    for index in range(source.start, stop):
        text = None
        with guard("bad records"):
            place = f"{source.path} example {index}"
            text = _field(data[index], text_field, lambda place=place: place)
        if text is not None:
            yield text, source.size * (index + 1 - source.start) // (stop - source.start)


def _record_count(source: Source) -> int:
    if source.format == "tfds":
        return len(_tfds(source.path))
    return _arrayrecord(source.path).num_records()


@functools.lru_cache(maxsize=4)
def _arrayrecord(path: str) -> Any:
    if "://" in path:
        raise errors.UserError(f"{path}: ArrayRecord is read from local disks only; copy it first")
    try:
        reader = array_record_module.ArrayRecordReader(path, options="readahead_buffer_size:0")
        records = reader.num_records() if reader.ok() else 0
    except RuntimeError as error:
        raise errors.UserError(f"{path}: not a readable ArrayRecord file ({error})") from error
    if not records:
        raise errors.UserError(f"{path}: holds no record, or is truncated or no ArrayRecord file")
    return reader


@functools.lru_cache(maxsize=4)
def _tfds(name: str) -> Any:
    """The random access source of "tfds:NAME/CONFIG:SPLIT"; TFDS builds the dataset if it can."""
    import tensorflow_datasets as tfds  # heavy, and needed by few

    builder, _, split = name.removeprefix("tfds:").partition(":")
    try:
        return tfds.data_source(builder, split=split or "train")
    except Exception as error:  # TFDS raises anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise errors.UserError(
            f"{name}: cannot be read ({reason}); without TensorFlow, TFDS reads what was built with "
            "file_format=array_record and lies in $TFDS_DATA_DIR"
        ) from error


def _tfds_bytes(name: str) -> int:
    data = _tfds(name)
    info = data.dataset_info
    examples = info.splits.total_num_examples
    return len(data) * info.dataset_size // examples if examples else 1000 * len(data)


# --- finding files --------------------------------------------------------------------------------


def _expand(pattern: str) -> list[str]:
    """Files of a pattern, sorted. A folder stands for the files in it with a known suffix."""
    if "://" in pattern:
        names, folder = _expand_remote(pattern)
    else:
        folder = os.path.isdir(pattern)
        search = os.path.join(glob.escape(pattern), "**", "*") if folder else pattern
        found = [pattern] if os.path.isfile(pattern) else glob.glob(search, recursive=True)
        names = [name for name in found if not os.path.isdir(name)]
    if folder:
            names = glob.glob(os.path.join(glob.escape(pattern), "**", "*"), recursive=True)
        else:
            names = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        names = [name for name in names if not os.path.isdir(name)]
    if folder:
        names = [name for name in names if _known_format(name)]
    if not names:
        raise errors.UserError(f"{pattern}: no such file" + (" with a known suffix" if folder else ""))
    return sorted(names)


def _expand_remote(pattern: str) -> tuple[list[str], bool]:
    scheme, _, rest = pattern.partition("://")
    parts = rest.split("/")
    fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    root = epath.Path(f"{scheme}://" + "/".join(fixed))
    if len(fixed) < len(parts):
        found, folder = root.glob("/".join(parts[len(fixed) :])), False
    else:
        folder = root.is_dir()
        found = root.rglob("*") if folder else [root] if root.exists() else []
    return [os.fspath(path) for path in found if not path.is_dir()], folder


def _format_of(path: str, format: str) -> str:
    if format == "auto" and not _known_format(path):
        raise errors.UserError(
            f"{path}: its suffix tells no format; pass --format={'|'.join(FILE_FORMATS)}"
        )
    return _known_format(path) if format == "auto" else format


def _known_format(path: str) -> str:
    stem = path.rpartition(".")[0] if _is_compressed(path) else path
    return SUFFIXES.get(os.path.splitext(stem)[1].lower(), "")


def _checked_size(path: str) -> int:
    with _open(path) as (_, raw):
        empty = not raw.read(1)
    if empty:
        raise errors.UserError(f"{path}: the file is empty")
    return epath.Path(path).stat().length
