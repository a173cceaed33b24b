"""T5 (Raffel et al., arXiv 1910.10683): encoder and decoder, relative position bias, no biases.

Version 1.0 has relu units and one table for input and output; version 1.1, mT5 (arXiv 2010.11934)
and ByT5 (arXiv 2105.13626) have gated gelu units and an output map of their own.

    >>> model = Model(Config(**VARIANTS["small"]))
    >>> ids = jnp.ones((1, 8), jnp.int32)
    >>> params = model.init(jax.random.key(0), ids, decoder_input_ids=ids)["params"]
    >>> model.apply({"params": params}, ids, decoder_input_ids=ids[:, :3])["logits"].shape
    (1, 3, 32128)

T length of the decoder; other shapes as in `models.layers`.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models import layers, masks, positions

# Their feed_forward_proj: (activation, gated).
UNITS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "gated-relu": ("relu", True),
    "gated-gelu": ("gelu_tanh", True),
}
TRUNCATED_STD = 0.87962566  # of a unit normal cut at two, which is how parameters are drawn


@dataclasses.dataclass(frozen=True)
class Config(layers.Compute):
    """The fields of the model; the decoder shares all but the number of layers."""

    vocab_size: int = 32128
    hidden_size: int = 512
    num_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    head_dim: int = 64
    intermediate_size: int = 2048
    max_length: int = 512  # what it was trained for; nothing in the model depends on it
    activation: str = "relu"
    gated: bool = False
    tied_embeddings: bool = True  # the output map is the input table over sqrt(hidden_size)
    relative_buckets: int = 32
    relative_max_distance: int = 128  # of two positions; from there on all share a bucket
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-6
    init_std: float = 1.0  # factor on the standard deviation of every matrix
    heads: tuple[str, ...] = ("lm",)

    def __post_init__(self):
        layers.check_fields(self)
        if self.heads not in ((), ("lm",)):
            raise errors.UserError(f"config.model.heads = {self.heads!r}: must be ('lm',) or ()")
        if (self.activation, self.gated) not in UNITS.values():
            raise errors.UserError(
                f"config.model.activation = {self.activation!r}: gated, must be relu or gelu_tanh"
            )
        if self.relative_buckets % 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise errors.UserError(
                f"config.model.relative_buckets = {self.relative_buckets}: must be a multiple of 4 "
                f"and less than twice relative_max_distance = {self.relative_max_distance}"
            )

    @property
    def attention_dropout_rate(self) -> float:
        return self.dropout_rate

    def kernel_std(self, name: str) -> float:
        """Scaled by what goes in, and the query by 1 / sqrt(head_dim) for the scores' sake."""
        fans = {
            "query": self.hidden_size * self.head_dim,
            "out": self.num_heads * self.head_dim,
            "wo": self.intermediate_size,
        }
        return self.init_std * fans.get(name, self.hidden_size) ** -0.5 / TRUNCATED_STD


def _sizes(
    hidden_size: int, intermediate_size: int, num_heads: int, num_layers: int, **fields: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_heads": num_heads,
        "num_layers": num_layers,
        "num_decoder_layers": num_layers,
        **fields,
    }


def _version_1_1(vocab_size: int, sizes: dict[str, Any]) -> dict[str, Any]:
    units = {"activation": "gelu_tanh", "gated": True, "tied_embeddings": False}
    return {**sizes, **units, "vocab_size": vocab_size, "dropout_rate": 0.0}


_V1_1_SIZES = {
    "small": _sizes(512, 1024, 6, 8),
    "base": _sizes(768, 2048, 12, 12),
    "large": _sizes(1024, 2816, 16, 24),
    "3b": _sizes(2048, 5120, 32, 24),
    "11b": _sizes(4096, 10240, 64, 24),
}
_BYT5_SIZES = {
    "small": _sizes(1472, 3584, 6, 12, num_decoder_layers=4, max_length=1024),
    "base": _sizes(1536, 3968, 12, 18, num_decoder_layers=6, max_length=1024),
    "large": _sizes(1536, 3840, 16, 36, num_decoder_layers=12, max_length=1024),
    "xl": _sizes(2560, 6720, 32, 36, num_decoder_layers=12, max_length=1024),
    "xxl": _sizes(4672, 12352, 64, 36, num_decoder_layers=12, max_length=1024),
}
_MT5_NAMES = {"3b": "xl", "11b": "xxl"}

KIND = "encoder_decoder"
INPUTS = ("input_ids", "decoder_input_ids")
SMOKE = {
    "num_layers": 2,
    "num_decoder_layers": 2,
    "hidden_size": 64,
    "num_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_length": 64,
}

# The paper's section 3.7 for version 1.0; mT5's table 1, ByT5's table 1.
VARIANTS: dict[str, dict[str, Any]] = {
    "mini": _sizes(256, 1024, 4, 4),
    "small": _sizes(512, 2048, 8, 6),
    "base": _sizes(768, 3072, 12, 12),
    "large": _sizes(1024, 4096, 16, 24),
    "3b": _sizes(1024, 16384, 32, 24, head_dim=128),
    "11b": _sizes(1024, 65536, 128, 24, head_dim=128),
    **{f"v1_1_{name}": _version_1_1(32128, sizes) for name, sizes in _V1_1_SIZES.items()},
    **{
        f"mt5_{_MT5_NAMES.get(name, name)}": _version_1_1(250112, sizes)
        for name, sizes in _V1_1_SIZES.items()
    },
    **{f"byt5_{name}": _version_1_1(384, sizes) for name, sizes in _BYT5_SIZES.items()},
}


class Layer(nn.Module):
    """What both kinds of layer have: norms before each part, residual sums and units after."""

    config: Config
    deterministic: bool

    def _norm(self, x_BLD: jax.Array, part: str) -> jax.Array:
        return layers.RMSNorm(self.config.layer_norm_eps, name=f"{part}_norm")(x_BLD)

    def _add(self, x_BLD: jax.Array, out_BLD: jax.Array, part: str) -> jax.Array:
        dropout = layers.Dropout(self.config.dropout_rate, name=f"{part}_dropout")
        x_BLD = x_BLD + dropout(out_BLD, self.deterministic)
        return sharding.constrain(x_BLD, ("batch", "length", "embed"))

    def _attention(self, name: str) -> layers.Attention:
        return layers.Attention(self.config, use_bias=False, scale=1.0, name=name)

    def _add_units(self, x_BLD: jax.Array) -> jax.Array:
        # Two names, since the files of Hugging Face have two as well (HF_NAMES below).
        config = self.config
        units = layers.Mlp(
            config,
            use_bias=False,
            gated=config.gated,
            dropout_rate=config.dropout_rate,
            name="gated_mlp" if config.gated else "mlp",
        )
        return self._add(x_BLD, units(self._norm(x_BLD, "mlp"), self.deterministic), "mlp")


class EncoderLayer(Layer):
    """Self-attention and units."""

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, _: None, mask: jax.Array, bias: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, None]]:
        out_BLD = self._attention("attention")(
            self._norm(x_BLD, "attention"), mask, self.deterministic, bias=bias
        )
        x_BLD = self._add_units(self._add(x_BLD, out_BLD, "attention"))
        return x_BLD, (x_BLD, None)


class DecoderLayer(Layer):
    """Self-attention, attention over the encoder's states, and units."""

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        cache: dict[str, jax.Array] | None,
        mask: jax.Array,
        bias: jax.Array,
        memory_BSD: jax.Array | None,
        memory_mask: jax.Array,
        index: jax.Array | None,
    ) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array] | None]]:
        """(state, (state, new cache)).

        cache: "key" and "value", written at `index`, "cross_key" and "cross_value", which stand for
        the encoder's states; [B, S, N, H] each. Without it those states are `memory_BSD`.
        """
        old = None if cache is None else {**cache, "index": index}
        out = self._attention("attention")(
            self._norm(x_BTD, "attention"), mask, self.deterministic, bias=bias, cache=old
        )
        out_BTD, new = (out, None) if cache is None else out
        x_BTD = self._add(x_BTD, out_BTD, "attention")
        memory = memory_BSD if cache is None else (cache["cross_key"], cache["cross_value"])
        out_BTD = self._attention("cross_attention")(
            self._norm(x_BTD, "cross_attention"), memory_mask, self.deterministic, memory=memory
        )
        x_BTD = self._add_units(self._add(x_BTD, out_BTD, "cross_attention"))
        return x_BTD, (x_BTD, new)


class Stack(nn.Module):
    """Layers of one kind between dropouts, with the position bias that they share and a norm."""

    config: Config
    layer: type[Layer]
    num_layers: int
    bidirectional: bool

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        cache: dict[str, jax.Array] | None,
        mask: jax.Array,
        places: tuple[jax.Array, jax.Array],
        *others: Any,
        deterministic: bool,
    ) -> tuple[jax.Array, jax.Array, Any]:
        """(normed state, states [1 + num_layers, B, L, D] with the normed one last, caches).

        places: numbers in the row of the queries [L] and of the keys [S].
        """
        config = self.config
        std = config.kernel_std("relative_bias")
        table = layers.Embed(
            config.relative_buckets, config.num_heads, config.relative_buckets, std,
            name="relative_bias",
        )  # fmt: skip
        bias = positions.relative_bias(
            table.embedding, *places, self.bidirectional, config.relative_max_distance
        )
        first_BLD = layers.Dropout(config.dropout_rate, name="first_dropout")(x_BLD, deterministic)
        stack = layers.stack(self.layer, config, self.num_layers, 2 + len(others))
        x_BLD, (hidden, cache) = stack(config, deterministic, name="layers")(
            first_BLD, cache, mask, bias, *others
        )
        x_BLD = layers.RMSNorm(config.layer_norm_eps, name="final_norm")(x_BLD)
        x_BLD = layers.Dropout(config.dropout_rate, name="last_dropout")(x_BLD, deterministic)
        return x_BLD, jnp.concatenate([first_BLD[None], hidden[:-1], x_BLD[None]]), cache


class OutputMap(nn.Module):
    """[..., D] -> [..., rows of the word table]; the columns past the vocabulary are zero."""

    config: Config

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        config = self.config

        def init(key, shape, dtype):
            std = config.kernel_std("lm_head")
            kernel = nn.initializers.truncated_normal(std)(key, shape, dtype)
            return jnp.where(jnp.arange(shape[1]) < config.vocab_size, kernel, 0.0)

        shape = (config.hidden_size, layers.padded_vocab_size(config.vocab_size))
        return x_BTD @ self.param("kernel", init, shape, jnp.float32).astype(x_BTD.dtype)


class Embeddings(nn.Module):
    """Word embeddings alone: positions are in the attention."""

    config: Config

    def setup(self):
        config = self.config
        rows, std = layers.padded_vocab_size(config.vocab_size), config.init_std / TRUNCATED_STD
        self.word = layers.Embed(rows, config.hidden_size, config.vocab_size, std)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        return self.word(input_ids).astype(self.config.dtype)


class Model(nn.Module):
    """Inputs are int32[B, L] of the encoder and int32[B, T] of the decoder."""

    config: Config

    def setup(self):
        config = self.config
        self.embeddings = Embeddings(config)
        self.encoder = Stack(config, EncoderLayer, config.num_layers, bidirectional=True)
        self.decoder = Stack(config, DecoderLayer, config.num_decoder_layers, bidirectional=False)
        if "lm" in config.heads and not config.tied_embeddings:
            self.lm_head = OutputMap(config)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        decoder_input_ids: jax.Array | None = None,
        decoder_attention_mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        decoder_segment_ids: jax.Array | None = None,
        decoder_position_ids: jax.Array | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        """Returns the outputs by name; without `decoder_input_ids` those of the encoder alone.

        Masks are 1 on tokens; packed rows have segment ids instead, 0 on padding. A segment lies in
        one piece, so that the distance of two of its tokens is that of their places in the row:
        position ids, which packed batches have for other families, change nothing.

        logits [B, T, rows of the word table], float32, with the head "lm"; last_hidden_state
        [B, T, D] of the decoder, encoder_last_hidden_state [B, L, D]; of the encoder alone,
        last_hidden_state [B, L, D]. On request hidden_states [1 + layers, B, ...] and
        encoder_hidden_states, the last of each normed.
        """
        del position_ids, decoder_position_ids
        seen = masks.of_batch(input_ids, attention_mask, segment_ids)
        memory_BSD, encoder_hidden = self._encode(input_ids, seen, deterministic)
        if decoder_input_ids is None:
            outputs = {"last_hidden_state": memory_BSD}
            return outputs | ({"hidden_states": encoder_hidden} if output_hidden_states else {})
        places = jnp.arange(decoder_input_ids.shape[1])
        mask = masks.causal(places.size) & masks.of_batch(
            decoder_input_ids, decoder_attention_mask, decoder_segment_ids
        )
        if segment_ids is not None:
            seen = masks.segments(decoder_segment_ids, segment_ids)
        x_BTD, hidden, _ = self.decoder(
            self.embeddings(decoder_input_ids), None, mask, (places, places),
            memory_BSD, seen, None, deterministic=deterministic,
        )  # fmt: skip
        outputs = {"last_hidden_state": x_BTD, "encoder_last_hidden_state": memory_BSD}
        if output_hidden_states:
            outputs |= {"hidden_states": hidden, "encoder_hidden_states": encoder_hidden}
        if "lm" in self.config.heads:
            outputs["logits"] = self._logits(x_BTD)
        return outputs

    def _encode(
        self, input_ids: jax.Array, mask: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, jax.Array]:
        places = jnp.arange(input_ids.shape[1])
        x_BLD, hidden, _ = self.encoder(
            self.embeddings(input_ids), None, mask, (places, places), deterministic=deterministic
        )
        return x_BLD, hidden

    def _logits(self, x_BTD: jax.Array) -> jax.Array:
        config = self.config
        if config.tied_embeddings:
            logits_BTV = self.embeddings.word.attend(x_BTD * config.hidden_size**-0.5)
        else:
            logits_BTV = self.lm_head(x_BTD)
        real_V = jnp.arange(logits_BTV.shape[-1]) < config.vocab_size
        logits_BTV = logits_BTV.astype(jnp.float32) + jnp.where(real_V, 0.0, layers.MASKED)
        return sharding.constrain(logits_BTV, ("batch", "length", "vocab"))

    def start_cache(
        self, input_ids: jax.Array, length: int, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """A cache with `length` slots for the decoder, and what it reads of these inputs.

        key and value [num_decoder_layers, B, length, N, H]; cross_key and cross_value of the
        encoder's states, [..., L, N, H]; cross_mask bool[1, B, L]. The batch is the second axis.
        """
        config = self.config
        mask = masks.of_batch(input_ids, attention_mask, None)
        x_BSD, _ = self._encode(input_ids, mask, True)
        maps = self.variables["params"]["decoder"]["layers"]["cross_attention"]
        batch, rows = input_ids.shape
        shape = (config.num_decoder_layers, batch, length, config.num_heads, config.head_dim)
        cache = {name: jnp.zeros(shape, config.dtype) for name in ("key", "value")}
        for name in ("key", "value"):  # of all layers at once
            kernel = maps[name]["kernel"].astype(x_BSD.dtype)
            cache[f"cross_{name}"] = jnp.einsum("bsd,kdnh->kbsnh", x_BSD, kernel)
        return cache | {"cross_mask": jnp.broadcast_to(mask[None, :, 0], (1, batch, rows))}

    def decode_step(
        self, decoder_input_ids: jax.Array, cache: dict[str, jax.Array], index: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """(logits [B, T, V], new cache) of T tokens which go to the slots from `index` on."""
        queries = index + jnp.arange(decoder_input_ids.shape[1])
        keys = jnp.arange(cache["key"].shape[2])
        of_layers = {name: array for name, array in cache.items() if name != "cross_mask"}
        x_BTD, _, new = self.decoder(
            self.embeddings(decoder_input_ids), of_layers, (keys <= queries[:, None])[None],
            (queries, keys), None, cache["cross_mask"][0, :, None], index, deterministic=True,
        )  # fmt: skip
        return self._logits(x_BTD), cache | new


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Multiply-adds of the forward pass of one pair of sequences, times two; matmuls only.

    predictions: length of the decoder, which scores the vocabulary everywhere.
    """
    width, heads = config.hidden_size, config.num_heads * config.head_dim
    units = (3 if config.gated else 2) * width * config.intermediate_size
    projections = 4 * width * heads

    def layer(queries: int) -> int:
        return queries * (projections + 2 * queries * heads + units)

    cross = predictions * (projections // 2 + 2 * length * heads) + length * projections // 2
    head = predictions * width * layers.padded_vocab_size(config.vocab_size)
    return 2 * (
        config.num_layers * layer(length)
        + config.num_decoder_layers * (layer(predictions) + cross)
        + head * ("lm" in config.heads)
    )


def _hf_layer(ours: str, theirs: str, units: int) -> tuple[tuple[str, str, str], ...]:
    """Lines that encoder and decoder have both; units: number of the last part of a layer."""
    own, last = f"{theirs}.block.{{}}.layer.0.", f"{theirs}.block.{{}}.layer.{units}."
    return (
        *_hf_attention(f"{ours}/layers/attention", own + "SelfAttention"),
        (f"{ours}/layers/attention_norm/scale", own + "layer_norm.weight", "same"),
        (f"{ours}/layers/mlp/wi/kernel", last + "DenseReluDense.wi.weight", "transpose"),
        (f"{ours}/layers/mlp/wo/kernel", last + "DenseReluDense.wo.weight", "transpose"),
        (f"{ours}/layers/gated_mlp/wi/kernel", last + "DenseReluDense.wi_0.weight", "transpose"),
        (
            f"{ours}/layers/gated_mlp/wi_gate/kernel",
            last + "DenseReluDense.wi_1.weight",
            "transpose",
        ),
        (f"{ours}/layers/gated_mlp/wo/kernel", last + "DenseReluDense.wo.weight", "transpose"),
        (f"{ours}/layers/mlp_norm/scale", last + "layer_norm.weight", "same"),
        (
            f"{ours}/relative_bias/embedding",
            f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "same",
        ),
        (f"{ours}/final_norm/scale", f"{theirs}.final_layer_norm.weight", "same"),
    )


