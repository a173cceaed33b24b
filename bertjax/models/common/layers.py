"""Layers shared by the families: embedding, dense, dropout, norms, MLP, stack.

Shapes: B batch, L length, S key length, D model, N heads, H head dim, F MLP, V vocab.
Model code is single-device code. `sharding.constrain` names the logical axes of activations and
does nothing outside a mesh; the sharding of parameters is defined by `sharding.PARAM_AXES` alone.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import device_groups, errors, hashing, sharding
from bertjax.models.common import activations, norms, products

# The rows of a word embedding table are padded to a multiple of this. 128 is the vector width of a
# TPU, and the usual sizes of a mesh axis divide it.
VOCAB_MULTIPLE = 128
MASKED = -1e9  # a logit whose softmax is 0 in float32; finite, so that no row becomes NaN
TRUNCATED_STD = 0.87962566  # std of N(0, 1) truncated at +-2, the distribution of new parameters
ADAPTER_STD = 1e-3  # std of a new adapter's kernels; small, so that it hardly changes its input

# The Linen collection of attention weights, stacked over the layers. They are stored only if the
# caller of a model makes it mutable.
WEIGHTS = "attention_weights"

REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


# Fields that shrink any variant so that a run takes seconds on a CPU; a family may add others.
SMOKE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 128,
    "max_length": 64,
}


@dataclasses.dataclass(frozen=True)
class Compute:
    """Fields that define how a model is computed; they change its results only by rounding.

    dtype: dtype of activations and matmuls; parameters, softmax, layer norm and loss stay float32.
    remat: what the backward pass recomputes, a key of REMAT_POLICIES.
    unroll_layers: compile the layers as straight-line code instead of a loop (faster on a CPU).
    attention: how attention is computed, one of `kernels.NAMES`.
    """

    dtype: str = "float32"
    remat: str = "none"
    unroll_layers: bool = False
    attention: str = "auto"

    # What is added to the attention scores: "none", an "array", or "distances", the terms of
    # `models.common.disentangled`.
    score_bias: ClassVar[str] = "none"

    @property
    def head_dim(self) -> int:
        """Returns the width of an attention head; a family may override it with a field."""
        return self.hidden_size // self.num_heads

    def kernel_std(self, name: str) -> float:
        """Returns the initial standard deviation of kernel `name`; families may override this."""
        return self.init_std


@dataclasses.dataclass(frozen=True)
class Fields(Compute):
    """Base class of the families' Configs, with the fields that only fine-tuning sets.

    num_labels: size of the heads "classifier" and "token_classifier".
    adapter_size: width of the adapters in every layer; 0 means no adapters.
    """

    num_labels: int = 0  # size of the heads classifier and token_classifier
    adapter_size: int = 0  # width of the adapters in every layer; 0: no adapters


def fields_of(config: Any) -> dict[str, Any]:
    """Returns {name: value} of all fields of a family's Config except those of `Compute`."""
    compute = {field.name for field in dataclasses.fields(Compute)}
    return {name: v for name, v in dataclasses.asdict(config).items() if name not in compute}


MAX_LAYERS = 4096  # upper limit of numbers of layers
MAX_SIZE = 2**24  # upper limit of all other sizes


def optional(default: int) -> Any:
    """Returns a field for a size that may be 0, which means that the model lacks this part."""
    return dataclasses.field(default=default, metadata={"minimum": 0})


def check_fields(config: Any) -> None:
    """Raises UserError if a size, rate or the activation is invalid; the message names its key."""

    def check(ok: bool, field: str, allowed: str) -> None:
        errors.check(ok, f"model.{field}", getattr(config, field), allowed)

    for field in dataclasses.fields(config):
        if field.type is int:
            # The lowest valid id is 0, the smallest size 1. A lower default is valid too: 0 means
            # no such part, and -1 no such id.
            lowest = 0 if field.name.endswith("_id") else 1
            minimum = min(field.default, field.metadata.get("minimum", lowest))
            check(getattr(config, field.name) >= minimum, field.name, f"{minimum} or more")
            maximum = MAX_LAYERS if field.name.endswith("layers") else MAX_SIZE
            check(getattr(config, field.name) <= maximum, field.name, f"{maximum:,} or less")
        if field.name.endswith("dropout_rate"):
            check(0.0 <= getattr(config, field.name) < 1.0, field.name, "in [0, 1)")
        elif field.type is float:
            check(getattr(config, field.name) >= 0.0, field.name, "0 or more")
    has_head_dim = any(field.name == "head_dim" for field in dataclasses.fields(config))
    check(has_head_dim or config.hidden_size % config.num_heads == 0, "num_heads",
          f"a divisor of config.model.hidden_size = {config.hidden_size}")  # fmt: skip
    check(config.activation in activations.FUNCTIONS, "activation",
          f"one of {', '.join(activations.FUNCTIONS)}")  # fmt: skip


def sizes(num_layers: int, hidden_size: int) -> dict[str, int]:
    """Returns a variant's fields: heads of width 64, and an MLP of four times the hidden size."""
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": hidden_size // 64,
        "intermediate_size": 4 * hidden_size,
    }


def padded_vocab_size(vocab_size: int) -> int:
    """Returns `vocab_size` rounded up to a multiple of VOCAB_MULTIPLE: the number of table rows."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    has_rows: whether the first axis of the input is that of the batch's rows. NOTE: set it to False
    for a table that all rows share, which must have the same dropout on all devices.
    """

    rate: float
    has_rows: bool = True

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        return drop(x, self.rate, self.seed(deterministic), has_rows=self.has_rows)

    def seed(self, deterministic: bool) -> jax.Array | None:
        """Returns the seed for this call's random bits; None if there is no dropout."""
        if deterministic or self.rate == 0.0:
            return None
        return jax.random.key_data(self.make_rng("dropout"))[0]  # key data are random bits


def drop(
    x: jax.Array,
    rate: float,
    seed: jax.Array | None,
    *,
    has_rows: bool = True,
    bits_of: Callable[..., jax.Array] = hashing.hash_bits,
) -> jax.Array:
    """Returns x after dropout with this seed; x itself if the seed is None.

    has_rows: as in `Dropout`. bits_of: `hashing.hash_bits`, or `hashing.weight_bits` for attention
    weights.
    """
    if seed is None:
        return x
    first_row = device_groups.first_row(len(x)) if has_rows else 0
    keep_mask = hashing.keeps(bits_of(seed, x.shape, first_row), rate)
    return jnp.where(keep_mask, x / (1.0 - rate), jnp.zeros((), x.dtype)).astype(x.dtype)


class Embed(nn.Module):
    """An embedding table [num_embeddings, D].

    Rows from `num_used` on are padding: they are zero and never trained.
    """

    num_embeddings: int
    features: int
    num_used: int
    init_std: float

    def setup(self):
        def init(key, shape, dtype):
            table = nn.initializers.truncated_normal(self.init_std)(key, shape, dtype)
            return jnp.where(jnp.arange(shape[0])[:, None] < self.num_used, table, 0.0)

        shape = (self.num_embeddings, self.features)
        table = self.param("embedding", init, shape, jnp.float32)
        self.embedding = sharding.gathered(table, "/".join((*self.path, "embedding")))

    def __call__(self, ids_BL: jax.Array) -> jax.Array:
        x_BLD = jnp.take(self.embedding, ids_BL, axis=0)
        return sharding.constrain(x_BLD, ("batch", "length", "embed"))

    def attend(self, x: jax.Array) -> jax.Array:
        """Returns [..., num_embeddings]: the inner products of x [..., D] with every row."""
        return jnp.einsum("...d,vd->...v", x, self.embedding.astype(x.dtype))


class Dense(nn.Module):
    """A linear map of the last `num_in` axes to `features`, computed as one matrix product.

    Batch and length are flattened to one axis. The kernel's gradient is a product that sums over
    both. If they were two axes, XLA on a CPU would transpose both operands of this product, which
    takes 5 to 8% of a train step. On a mesh that shards the length, batch and length stay two axes,
    because no sharding of the flat axis is equivalent.
    """

    features: tuple[int, ...]
    num_in: int
    use_bias: bool
    init_std: float
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch_shape, in_shape = x.shape[: -self.num_in], x.shape[-self.num_in :]
        init = nn.initializers.truncated_normal(self.init_std)
        kernel = self.param("kernel", init, (*in_shape, *self.features), jnp.float32)
        row_shape = batch_shape if sharding.splits("length") else (-1,)

        def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
            x = x.reshape(*row_shape, math.prod(in_shape)).astype(self.dtype)
            kernel = kernel.reshape(x.shape[-1], -1).astype(self.dtype)
            return products.product(x, kernel) if x.ndim == 2 else x @ kernel

        # With the checkpoint, only x and the parameter are saved for the backward pass, but neither
        # flattened copies nor a copy of the parameter in the compute dtype. If several dense layers
        # have the same input x, it is saved once.
        x = jax.checkpoint(product, prevent_cse=False)(x, kernel)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, self.features, jnp.float32)
            x = x + bias.reshape(*(1,) * (x.ndim - 1), -1).astype(self.dtype)
        return x.reshape(*batch_shape, *self.features)


def dense(
    features: int | tuple[int, ...],
    config: Any,
    *,
    num_in: int = 1,
    use_bias: bool = True,
    init_std: float | None = None,
    name: str | None = None,
) -> Dense:
    """Returns a `Dense` over the last `num_in` axes: float32 parameters, computed in config.dtype.

    init_std: standard deviation of the initial kernel; None means `config.init_std`.
    """
    features = (features,) if isinstance(features, int) else features
    std = config.init_std if init_std is None else init_std
    return Dense(features, num_in, use_bias, std, config.dtype, name=name)


class LayerNorm(nn.Module):
    """Layer norm, computed in float32; the output has the dtype of the input."""

    epsilon: float
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        return norms.normalize(x, scale, bias, self.epsilon, True)


class RMSNorm(nn.Module):
    """RMSNorm, computed in float32: divides by the root mean square; no centring, no bias."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        return norms.normalize(x, scale, None, self.epsilon, False)


class Adapter(nn.Module):
    """Returns x + up(gelu(down(x))), at first almost x (Houlsby et al., arXiv 1902.00751).

    Every layer has one adapter after its attention and one after its MLP, before the residual sum
    (section 2.1, figure 2). `config.adapter_size` is the bottleneck width.
    """

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        config = self.config
        down = dense(config.adapter_size, config, init_std=ADAPTER_STD, name="down")
        up = dense(x_BLD.shape[-1], config, init_std=ADAPTER_STD, name="up")
        delta_BLD = up(activations.FUNCTIONS["gelu"](down(x_BLD)))
        return x_BLD + sharding.constrain(delta_BLD, ("batch", "length", "embed"))


class Mlp(nn.Module):
    """Two dense layers with an activation between them.

    gated: whether the activation's output is multiplied by the output of a third dense layer.
    dropout_rate: rate of the dropout on the input of the last dense layer.
    """

    config: Any
    use_bias: bool = True
    gated: bool = False
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(self, x_BLD: jax.Array, deterministic: bool = True) -> jax.Array:
        config = self.config

        def projection(name: str, features: int) -> Dense:
            std = config.kernel_std(name)
            return dense(features, config, use_bias=self.use_bias, init_std=std, name=name)

        def up_projection(name: str) -> jax.Array:
            hidden_BLF = projection(name, config.intermediate_size)(x_BLD)
            return sharding.constrain(hidden_BLF, ("batch", "length", "mlp"))

        hidden_BLF = activations.FUNCTIONS[config.activation](up_projection("wi"))
        if self.gated:
            hidden_BLF = hidden_BLF * up_projection("wi_gate")
        hidden_BLF = Dropout(self.dropout_rate, name="dropout")(hidden_BLF, deterministic)
        out_BLD = projection("wo", config.hidden_size)(hidden_BLF)
        return Adapter(config, name="adapter")(out_BLD) if config.adapter_size else out_BLD


def stack(
    layer: type[nn.Module],
    config: Any,
    num_layers: int,
    num_broadcast: int,
    *,
    shared: bool = False,
) -> type[nn.Module]:
    """Returns a module class that loops over `num_layers` layers, with stacked parameters.

    `layer.__call__` takes (carry, per_layer, *broadcast) and returns (carry, out). per_layer is
    split along its first axis, one slice per layer, or is None. The `num_broadcast` other inputs
    are the same for all layers. The values `out` of the layers are stacked along a new first axis.
    shared: whether all layers share one set of parameters, which is then not stacked.

        stack(Layer, config, 12, 1)(config, deterministic, name="layers")(x, None, mask)
    """
    if config.remat != "none":
        layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
    return nn.scan(
        layer,
        variable_axes={WEIGHTS: 0} if shared else {"params": 0, WEIGHTS: 0},
        variable_broadcast="params" if shared else False,
        split_rngs={"params": not shared, "dropout": True},
        in_axes=(0,) + (nn.broadcast,) * num_broadcast,
        length=num_layers,
        unroll=num_layers if config.unroll_layers else 1,
    )


def stack_of_one(layer: type[nn.Module]) -> type[nn.Module]:
    """Returns a module class that calls one layer with parameters as `stack` stores them.

    It has no loop and only reads parameters, so it cannot create them.
    """

    def unstacked(params: Any) -> Any:
        return jax.tree.map(lambda array: array[0], params)

    return nn.map_variables(layer, "params", unstacked)
