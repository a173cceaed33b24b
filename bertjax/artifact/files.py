"""What both formats are made of: JSON, safetensors, and folders that appear whole or not at all."""

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

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, which safetensors asks it for
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath
from flax import serialization

from bertjax import errors, paths, schema

AGAIN = "export or copy the folder again"


def local(path: str | os.PathLike) -> pathlib.Path:
    """The folder of that name on this machine. UserError for one in a bucket."""
    if "://" in os.fspath(path):
        raise errors.UserError(f"{path}: not a local folder; write to one and copy it there")
    return pathlib.Path(paths.of(path))


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields an empty folder that takes the name `path` when the block ends without an error.

    An older folder there is replaced, unless it holds anything that the new one does not: that is
    a UserError, and nothing is touched. Folders that killed processes left are removed.
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
    """Makes a hidden folder beside `target` and locks it as long as this process lives."""
    while True:
        made = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=schema.PARTIAL, dir=target.parent)
        try:
            lock = os.open(made, os.O_RDONLY)
        except FileNotFoundError:  # taken for abandoned before it was locked
            continue
        with contextlib.suppress(OSError):  # a file system without locks of folders
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(made):
            return pathlib.Path(made), lock
        os.close(lock)


def _remove_abandoned(target: pathlib.Path) -> None:
    """Removes hidden folders of `target` whose process was killed.

    NOTE: the older folder is put back first where the kill came between the two renames.
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
        except OSError:  # a process that lives has the lock, or the file system has no locks
            pass
        finally:
            os.close(lock)


def _discard(folder: pathlib.Path) -> None:
    """Removes a hidden folder. Tries twice, since an I/O error may be a passing one."""
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
    """`path` itself, or a copy of that remote folder's files under the local `folder`."""
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
    """Indented, keys in the order given, newline at the end; whole or not at all."""
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_text(file: pathlib.Path, text: str) -> None:
    """Whole or not at all; a lone surrogate, which UTF-8 does not have, by its number."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(file)


def read_msgpack(file: pathlib.Path) -> dict[str, Any]:
    """The nested dict in a msgpack file of Flax. UserError for a file that is damaged."""
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
    except Exception as error:  # the decoder raises anything for bytes of another kind
        raise errors.UserError(
            f"{file}: truncated, corrupt or no msgpack file of arrays ({error!r:.80}); {AGAIN}"
        ) from error
    return content


def sha256(file: pathlib.Path) -> str:
    """Hex digest of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_tensors(file: pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """A safetensors file of host or device arrays; the same arrays give the same bytes."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        file.touch()
        mode = file.stat().st_mode
        # transformers refuses a file whose metadata does not say which framework it is for.
        safetensors.numpy.save_file(whole, file, metadata={"format": "pt"})
        file.chmod(mode)  # safetensors makes a file that only its owner can read
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
    """Name -> shape of every tensor, out of the header. UserError for a file that is damaged."""
    with _opened(file) as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}


def read_tensors(file: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    """The named tensors; the same errors as `tensor_shapes`."""
    with _opened(file) as opened:
        return {name: opened.get_tensor(name) for name in names}
