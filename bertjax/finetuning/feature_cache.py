"""Caches the encoder's output when the encoder is frozen, so that each epoch runs only the head.

A frozen encoder runs without dropout, so its output is the same in every epoch; only the head has
dropout. If the features take more than `MAX_BYTES`, nothing is cached, and every step computes them
again, with the same result.

    step = feature_cache.step(task_type, model, "classifier")
    feature_cache.fill(step, params, {"train": encoded.rows}, {"train": batches}, place)

Shapes: B batch, N texts of an example, L length, D model.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.finetuning import batching, projection
from bertjax.finetuning import rows as rows_lib
from bertjax.models.common import heads

MAX_BYTES = 2**32  # bytes that may be cached
# {name of an array that is cached in a row: its `Feature.length`}. The shape of class_features and
# of the pooled text vectors is [N, D], that of last_hidden_state is [D, L].
_LENGTHS = {"class_features": "", projection.POOLED: "", "last_hidden_state": "length"}
_HEAD_INPUTS = {**heads.HEAD_INPUTS, projection.NAME: projection.POOLED}

Batch = Mapping[str, jax.Array]


def size(head: str, model: Any, rows: Sequence[Mapping[str, np.ndarray]]) -> int:
    """Returns the size in bytes of the features that the head reads, for all of these rows."""
    shapes = [row["input_ids"].shape for row in rows]
    if not _LENGTHS[_HEAD_INPUTS[head]]:
        shapes = [shape[:-1] for shape in shapes]
    dtype = jnp.float32 if head == projection.NAME else model.config.dtype
    bytes_each = model.config.hidden_size * jnp.dtype(dtype).itemsize
    return bytes_each * sum(map(math.prod, shapes))


def features(row: Mapping[str, np.ndarray]) -> dict[str, rows_lib.Feature]:
    """Returns {name: Feature} for the arrays that `keep` stored in a row."""
    return {
        name: rows_lib.Feature(row[name].dtype.type, length)
        for name, length in _LENGTHS.items()
        if name in row
    }


def is_kept(batch: Batch) -> bool:
    """Returns whether the batch contains cached features."""
    return any(name in batch for name in _LENGTHS)


def step(task_type: Any, model: Any, head: str) -> Callable[[Any, Batch], dict[str, jax.Array]]:
    """Returns a function of (params, batch) that computes {name: features to cache}.

    The first axis of the features is the batch.
    """
    name = _HEAD_INPUTS[head]

    def compute(params: Any, batch: Batch) -> dict[str, jax.Array]:
        states = {}

        def apply(*args: Any, **kwargs: Any) -> dict[str, jax.Array]:
            outputs = model.apply({"params": params}, *args, deterministic=True, **kwargs)
            if name in outputs:  # the body's outputs do not have what only `projection` reads
                states[name] = outputs[name]
            return outputs

        task_type.outputs(task_type.prompted(apply), batch)
        rows = len(batch["example_weights"])
        if _LENGTHS[name]:
            return {name: jnp.swapaxes(states[name], 1, 2)}
        return {name: states[name].reshape(rows, -1, states[name].shape[-1])}

    return compute


def excess(
    head: str, model: Any, rows_by_split: Mapping[str, Sequence[Mapping[str, np.ndarray]]]
) -> str:
    """Returns a note if the features of all rows take more than `MAX_BYTES`, otherwise ""."""
    total = size(head, model, [row for rows in rows_by_split.values() for row in rows])
    if total <= MAX_BYTES:
        return ""
    return (
        f"the encoder's features take {total / 2**30:,.1f} GiB, more than the "
        f"{MAX_BYTES / 2**30:g} GiB that may be cached: every step computes them again"
    )


def fill(
    compute: Callable[[Any, Batch], dict[str, jax.Array]],
    params: Any,
    rows_by_split: Mapping[str, Sequence[dict[str, np.ndarray]]],
    batches_by_split: Mapping[str, batching.Batches],
    place: Callable[[dict[str, np.ndarray]], dict[str, Any]],
) -> None:
    """Computes the features of all rows and stores them in the rows.

    compute: the result of `step`. place: puts a batch on the devices.
    """
    jitted = jax.jit(compute)
    for split, batches in batches_by_split.items():
        for numbers, outputs in batching.by_batch(jitted, params, batches, place):
            keep(rows_by_split[split], numbers, outputs)


def keep(
    rows: Sequence[dict[str, np.ndarray]],
    numbers: np.ndarray,
    outputs: Mapping[str, np.ndarray],
) -> None:
    """Stores the features that `step` returned for a batch in its rows, without padding.

    numbers: the indices in `rows` of the batch's rows. outputs: what `step` returned; it may have
    padding rows at the end.
    """
    for name, x in outputs.items():
        for number, value in zip(numbers, x, strict=False):
            row = rows[number]
            row[name] = value[:, : row["input_ids"].shape[-1]].copy() if _LENGTHS[name] else value


def head_alone(apply: Callable[..., Any], head: str, batch: Batch) -> Callable[..., Any]:
    """Returns an `apply` for a task type that runs only the head if `batch` has cached features.

    If it has none, the frozen encoder runs before the head.
    """
    if head == projection.NAME:  # `text_vectors` reads the cached features
        return functools.partial(apply, deterministic=True)
    name = _HEAD_INPUTS[head]

    def head_apply(**inputs: Any) -> dict[str, jax.Array]:
        if name not in batch:
            x = apply(**inputs, deterministic=True)[name]
        elif _LENGTHS[name]:
            x = jnp.swapaxes(batch[name], 1, 2)
        else:
            x = batch[name].reshape(-1, batch[name].shape[-1])
        if head == "classifier":
            return {"class_logits": apply(x, method="classify")}
        return apply(x, method="per_token_logits")

    return head_apply
