"""Binds a task type and trains it on a few examples with the plain step."""

from typing import Any

import jax
import numpy as np
import optax

from bertjax import plugins, step
from bertjax.finetuning import rows
from bertjax.finetuning.task_types import base
from tests.helpers import tiny_model

LENGTHS = rows.Lengths(24)
FIELDS = {
    "hidden_size": 16, "num_layers": 2, "num_heads": 4, "intermediate_size": 24, "max_length": 40,
    "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "init_std": 0.2,
}  # fmt: skip


def bind(
    module: Any, config: Any, labels: Any = (), task: str = "task", **fields: Any
) -> base.TaskType:
    """Returns the task type of a module with these options, labels and other fields."""
    return module.TaskType(task, config, tuple(labels), **fields)


def make(
    module: Any, config: Any, labels: Any = (), family: str = "bert", **fields: Any
) -> tuple[Any, Any]:
    """Returns (model, parameters) with the heads that the task type needs."""
    tokenizer = tiny_model.tokenizer("wordpiece" if family == "bert" else "bpe")
    heads = tuple(head for head in module.TaskType.heads if head != "pooler")
    if family == "bert":
        heads = ("pooler", *heads)
    sizes = {"vocab_size": tokenizer.size, "num_labels": bind(module, config, labels).num_labels()}
    model = plugins.model(family, {**FIELDS, **sizes, "heads": heads, **fields})
    return model, plugins.init_params(model, jax.random.key(0))


def batch_of(module: Any, config: Any, encoded: rows.Encoded, model: Any = None) -> dict:
    """Returns all rows as one batch, padded to LENGTHS; no token types if the model has none."""
    batch = {"example_weights": np.ones(len(encoded.rows), np.float32)}
    for name, feature in bind(module, config).features().items():
        arrays = [np.asarray(row[name], feature.dtype) for row in encoded.rows]
        if feature.length:
            room = [LENGTHS.length - array.shape[-1] for array in arrays]
            pads = [[(0, 0)] * (array.ndim - 1) for array in arrays]
            arrays = [
                np.pad(array, [*pad, (0, n)])
                for array, pad, n in zip(arrays, pads, room, strict=True)
            ]
        batch[name] = np.stack(arrays)
    if model is not None and not hasattr(model.config, "type_vocab_size"):
        del batch["token_type_ids"]
    return batch


def fit(module, config, model, params, batch, *, steps=60, rate=5e-3):
    """Returns (parameters after `steps` steps of Adam on the batch, loss of every step)."""
    tx, schedule = optax.adam(rate), optax.constant_schedule(rate)
    loss, normalizers = bind(module, config).loss, bind(module, config).normalizers
    scales = dict.fromkeys(normalizers(batch), 1.0)
    train_step = jax.jit(step.make_train_step(model, loss, normalizers, scales, tx, schedule))
    state, losses = step.init_state(params, tx, jax.random.key(1)), []
    for _ in range(steps):
        state, report = train_step(state, batch)
        losses.append(float(report["loss"]))
    return state.params, losses


def outputs_of(module, config, model, params, batch) -> dict[str, np.ndarray]:
    """Returns the task type's `outputs` for every row of the batch."""

    def forward(params, batch):
        def apply(**inputs):
            return model.apply({"params": params}, deterministic=True, **inputs)

        return bind(module, config).outputs(apply, batch)

    return jax.device_get(jax.jit(forward)(params, batch))
