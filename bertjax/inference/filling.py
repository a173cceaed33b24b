"""Fills the mask tokens of texts with the likeliest pieces; `Pretrained.fill_mask` calls it.

Shapes: B rows of a batch, L length, P mask tokens of a text, V vocabulary, K likeliest pieces.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, html_tables
from bertjax.data.tokenizers import special_tokens
from bertjax.inference import batching
from bertjax.models.common import layers

BATCH_SIZE = 32


class Fill(NamedTuple):
    """One prediction for a mask token. piece: the text, as returned by `Tokenizer.readable`."""

    piece: str
    id: int
    probability: float


class Fills(list[list[Fill]]):
    """The predictions for the mask tokens of one text: a list of `Fill`s for each mask token."""

    def _repr_html_(self) -> str:
        """Returns a table with two columns for each mask token, for notebooks."""
        header = [f"mask {number}" for number in range(1, len(self) + 1)]
        rows = [
            [cell for fill in row for cell in (fill.piece, f"{fill.probability:.3f}")]
            for row in zip(*self, strict=True)
        ]
        return html_tables.table([cell for name in header for cell in (name, "probability")], rows)


def fill(model: Any, texts: Sequence[str], top: int) -> list[Fills]:
    """Returns the `top` likeliest pieces, best first, of each mask token of each text.

    model: an `inference.pretrained.Pretrained`. For the errors see `Pretrained.fill_mask`.
    """
    _check(model, top)
    specials = model.tokenizer.specials
    sequences = [model.input_ids(text) for text in texts]
    positions = [np.flatnonzero(sequence == specials.mask) for sequence in sequences]
    (mask,) = model.tokenizer.pieces([specials.mask])
    for text, mask_positions in zip(texts, positions, strict=True):
        if not len(mask_positions):
            raise errors.UserError(
                f"the text {errors.short(text)} contains no {mask}: insert one for each word to "
                "predict"
            )
    real_V = np.zeros(layers.padded_vocab_size(model.config.vocab_size), bool)
    real_V[: model.tokenizer.size] = True
    words_V = real_V.copy()
    words_V[: model.tokenizer.size] &= ~model.tokenizer.special_mask()
    top = min(top, int(words_V.sum()))
    fills = [Fills() for _ in texts]
    pad = special_tokens.padding(specials)
    made = batching.batches({"": sequences}, lambda longest: BATCH_SIZE, pad, model.max_length)
    for rows, batch in made:
        num_slots = batching.power_of_two(max(len(positions[row]) for row in rows))
        shape = len(batch["input_ids"]), num_slots
        masked_positions, _ = batching.padded([positions[row] for row in rows], shape, pad=0)
        batch["masked_positions"] = masked_positions
        best = _fill(model.model, model.params, batch, real_V, words_V, top)
        probabilities_BPK, ids_BPK = jax.device_get(best)
        for i, row in enumerate(rows):
            for k in range(len(positions[row])):
                pieces = model.tokenizer.readable(ids_BPK[i, k])
                columns = pieces, ids_BPK[i, k].tolist(), probabilities_BPK[i, k].tolist()
                fills[row].append([Fill(*values) for values in zip(*columns, strict=True)])
    return fills


def _check(model: Any, top: int) -> None:
    if "mlm" not in model.config.heads:
        raise errors.UserError(
            "this model has no masked language model head, so it cannot fill masks: load a "
            "model that was saved with this head"
        )
    if model.tokenizer.specials.mask < 0:
        raise errors.UserError("the tokenizer of this model has no mask token")
    if top < 1:
        raise errors.UserError(f"top = {top}: must be 1 or more")


@functools.partial(jax.jit, static_argnames=("model", "top"))
def _fill(
    model: Any,
    params: Any,
    batch: dict[str, jax.Array],
    real_V: jax.Array,
    words_V: jax.Array,
    top: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns (probabilities, ids) of the `top` likeliest pieces per mask token, both [B, P, K].

    real_V is False for ids without a piece; words_V is False for these and for special tokens.
    """
    logits_BPV = model.apply({"params": params}, **batch)["mlm_logits"]
    probabilities_BPV = jax.nn.softmax(jnp.where(real_V, logits_BPV, layers.MASKED))
    return jax.lax.top_k(jnp.where(words_V, probabilities_BPV, -1.0), top)
