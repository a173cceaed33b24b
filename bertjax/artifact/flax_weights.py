"""Reads weights saved by the Flax classes of transformers (up to 4.57) as PyTorch tensors.

flax_model.msgpack contains a nested dict. The keys on the path to an array, joined with dots, are
the name of the PyTorch tensor, except that the last key "kernel", "scale" or "embedding" is
"weight" in PyTorch. A kernel is the transpose of the PyTorch tensor.
"""

import pathlib

import numpy as np
from flax import traverse_util

from bertjax import errors
from bertjax.artifact import weight_files

FILE = "flax_model.msgpack"
_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def read(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns {PyTorch name: array}. Raises UserError if the file is damaged."""
    flat = traverse_util.flatten_dict(weight_files.read_msgpack(file))
    for path, array in flat.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiuV":
            raise errors.UserError(
                f"{file}: {'/'.join(path)} is not an array of numbers; {weight_files.REMEDY}"
            )
    tensors = {}
    for (*modules, leaf), array in flat.items():
        name = ".".join([*modules, _LEAVES.get(leaf, leaf)])
        tensors[name] = array.T if leaf == "kernel" else array
    return tensors
