"""Causal language modelling: each token from those before it in its document (GPT).

Radford et al. 2018, section 3.1. A document ends with an end of text, which is predicted too, and
pieces of documents are packed in rows or padded: `data.batches.packing`.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.data.batches import layout, packing
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives.common import losses

KINDS = ("decoder",)


@dataclasses.dataclass(frozen=True)
class Config:
    """How text is laid out."""

    packing: bool = True  # several documents a row, each seeing only itself; else one, padded


def predictions(config: Config, length: int) -> int:
    """Positions that are predicted: all."""
    return length


def heads(config: Config) -> tuple[str, ...]:
    """The heads of the model that `loss` reads."""
    return ("lm",)


def scales(config: Config) -> dict[str, float]:
    """The losses, the main one first, and their factors in the sum that is minimised."""
    return {"lm_loss": 1.0}


def features(config: Config, length: int) -> layout.FeatureTable:
    """Name -> (shape without the batch, dtype) of what `transform` gives."""
    return layout.target_features(length, config.packing)


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> packing.Documents:
    """How windows of text become rows of `length` tokens, for `data.batches.loader`.

    Raises:
      UserError: the tokenizer has no token to end a text with, or the length is below 2.
    """
    if length < 2:
        raise errors.UserError(f"config.data.length = {length}: must be at least 2")
    specials = vocabulary.specials
    end, pad = packing.end_of_text(specials), packing.padding(specials)
    return packing.Documents(length, end, pad, config.packing)


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """A batch from `sampling` as what the decoder reads and predicts; nothing is drawn."""
    specials = vocabulary.specials
    return layout.lay_out_targets(
        layout.pieces_of(batch),
        batch["piece_sizes"],
        length,
        packing.padding(specials),
        start=packing.start_of_text(specials),
        packing=config.packing,
    )


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Weight of each loss term over the batch: what its sum is divided by, once."""
    return {"lm_loss": batch["loss_weights"].sum()}


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Cross entropy in nats and accuracy of the tokens. Returns {name: (sum, weight)}.

    apply: the model with its parameters bound.
    """
    return losses.next_tokens(apply, batch)
