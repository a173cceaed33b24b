"""What both formats are made of: JSON, safetensors, and folders that appear whole or not at all."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, which safetensors asks it for
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from bertjax import errors

AGAIN = "export or copy the folder again"


def local(path: str | os.PathLike) -> pathlib.Path:
    """The folder of that name on this machine. UserError for one in a bucket."""
    if "://" in os.fspath(path):
        raise errors.UserError(f"{path}: not a local folder; write to one and copy it there")
    return pathlib.Path(path)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields an empty folder that takes the name `path` when the block ends without an error.

    An older folder there is replaced, unless it holds anything that the new one does not: that is
    a UserError, and nothing is touched.
    """
    target = pathlib.Path(os.path.abspath(local(path)))
    if target.exists() and not target.is_dir():
        raise errors.UserError(f"{path}: is a file; give the name of a folder to write")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
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
        shutil.rmtree(partial, ignore_errors=True)


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


def read_json(file: pathlib.Path) -> dict[str, Any]:
    """The object in a JSON file. UserError names a file that is absent or not a JSON object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise errors.UserError(f"{file}: not there; {AGAIN}") from error
    except (OSError, ValueError) as error:
        raise errors.UserError(f"{file}: not readable as JSON ({error}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise errors.UserError(f"{file}: not a JSON object; {AGAIN}")
    return content


def write_json(file: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Indented, keys in the order given, newline at the end; whole or not at all."""
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_text(file: pathlib.Path, text: str) -> None:
    """Whole or not at all; a lone surrogate, which UTF-8 does not have, by its number."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    partial.replace(file)


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
