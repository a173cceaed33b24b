"""T5's layers (arXiv 1910.10683, section 2.1) and their stack, used as encoder and decoder.

Each part of a layer is preceded by an RMSNorm. The dense layers have no biases. Attention scores
are not scaled; instead, the query kernels start smaller. A bias that is added to the scores
represents the positions. Shapes are named as in `models.common.layers`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import sharding
from bertjax.models.common import attention, layers, masks, positions


class Layer(nn.Module):
    """A pre-norm layer: self-attention, in a decoder also cross-attention, and an MLP.

    Each part reads the normed state, and its output is added to the state.
    """

    config: Any
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        cache: dict[str, jax.Array] | None,
        mask: masks.Mask,
        bias: jax.Array,
        memory_BSD: jax.Array | None,
        memory_mask: masks.Mask | None,
        index: jax.Array | None,
    ) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array] | None]]:
        """Returns (state, (state, new cache)). The layer is a decoder's if it has a `memory_mask`.

        cache: "key" and "value", which are written from slot `index` on, and "cross_key" and
        "cross_value", which are computed from the encoder's states; [B, S, N, H] each. memory_BSD:
        the encoder's states; a decoder's layer needs them if there is no cache.
        """
        config = self.config
        x_BLD, new_cache = self._attend(
            x_BLD, "attention", mask, bias=bias,
            cache=None if cache is None else {**cache, "index": index},
        )  # fmt: skip
        if memory_mask is not None:
            memory = memory_BSD if cache is None else (cache["cross_key"], cache["cross_value"])
            x_BLD, _ = self._attend(x_BLD, "cross_attention", memory_mask, memory=memory)
        # The two kinds of MLP differ in name, because their Hugging Face names differ too (HF_NAMES
        # of t5_files.py).
        name, rate = "gated_mlp" if config.gated else "mlp", config.dropout_rate
        mlp = layers.Mlp(config, use_bias=False, gated=config.gated, dropout_rate=rate, name=name)
        x_BLD = self._add(x_BLD, mlp(self._norm(x_BLD, "mlp"), self.deterministic), "mlp")
        return x_BLD, (x_BLD, new_cache)

    def _attend(
        self, x_BLD: jax.Array, name: str, mask: masks.Mask, **inputs: Any
    ) -> tuple[jax.Array, dict[str, jax.Array] | None]:
        attend = attention.Attention(self.config, use_bias=False, scale=1.0, name=name)
        result = attend(self._norm(x_BLD, name), mask, self.deterministic, **inputs)
        out_BLD, cache = result if isinstance(result, tuple) else (result, None)
        return self._add(x_BLD, out_BLD, name), cache

    def _norm(self, x_BLD: jax.Array, part: str) -> jax.Array:
        return layers.RMSNorm(self.config.layer_norm_eps, name=f"{part}_norm")(x_BLD)

    def _add(self, x_BLD: jax.Array, out_BLD: jax.Array, part: str) -> jax.Array:
        dropout = layers.Dropout(self.config.dropout_rate, name=f"{part}_dropout")
        x_BLD = x_BLD + dropout(out_BLD, self.deterministic)
        return sharding.constrain(x_BLD, ("batch", "length", "embed"))


class Stack(nn.Module):
    """The encoder or the decoder: layers, their shared position bias, and a final norm."""

    config: Any
    num_layers: int
    bidirectional: bool

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        mask: masks.Mask,
        places: tuple[jax.Array, jax.Array],
        *,
        memory_BSD: jax.Array | None = None,
        memory_mask: masks.Mask | None = None,
        cache: dict[str, jax.Array] | None = None,
        index: jax.Array | None = None,
        deterministic: bool,
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array] | None]:
        """Returns (final state, states [1 + num_layers, B, L, D], new cache).

        The final state is normed; it is also the last of the states. places: (int[L], int[S]), the
        indices of the queries and of the keys in the row. For the other arguments see `Layer`.
        """
        config = self.config
        num_buckets, std = config.relative_buckets, config.kernel_std("relative_bias")
        table = layers.Embed(num_buckets, config.num_heads, num_buckets, std, name="relative_bias")
        limit, both_ways = config.relative_max_distance, self.bidirectional
        bias = positions.relative_bias(table.embedding, *places, limit, bidirectional=both_ways)
        first_BLD = layers.Dropout(config.dropout_rate, name="first_dropout")(x_BLD, deterministic)
        stack = layers.stack(Layer, config, self.num_layers, 5)
        x_BLD, (hidden, cache) = stack(config, deterministic, name="layers")(
            first_BLD, cache, mask, bias, memory_BSD, memory_mask, index
        )
        x_BLD = layers.RMSNorm(config.layer_norm_eps, name="final_norm")(x_BLD)
        x_BLD = layers.Dropout(config.dropout_rate, name="last_dropout")(x_BLD, deterministic)
        return x_BLD, jnp.concatenate([first_BLD[None], hidden[:-1], x_BLD[None]]), cache


class OutputMap(nn.Module):
    """The untied output projection of states [..., D] to [..., rows of the word table].

    The columns beyond the vocabulary are zero.
    """

    config: Any

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        config = self.config

        def init(key, shape, dtype):
            std = config.kernel_std("lm_head")
            kernel = nn.initializers.truncated_normal(std)(key, shape, dtype)
            return jnp.where(jnp.arange(shape[1]) < config.vocab_size, kernel, 0.0)

        shape = (config.hidden_size, layers.padded_vocab_size(config.vocab_size))
        kernel = self.param("kernel", init, shape, jnp.float32)
        kernel = sharding.gathered(kernel, "/".join((*self.path, "kernel")))
        return x_BTD @ kernel.astype(x_BTD.dtype)
