"""Pretraining heads of any encoder: pairs of segments, span boundaries, replaced tokens.

`heads.MlmHead` is the head for masked tokens. Shapes: B batch, L length, P predictions per
sequence, D model, C channels.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import sharding
from bertjax.models.common import activations, heads, layers


class PairHead(nn.Module):
    """Classifies a pair of segments, for a family without a pooler: tanh of a dense layer, dense.

    With a pooler, which has the dense layer and the tanh, the head is only the last dense layer.
    """

    config: Any

    @nn.compact
    def __call__(self, first_BD: jax.Array) -> jax.Array:
        """Returns [B, 2]. first_BD: the state of the first token."""
        x_BD = layers.dense(first_BD.shape[-1], self.config, name="transform")(first_BD)
        x_BD = jnp.tanh(sharding.constrain(x_BD, ("batch", "embed")))
        return layers.dense(2, self.config, name="classifier")(x_BD)


class SboHead(nn.Module):
    """Predicts each token of a masked span from the states at the span's boundaries.

    Source: SpanBERT (Joshi et al., arXiv 1907.10529), section 2.2. For token i of a span from s to
    e: h = norm(gelu(W1 [x at s - 1; x at e + 1; p of i - s + 1])), where x are the encoder's states
    and p the embeddings of positions in a span. An MLM head maps h to logits: norm(gelu(W2 h)),
    then inner products with the word embeddings.
    """

    config: Any

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        masked_positions: jax.Array,
        span_boundaries: jax.Array,
        word_embedding: layers.Embed,
    ) -> jax.Array:
        config = self.config
        num_rows = config.max_span_tokens
        left_BP, right_BP = span_boundaries[..., 0], span_boundaries[..., 1]
        table = layers.Embed(
            num_rows, config.hidden_size, num_rows, config.init_std, name="position"
        )
        offset_BP = jnp.clip(masked_positions - left_BP - 1, 0, num_rows - 1)
        left_BPD, right_BPD = (heads.gather_positions(x_BLD, i_BP) for i_BP in (left_BP, right_BP))
        features_BPC = jnp.concatenate(
            [left_BPD, right_BPD, table(offset_BP).astype(config.dtype)], axis=-1
        )
        features_BPC = sharding.constrain(features_BPC, ("batch", "length", "embed"))
        h_BPD = layers.dense(config.hidden_size, config, name="dense")(features_BPC)
        h_BPD = sharding.constrain(h_BPD, ("batch", "length", "embed"))
        h_BPD = activations.FUNCTIONS[config.activation](h_BPD)
        h_BPD = layers.LayerNorm(config.layer_norm_eps, name="norm")(h_BPD)
        return heads.MlmHead(config, name="mlm_head")(h_BPD, word_embedding)


class RtdHead(nn.Module):
    """Computes the logit that a token was replaced: dense, activation, dense to one number.

    Source: ELECTRA (Clark et al., arXiv 2003.10555); the activation is that of its released code.
    """

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Returns float32 [B, L]."""
        x_BLD = layers.dense(self.config.hidden_size, self.config, name="transform")(x_BLD)
        x_BLD = sharding.constrain(x_BLD, ("batch", "length", "embed"))
        x_BLD = activations.FUNCTIONS[self.config.activation](x_BLD)
        return layers.dense(1, self.config, name="classifier")(x_BLD)[..., 0].astype(jnp.float32)
