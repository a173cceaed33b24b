"""Reads the weights of transformers' Flax classes (until 4.57) under their PyTorch names.

flax_model.msgpack holds a tree of modules. A path joined with dots is the PyTorch name except for
the leaf: PyTorch calls kernel, scale and embedding "weight", and its kernels are transposed.
"""

import pathlib

import numpy as np
from flax import traverse_util

from bertjax import errors
from bertjax.artifact import weight_files

FILE = "flax_model.msgpack"
_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def read(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns PyTorch name -> array of every tensor. Raises UserError if the file is damaged."""
    flat = traverse_util.flatten_dict(weight_files.read_msgpack(file))
    for path, array in flat.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiuV":
            raise errors.UserError(
                f"{file}: {'/'.join(path)} is not an array of numbers; {weight_files.AGAIN}"
            )
    tensors = {}
    for (*modules, leaf), array in flat.items():
        name = ".".join([*modules, _LEAVES.get(leaf, leaf)])
        tensors[name] = array.T if leaf == "kernel" else array
    return tensors
