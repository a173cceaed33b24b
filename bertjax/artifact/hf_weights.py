"""Reads the weights of a Hugging Face folder: safetensors (one file or shards) or Flax weights."""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from bertjax import errors, schema
from bertjax.artifact import flax_weights, weight_files

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclasses.dataclass(frozen=True)
class _Index(schema.Open):
    """The content of model.safetensors.index.json. weight_map: {tensor name: file name}."""

    weight_map: dict[str, schema.FileName]


def find(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files that contain the weights. Raises UserError if no format is supported."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        shards = schema.read(folder / INDEX, _Index, weight_files.REMEDY).weight_map
        return [folder / shard for shard in sorted(set(shards.values()))]
    if (folder / flax_weights.FILE).is_file():
        return [folder / flax_weights.FILE]
    for name in PICKLES:
        if (folder / name).is_file():
            raise errors.UserError(
                f"{folder / name}: pickled weights are not supported; convert them to {WEIGHTS} "
                "with transformers: "
                "AutoModelForPreTraining.from_pretrained(folder).save_pretrained(...)"
            )
    raise errors.UserError(
        f"{folder}: contains neither {WEIGHTS} nor {INDEX}; {weight_files.REMEDY}"
    )


def shapes(file: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} for the tensors in `file`. Raises UserError if it is damaged."""
    if file.name == flax_weights.FILE:
        return {name: array.shape for name, array in flax_weights.read(file).items()}
    return weight_files.tensor_shapes(file)


def read(file_of: Mapping[str, pathlib.Path], stored: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Reads tensors from their files. Returns {full name: tensor}.

    stored: {full name: name in the files}. file_of: {name in the files: file}.
    """
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(set(file_of.values())):
        sources = {source for source in stored.values() if file_of[source] == file}
        if file.name == flax_weights.FILE:
            arrays = flax_weights.read(file)
            tensors |= {source: arrays[source] for source in sources}
        else:
            tensors |= weight_files.read_tensors(file, sorted(sources))
    return {name: tensors[source] for name, source in stored.items()}
