"""Masked language modelling and the span boundary objective (SpanBERT, arXiv 1907.10529).

Every masked token is predicted twice (section 2.2): from the state at its position, and from the
states just before and just after its span, together with its place in the span. The loss of a token
is the sum of both losses. Everything else is as in `objectives.mlm`.

Shapes: B batch, L length, P predictions per sequence.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import metrics
from bertjax.data.batches import span_masking
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives import mlm
from bertjax.objectives.common import losses

KINDS = mlm.KINDS


@dataclasses.dataclass(frozen=True)
class Config(mlm.Config):
    """The fields of `mlm.Config` with SpanBERT's defaults.

    Spans are masked, and a sample is one text from one document (no sentence pairs).
    """

    masking: str = "span"
    pair: str = "none"
    cross_documents: bool = False
    short_rate: float = 0.0


predictions, sampling = mlm.predictions, mlm.sampling
check_data, heldout_warnings = mlm.check_data, mlm.heldout_warnings


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return (*mlm.heads(config), "sbo")


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    return {f"{head}_loss": 1.0 for head in heads(config)}


def features(config: Config, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    span_boundaries = (predictions(config, length), 2), np.int32
    return mlm.features(config, length) | {"span_boundaries": span_boundaries}


def transform(
    config: Config,
    length: int,
    vocabulary: Vocabulary,
    batch: dict[str, np.ndarray],
    rng: RowRandom,
) -> dict[str, np.ndarray]:
    """Masks tokens as `mlm.transform` does, and adds span_boundaries int32[B, P, 2].

    These are the positions just before and just after the span that each slot is part of.
    """
    batch = mlm.transform(config, length, vocabulary, batch, rng)
    boundaries_BP2 = span_masking.boundaries(batch["masked_positions"], batch["masked_weights"])
    return batch | {"span_boundaries": boundaries_BP2}


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    weights = mlm.normalizers(config, batch)
    return weights | {"sbo_loss": weights["mlm_loss"]}


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns the terms of `mlm.loss`, and loss and accuracy of the span boundary head."""
    outputs = apply(
        **losses.inputs(batch, mlm.INPUTS),
        masked_positions=batch["masked_positions"],
        span_boundaries=batch["span_boundaries"],
    )
    weights_BP, ids_BP = batch["masked_weights"], batch["masked_ids"]
    sbo_terms = losses.classification("sbo", outputs["sbo_logits"], ids_BP, weights_BP)
    return mlm.scores(config, outputs, batch) | sbo_terms
