"""Reads and writes safetensors files, and reads Flax msgpack files."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy, which safetensors needs
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath
from flax import serialization

from bertjax import errors, files

REMEDY = "export or copy the folder again"


def read_msgpack(file: pathlib.Path) -> dict[str, Any]:
    """Returns the nested dict in a Flax msgpack file. Raises UserError if it is damaged."""
    try:
        content = serialization.msgpack_restore(file.read_bytes())
        stack = [content]
        while stack:
            node = stack.pop()
            if not isinstance(node, dict) or not all(isinstance(key, str) for key in node):
                raise ValueError("its keys must be strings")
            stack += [value for value in node.values() if isinstance(value, dict)]
    except OSError as error:
        raise errors.UserError(f"{file}: cannot be read: {error.strerror}") from error
    except Exception as error:  # the decoder may raise any exception for invalid bytes
        raise errors.UserError(
            f"{file}: is truncated, corrupt or not a msgpack file of arrays ({error!r:.80}); "
            f"{REMEDY}"
        ) from error
    return content


def write_tensors(file: pathlib.Path | epath.Path, arrays: Mapping[str, Any]) -> None:
    """Writes {name: array} to a safetensors file, local or remote (gs://).

    Equal arrays give identical files. The arrays may be on the host or on a device. Raises
    UserError if the file cannot be written.
    """
    if "://" in os.fspath(file):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / file.name
            write_tensors(copy, arrays)
            files.copy_up(copy, epath.Path(file))
        return
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        file.touch()
        mode = os.stat(file).st_mode
        # transformers rejects a file whose metadata does not name a framework.
        safetensors.numpy.save_file(contiguous, file, metadata={"format": "pt"})
        os.chmod(file, mode)  # safetensors creates files that only the owner can read
    except safetensors.SafetensorError as error:
        raise errors.UserError(
            f"{file.parent}: cannot be written ({error}); free some disk space"
        ) from error


@contextlib.contextmanager
def _open(file: pathlib.Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(file, "numpy") as reader:
            yield reader
    except FileNotFoundError as error:
        raise errors.UserError(f"{file}: not found; {REMEDY}") from error
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise errors.UserError(
            f"{file}: is truncated, corrupt or not a safetensors file ({error}); {REMEDY}"
        ) from error


def read_all(file: epath.Path) -> dict[str, np.ndarray]:
    """Returns {name: tensor} for all tensors in a local or remote file.

    Raises UserError if the file is missing or damaged.
    """
    with tempfile.TemporaryDirectory() as folder:
        local = pathlib.Path(file)
        if "://" in os.fspath(file):
            local = pathlib.Path(folder) / file.name
            file.copy(local)
        return read_tensors(local, list(tensor_shapes(local)))


def tensor_shapes(file: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} for the tensors in a safetensors file; reads only its header.

    Raises UserError if the file is missing or damaged.
    """
    with _open(file) as reader:
        return {name: tuple(reader.get_slice(name).get_shape()) for name in reader.keys()}


def copy_header(source: epath.Path, target: pathlib.Path) -> None:
    """Copies a file, but of a safetensors file only the header, which `tensor_shapes` reads.

    The copy has the size of the file, with a hole in place of the tensors.
    """
    if not target.name.endswith(".safetensors"):
        source.copy(target)
        return
    size = source.stat().length
    with source.open("rb") as remote, open(target, "wb") as local:
        length = remote.read(8)  # of the JSON after it
        local.write(length + remote.read(min(int.from_bytes(length, "little"), size)))
        local.truncate(size)


def read_tensors(file: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    """Returns {name: tensor} for `names`. Raises UserError if the file is missing or damaged."""
    with _open(file) as reader:
        return {name: reader.get_tensor(name) for name in names}
