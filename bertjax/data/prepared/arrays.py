"""Reads and writes files of named NumPy arrays (.npz), local or gs://, in any number of threads.

    arrays.write("units/00003.keys.npz", {"key_00": keys, "text": digest})
    arrays.read("units/00003.keys.npz", "key_00")["key_00"]
"""

import io
import os
import threading
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax import files

_SUFFIX = ".npy"
_PARSING = threading.Lock()


def write(path: str | os.PathLike, content: Mapping[str, Any]) -> None:
    """Writes {name: array or text} atomically; several processes may write the same file."""
    with files.replacing(path, shared=True) as partial, partial.open("wb") as file:
        np.savez(file, **content)


def read(path: str | os.PathLike, *names: str) -> dict[str, np.ndarray]:
    """Returns {name: array} of the arrays `names` in a file; of all arrays if none is named.

    Raises OSError, ValueError, KeyError or zipfile.BadZipFile if the file is damaged.
    """
    with epath.Path(path).open("rb") as stream, zipfile.ZipFile(stream) as file:
        names = names or tuple(name.removesuffix(_SUFFIX) for name in file.namelist())
        contents = {name: file.read(name + _SUFFIX) for name in names}  # checks their checksums
    return {name: _parsed(content) for name, content in contents.items()}


def check(path: str | os.PathLike) -> None:
    """Raises an error as `read` does if a part of the file is damaged; needs little memory."""
    with epath.Path(path).open("rb") as stream, zipfile.ZipFile(stream) as file:
        damaged = file.testzip()
    if damaged:
        raise zipfile.BadZipFile(f"{damaged}: wrong checksum")


def _parsed(content: bytes) -> np.ndarray:
    # NOTE: one thread at a time. NumPy parses the header with `ast`, which fails in some Python
    # 3.11 and 3.12 if two threads use it at once (github.com/python/cpython/issues/106905).
    with _PARSING:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
