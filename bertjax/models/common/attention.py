"""Multi-head attention, computed by plain XLA operations or a kernel of `models.common.kernels`.

Shapes: B batch, L length, S key length, D model, N heads, H head dim.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, hashing, sharding
from bertjax.models.common import kernels, layers, masks, positions

# Added to the scores: a float32 array [B or 1, N, L, S], or a function that returns this array. The
# arguments of the function are the queries [B, L, N, H] and the keys [B, S, N, H] from which the
# scores are computed. Rotation and scaling have already been applied to them. With a cache, S is
# the number of its slots, including the empty ones.
Bias = jax.Array | Callable[[jax.Array, jax.Array], jax.Array]


class Attention(nn.Module):
    """Multi-head attention of x over itself, over a memory, or over a cache of earlier steps.

    use_bias: whether the four projections have biases. scale: factor by which the queries are
    multiplied; None means head_dim ** -0.5. The module uses these fields of the config:
    hidden_size, num_heads, head_dim, init_std, kernel_std, attention_dropout_rate, adapter_size,
    dtype, attention and unroll_layers.
    """

    config: Any
    use_bias: bool = True
    scale: float | None = None

    def setup(self):
        config = self.config
        heads = (config.num_heads, config.head_dim)

        def dense(name: str, features: int | tuple[int, ...], num_in: int = 1) -> layers.Dense:
            std = config.kernel_std(name)
            return layers.dense(
                features, config, num_in=num_in, use_bias=self.use_bias, init_std=std
            )

        self.query = dense("query", heads)
        self.key = dense("key", heads)
        self.value = dense("value", heads)
        self.out = dense("out", config.hidden_size, num_in=2)
        self.dropout = layers.Dropout(config.attention_dropout_rate)
        self.adapter = layers.Adapter(config) if config.adapter_size else None

    def keys_values(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns (keys, values) of states x, [B, S, N, H] each; they can be passed as `memory`."""
        return _shard_heads(self.key(x_BSD)), _shard_heads(self.value(x_BSD))

    def __call__(
        self,
        x_BLD: jax.Array,
        mask: masks.Mask,
        deterministic: bool,
        *,
        memory: jax.Array | tuple[jax.Array, jax.Array] | None = None,
        bias: Bias | None = None,
        rotary: tuple[jax.Array, jax.Array] | None = None,
        cache: dict[str, jax.Array] | None = None,
    ) -> Any:
        """Returns the output [B, L, D], or (output, new cache) if `cache` is given.

        mask: which keys each query may attend to. memory: the states [B, S, D] to attend to, or the
        result of `keys_values` for them; None means self-attention. bias: added to the scores, see
        `Bias`. If it is a function, it must not call Linen modules, because the backward pass runs
        it again. rotary: (cos, sin) of `positions.rotary_tables`, by which queries and keys are
        rotated; None means no rotation.
        cache: {"key", "value"} [B, S, N, H] and "index" int32[]. This call's keys and values are
        written to the slots from the index on. Attention is over all S slots, so the mask must hide
        the empty slots.

        If the caller of the model makes the collection `layers.WEIGHTS` mutable, the attention
        weights [B, N, L, S] are stored in it as "weights". Raises UserError if a kernel computes
        the attention, because kernels do not store the weights.
        """
        query_BLNH = _shard_heads(self.query(x_BLD))
        if isinstance(memory, tuple):
            key_BSNH, value_BSNH = memory
        else:
            key_BSNH, value_BSNH = self.keys_values(x_BLD if memory is None else memory)
        if rotary is not None:
            query_BLNH = positions.rotate(query_BLNH, rotary)
            key_BSNH = positions.rotate(key_BSNH, rotary)
        # Until here keys and values may be sharded over their length. Now they are all-gathered,
        # because the queries on each device attend to all keys.
        key_BSNH, value_BSNH = (_shard_heads(x, "key_length") for x in (key_BSNH, value_BSNH))
        if cache is not None:
            key_BSNH, value_BSNH = (
                jax.lax.dynamic_update_slice_in_dim(cache[name], update, cache["index"], axis=1)
                for name, update in (("key", key_BSNH), ("value", value_BSNH))
            )
        if self.scale is None:
            query_BLNH = query_BLNH / self.config.head_dim**0.5
        elif self.scale != 1.0:
            query_BLNH = query_BLNH * self.scale

        # `init` makes every collection mutable.
        keep_weights = self.is_mutable_collection(layers.WEIGHTS) and not self.is_initializing()
        rate = 0.0 if deterministic else self.dropout.rate
        name = self.config.attention
        # `init` has 2 tokens, and kernels need more; `auto` would also start JAX's backend there.
        # Kernels do not store the weights.
        if self.is_initializing() or (keep_weights and name == "auto"):
            kernel = "xla"
        else:
            kernel = kernels.chosen(name, query_BLNH, key_BSNH, mask, bias, has_dropout=rate > 0.0)
        if kernel == "xla":
            seed = self.dropout.seed(deterministic)
            bias_fn, bias = (bias, None) if callable(bias) else (None, bias)
            attend = functools.partial(
                _attend, rate=self.dropout.rate, bias_fn=bias_fn, keep_weights=keep_weights
            )
            # Layers are unrolled on CPUs only. There, memory suffices, and a step is 5% faster
            # without the checkpoint.
            if not self.config.unroll_layers:
                attend = jax.checkpoint(attend, prevent_cse=False)
            context_BLNH, weights_BNLS = attend(query_BLNH, key_BSNH, value_BSNH, mask, bias, seed)
            if keep_weights:
                self.sow(layers.WEIGHTS, "weights", weights_BNLS, lambda _, new: new, lambda: None)
        elif keep_weights:
            raise errors.UserError(
                f"config.attention = {kernel!r}: a kernel does not store the attention weights; "
                "use 'xla'"
            )
        elif kernel == "rows":
            extras = kernels.Extras(bias, self.dropout.seed(deterministic), self.dropout.rate)
            context_BLNH = kernels.attend(kernel, query_BLNH, key_BSNH, value_BSNH, mask, extras)
        elif bias is not None or rate:
            raise errors.UserError(
                f"config.attention = {kernel!r}: does not support an attention bias or attention "
                "dropout; use 'xla'"
            )
        else:
            context_BLNH = kernels.attend(kernel, query_BLNH, key_BSNH, value_BSNH, mask)
        out_BLD = self.out(_shard_heads(context_BLNH))
        if self.adapter is not None:
            out_BLD = self.adapter(out_BLD)
        return out_BLD if cache is None else (out_BLD, {"key": key_BSNH, "value": value_BSNH})


def _attend(
    query_BLNH: jax.Array,
    key_BSNH: jax.Array,
    value_BSNH: jax.Array,
    mask: masks.Mask,
    bias: jax.Array | None,
    seed: jax.Array | None,
    rate: float,
    bias_fn: Callable[[jax.Array, jax.Array], jax.Array] | None,
    keep_weights: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Returns (weights value [B, L, N, H], weights), where weights = softmax(query key^T + bias).

    All scores are in memory at once. The weights [B, N, L, S] are None unless `keep_weights`; they
    are those before dropout.

    seed, rate: seed and rate of the dropout on the attention weights; if seed is None, there is no
    dropout. bias_fn: a `Bias` that is a function, or None.

    Under `jax.checkpoint` the backward pass recomputes the scores (Korthikanti et al., arXiv
    2205.05198, section 5). This costs one more product, 1.6% of BERT base's FLOPs at length 512. It
    avoids writing and reading seven bytes per score: BERT base's temporaries on a TPU v5e fall from
    10.2 to 6.6 GiB.
    """
    scores_BNLS = jnp.einsum("blnh,bsnh->bnls", query_BLNH, key_BSNH).astype(jnp.float32)
    if bias is not None:
        scores_BNLS += bias
    if bias_fn is not None:
        scores_BNLS += bias_fn(query_BLNH, key_BSNH)
    visible_BLS = mask.dense(*scores_BNLS.shape[-2:])
    scores_BNLS = jnp.where(visible_BLS[:, None], scores_BNLS, layers.MASKED)
    weights_BNLS = jax.nn.softmax(scores_BNLS, axis=-1).astype(value_BSNH.dtype)
    dropped_BNLS = layers.drop(weights_BNLS, rate, seed, bits_of=hashing.weight_bits)
    context_BLNH = jnp.einsum("bnls,bsnh->blnh", dropped_BNLS, value_BSNH)
    return context_BLNH, weights_BNLS if keep_weights else None


def _shard_heads(x_BLNH: jax.Array, length: str = "length") -> jax.Array:
    return sharding.constrain(x_BLNH, ("batch", length, "heads", "head_dim"))
