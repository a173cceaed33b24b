"""Replaced token detection (ELECTRA, Clark et al., arXiv 2003.10555, section 2).

DeBERTa-v3 uses the same objective (He et al., arXiv 2111.09543, section 3.1).

A generator learns to predict masked tokens. Tokens sampled from it replace the masks, and a
discriminator predicts for every token whether it was replaced. A sample that happens to equal the
original token counts as original. No gradient flows through the sampling: the generator learns from
`mlm_loss` alone.

The host makes batches as in `mlm`, with every chosen token masked, and a `sample_seed` for each
row. The noise used for sampling is a hash of that seed, the prediction slot and the token id. So
the noise does not depend on the mesh, the micro-batch or the order of the rows. It differs between
epochs.

Shapes: B batch, L length, P predictions per sequence, V rows of the word table.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, hashing, metrics
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.objectives import mlm
from bertjax.objectives.common import losses

KINDS = mlm.KINDS
predictions, sampling = mlm.predictions, mlm.sampling


@dataclasses.dataclass(frozen=True)
class Config(mlm.Config):
    """Fields for the masking and the weight of the discriminator's loss.

    The paper masks 15% of the tokens, and 25% for its large model.
    """

    mask_token_rate: float = 1.0
    random_token_rate: float = 0.0
    pair: str = "none"
    rtd_weight: float = 50.0  # weight of the discriminator's loss; the generator's has weight 1

    def __post_init__(self):
        super().__post_init__()
        errors.check(self.pair == "none", "objective.pair", self.pair, "'none'")
        errors.check(self.rtd_weight >= 0, "objective.rtd_weight", self.rtd_weight, "0 or more")


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return ("mlm", "rtd")


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    return {"mlm_loss": 1.0, "rtd_loss": config.rtd_weight}


def features(config: Config, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `transform`."""
    return mlm.features(config, length) | {"sample_seed": ((), np.int32)}


def transform(
    config: Config,
    length: int,
    vocabulary: Vocabulary,
    batch: dict[str, np.ndarray],
    rng: RowRandom,
) -> dict[str, np.ndarray]:
    """Masks tokens of a batch as `mlm.transform` does, and adds sample_seed int32[B]."""
    seed_B = rng.bits("replaced_token_detection/sample", 1)[:, 0].astype(np.int32)
    return mlm.transform(config, length, vocabulary, batch, rng) | {"sample_seed": seed_B}


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    tokens = losses.token_weights(batch)
    return {"mlm_loss": batch["masked_weights"].sum(), "rtd_loss": tokens.sum()}


def loss(
    config: Config, apply: Callable[..., dict[str, jax.Array]], batch: dict[str, jax.Array]
) -> metrics.Terms:
    """Returns {name: (sum, weight)}: losses, in nats, and accuracies.

    The terms "mlm_..." are the generator's, "rtd_..." the discriminator's. rtd_recall is the
    discriminator's accuracy on the replaced tokens. apply: the model with its parameters bound.
    """
    inputs = losses.inputs(batch, mlm.INPUTS)
    positions_BP, original_BP = batch["masked_positions"], batch["masked_ids"]
    weights_BP = batch["masked_weights"]
    generator_out = apply(**inputs, masked_positions=positions_BP, heads_to_run=("mlm",))
    logits_BPV = generator_out["mlm_logits"]
    mlm_terms = losses.classification("mlm", logits_BPV, original_BP, weights_BP)

    sampled_BP = sample(jax.lax.stop_gradient(logits_BPV), batch["sample_seed"])
    corrupted_BL = place(batch["input_ids"], positions_BP, weights_BP, sampled_BP)
    replaced_BL = corrupted_BL != place(batch["input_ids"], positions_BP, weights_BP, original_BP)

    inputs["input_ids"] = corrupted_BL
    logits_BL = apply(**inputs, heads_to_run=("rtd",))["rtd_logits"]
    nll_BL = jax.nn.softplus(jnp.where(replaced_BL, -logits_BL, logits_BL))
    correct_BL = (logits_BL > 0) == replaced_BL
    weights_BL = losses.token_weights(batch)
    total_weight, replaced_weight = weights_BL.sum(), (weights_BL * replaced_BL).sum()
    return mlm_terms | {
        "rtd_loss": ((nll_BL * weights_BL).sum(), total_weight),
        "rtd_accuracy": ((correct_BL * weights_BL).sum(), total_weight),
        "rtd_recall": ((correct_BL * replaced_BL * weights_BL).sum(), replaced_weight),
    }


def sample(logits_BPV: jax.Array, seed_B: jax.Array) -> jax.Array:
    """Returns int32[B, P]: an id for every slot, sampled from softmax(logits) with the row's seed.

    The sample is the argmax of logits plus Gumbel noise. Each device computes the noise of its own
    shard of the vocabulary, and only the maxima are exchanged.
    """
    bits_BPV = hashing.hash_bits_by_row(seed_B, logits_BPV.shape)
    # -log1p(-u) is exponentially distributed. It is precise near 0, where precision matters,
    # because float32 is densest there.
    uniform_BPV = (bits_BPV.astype(jnp.float32) + 0.5) * 2.0**-32
    noise_BPV = -jnp.log(-jnp.log1p(-uniform_BPV))
    return jnp.argmax(logits_BPV + noise_BPV, axis=-1).astype(jnp.int32)


def place(
    input_ids: jax.Array, positions_BP: jax.Array, weights_BP: jax.Array, ids_BP: jax.Array
) -> jax.Array:
    """Returns int32[B, L]: `input_ids` with `ids_BP` at `positions_BP`; skips slots of weight 0."""
    column_11L = jnp.arange(input_ids.shape[1])[None, None]
    match_BPL = (positions_BP[:, :, None] == column_11L) & (weights_BP[:, :, None] > 0)
    new_BL = jnp.sum(jnp.where(match_BPL, ids_BP[:, :, None], 0), axis=1)
    return jnp.where(match_BPL.any(axis=1), new_BL, input_ids)
