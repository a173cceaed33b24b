"""Reads and writes what both formats consist of: JSON, safetensors, atomically written folders."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, which safetensors needs
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath
from flax import serialization

from bertjax import errors, paths, schema

AGAIN = "export or copy the folder again"


def local(path: str | os.PathLike) -> pathlib.Path:
    """Returns `path` as a local path. Raises UserError if it is a remote one (a URL)."""
    if "://" in os.fspath(path):
        raise errors.UserError(f"{path}: not a local folder; write to one and copy it there")
    return pathlib.Path(paths.of(path))


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields an empty folder that is renamed to `path` when the block ends without an error.

    Replaces an existing folder at `path`. Raises UserError and changes nothing if that folder
    holds a name that the new one lacks. Removes temporary folders left by killed processes.
    """
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
        new = partial / "new"  # not `partial` itself: mkdtemp makes that private
        new.mkdir()
        yield new
        _put_in_place(new, target, partial / "old")
    finally:
        _discard(partial)
        os.close(lock)


def _locked_folder(target: pathlib.Path) -> tuple[pathlib.Path, int]:
    """Creates a hidden folder beside `target` and locks it; returns it and the lock's descriptor.

    The lock is held until the descriptor is closed or the process dies.
    """
    while True:
        made = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=schema.PARTIAL, dir=target.parent)
        try:
            lock = os.open(made, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it as abandoned before the lock
            continue
        with contextlib.suppress(OSError):  # the file system cannot lock folders
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(made):
            return pathlib.Path(made), lock
        os.close(lock)


def _remove_abandoned(target: pathlib.Path) -> None:
    """Removes the hidden folders beside `target` whose process was killed.

    NOTE: if the process was killed between the two renames of `_put_in_place`, the older folder is
    first moved back to `target`.
    """
    prefix = f".{target.name}."
    for name in os.listdir(target.parent):
        middle = name.removeprefix(prefix).removesuffix(schema.PARTIAL)
        if name != f"{prefix}{middle}{schema.PARTIAL}" or not re.fullmatch("[a-z0-9_]{8}", middle):
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


def _put_in_place(new: pathlib.Path, target: pathlib.Path, aside: pathlib.Path) -> None:
    if target.exists():
        foreign = sorted(set(os.listdir(target)) - set(os.listdir(new)))
        if foreign:
            raise errors.UserError(
                f"{target}: holds {foreign[0]}, which would be lost; give another --output or "
                "remove the folder first"
            )
        target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise


def localise(path: str | os.PathLike, folder: str | os.PathLike) -> pathlib.Path:
    """Returns `path` if it is local, else `folder` with a copy of that remote folder's files."""
    if "://" not in os.fspath(path):
        return pathlib.Path(path)
    source, copy = epath.Path(path), pathlib.Path(folder)
    copy.mkdir(parents=True, exist_ok=True)
    for item in source.iterdir():
        if item.is_dir():
            localise(os.fspath(item), copy / item.name)
        else:
            item.copy(copy / item.name)
    return copy


def write_json(file: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes indented JSON atomically, with keys in the given order and a final newline."""
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_text(file: pathlib.Path, text: str) -> None:
    """Writes `text` atomically as UTF-8; escapes lone surrogates, which UTF-8 cannot encode."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(file)


def read_msgpack(file: pathlib.Path) -> dict[str, Any]:
    """Returns the nested dict in a Flax msgpack file. Raises UserError if it is damaged."""
    try:
        content = serialization.msgpack_restore(file.read_bytes())
        todo = [content]
        while todo:
            inside = todo.pop()
            if not isinstance(inside, dict) or not all(isinstance(key, str) for key in inside):
                raise ValueError("its keys are no texts")
            todo += [value for value in inside.values() if isinstance(value, dict)]
    except OSError as error:
        raise errors.UserError(f"{file}: cannot be read: {error.strerror}") from error
    except Exception as error:  # the decoder may raise any exception for other bytes
        raise errors.UserError(
            f"{file}: truncated, corrupt or no msgpack file of arrays ({error!r:.80}); {AGAIN}"
        ) from error
    return content


def sha256(file: pathlib.Path) -> str:
    """Returns the hex sha256 of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_tensors(file: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Writes host or device arrays to a safetensors file; equal arrays give equal bytes.

    Raises UserError if the file cannot be written.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        file.touch()
        mode = file.stat().st_mode
        # transformers rejects a file whose metadata does not name a framework.
        safetensors.numpy.save_file(whole, file, metadata={"format": "pt"})
        file.chmod(mode)  # safetensors creates files that only the owner can read
    except safetensors.SafetensorError as error:
        raise errors.UserError(f"{file.parent}: cannot be written ({error}); make room") from error


@contextlib.contextmanager
def _opened(file: pathlib.Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(file, "numpy") as opened:
            yield opened
    except FileNotFoundError as error:
        raise errors.UserError(f"{file}: not there; {AGAIN}") from error
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise errors.UserError(
            f"{file}: truncated, corrupt or no safetensors file ({error}); {AGAIN}"
        ) from error


def tensor_shapes(file: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor, read from the header.

    Raises UserError if the file is missing or damaged.
    """
    with _opened(file) as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}


def read_tensors(file: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    """Returns the named tensors; raises the same errors as `tensor_shapes`."""
    with _opened(file) as opened:
        return {name: opened.get_tensor(name) for name in names}
