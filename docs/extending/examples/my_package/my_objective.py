"""Masked language modelling without [MASK]: the chosen tokens of a row change places.

Some tokens of each row are chosen. Each of them moves to the place of the next chosen one, and the
last one to the place of the first. The model predicts the token that was at each of these places.
So the text that the model reads while it is trained contains no token that real text lacks.

    config.objective.name = "my_package.my_objective"

Shapes: B batch, L length, P predictions per sequence.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.data.batches import layout, masking, samples
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives.common import losses

KINDS = ("encoder",)
INPUTS = ("input_ids", "attention_mask")


@dataclasses.dataclass(frozen=True)
class Config:
    """Fields that control what changes places."""

    mask_rate: float = 0.15  # share of a sequence's tokens that change places and are predicted

    def __post_init__(self):
        in_range = 0 < self.mask_rate <= 1
        errors.check(in_range, "objective.mask_rate", self.mask_rate, "above 0 and at most 1")


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return ("mlm",)


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    return {"mlm_loss": 1.0}


def predictions(config: Config, length: int) -> int:
    """Returns P: how many positions are predicted in a sequence of full length."""
    return max(1, round(config.mask_rate * length))


def features(config: Config, length: int) -> layout.FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    slots = (predictions(config, length),)
    return layout.features(length, False) | {
        "masked_positions": (slots, np.int32),
        "masked_ids": (slots, np.int32),
        "masked_weights": (slots, np.float32),
    }


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> samples.FullSentences:
    """Returns the sampler: as many whole sentences as fit, also of several documents."""
    for name in ("pad", "cls", "sep"):
        if getattr(vocabulary.specials, name) < 0:
            raise errors.UserError(f"the tokenizer has no {name} token: choose another tokenizer")
    return samples.FullSentences(length, vocabulary.specials, 0.0, True)


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Exchanges the chosen tokens and adds masked_{positions, ids, weights}."""
    ids_BL, specials = batch["input_ids"], vocabulary.specials
    real_BL = batch["attention_mask"] > 0
    candidates_BL = real_BL & (ids_BL != specials.cls) & (ids_BL != specials.sep)
    limit = predictions(config, length)
    counts_B = masking.counts(real_BL.sum(axis=1), config.mask_rate, limit)
    positions_BP, weights_BP = masking.choose_tokens(candidates_BL, counts_B, limit, rng)
    targets_BP = np.take_along_axis(ids_BL, positions_BP, axis=1)
    return batch | {
        "input_ids": exchanged(ids_BL, positions_BP, weights_BP),
        "masked_positions": positions_BP,
        "masked_ids": np.where(weights_BP > 0, targets_BP, 0).astype(np.int32),
        "masked_weights": weights_BP,
    }


def exchanged(
    ids_BL: np.ndarray, positions_BP: np.ndarray, weights_BP: np.ndarray
) -> np.ndarray:
    """Returns the ids after each chosen token has moved to the place of the next chosen one."""
    row, slot = np.nonzero(weights_BP)
    counts_B = (weights_BP > 0).sum(axis=1)
    before = (slot - 1) % counts_B[row]
    result_BL = ids_BL.copy()
    result_BL[row, positions_BP[row, slot]] = ids_BL[row, positions_BP[row, before]]
    return result_BL


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    return {"mlm_loss": batch["masked_weights"].sum()}


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns {name: (sum, weight)}: cross entropy, in nats, and accuracy of the moved tokens.

    apply: the model with its parameters bound.
    """
    inputs = losses.inputs(batch, INPUTS)
    outputs = apply(**inputs, masked_positions=batch["masked_positions"])
    return losses.classification(
        "mlm", outputs["mlm_logits"], batch["masked_ids"], batch["masked_weights"]
    )
