"""The parts that families share: embedding, dense, dropout, attention, feed-forward, layer stack.

Shapes: B batch, L length, S key length, D model, N heads, H head dim, F MLP, V vocab.
Model code is single-device code. `sharding.constrain` names the logical axes of activations and
does nothing outside a mesh; where parameters live is the business of `sharding.PARAM_AXES` alone.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding

VOCAB_MULTIPLE = 128  # rows of the embedding table: the lane width of a TPU; meshes divide it
MASKED = -1e9  # a logit that softmax turns into 0 in float32 and that stays finite in a masked row

ACTIVATIONS: dict[str, Callable] = {
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
}
REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Compute:
    """How a model is computed, which never changes what it computes but for rounding.

    dtype: of activations and matmuls; parameters, softmax, layer norm and loss stay float32.
    remat: what the backward pass recomputes, a key of REMAT_POLICIES.
    unroll_layers: compile the stack as straight code instead of a loop (faster on a CPU).
    """

    dtype: str = "float32"
    remat: str = "none"
    unroll_layers: bool = False


def check_fields(config: Any) -> None:
    """Raises UserError for a size or rate that no encoder can have, by the name of its key."""

    def check(ok: bool, field: str, allowed: str) -> None:
        if not ok:
            value = getattr(config, field)
            raise errors.UserError(f"config.model.{field} = {value!r}: must be {allowed}")

    for field in dataclasses.fields(config):
        if field.type is int:
            check(getattr(config, field.name) >= 1, field.name, "1 or more")
        if field.name.endswith("dropout_rate"):
            check(0.0 <= getattr(config, field.name) < 1.0, field.name, "in [0, 1)")
        elif field.type is float:
            check(getattr(config, field.name) >= 0.0, field.name, "0 or more")
    check(config.hidden_size % config.num_heads == 0, "num_heads",
          f"a divisor of config.model.hidden_size = {config.hidden_size}")  # fmt: skip
    check(config.activation in ACTIVATIONS, "activation", f"one of {', '.join(ACTIVATIONS)}")


def padded_vocab_size(vocab_size: int) -> int:
    """Rows of the embedding table for `vocab_size` pieces."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _mix32(x: jax.Array) -> jax.Array:
    # The 32-bit finalizer of MurmurHash3 (Austin Appleby, public domain): a bijection whose every
    # output bit depends on every input bit.
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def hash_bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape] of random bits: a hash of (seed, place), so any sharding gives the same bits.

    It fuses into its consumer, where threefry and rbg bits are written to memory and read back.
    """
    row = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    column = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        column = column * jnp.uint32(shape[axis]) + jax.lax.broadcasted_iota(
            jnp.uint32, shape, axis
        )
    return _mix32(column ^ _mix32(row + seed))


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate)."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0.0:
            return x
        seed = jax.random.bits(self.make_rng("dropout"), (), jnp.uint32)
        keep = hash_bits(seed, x.shape) >= jnp.uint32(self.rate * 2**32)
        return jnp.where(keep, x / (1.0 - self.rate), jnp.zeros((), x.dtype)).astype(x.dtype)


class Embed(nn.Module):
    """A table [num_embeddings, D]; rows from `num_used` on are padding: zero, and never trained."""

    num_embeddings: int
    features: int
    num_used: int
    init_std: float

    def setup(self):
        def init(key, shape, dtype):
            table = nn.initializers.truncated_normal(self.init_std)(key, shape, dtype)
            return jnp.where(jnp.arange(shape[0])[:, None] < self.num_used, table, 0.0)

        shape = (self.num_embeddings, self.features)
        self.embedding = self.param("embedding", init, shape, jnp.float32)

    def __call__(self, ids: jax.Array) -> jax.Array:
        return jnp.take(self.embedding, ids, axis=0)

    def attend(self, x: jax.Array) -> jax.Array:
        """Inner products with every row: [..., D] -> [..., num_embeddings]."""
        return jnp.einsum("...d,vd->...v", x, self.embedding.astype(x.dtype))


class Dense(nn.Module):
    """A linear map of the last `num_in` axes to `features`, as one product of two matrices.

    Flat because contracting batch and length together, as the kernel's gradient does, makes XLA
    transpose both operands on a CPU: 5 to 8% of a train step.
    """

    features: tuple[int, ...]
    num_in: int
    config: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = self.config.dtype
        outer, inner = x.shape[: -self.num_in], x.shape[-self.num_in :]
        init = nn.initializers.truncated_normal(self.config.init_std)
        kernel = self.param("kernel", init, (*inner, *self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, self.features, jnp.float32)
        x = x.reshape(-1, math.prod(inner)).astype(dtype)
        x = x @ kernel.reshape(x.shape[-1], -1).astype(dtype) + bias.reshape(-1).astype(dtype)
        return x.reshape(*outer, *self.features)


def dense(
    features: int | tuple[int, ...], config: Any, *, num_in: int = 1, name: str | None = None
) -> Dense:
    """A map of the last `num_in` axes with float32 parameters, computed in `config.dtype`."""
    features = (features,) if isinstance(features, int) else features
    return Dense(features, num_in, config, name=name)


class LayerNorm(nn.Module):
    """Layer norm in float32 whatever the compute type; returns the type of its input."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + self.epsilon) * scale + bias).astype(x.dtype)


class Attention(nn.Module):
    """Bidirectional multi-head attention; `mask_BS` is True where a key may be seen."""

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array, mask_BS: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        head_dim = config.hidden_size // config.num_heads
        heads = ("batch", "length", "heads", "head_dim")

        def project(name: str) -> jax.Array:
            x_BLNH = dense((config.num_heads, head_dim), config, name=name)(x_BLD)
            return sharding.constrain(x_BLNH, heads)

        query_BLNH, key_BSNH, value_BSNH = project("query"), project("key"), project("value")

        scores_BNLS = jnp.einsum("blnh,bsnh->bnls", query_BLNH / head_dim**0.5, key_BSNH)
        scores_BNLS = jnp.where(
            mask_BS[:, None, None, :], scores_BNLS.astype(jnp.float32), MASKED
        )
        weights_BNLS = jax.nn.softmax(scores_BNLS, axis=-1).astype(x_BLD.dtype)
        weights_BNLS = Dropout(config.attention_dropout_rate, name="dropout")(
            weights_BNLS, deterministic
        )
        mixed_BLNH = jnp.einsum("bnls,bsnh->blnh", weights_BNLS, value_BSNH)
        mixed_BLNH = sharding.constrain(mixed_BLNH, heads)
        return dense(config.hidden_size, config, num_in=2, name="out")(mixed_BLNH)


class Mlp(nn.Module):
    """Two dense layers with the activation between them."""

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        config = self.config
        hidden_BLF = dense(config.intermediate_size, config, name="wi")(x_BLD)
        hidden_BLF = sharding.constrain(hidden_BLF, ("batch", "length", "mlp"))
        hidden_BLF = ACTIVATIONS[config.activation](hidden_BLF)
        return dense(config.hidden_size, config, name="wo")(hidden_BLF)


class PostNormLayer(nn.Module):
    """One encoder layer of BERT: the norm comes after each residual sum (arXiv 1810.04805)."""

    config: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x_BLD: jax.Array, mask_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
        config, deterministic = self.config, self.deterministic
        residual = ("batch", "length", "embed")
        out_BLD = Attention(config, name="attention")(x_BLD, mask_BS, deterministic)
        out_BLD = Dropout(config.dropout_rate, name="attention_dropout")(out_BLD, deterministic)
        x_BLD = LayerNorm(config.layer_norm_eps, name="attention_norm")(x_BLD + out_BLD)
        x_BLD = sharding.constrain(x_BLD, residual)
        out_BLD = Mlp(config, name="mlp")(x_BLD)
        out_BLD = Dropout(config.dropout_rate, name="mlp_dropout")(out_BLD, deterministic)
        x_BLD = LayerNorm(config.layer_norm_eps, name="mlp_norm")(x_BLD + out_BLD)
        x_BLD = sharding.constrain(x_BLD, residual)
        return x_BLD, x_BLD


class Encoder(nn.Module):
    """`num_layers` of one layer class; their parameters are stacked along a leading layer axis."""

    config: Any
    layer: type[nn.Module] = PostNormLayer

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, mask_BS: jax.Array, *, deterministic: bool, keep_hidden: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the last hidden state and, if asked, all of them: [num_layers, B, L, D]."""
        config = self.config
        layer = self.layer
        if config.remat != "none":
            layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
        stack = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=config.num_layers,
            unroll=config.num_layers if config.unroll_layers else 1,
        )
        x_BLD, hidden = stack(config, deterministic, name="layers")(x_BLD, mask_BS)
        return x_BLD, hidden if keep_hidden else None
