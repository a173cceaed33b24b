"""Masked language modelling, alone (RoBERTa) or with a task on pairs of segments (BERT, ALBERT).

Sources: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; for `pair="none"`, Liu et al. 2019
(arXiv 1907.11692), section 4.2; for `pair="sop"`, Lan et al. 2020 (arXiv 1909.11942), section 3.1.
The host makes batches: `sampling` defines how text becomes samples, and `transform` masks tokens of
a whole batch at once. `loss` runs on the device.

Shapes: B batch, L length, P predictions per sequence.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.data.batches import layout, masking, packing, samples, span_masking
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives.common import losses

KINDS = ("encoder",)
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "segment_ids", "position_ids")
MASKINGS = ("token", "whole_word", "ngram", "span")
LABELS = {  # {task on pairs: name of the feature with its labels}
    "nsp": samples.Pairs.label,
    "sop": samples.OrderedPairs.label,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Fields that control what is masked and predicted."""

    mask_rate: float = 0.15  # share of a sequence's tokens to predict
    masking: str = "token"  # units to mask: token, whole_word, ngram (ALBERT), span (SpanBERT)
    max_ngram: int = 3  # maximum number of words in an n-gram; n words have probability ~ 1 / n
    span_p: float = 0.2  # a span of n words has probability ~ (1 - span_p) ** n
    max_span_words: int = 10  # maximum number of words in a span
    mask_token_rate: float = 0.8  # share of the chosen tokens that are replaced with [MASK]
    random_token_rate: float = 0.1  # share replaced with a random token; the rest is unchanged
    pair: str = "nsp"  # nsp: is segment B the next one; sop: are A and B in order; none: one text
    cross_documents: bool = True  # if pair is none: samples may continue into the next document
    packing: bool = False  # if pair is none: several documents per row, masked from each other
    short_rate: float = 0.1  # share of samples cut to a random shorter length
    random_next_rate: float = 0.5  # nsp: share of pairs with segment B from another document

    def __post_init__(self):
        def check(ok: bool, name: str, allowed: str) -> None:
            errors.check(ok, f"objective.{name}", getattr(self, name), allowed)

        for name in (
            "mask_rate", "mask_token_rate", "random_token_rate", "short_rate", "random_next_rate",
            "span_p",
        ):  # fmt: skip
            check(0 <= getattr(self, name) <= 1, name, "between 0 and 1")
        check(self.mask_rate > 0, "mask_rate", "above 0")
        limit = 1 - self.mask_token_rate
        check(self.random_token_rate <= limit + 1e-9, "random_token_rate",
              f"at most {limit:.3g}, the rest after config.objective.mask_token_rate")  # fmt: skip
        for name in ("max_ngram", "max_span_words"):
            check(getattr(self, name) >= 1, name, "1 or more")
        check(self.masking in MASKINGS, "masking", f"one of {', '.join(MASKINGS)}")
        check(self.pair in (*LABELS, "none"), "pair", f"one of {', '.join(LABELS)}, none")
        check(self.pair == "none" or not self.packing, "packing", "false unless "
                                                                  "config.objective.pair is 'none'")


def fields_for(kind: str, heads: tuple[str, ...]) -> dict[str, str]:
    """Returns {"pair": TASK}: the task on pairs for which the model has a head, or "none"."""
    return {"pair": next((pair for pair in LABELS if pair in heads), "none")}


def check_data(config: Config, path: str, num_documents: int) -> None:
    """Raises UserError if next-sentence prediction is trained on a single document.

    There is no other document to draw a wrong next sentence from, so every label would be 0.
    """
    if config.pair == "nsp" and num_documents == 1:
        raise errors.UserError(
            "config.objective.pair = 'nsp' draws wrong next sentences from other documents, but "
            f"config.data.path = {path} has one training document: prepare it with "
            "--text_split=blank if blank lines separate its documents, or set "
            "--config.objective.pair=none"
        )


def heldout_warnings(config: Config, num_documents: int) -> list[str]:
    """Returns a warning if no wrong next sentence can be drawn from the held-out data."""
    if config.pair != "nsp" or num_documents != 1:
        return []
    return [
        "held-out data is one document, so all its pairs are true next sentences and its "
        "nsp_accuracy is meaningless"
    ]


def predictions(config: Config, length: int) -> int:
    """Returns P: how many positions are predicted in a sequence of full length.

    The features of every sequence have this many slots for predictions.
    """
    return max(1, round(config.mask_rate * length))


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return ("mlm", config.pair) if config.pair in LABELS else ("mlm",)


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    return {f"{head}_loss": 1.0 for head in heads(config)}


def features(config: Config, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    num_predictions = predictions(config, length)
    table = layout.features(length, config.packing) | {
        "masked_positions": ((num_predictions,), np.int32),
        "masked_ids": ((num_predictions,), np.int32),
        "masked_weights": ((num_predictions,), np.float32),
    }
    if config.pair in LABELS:
        table["token_type_ids"] = ((length,), np.int32)
        table[LABELS[config.pair]] = ((), np.int32)
    return table


def sampling(
    config: Config, length: int, vocabulary: Vocabulary
) -> samples.TwoSegments | samples.FullSentences | packing.Enclosed:
    """Returns the sampler that turns windows of text into samples of `length` tokens.

    `data.batches.loader` calls the sampler.

    Raises:
      UserError: the vocabulary lacks a special token, or the length leaves no room for text.
    """
    for name in ("pad", "cls", "sep", "mask"):
        if getattr(vocabulary.specials, name) < 0:
            raise errors.UserError(
                f"the tokenizer has no {name} token, which masked language modelling needs: "
                "train or choose another tokenizer"
            )
    if length < 5:
        raise errors.UserError(
            f"config.data.length = {length}: must be at least 5, because three tokens are special"
        )
    common_args = length, vocabulary.specials, config.short_rate
    if config.pair == "nsp":
        return samples.Pairs(*common_args, config.random_next_rate)
    if config.pair == "sop":
        return samples.OrderedPairs(*common_args)
    if config.packing:
        specials = vocabulary.specials
        return packing.Enclosed(length, specials.cls, specials.sep, specials.pad, packing=True)
    return samples.FullSentences(*common_args, config.cross_documents)


def transform(
    config: Config,
    length: int,
    vocabulary: Vocabulary,
    batch: dict[str, np.ndarray],
    rng: RowRandom,
) -> dict[str, np.ndarray]:
    """Masks tokens of a batch of samples and adds masked_{positions, ids, weights}."""
    ids_BL = batch["input_ids"]
    specials = vocabulary.specials
    real_BL = batch["segment_ids" if config.packing else "attention_mask"] > 0
    candidates_BL = real_BL & (ids_BL != specials.cls) & (ids_BL != specials.sep)
    limit = predictions(config, length)
    counts_B = masking.counts(masking.numbers_of(real_BL), config.mask_rate, limit)
    continues_BL = None
    if config.masking != "token":
        continues_BL = vocabulary.continuations[ids_BL.astype(np.intp)]
    positions_BP, weights_BP = _choose(config, candidates_BL, continues_BL, counts_B, limit, rng)
    deciders_BP = None
    if config.masking == "span":
        deciders_BP, _ = span_masking.runs(positions_BP, weights_BP)
    corrupted_BL, masked_ids_BP = masking.apply(
        ids_BL,
        positions_BP,
        weights_BP,
        rng,
        mask_id=specials.mask,
        random_ids=vocabulary.ordinary_ids,
        mask_token_rate=config.mask_token_rate,
        random_token_rate=config.random_token_rate,
        deciders_BP=deciders_BP,
    )
    return batch | {
        "input_ids": corrupted_BL,
        "masked_positions": positions_BP,
        "masked_ids": masked_ids_BP,
        "masked_weights": weights_BP,
    }


def _choose(
    config: Config,
    candidates_BL: np.ndarray,
    continues_BL: np.ndarray | None,
    counts_B: np.ndarray,
    limit: int,
    rng: RowRandom,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the positions to predict; returns positions and weights, [B, P] each.

    continues_BL: as in `masking.choose_words`; None if single tokens are masked.
    """
    if continues_BL is None:
        return masking.choose_tokens(candidates_BL, counts_B, limit, rng)
    if config.masking == "whole_word":
        return masking.choose_words(candidates_BL, continues_BL, counts_B, limit, rng)
    if config.masking == "ngram":
        chances, gap = span_masking.harmonic(config.max_ngram), 0
    else:
        chances, gap = span_masking.geometric(config.span_p, config.max_span_words), 1
    lengths_BK = span_masking.draw_lengths(chances, limit, rng)
    return span_masking.choose_spans(
        candidates_BL, continues_BL, counts_B, limit, lengths_BK, rng, gap=gap
    )


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    weights = {"mlm_loss": batch["masked_weights"].sum()}
    if config.pair in LABELS:
        weights[f"{config.pair}_loss"] = losses.example_weights(batch).sum()
    return weights


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns {name: (sum, weight)}: cross entropy, in nats, and accuracy.

    Both are computed for the masked tokens and, if there is a task on pairs, for the pairs.
    apply: the model with its parameters bound.
    """
    outputs = apply(**losses.inputs(batch, INPUTS), masked_positions=batch["masked_positions"])
    return scores(config, outputs, batch)


def scores(
    config: Config, outputs: dict[str, jax.Array], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns the terms of `loss`, computed from the model's `outputs` for the batch."""
    weights_BP = batch["masked_weights"]
    terms = losses.classification("mlm", outputs["mlm_logits"], batch["masked_ids"], weights_BP)
    if config.pair in LABELS:
        labels_B, weights_B = batch[LABELS[config.pair]], losses.example_weights(batch)
        logits_B2 = outputs[f"{config.pair}_logits"]
        terms |= losses.classification(config.pair, logits_B2, labels_B, weights_B)
    return terms
