"""Writes and verifies checksums of a folder's files, to detect lost or changed bytes before use.

Example:
    checksums.write(folder)
    checksums.damage(folder)       # "" or "state/d/4f7a has 12 bytes, not 336"
"""

import dataclasses
from collections.abc import Iterator
from concurrent import futures
from typing import Literal

from etils import epath

from bertjax import errors, files, schema

FILE = "checksums.json"


@dataclasses.dataclass(frozen=True)
class _File:
    """Size and checksum of a file. sha256: None for a remote file."""

    size: schema.Count
    sha256: schema.Sha256 | None


@dataclasses.dataclass(frozen=True)
class _Content:
    """The content of checksums.json."""

    version: Literal[1]
    files: dict[str, _File]


def write(folder: epath.Path) -> None:
    """Writes size and SHA-256 of every file in `folder`'s subfolders to `folder`/checksums.json.

    Files in `folder` itself are not listed. For a remote file (gs://) only the size is listed:
    object stores verify bytes themselves, and reading them back would cost more than writing them.
    """
    paths = [path for item in folder.iterdir() if item.is_dir() for path in _files(item)]
    with futures.ThreadPoolExecutor() as pool:
        checksums = pool.map(_checksum, paths)
        entries = {
            str(path.relative_to(folder)): dataclasses.asdict(entry)
            for path, entry in zip(paths, checksums, strict=True)
        }
    schema.write(folder / FILE, {"version": 1, "files": dict(sorted(entries.items()))})


def damage(folder: epath.Path, *, prefix: str = "", share: int = 0, shares: int = 1) -> str:
    """Returns the name and fault of the first file that differs from its listed size or checksum.

    The result is "" if none differs.

    Checks only files whose names, relative to `folder`, start with `prefix`. To divide the work
    among `shares` processes, each process checks every `shares`-th of these files, starting with
    file number `share` (from 0).
    """
    try:
        entries = schema.read(folder / FILE, _Content, "").files
    except errors.UserError:
        return f"{FILE} is missing or unreadable"
    names = sorted(name for name in entries if name.startswith(prefix))[share::shares]
    with futures.ThreadPoolExecutor() as pool:
        faults = pool.map(lambda name: _difference(folder / name, entries[name]), names)
        lines = (f"{name} {fault}" for name, fault in zip(names, faults, strict=True) if fault)
        return next(lines, "")


def _files(folder: epath.Path) -> Iterator[epath.Path]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _checksum(path: epath.Path) -> _File:
    remote = "://" in str(path)
    return _File(path.stat().length, None if remote else files.sha256(path))


def _difference(path: epath.Path, entry: _File) -> str:
    try:
        size = path.stat().length
        if size != entry.size:
            return f"has {size} bytes, not {entry.size}"
        if entry.sha256 and files.sha256(path) != entry.sha256:
            return "has changed since it was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return ""
