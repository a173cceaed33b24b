"""Prefix language modelling: predicts the rest of a piece of text from a fully visible prefix.

Source: Raffel et al. 2020 (arXiv 1910.10683), sections 3.2.1 and 3.2.3. The split point is drawn
uniformly. In a model without an encoder, the decoder attends to the prefix bidirectionally and
predicts only the rest. In an encoder-decoder, the encoder reads the prefix and the decoder predicts
the rest.
"""

import dataclasses

import numpy as np

from bertjax import errors
from bertjax.data.batches import layout, packing
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives import causal_lm

KINDS = ("decoder", "encoder_decoder")
PLAIN_TARGETS = True
heads, scales = causal_lm.heads, causal_lm.scales
normalizers, loss = causal_lm.normalizers, causal_lm.loss


@dataclasses.dataclass(frozen=True)
class Config:
    """Fields that control how text is laid out in rows."""

    kind: str = "decoder"  # decoder or encoder_decoder; by default the kind of the family
    packing: bool = True  # True: texts share rows, masked from each other; False: one per row

    def __post_init__(self):
        allowed = f"one of {', '.join(KINDS)}"
        errors.check(self.kind in KINDS, "objective.kind", self.kind, allowed)


def fields_for(kind: str, heads: tuple[str, ...]) -> dict[str, str]:
    """Returns the defaults that depend on the family: {"kind": kind of the family}."""
    return {"kind": kind}


def check_family(config: Config, family: str, kind: str) -> None:
    """Raises UserError unless `config.kind` equals `kind`, the kind of the family."""
    errors.check(config.kind == kind, "objective.kind", config.kind, f"{kind}, the kind of "
                                                                     f"{family}")


def predictions(config: Config, length: int) -> int:
    """Returns the decoder's length.

    Without an encoder, about half of these positions are the prefix, which is not predicted.
    """
    return length


def features(config: Config, length: int) -> layout.FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    if config.kind == "encoder_decoder":
        return layout.encoder_decoder_features((length, length), config.packing)
    return layout.prefixed_features(length, config.packing)


def sampling(
    config: Config, length: int, vocabulary: Vocabulary
) -> packing.Documents | packing.Prefixes:
    """Returns the sampler that turns windows of text into rows of `length` tokens.

    `data.batches.loader` calls the sampler.

    Raises:
      UserError: the tokenizer has no end-of-text token, or the length is below 8.
    """
    if length < 8:
        raise errors.UserError(f"config.data.length = {length}: must be at least 8")
    end = special_tokens.end_of_text(vocabulary.specials)
    pad = special_tokens.padding(vocabulary.specials)
    if config.kind == "encoder_decoder":
        return packing.Prefixes(length, pad, config.packing)
    return packing.Documents(length, end, pad, config.packing)


def transform(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch, rng: RowRandom
) -> dict[str, np.ndarray]:
    """Returns the model's inputs and targets for a batch of samples."""
    if config.kind == "encoder_decoder":
        return _split_features(config, length, vocabulary, batch)
    specials, sizes_BK = vocabulary.specials, batch["piece_sizes"]
    last_BK = np.maximum(sizes_BK - 1, 0)
    split_BK = rng.integers("prefix/split", np.minimum(1, last_BK), last_BK + 1, last_BK.shape[1])
    return layout.lay_out_prefixed(
        layout.pieces_of(batch),
        sizes_BK,
        split_BK,
        length,
        special_tokens.padding(specials),
        start=special_tokens.start_of_text(specials),
        packing=config.packing,
    )


def _split_features(
    config: Config, length: int, vocabulary: Vocabulary, batch: layout.Batch
) -> dict[str, np.ndarray]:
    """Returns features with the prefixes as inputs of the encoder and the rests as targets.

    Each prefix and each rest ends with an end-of-text token.
    """
    end = special_tokens.end_of_text(vocabulary.specials)
    sizes_BK, prefix_BK = batch["piece_sizes"], batch["prefix_sizes"]
    real_BK, tokens = sizes_BK > 0, layout.pieces_of(batch)
    prefix_sizes, rest_sizes = prefix_BK[real_BK], (sizes_BK - prefix_BK)[real_BK]
    part_sizes = np.column_stack([prefix_sizes, rest_sizes]).ravel()
    in_prefix = np.repeat(np.tile([True, False], len(prefix_sizes)), part_sizes)
    return layout.encoder_decoder(
        layout.ended(tokens[in_prefix], prefix_sizes, real_BK, end),
        layout.ended(tokens[~in_prefix], rest_sizes, real_BK, end),
        (length, length),
        special_tokens.padding(vocabulary.specials),
        packing=config.packing,
    )
