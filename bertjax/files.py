"""Writes files and folders atomically, computes checksums, and copies remote folders.

    with files.replacing("run/loss.png") as partial:
        partial.write_bytes(picture)
    files.write_json("out/config.json", {"hidden_size": 768})
    files.sha256("gs://bucket/model/params.safetensors")

Files are local or gs://. `schema` reads and writes JSON of a known shape.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from bertjax import errors, paths

PARTIAL = ".partial"  # suffix of a file or folder that is being written


@contextlib.contextmanager
def replacing(path: str | os.PathLike, *, shared: bool = False) -> Iterator[epath.Path]:
    """Yields a hidden path beside `path`; the file that the block writes there replaces `path`.

    If the block raises an error, `path` stays as it was. The hidden name is always the same, so
    that a partial file left by a killed process is overwritten by the next process.

    shared: whether several processes may write `path` at once. The hidden name is then unique, and
    a partial file left by a killed process stays until the caller removes it.
    """
    target = epath.Path(path)
    partial = target.parent / (
        unique_partial(target.name) if shared else f".{target.name}{PARTIAL}"
    )
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: str | os.PathLike, problem: str) -> Iterator[None]:
    """Locks a folder while the block runs. If the process dies, the lock is released.

    Remote folders are not locked, nor those of a file system without locks. Raises UserError, with
    the name of the folder and `problem`, if another process holds the lock.
    """
    if "://" in os.fspath(folder):
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise errors.UserError(f"{os.fspath(folder)}: {problem}") from error
    except OSError:
        pass  # this file system has no locks
    try:
        yield
    finally:
        os.close(handle)


def unique_partial(name: str) -> str:
    """Returns a hidden name for a partial file `name` that no other process uses."""
    return f".{name}.{secrets.token_hex(8)}{PARTIAL}"


def write_text(path: str | os.PathLike, text: str, *, shared: bool = False) -> None:
    """Writes `text` atomically as UTF-8; escapes lone surrogates, which UTF-8 cannot encode.

    shared: whether several processes may write `path` at once (see `replacing`).
    """
    with replacing(path, shared=shared) as partial:
        partial.write_bytes(text.encode("utf-8", "backslashreplace"))


def write_json(path: str | os.PathLike, content: Mapping[str, Any]) -> None:
    """Writes indented JSON atomically, with keys in the given order and a final newline."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def sha256(path: str | os.PathLike) -> str:
    """Returns the hex sha256 of a local or remote file, read in chunks."""
    with epath.Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local(path: str | os.PathLike) -> pathlib.Path:
    """Returns `path` as a local path. Raises UserError if it is a remote one (a URL)."""
    if "://" in os.fspath(path):
        raise errors.UserError(
            f"{path}: is not a local folder; write to a local folder, then copy that folder there"
        )
    return pathlib.Path(paths.of(path))


def _copy(source: epath.Path, target: pathlib.Path) -> None:
    source.copy(target)


def localise(
    path: str | os.PathLike,
    folder: str | os.PathLike,
    copy_file: Callable[[epath.Path, pathlib.Path], None] = _copy,
) -> pathlib.Path:
    """Returns `path` if it is local; else copies it to `folder` and returns `folder`.

    copy_file: called with the remote path of each file and the local path to copy it to.
    """
    if "://" not in os.fspath(path):
        return pathlib.Path(path)
    source, copy = epath.Path(path), pathlib.Path(folder)
    copy.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.is_dir():
            localise(os.fspath(item), copy / item.name, copy_file)
        else:
            copy_file(item, copy / item.name)
    return copy


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields an empty local folder that replaces `path` when the block ends without an error.

    Raises UserError and changes nothing if the folder at `path` contains a file or folder that the
    new one lacks. A local folder is renamed to `path`; temporary folders left by killed processes
    are removed. To a remote folder (gs://), which cannot be renamed at once, the files are copied:
    its config is deleted first and copied last, so that a half-written folder is never read.
    """
    if "://" in os.fspath(path):
        remote = paths.of(path)
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)
            _upload(pathlib.Path(folder), remote)
        return
    target = pathlib.Path(os.path.abspath(local(path)))
    if target.exists() and not target.is_dir():
        raise errors.UserError(f"{path}: is a file; give the name of a folder to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        partial, lock = _locked_folder(target)
    except OSError as error:
        raise errors.UserError(
            f"{path}: cannot be written ({error.strerror}); give another --output"
        ) from error
    try:
        new = partial / "new"  # not `partial` itself, which mkdtemp makes readable only to the user
        new.mkdir()
        yield new
        _put_in_place(new, target, partial / "old")
    finally:
        _discard(partial)
        os.close(lock)


def _upload(new: pathlib.Path, target: epath.Path) -> None:
    """Copies the files of a local folder to a remote one, as `new_folder` documents."""
    _check_extra(target, [item.name for item in target.iterdir()] if target.exists() else [], new)
    names = sorted(file.relative_to(new) for file in new.rglob("*") if file.is_file())
    configs = [name for name in names if os.fspath(name).endswith("config.json")]
    for name in configs:
        (target / name).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: (name in configs, len(name.parts) == 1, name)):
        copy_up(new / name, target / name)


def copy_up(source: pathlib.Path, target: epath.Path) -> None:
    """Copies a local file to a remote path, in chunks; replaces an existing file there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, "rb") as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy, 1 << 24)


def _check_extra(target: Any, existing: list[str], new: pathlib.Path) -> None:
    """Raises UserError if a name in `existing`, the content of `target`, is not in `new`."""
    extra = sorted(set(existing) - set(os.listdir(new)))
    if extra:
        raise errors.UserError(
            f"{target}: contains {extra[0]}, which this command would delete; give another "
            "--output or remove the folder first"
        )


def _locked_folder(target: pathlib.Path) -> tuple[pathlib.Path, int]:
    """Creates and locks a hidden folder beside `target`; returns (folder, descriptor of lock).

    The lock is held until the descriptor is closed or the process dies.
    """
    while True:
        folder = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=PARTIAL, dir=target.parent)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # removed by another process before it was locked
            continue
        with contextlib.suppress(OSError):  # some file systems cannot lock folders
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):
            return pathlib.Path(folder), lock
        os.close(lock)


def _remove_abandoned(target: pathlib.Path) -> None:
    """Removes the hidden folders beside `target` whose process was killed.

    NOTE: if the process was killed between the two renames of `_put_in_place`, the older folder is
    first moved back to `target`.
    """
    prefix = f".{target.name}."
    for name in os.listdir(target.parent):
        token = name.removeprefix(prefix).removesuffix(PARTIAL)
        if name != f"{prefix}{token}{PARTIAL}" or not re.fullmatch("[a-z0-9_]{8}", token):
            continue
        folder = target.parent / name
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if set(os.listdir(folder)) <= {"new", "old"}:
                if (folder / "old").exists() and not target.exists():
                    (folder / "old").rename(target)
                _discard(folder)
        except OSError:  # a live process holds the lock, or the file system has no locks
            pass
        finally:
            os.close(lock)


def _discard(folder: pathlib.Path) -> None:
    """Removes a hidden folder. Tries twice, because an I/O error may be transient."""
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(new: pathlib.Path, target: pathlib.Path, backup: pathlib.Path) -> None:
    if target.exists():
        _check_extra(target, os.listdir(target), new)
        target.rename(backup)
    try:
        new.rename(target)
    except OSError:
        if backup.exists():
            backup.rename(target)
        raise
