"""Causal language modelling: predicts each token from the tokens before it in its document (GPT).

Radford et al. 2018, section 3.1. A document ends with an end-of-text token, which is predicted too.
Pieces of documents are packed into rows or padded: see `data.batches.packing`.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.data.batches import layout, packing
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives.common import losses

KINDS = ("decoder",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Fields that control how text is laid out in rows."""

    packing: bool = True  # True: documents share rows, masked from each other; False: one per row


def predictions(config: Config, length: int) -> int:
    """Returns the number of predicted positions in a row, which is all of them."""
    return length


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return ("lm",)


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    return {"lm_loss": 1.0}


def features(config: Config, length: int) -> layout.FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    return layout.target_features(length, config.packing)


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> packing.Documents:
    """Returns the sampler that turns windows of text into rows of `length` tokens.

    `data.batches.loader` calls the sampler.

    Raises:
      UserError: the tokenizer has no end-of-text token, or the length is below 2.
    """
    if length < 2:
        raise errors.UserError(f"config.data.length = {length}: must be at least 2")
    specials = vocabulary.specials
    end, pad = special_tokens.end_of_text(specials), special_tokens.padding(specials)
    return packing.Documents(length, end, pad, config.packing)


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Returns the decoder's inputs and targets for a batch of samples; `rng` is unused."""
    specials = vocabulary.specials
    return layout.lay_out_targets(
        layout.pieces_of(batch),
        batch["piece_sizes"],
        length,
        special_tokens.padding(specials),
        start=special_tokens.start_of_text(specials),
        packing=config.packing,
    )


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    return {"lm_loss": batch["loss_weights"].sum()}


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns {name: (sum, weight)}: cross entropy, in nats, and accuracy of the predicted tokens.

    apply: the model with its parameters bound.
    """
    return losses.next_tokens(apply, batch)
