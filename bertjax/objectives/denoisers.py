"""A mixture of denoisers (UL2): rows differ in the share of masked text and in the span length.

Source: Tay et al. 2022 (arXiv 2205.05131), table 1. There are three modes. R, regular: spans as in
T5. S, sequential: the last quarter is predicted from the rest. X, extreme: a large share is masked,
or the spans are long. Each of the seven denoisers has a mode, a density and a mean span length. A
text has at most as many spans as there are sentinels, which limits X with short spans. The rows of
the encoder and of the decoder have the same length. If `config.mode_tokens`, inputs start with a
token for the mode, one of the last three sentinels.
"""

import dataclasses
from typing import Any

import numpy as np

from bertjax import errors
from bertjax.data.batches import denoising, layout, spans
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives import span_corruption

KINDS = span_corruption.KINDS
heads, scales = span_corruption.heads, span_corruption.scales
normalizers, loss = span_corruption.normalizers, span_corruption.loss

DENOISERS = {
    "R": (spans.Noise(0.15, 3.0), spans.Noise(0.15, 8.0)),
    "S": (spans.Noise(0.25, float("inf")),),
    "X": (
        spans.Noise(0.5, 3.0), spans.Noise(0.5, 8.0), spans.Noise(0.15, 64.0),
        spans.Noise(0.5, 64.0),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """The mixture's fields. By default each of the seven denoisers gets the same share of rows."""

    r_rate: float = 2 / 7  # share of the rows with regular denoising (R)
    s_rate: float = 1 / 7  # share of the rows with sequential denoising (S); the rest is X
    mode_tokens: bool = True  # start the inputs with a token that names R, S or X
    packing: bool = True  # True: texts share rows, masked from each other; False: one per row
    z_loss: float = 0.0  # weight of log(softmax denominator) ** 2, which keeps logits small

    def __post_init__(self):
        r_rate, s_rate = self.r_rate, self.s_rate
        errors.check(r_rate >= 0, "objective.r_rate", r_rate, "0 or more")
        errors.check(0 <= s_rate <= 1 - r_rate + 1e-9, "objective.s_rate", s_rate,
                     f"between 0 and {1 - r_rate:.3g}, the share that config.objective.r_rate = "
                     f"{r_rate:.3g} leaves")  # fmt: skip
        errors.check(self.z_loss >= 0, "objective.z_loss", self.z_loss, "0 or more")


def mode_tokens(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns {mode: id of its token} for R, S and X: the last three sentinels, in this order.

    The other sentinels mark spans. Raises UserError if there are no other sentinels.
    """
    if len(vocabulary.sentinels) <= len(DENOISERS):
        raise errors.UserError("the tokenizer has too few sentinels: train one with more")
    return dict(zip(DENOISERS, vocabulary.sentinels[-len(DENOISERS) :].tolist(), strict=True))


def input_start(config: Config, vocabulary: Vocabulary) -> list[int]:
    """Returns the ids to put in front of a text to score: mode R's token, if mode tokens are on."""
    return [mode_tokens(vocabulary)["R"]] if config.mode_tokens else []


def predictions(config: Config, length: int) -> int:
    """Returns the decoder's length. It is the encoder's, because X may mask half of the text."""
    return length


def features(config: Config, length: int) -> layout.FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    return layout.encoder_decoder_features((length, length), config.packing)


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> denoising.Corruption:
    """Returns the sampler that turns windows of text into rows of `length` tokens.

    `data.batches.loader` calls the sampler.

    Raises:
      UserError: the tokenizer lacks a needed token, or the length leaves no room for text.
    """
    return corruption(config, denoising.Corruption, length, vocabulary)


def corruption(
    config: Config, kind: type[denoising.Corruption], length: int, vocabulary: Vocabulary
) -> Any:
    """Returns the sampler of class `kind` for the mixture; raises as `sampling`."""
    x_rate = max(0.0, 1 - config.r_rate - config.s_rate)
    rates = {"R": config.r_rate, "S": config.s_rate, "X": x_rate}
    sentinels = vocabulary.sentinels
    modes: tuple[int, ...] = ()
    if config.mode_tokens:
        mode_ids, sentinels = mode_tokens(vocabulary), sentinels[: -len(DENOISERS)]
        modes = tuple(mode_ids[mode] for mode, noises in DENOISERS.items() for _ in noises)
    return kind(
        length=length,
        targets_length=length,
        noises=tuple(noise for noises in DENOISERS.values() for noise in noises),
        rates=tuple(
            rates[mode] / len(noises) for mode, noises in DENOISERS.items() for _ in noises
        ),
        sentinels=sentinels,
        end=special_tokens.end_of_text(vocabulary.specials),
        pad=special_tokens.padding(vocabulary.specials),
        packing=config.packing,
        modes=modes,
        start=vocabulary.specials.start,
    )


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Returns the features of a batch; each row is corrupted by the denoiser drawn for it."""
    return sampling(config, length, vocabulary).corrupt(batch, rng)
