"""A mixture of denoisers (UL2) for a decoder alone, as a prefix language model.

Source: Tay et al. 2022 (arXiv 2205.05131), sections 3.1 and 4.1. The denoisers and their shares are
those of `denoisers`. A decoder reads inputs and targets as one sequence: it attends to the inputs
bidirectionally and predicts only the targets (as seqio's PrefixLMFeatureConverter lays them out).

    R, X:  <start> [R] corrupted text | <extra_id_0> span <extra_id_1> span <end>
    S:     <start> [S] three quarters of the text | the last quarter <end>

As in the paper's code (appendix 9.2), sequential denoising S is prefix language modelling without
sentinels. So a trained model continues a prompt that starts with the token of mode S. No
end-of-text token follows the inputs.
"""

import dataclasses

import numpy as np

from bertjax.data.batches import denoising, layout
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives import denoisers

KINDS = ("decoder",)
SENTINELS = True
heads, scales = denoisers.heads, denoisers.scales
normalizers, loss = denoisers.normalizers, denoisers.loss


@dataclasses.dataclass(frozen=True)
class Config(denoisers.Config):
    """The fields of `denoisers.Config`."""


def input_start(config: Config, vocabulary: Vocabulary) -> list[int]:
    """Returns the ids to put in front of a text: mode S's token, if mode tokens are on."""
    return [denoisers.mode_tokens(vocabulary)["S"]] if config.mode_tokens else []


def predictions(config: Config, length: int) -> int:
    """Returns the decoder's length; the positions of the inputs are not predicted."""
    return length


def features(config: Config, length: int) -> layout.FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    return layout.prefixed_features(length, config.packing)


def sampling(config: Config, length: int, vocabulary: Vocabulary) -> denoising.PrefixCorruption:
    """Returns the sampler that turns windows of text into rows of `length` tokens.

    `data.batches.loader` calls the sampler.

    Raises:
      UserError: the tokenizer lacks a needed token, or the length leaves no room for text.
    """
    special_tokens.start_of_text(vocabulary.specials)  # raises if there is none
    return denoisers.corruption(config, denoising.PrefixCorruption, length, vocabulary)


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Returns the features of a batch; each row is corrupted by the denoiser drawn for it."""
    return sampling(config, length, vocabulary).corrupt(batch, rng)
