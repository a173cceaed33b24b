"""Inserts the ids of a prompt after the first token of each row that a model reads.

    apply = inserted_prompt.around(apply, ids=(30522, 30523))
    apply(input_ids=ids_BL, attention_mask=mask_BL)["last_hidden_state"]      # [B, L, D]

Shapes: B rows, L length, D model.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Apply = Callable[..., dict[str, jax.Array]]
# Outputs of an encoder or a decoder with one position per token of the input.
_BY_TOKEN = ("last_hidden_state", "token_logits", "span_logits", "logits")


def around(apply: Apply, ids: Sequence[int]) -> Apply:
    """Returns `apply` with the prompt inserted, and its positions removed from the outputs."""

    def insert(x_BL: jax.Array, values: Any) -> jax.Array:
        values = jnp.asarray(values).astype(x_BL.dtype)
        middle = jnp.broadcast_to(values, (*x_BL.shape[:-1], len(ids)))
        return jnp.concatenate([x_BL[..., :1], middle, x_BL[..., 1:]], axis=-1)

    def with_prompt(**inputs: Any) -> dict[str, jax.Array]:
        values = {"input_ids": np.array(ids, np.int32), "attention_mask": 1, "token_type_ids": 0,
                  "prefix_mask": 1}  # fmt: skip
        arrays = {name: insert(inputs[name], v) for name, v in values.items() if name in inputs}
        outputs = apply(**{**inputs, **arrays})
        has_decoder = "decoder_input_ids" in inputs

        def cut(x_BL: jax.Array) -> jax.Array:
            return jnp.concatenate([x_BL[:, :1], x_BL[:, 1 + len(ids) :]], axis=1)

        by_token = () if has_decoder else _BY_TOKEN
        return {name: cut(x) if name in by_token else x for name, x in outputs.items()}

    return with_prompt
