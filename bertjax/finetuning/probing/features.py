"""The hidden states of all layers for items, computed in one pass and kept in memory.

    num_layers, width = features.shape(model)
    states_MND = features.encode(model, task_type, items, pooling="mean")
    features.standardise(states_MND["train"], states_MND["dev"])

A split has at most `MAX_BYTES` of states; `max_items` says how many items that are.

Shapes: M layers with the embeddings, N items, B rows of a batch, L length, D model.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, progress
from bertjax.finetuning import batching, rows
from bertjax.finetuning.probing import labelled
from bertjax.finetuning.task_types import base
from bertjax.inference import pretrained
from bertjax.models.common import heads

MAX_BYTES = 2**30  # of the states of a split
_BATCH_BYTES = 2**26  # of the states of a batch
_BATCH_SIZE = 64
_FLOAT_BYTES = 4
_KEPT = "output_hidden_states"


def shape(model: pretrained.Pretrained) -> tuple[int, int]:
    """Returns (number of layers with the embeddings, width) without running the model.

    Raises UserError if the family does not return the hidden states of its layers.
    """
    ids_BL = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    outputs = {}
    if _KEPT in inspect.signature(type(model.model).__call__).parameters:
        outputs = jax.eval_shape(
            lambda params, ids: model.model.apply({"params": params}, ids, **{_KEPT: True}),
            model.params, ids_BL,
        )  # fmt: skip
    states = outputs.get("hidden_states")
    if states is None or states.shape[0] < 2:
        raise errors.UserError(
            f"the family {model.source.family} returns no hidden states of layers, so there is "
            f"nothing to probe: its model must take {_KEPT} and return hidden_states"
        )
    return states.shape[0], states.shape[-1]


def max_items(num_layers: int, width: int) -> int:
    """Returns the maximum number of items of a split."""
    return max(1, MAX_BYTES // (num_layers * width * _FLOAT_BYTES))


def encode(
    model: pretrained.Pretrained,
    task_type: base.TaskType,
    items: labelled.Items,
    pooling: str,
    on_progress: progress.Done = lambda done, total: None,
) -> np.ndarray:
    """Returns the states of the items in every layer, float32[M, N, D].

    pooling: how the states of a text's tokens become one vector, as in `heads.pool`; "" for words,
    whose state is that of their first piece.
    """
    num_layers, width = shape(model)
    states_MND = np.empty((num_layers, len(items.targets_N), width), np.float32)
    encoded = items.encoded
    found = [labelled.places(row) for row in encoded.rows]
    starts = np.cumsum([0, *(1 if pooling else len(places) for places in found)])
    row_bytes = num_layers * width * _FLOAT_BYTES * (1 if pooling else task_type.lengths.length)
    batch_size = min(_BATCH_SIZE, len(encoded.rows), max(1, _BATCH_BYTES // row_bytes))
    batches = task_type.batches(encoded, batch_size, passes=1)
    step, done = jax.jit(_step(model.model, pooling)), 0
    for numbers, outputs in batching.by_batch(step, model.params, batches):
        for number, states in zip(numbers, outputs["states"], strict=False):
            start, stop = starts[number], starts[number + 1]
            if pooling:
                states_MND[:, start] = states
            else:
                states_MND[:, start:stop] = states[:, found[number]]
        done += len(numbers)
        on_progress(done, len(encoded.rows))
    return states_MND


def _step(model: Any, pooling: str) -> Callable[[Any, Any], dict[str, jax.Array]]:
    """Returns a function from (params, batch) to states [B, M, L, D]; if pooled, [B, M, D]."""

    def compute(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        inputs = rows.inputs(batch)
        outputs = model.apply({"params": params}, **inputs, **{_KEPT: True})
        states = outputs["hidden_states"].astype(jnp.float32)
        if pooling:
            mask_BL = batch["attention_mask"]
            states = jax.vmap(lambda states_BLD: heads.pool(states_BLD, mask_BL, pooling))(states)
        return {"states": jnp.moveaxis(states, 0, 1)}

    return compute


def standardise(train_MND: np.ndarray, dev_MND: np.ndarray) -> None:
    """Gives each dimension of each layer mean 0 and standard deviation 1 on train, in place.

    Dev is scaled as train is. A dimension that is constant on train becomes 0 there.
    """
    for train_ND, dev_ND in zip(train_MND, dev_MND, strict=True):
        mean_D, std_D = train_ND.mean(axis=0), train_ND.std(axis=0)
        std_D[std_D <= 1e-6 * np.abs(mean_D) + 1e-12] = 1.0
        for x_ND in (train_ND, dev_ND):
            x_ND -= mean_D
            x_ND /= std_D
