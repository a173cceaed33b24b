"""Tiny models of the encoder families, with weights large enough that each affects the output."""

import dataclasses
from typing import Any

import jax
import numpy as np

from bertjax import plugins, sharding
from bertjax.artifact import artifact
from bertjax.models.common import layers
from tests.helpers import tiny_model

FIELDS = {
    "vocab_size": 100, "hidden_size": 16, "num_layers": 3, "num_heads": 2, "intermediate_size": 24,
    "max_length": 24,
}  # fmt: skip


def make(family: str, seed: int = 0, **fields: Any) -> tuple[Any, Any]:
    """Returns the model and parameters, with kernels so large that every layer has an effect."""
    model = plugins.model(family, {**FIELDS, **fields})
    params = jax.device_get(plugins.init_params(model, jax.random.key(seed)))

    def louder(path: Any, leaf: np.ndarray) -> np.ndarray:
        return leaf * 10 if sharding.path_name(path).endswith(("kernel", "embedding")) else leaf

    return model, jax.tree_util.tree_map_with_path(louder, params)


def make_artifact(family: str, kind: str = "wordpiece", **fields: Any) -> artifact.Artifact:
    """Returns an artifact with every field of the family's Config and random parameters."""
    tokenizer = tiny_model.tokenizer(kind)
    model = plugins.model(family, {**FIELDS, "vocab_size": tokenizer.size, **fields})
    shared = dataclasses.asdict(layers.Compute())
    whole = {k: v for k, v in dataclasses.asdict(model.config).items() if k not in shared}
    abstract = artifact.flatten(plugins.abstract_params(model))
    rng = np.random.default_rng(0)
    params = {}
    for path, leaf in abstract.items():
        real = artifact.real_shape(path, leaf.shape, tokenizer.size)
        pads = [(0, all_ - used) for all_, used in zip(leaf.shape, real, strict=True)]
        params[path] = np.pad(rng.standard_normal(real, np.float32), pads)
    return artifact.Artifact(family, whole, artifact.unflatten(params), tokenizer)


def packed(lengths: tuple[tuple[int, ...], ...], length: int) -> dict[str, np.ndarray]:
    """Returns rows of `length` random tokens, each packed with examples of the given lengths.

    lengths: of the examples of each row. The rest of a row is padding.
    """
    batch = {
        name: np.zeros((len(lengths), length), np.int32)
        for name in ("input_ids", "segment_ids", "position_ids")
    }
    rng = np.random.default_rng(0)
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes, 1):
            place = slice(start, start + size)
            batch["input_ids"][row, place] = rng.integers(5, FIELDS["vocab_size"], size)
            batch["segment_ids"][row, place] = number
            batch["position_ids"][row, place] = np.arange(size)
            start += size
    return batch
