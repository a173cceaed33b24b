"""Finds the files of a corpus, decompresses them and splits them into lines.

The functions raise UserError, with the name of the file, if a file cannot be opened or read. They
also reject devices and pipes, which may never end, binary formats, and documents of more than
MAX_DOCUMENT bytes, which even a small compressed file may contain. Paths are local or gs://.
"""

import contextlib
import functools
import glob
import gzip
import io
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard
from etils import epath

from bertjax import errors, paths
from bertjax.data.corpus import binary_formats

MAX_DOCUMENT = 1 << 30  # maximum bytes of a line, or of a file that is read as one document

UNREADABLE = "unreadable or empty files"  # the counter of files that cannot be read

# Given the name of a counter, returns a context that may suppress the UserError of bad input and
# count it.
Guard = Callable[[str], contextlib.AbstractContextManager[None]]

_ZSTD = (".zst", ".zstd")
_COMPRESSED = (".gz", *_ZSTD)
_CORRUPT = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
_PIECE_BYTES = 1 << 20


def is_compressed(path: str) -> bool:
    """Returns whether the name ends in .gz, .zst or .zstd."""
    return path.endswith(_COMPRESSED)


def suffix(path: str) -> str:
    """Returns the suffix for the format, in lower case: ".jsonl" for "a/b.jsonl.gz"."""
    stem = path.rpartition(".")[0] if is_compressed(path) else path
    return os.path.splitext(stem)[1].lower()


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yields (decompressed file, file on disk); they are one object if the file is not compressed.

    Raises UserError if the file is unreadable, corrupt or binary, even if this is detected only
    when the body of the `with` statement reads the file.
    """
    with opened_raw(path) as raw:
        with contextlib.suppress(*_CORRUPT):  # reading the file raises it again, see below
            binary_formats.check(path, _decompressed(path, raw).read(binary_formats.HEAD))
        raw.seek(0)
        yield _decompressed(path, raw), raw


@contextlib.contextmanager
def opened_raw(path: str) -> Iterator[BinaryIO]:
    """Yields the file on disk. Raises UserError as `opened` does, but not for binary files."""
    try:
        with paths.of(path).open("rb") as raw:
            yield raw
    except _CORRUPT as error:
        raise errors.UserError(f"{path}: truncated or corrupt ({error})") from error
    except IsADirectoryError as error:
        raise errors.UserError(f"{path}: is a folder: give a file in it") from error
    except OSError as error:
        raise errors.UserError(f"{path}: cannot be read ({error.strerror or error})") from error


@contextlib.contextmanager
def opened_binary(path: str, form: str) -> Iterator[tuple[BinaryIO, bytes]]:
    """Yields (file on disk, its first bytes) of a file in the binary format `form`.

    Raises UserError as `opened_raw` does, and if the file is empty or in another known format.
    """
    with opened_raw(path) as raw:
        head = raw.read(binary_formats.HEAD)
        if not head:
            raise errors.UserError(f"{path}: the file is empty")
        binary_formats.check(path, head, expected=form)
        yield raw, head


def lines(file: BinaryIO, where: Callable[[int], str]) -> Iterator[bytes]:
    """Yields the lines of a file. Raises UserError if a line has more than MAX_DOCUMENT bytes.

    where: called with a line number, from 0; returns the file and line to show in the message.
    """
    for number in itertools.count():
        line = file.readline(MAX_DOCUMENT + 1)
        check_document(len(line), functools.partial(where, number))
        if not line:
            return
        yield line


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its line break).

    Raises UserError if the file is empty, is not UTF-8, contains a NUL character, or ends its lines
    with "\\r" only.
    """
    number = 0
    with opened(path) as (file, _):
        byte_lines = lines(file, lambda line: f"{path}:{line + 1}")
        for number, data in enumerate(byte_lines, 1):
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise errors.UserError(
                    f"{path}:{number}: is not UTF-8 ({error.reason} at byte {error.start} of the "
                    "line); convert the file to UTF-8"
                ) from error
            if "\0" in line:
                raise errors.UserError(
                    f"{path}:{number}: contains a NUL character; the file is not text, or damaged"
                )
            line = line.rstrip("\r\n")
            if number == 1 and "\r" in line:
                raise errors.UserError(
                    f"{path}: its lines end with a carriage return only; convert them to line feeds"
                )
            yield number, line
    if not number:
        raise errors.UserError(f"{path}: the file is empty")


def check_document(size: int, where: Callable[[], str]) -> None:
    """Raises UserError if `size`, the bytes of a document, is above MAX_DOCUMENT.

    where: returns the place of the document to show in the message.
    """
    if size > MAX_DOCUMENT:
        raise errors.UserError(
            f"{where()}: the document has more than {MAX_DOCUMENT >> 20} MiB and must fit in "
            "memory: split it into several documents (for plain text: --text_split=blank)"
        )


def decoded(data: bytes, place: Callable[[int], str], first: int) -> str:
    """Decodes UTF-8 and replaces the line ends of Windows.

    place: called with a line number; returns the file and line to show in an error message.
    first: the number of the first line of `data`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise errors.UserError(f"{place(line)}: is not UTF-8; convert the file to UTF-8") from error
    return text.replace("\r\n", "\n") if "\r" in text else text


def _decompressed(path: str, raw: BinaryIO) -> BinaryIO:
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if path.endswith(_ZSTD):
        return io.BufferedReader(_ZstdFile(raw), _PIECE_BYTES)
    return raw


def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=1 << 31)  # needed for `zstd --long=31`


class _ZstdFile(io.RawIOBase):
    """Reads concatenated zstd frames. zstandard's own reader treats a truncated frame as the end of
    the file; this one raises EOFError."""

    def __init__(self, raw: BinaryIO):
        self._raw, self._frame, self._input, self._output = raw, None, b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._output:
            # Reads few bytes at a time: decompressed, repetitive text may be 30,000 times larger.
            data = self._input or self._raw.read(_PIECE_BYTES // 256)
            if not data:
                if self._frame:
                    raise EOFError("the file ends within a zstd frame")
                return 0
            frame = self._frame or _decompressor().decompressobj()
            self._output = memoryview(frame.decompress(data))
            self._frame, self._input = (None, frame.unused_data) if frame.eof else (frame, b"")
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size


def checked_size(path: str) -> int:
    """Returns the size on disk, in bytes. Raises UserError if the file is empty or unreadable."""
    with opened(path) as (_, raw):
        if not raw.read(1):
            raise errors.UserError(f"{path}: the file is empty")
    return epath.Path(path).stat().length


def boundary(file: BinaryIO, position: int, *, blank: bool) -> int:
    """Returns the position of the next line start after `position`.

    blank: only line starts that follow a blank line count.
    """
    file.seek(position)
    at_start = False  # whether `line` is the first piece of a line: long lines are read in pieces
    while line := file.readline(_PIECE_BYTES):
        ended = line.endswith(b"\n")
        if ended and (not blank or (at_start and line.isspace())):
            break
        at_start = ended
    return file.tell()


@functools.lru_cache(maxsize=4)
def lines_before(path: str, position: int) -> int:
    """Returns how many lines end before `position`.

    NOTE: slow, because it reads all these lines; used only for error messages.
    """
    count = 0
    if position:
        with opened(path) as (file, _):
            while position and (piece := file.read(min(position, _PIECE_BYTES))):
                count += piece.count(b"\n")
                position -= len(piece)
    return count


def expand(pattern: str, is_known: Callable[[str], bool]) -> list[str]:
    """Returns the files that match a path, folder or glob, sorted.

    A folder matches those of its files for which `is_known` is true; the others are told on stderr.
    Local folders are searched at any depth, remote folders only at their top level, because epath
    lists buckets level by level. Raises UserError if no file matches.
    """
    folder = paths.of(pattern).is_dir()
    if "://" in pattern:
        matches = _remote_paths(pattern, folder)
    elif folder:
        matches = glob.glob(os.path.join(glob.escape(pattern), "**", "*"), recursive=True)
    else:
        matches = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
    names = [name for name in matches if not epath.Path(name).is_dir()]
    if folder:
        unknown = sorted(name for name in names if not is_known(name))
        names = [name for name in names if is_known(name)]
        if names and unknown:
            listed = errors.several([os.path.relpath(name, pattern) for name in unknown])
            errors.tell(
                f"{pattern}: left out {errors.count(len(unknown), 'file')} whose suffix is no "
                f"known format: {listed}; to read such files, give a glob and --format"
            )
    if not names:
        reason = "no file with a known suffix in this folder" if folder else "no such file"
        raise errors.UserError(f"{pattern}: {reason}")
    return sorted(names)


def _remote_paths(pattern: str, folder: bool) -> list[str]:
    if folder:
        return [os.fspath(path) for path in epath.Path(pattern).glob("*")]
    if not glob.has_magic(pattern):
        return [pattern] if epath.Path(pattern).exists() else []
    scheme, _, rest = pattern.partition("://")
    parts = rest.split("/")
    folders = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    root = epath.Path(f"{scheme}://" + "/".join(folders))
    return [os.fspath(path) for path in root.glob("/".join(parts[len(folders) :]))]
