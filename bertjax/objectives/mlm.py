"""Masked language modelling with next sentence prediction (BERT), or without it (RoBERTa).

Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Liu et al. 2019 (arXiv 1907.11692), section 4.2
for `pair="none"`. The host half makes batches: `sampling` says how text becomes samples,
`transform` hides tokens of a whole batch at once. The device half is `loss`.

Shapes: B batch, L length, P predictions a sequence.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics
from bertjax.data import masking, samples
from bertjax.data.rng import RowRandom
from bertjax.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Config:
    """What is predicted."""

    mask_rate: float = 0.15  # share of a sequence that is predicted
    whole_word: bool = False  # choose words, not pieces
    mask_token_rate: float = 0.8  # of the chosen: replaced by [MASK]
    random_token_rate: float = 0.1  # of the chosen: replaced by a random piece; the rest stay
    pair: str = "nsp"  # nsp: two segments and next sentence prediction; none: full sentences
    short_rate: float = 0.1  # share of samples cut for a random shorter length
    random_next_rate: float = 0.5  # share of pairs whose second segment is of another document

    def __post_init__(self):
        for name in (
            "mask_rate", "mask_token_rate", "random_token_rate", "short_rate", "random_next_rate"
        ):  # fmt: skip
            if not 0 <= getattr(self, name) <= 1:
                raise errors.UserError(
                    f"objective.{name}={getattr(self, name)}: must be between 0 and 1"
                )
        if self.mask_token_rate + self.random_token_rate > 1:
            raise errors.UserError(
                "objective.mask_token_rate + objective.random_token_rate = "
                f"{self.mask_token_rate + self.random_token_rate}: must not be above 1"
            )
        if self.pair not in ("nsp", "none"):
            raise errors.UserError(f"objective.pair={self.pair!r}: must be 'nsp' or 'none'")


def predictions(config: Config, length: int) -> int:
    """P: predictions of a full sequence, and slots of every sequence."""
    return max(1, round(config.mask_rate * length))


def heads(config: Config) -> tuple[str, ...]:
    """The heads of the model that `loss` reads."""
    return ("mlm", "nsp") if config.pair == "nsp" else ("mlm",)


def features(config: Config, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Name -> (shape without the batch, dtype) of what `transform` gives."""
    p = predictions(config, length)
    table = {
        "input_ids": ((length,), np.int32),
        "attention_mask": ((length,), np.int32),
        "token_type_ids": ((length,), np.int32),
        "masked_positions": ((p,), np.int32),
        "masked_ids": ((p,), np.int32),
        "masked_weights": ((p,), np.float32),
    }
    if config.pair == "nsp":
        table["next_sentence_label"] = ((), np.int32)
    return table


def sampling(
    config: Config, length: int, vocabulary: Vocabulary
) -> samples.Pairs | samples.FullSentences:
    """How windows of text become samples of `length` tokens, for `data.loader`.

    Raises:
      UserError: the vocabulary lacks a special token, or the length has no room for text.
    """
    for name in ("pad", "cls", "sep", "mask"):
        if getattr(vocabulary.specials, name) < 0:
            raise errors.UserError(
                f"the tokenizer has no {name} token, which masked language modelling needs: "
                "train or choose another tokenizer"
            )
    if length < 5:
        raise errors.UserError(f"length={length}: must be at least 5, three tokens are special")
    if config.pair == "none":
        return samples.FullSentences(length, vocabulary.specials, config.short_rate)
    return samples.Pairs(length, vocabulary.specials, config.short_rate, config.random_next_rate)


def transform(
    config: Config,
    length: int,
    vocabulary: Vocabulary,
    batch: dict[str, np.ndarray],
    rng: RowRandom,
) -> dict[str, np.ndarray]:
    """Hides tokens of a batch from `sampling` and adds masked_{positions, ids, weights}."""
    ids_BL = batch["input_ids"]
    specials = vocabulary.specials
    candidates_BL = batch["attention_mask"].astype(bool)
    candidates_BL &= (ids_BL != specials.cls) & (ids_BL != specials.sep)
    limit = predictions(config, length)
    counts_B = masking.counts(batch["attention_mask"].sum(axis=1), config.mask_rate, limit)
    if config.whole_word:
        continues_BL = vocabulary.continuations[ids_BL]
        positions_BP, weights_BP = masking.choose_words(
            candidates_BL, continues_BL, counts_B, limit, rng
        )
    else:
        positions_BP, weights_BP = masking.choose_tokens(candidates_BL, counts_B, limit, rng)
    hidden_BL, masked_BP = masking.apply(
        ids_BL,
        positions_BP,
        weights_BP,
        rng,
        mask_id=specials.mask,
        random_ids=np.flatnonzero(~vocabulary.special_mask),
        mask_token_rate=config.mask_token_rate,
        random_token_rate=config.random_token_rate,
    )
    return batch | {
        "input_ids": hidden_BL,
        "masked_positions": positions_BP,
        "masked_ids": masked_BP,
        "masked_weights": weights_BP,
    }


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Weight of each loss term over the batch: what its sum is divided by, once."""
    weights = {"mlm_loss": batch["masked_weights"].sum()}
    if config.pair == "nsp":
        weights["nsp_loss"] = _example_weights(batch).sum()
    return weights


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Cross entropy in nats and accuracy of the hidden tokens, and of the pairs if there are any.

    apply: the model with its parameters bound. Returns {name: (sum, weight)}.
    """
    outputs = apply(
        batch["input_ids"],
        batch["attention_mask"],
        batch["token_type_ids"],
        masked_positions=batch["masked_positions"],
    )
    weights_BP = batch["masked_weights"]
    terms = _classification("mlm", outputs["mlm_logits"], batch["masked_ids"], weights_BP)
    if config.pair == "nsp":
        labels_B = batch["next_sentence_label"]
        terms |= _classification("nsp", outputs["nsp_logits"], labels_B, _example_weights(batch))
    return terms


def _example_weights(batch: dict[str, jax.Array]) -> jax.Array:
    # Only batches of the evaluation, whose last one is filled up, carry weights.
    if "example_weights" in batch:
        return batch["example_weights"]
    return jnp.ones(batch["input_ids"].shape[0], jnp.float32)


def _classification(
    name: str, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> metrics.Terms:
    """Sums over all but the class axis of logits [..., C], labels and weights [...]."""
    # The label's logit as a masked sum, not a gather: C may be sharded, and no device needs it all.
    own = jnp.arange(logits.shape[-1]) == labels[..., None]
    nll = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(own, logits, 0.0), axis=-1)
    right = jnp.argmax(logits, axis=-1) == labels
    total = weights.sum()
    return {
        f"{name}_loss": ((nll * weights).sum(), total),
        f"{name}_accuracy": ((right * weights).sum(), total),
    }
