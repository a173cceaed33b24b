"""Masked language modelling and the span boundary objective (SpanBERT, arXiv 1907.10529).

Every hidden token is predicted twice (section 2.2): from its own state, and from the states at the
two ends of its span, just outside it, with its place in the span. The loss of a token is the sum of
both. All that is not said here is `objectives.mlm`.

Shapes: B batch, L length, P predictions a sequence.
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
    """What is predicted: as in the paper, spans of one text of one document."""

    masking: str = "span"
    pair: str = "none"
    cross_documents: bool = False
    short_rate: float = 0.0


predictions = mlm.predictions
sampling = mlm.sampling


def heads(config: Config) -> tuple[str, ...]:
    """The heads of the model that `loss` reads."""
    return (*mlm.heads(config), "sbo")


def scales(config: Config) -> dict[str, float]:
    """Factor of every loss term in the sum that training minimises, the main one first."""
    return {f"{head}_loss": 1.0 for head in heads(config)}


def features(config: Config, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Name -> (shape without the batch, dtype) of what `transform` gives."""
    span_boundaries = (predictions(config, length), 2), np.int32
    return mlm.features(config, length) | {"span_boundaries": span_boundaries}


def transform(
    config: Config,
    length: int,
    vocabulary: Vocabulary,
    batch: dict[str, np.ndarray],
    rng: RowRandom,
) -> dict[str, np.ndarray]:
    """As `mlm.transform`, and span_boundaries int32[B, P, 2]: the positions around each span."""
    batch = mlm.transform(config, length, vocabulary, batch, rng)
    boundaries_BP2 = span_masking.boundaries(batch["masked_positions"], batch["masked_weights"])
    return batch | {"span_boundaries": boundaries_BP2}


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Weight of each loss term over the batch: what its sum is divided by, once."""
    weights = mlm.normalizers(config, batch)
    return weights | {"sbo_loss": weights["mlm_loss"]}


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """As `mlm.loss`, and cross entropy and accuracy of the hidden tokens by their boundaries."""
    outputs = apply(
        **losses.inputs(batch, mlm.INPUTS),
        masked_positions=batch["masked_positions"],
        span_boundaries=batch["span_boundaries"],
    )
    weights_BP, ids_BP = batch["masked_weights"], batch["masked_ids"]
    found = losses.classification("sbo", outputs["sbo_logits"], ids_BP, weights_BP)
    return mlm.scores(config, outputs, batch) | found
