"""Span corruption (T5): sentinels replace spans of the text, and the decoder predicts the spans.

Source: Raffel et al. 2020 (arXiv 1910.10683), section 3.1.4. By default 15% of the tokens are
masked, in spans of 3 tokens on average. The inputs are the text with a sentinel in place of each
span. The targets are each sentinel followed by its span. Both end with an EOS. A row takes more
than `length` tokens of text, because the inputs become shorter when the spans are removed.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.data.batches import denoising, layout, spans
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives.common import losses

KINDS = ("encoder_decoder",)


@dataclasses.dataclass(frozen=True)
class Config:
    """Fields that control what is masked."""

    noise_density: float = 0.15  # share of the text's tokens to mask
    mean_noise_span_length: float = 3.0  # mean number of tokens in a masked span
    packing: bool = True  # True: texts share rows, masked from each other; False: one per row
    z_loss: float = 0.0  # weight of log(softmax denominator) ** 2, which keeps logits small

    def __post_init__(self):
        density, mean = self.noise_density, self.mean_noise_span_length
        errors.check(0 < density < 1, "objective.noise_density", density, "above 0 and below 1")
        errors.check(mean >= 1, "objective.mean_noise_span_length", mean, "1 or more")
        errors.check(self.z_loss >= 0, "objective.z_loss", self.z_loss, "0 or more")


def predictions(config: Config, length: int) -> int:
    """Returns the decoder's length.

    The targets contain the spans that were removed from inputs of `length`, sentinels, and EOS.
    """
    return spans.random_spans_lengths(length, config.noise_density, config.mean_noise_span_length)[
        1
    ]


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return ("lm",)


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    return {"lm_loss": 1.0} | ({"z_loss": config.z_loss} if config.z_loss else {})


def features(config: Config, length: int) -> layout.FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    return layout.encoder_decoder_features((length, predictions(config, length)), config.packing)


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> denoising.Corruption:
    """Returns the sampler that turns windows of text into rows of `length` tokens.

    `data.batches.loader` calls the sampler.

    Raises:
      UserError: the tokenizer lacks a needed token, or the length leaves no room for text.
    """
    noise = spans.Noise(config.noise_density, config.mean_noise_span_length)
    return denoising.Corruption(
        length=length,
        targets_length=predictions(config, length),
        noises=(noise,),
        rates=(1.0,),
        sentinels=vocabulary.sentinels,
        end=special_tokens.end_of_text(vocabulary.specials),
        pad=special_tokens.padding(vocabulary.specials),
        packing=config.packing,
    )


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Returns the features of a batch of samples: inputs with masked spans, and the targets."""
    return sampling(config, length, vocabulary).corrupt(batch, rng)


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    return dict.fromkeys(scales(config), batch["loss_weights"].sum())


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns {name: (sum, weight)}: cross entropy, in nats, and accuracy of the targets.

    If `config.z_loss` is above 0, z_loss is a third term. apply: the model with its parameters
    bound.
    """
    return losses.next_tokens(apply, batch, z_loss=config.z_loss > 0)
