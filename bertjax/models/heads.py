"""What stands on an encoder: the pooler and the heads of the pretraining objectives."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models import layers


def check(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raises UserError unless the heads of a Config are some of those it knows, in their order."""
    ordered = names == tuple(name for name in known if name in names)
    errors.check(ordered, "model.heads", names, f"a tuple of {', '.join(known)}, in this order")


def gather_positions(x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """The rows of `x_BLD` at `positions_BP`: [B, P, D]."""
    x_BLD = sharding.constrain(x_BLD, ("batch", "key_length", "embed"))
    x_BPD = jnp.take_along_axis(x_BLD, positions_BP[:, :, None], axis=1)
    return sharding.constrain(x_BPD, ("batch", "length", "embed"))


class MlmHead(nn.Module):
    """Transform, norm, and inner products with the word embeddings (BERT, section 3.1, task 1).

    The vocabulary axis of the logits is that of the embedding table; the ids that are only padding
    of the table get a logit that softmax turns into 0, so they are never predicted.

    use_bias: of the transform and its norm; the logits always have one.
    """

    config: Any
    use_bias: bool = True

    @nn.compact
    def __call__(self, x_BPD: jax.Array, word_embedding: layers.Embed) -> jax.Array:
        config = self.config
        transform = layers.dense(
            word_embedding.features, config, use_bias=self.use_bias, name="transform"
        )
        x_BPD = transform(x_BPD)
        x_BPD = sharding.constrain(x_BPD, ("batch", "length", "embed"))
        x_BPD = layers.ACTIVATIONS[config.activation](x_BPD)
        x_BPD = layers.LayerNorm(config.layer_norm_eps, self.use_bias, name="norm")(x_BPD)
        rows = word_embedding.num_embeddings
        bias_V = self.param("bias", nn.initializers.zeros, (rows,), jnp.float32)
        # Masking the bias, not the logits, spares the backward pass a select over B * P * V.
        bias_V = jnp.where(jnp.arange(rows) < config.vocab_size, bias_V, layers.MASKED)
        logits_BPV = word_embedding.attend(x_BPD).astype(jnp.float32) + bias_V
        return sharding.constrain(logits_BPV, ("batch", "length", "vocab"))


class Pooler(nn.Module):
    """tanh of a dense map of the first position's state."""

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        x_BD = layers.dense(x_BLD.shape[-1], self.config, name="dense")(x_BLD[:, 0])
        return jnp.tanh(sharding.constrain(x_BD, ("batch", "embed")))
