"""A body that stays as it is: what the head reads of it is computed once and kept in the rows.

It has no dropout, so it says the same at every epoch; only the head has some. Where what it says
takes more than `MOST`, rows keep nothing and every step computes it again, to the same end.

    step = jax.jit(still.step(answering, model, "classifier"))
    for numbers, found in answering_lib.by_batch(step, params, batches):
        still.keep(encoded.rows, numbers, found)

Shapes: B batch, N texts of an example, L length, D model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.finetuning import kind
from bertjax.models.common import heads

MOST = 2**32  # bytes that rows keep
# What rows keep, [N, D] and [D, L], and to which length its last axis is padded.
_LENGTHS = {"class_features": "", "last_hidden_state": "length"}

Batch = Mapping[str, jax.Array]


def size(head: str, model: Any, rows: Sequence[Mapping[str, np.ndarray]]) -> int:
    """Bytes of what the head reads of rows."""
    shapes = [row["input_ids"].shape for row in rows]
    if not _LENGTHS[heads.READS[head]]:
        shapes = [shape[:-1] for shape in shapes]
    bytes_each = model.config.hidden_size * jnp.dtype(model.config.dtype).itemsize
    return bytes_each * sum(map(math.prod, shapes))


def features(row: Mapping[str, np.ndarray]) -> dict[str, kind.Feature]:
    """The arrays that `keep` put into a row."""
    return {
        name: kind.Feature(row[name].dtype.type, length)
        for name, length in _LENGTHS.items()
        if name in row
    }


def is_kept(batch: Batch) -> bool:
    """Whether the rows of a batch keep what the head reads."""
    return any(name in batch for name in _LENGTHS)


def step(answering: Any, model: Any, head: str) -> Callable[[Any, Batch], dict[str, jax.Array]]:
    """Returns step(params, batch) -> what rows keep, batch first."""
    name = heads.READS[head]

    def compute(params: Any, batch: Batch) -> dict[str, jax.Array]:
        read = {}

        def apply(*args: Any, **kwargs: Any) -> dict[str, jax.Array]:
            outputs = model.apply({"params": params}, *args, deterministic=True, **kwargs)
            read[name] = outputs[name]
            return outputs

        answering.outputs(apply, batch)
        rows = len(batch["example_weights"])
        if _LENGTHS[name]:
            return {name: jnp.swapaxes(read[name], 1, 2)}
        return {name: read[name].reshape(rows, -1, read[name].shape[-1])}

    return compute


def keep(
    rows: Sequence[dict[str, np.ndarray]],
    numbers: np.ndarray,
    found: Mapping[str, np.ndarray],
) -> None:
    """Puts what `step` said of the rows of these numbers into them, without padding."""
    for name, x in found.items():
        for number, own in zip(numbers, x, strict=False):
            row = rows[number]
            row[name] = own[:, : row["input_ids"].shape[-1]].copy() if _LENGTHS[name] else own


def head_alone(apply: Callable[..., Any], head: str, batch: Batch) -> Callable[..., Any]:
    """`apply` of a model as a kind takes it: the head, of what the rows keep or the body says."""
    name = heads.READS[head]

    def told(**inputs: Any) -> dict[str, jax.Array]:
        if name not in batch:
            x = apply(**inputs, deterministic=True)[name]
        elif _LENGTHS[name]:
            x = jnp.swapaxes(batch[name], 1, 2)
        else:
            x = batch[name].reshape(-1, batch[name].shape[-1])
        if head == "classifier":
            return {"class_logits": apply(x, method="classify")}
        return apply(x, method="tell_tokens")

    return told
