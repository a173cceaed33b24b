"""Span corruption (T5): spans of text hidden behind sentinels, and the decoder writes them.

Raffel et al. 2020 (arXiv 1910.10683), section 3.1.4: 15% of the tokens in spans of 3 on average.
The inputs are the text with one sentinel for each span, the targets the sentinels with what they
hide; both end with an EOS. The text of a row is longer than the row, so that corrupted it fills it.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.data.batches import denoising, layout, packing, spans
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives.common import losses

KINDS = ("encoder_decoder",)


@dataclasses.dataclass(frozen=True)
class Config:
    """What is hidden."""

    noise_density: float = 0.15  # share of the text
    mean_noise_span_length: float = 3.0  # tokens of a span, on average
    packing: bool = True  # several pieces a row, each seeing only itself; else one, padded
    z_loss: float = 0.0  # factor of the squared log partition, which keeps logits near 0

    def __post_init__(self):
        density, mean = self.noise_density, self.mean_noise_span_length
        errors.check(0 < density < 1, "objective.noise_density", density, "above 0 and below 1")
        errors.check(mean >= 1, "objective.mean_noise_span_length", mean, "1 or more")
        errors.check(self.z_loss >= 0, "objective.z_loss", self.z_loss, "0 or more")


def predictions(config: Config, length: int) -> int:
    """Tokens of the decoder: what inputs of `length` have hidden, sentinels and EOS included."""
    return spans.random_spans_lengths(length, config.noise_density, config.mean_noise_span_length)[
        1
    ]


def heads(config: Config) -> tuple[str, ...]:
    """The heads of the model that `loss` reads."""
    return ("lm",)


def scales(config: Config) -> dict[str, float]:
    """The losses, the main one first, and their factors in the sum that is minimised."""
    return {"lm_loss": 1.0} | ({"z_loss": config.z_loss} if config.z_loss else {})


def features(config: Config, length: int) -> layout.FeatureTable:
    """Name -> (shape without the batch, dtype) of what `transform` gives."""
    return layout.encoder_decoder_features((length, predictions(config, length)), config.packing)


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> denoising.Corruption:
    """How windows of text become rows of `length` tokens, for `data.batches.loader`.

    Raises:
      UserError: the tokenizer lacks a token that is needed, or the length has no room for text.
    """
    noise = spans.Noise(config.noise_density, config.mean_noise_span_length)
    return denoising.Corruption(
        length=length,
        targets_length=predictions(config, length),
        noises=(noise,),
        rates=(1.0,),
        sentinels=vocabulary.sentinels,
        end=packing.end_of_text(vocabulary.specials),
        pad=packing.padding(vocabulary.specials),
        packing=config.packing,
    )


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Hides spans of a batch from `sampling` and makes the targets of them."""
    return sampling(config, length, vocabulary).corrupt(batch, rng)


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Weight of each loss term over the batch: what its sum is divided by, once."""
    return dict.fromkeys(scales(config), batch["loss_weights"].sum())


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Cross entropy in nats and accuracy of the targets. Returns {name: (sum, weight)}.

    apply: the model with its parameters bound.
    """
    return losses.next_tokens(apply, batch, z_loss=config.z_loss > 0)
