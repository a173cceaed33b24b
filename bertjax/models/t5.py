"""T5 (Raffel et al., arXiv 1910.10683): encoder and decoder, relative position bias, no biases.

Version 1.0 has a relu MLP and ties input and output embeddings. Version 1.1, mT5 (arXiv 2010.11934)
and ByT5 (arXiv 2105.13626) have a gated gelu MLP and an untied output projection.

    >>> model = Model(Config(**VARIANTS["small"]))
    >>> ids = jnp.ones((1, 8), jnp.int32)
    >>> params = model.init(jax.random.key(0), ids, decoder_input_ids=ids)["params"]
    >>> model.apply({"params": params}, ids, decoder_input_ids=ids[:, :3])["logits"].shape
    (1, 3, 32128)

Shapes: T length of the decoder; others as in `models.common.layers`.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models.common import layers, masks, t5_files, t5_layers

# Import from and export to Hugging Face read these names from the family's module.
HF_NAMES, HF_TIED, HF_SKIPPED = t5_files.HF_NAMES, t5_files.HF_TIED, t5_files.HF_SKIPPED
HF_PREFIX, HF_HEADS, HF_CONFIG = t5_files.HF_PREFIX, t5_files.HF_HEADS, t5_files.HF_CONFIG
HF_MODEL_TYPES = t5_files.HF_MODEL_TYPES


@dataclasses.dataclass(frozen=True)
class Config(layers.Fields):
    """The model's fields. Encoder and decoder have the same sizes, but may differ in depth."""

    vocab_size: int = 32128
    hidden_size: int = 512
    num_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    head_dim: int = 64
    intermediate_size: int = 2048
    max_length: int = 512  # length used in training; the model does not depend on it
    activation: str = "relu"
    gated: bool = False
    tied_embeddings: bool = True  # use the embedding table as the output layer
    scaled_output: bool = True  # if tied: divide the states by sqrt(hidden_size) before the output
    relative_buckets: int = 32
    relative_max_distance: int = 128  # all longer distances share a bucket
    dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-6
    init_std: float = 1.0  # factor of the initial standard deviation of every matrix
    decoder_start_id: int = -1  # first token that the decoder reads; -1: padding
    heads: tuple[str, ...] = ("lm",)

    score_bias: ClassVar[str] = "array"

    def __post_init__(self):
        layers.check_fields(self)
        errors.check(self.attention in ("auto", "xla", "rows"), "attention", self.attention,
                     "'auto', 'xla' or 'rows', because T5 adds a bias to the scores")  # fmt: skip
        errors.check(self.heads in ((), HEADS), "model.heads", self.heads, "('lm',) or ()")
        errors.check(self.decoder_start_id < self.vocab_size, "model.decoder_start_id",
                     self.decoder_start_id, f"below {self.vocab_size}, config.model.vocab_size")
        if (self.activation, self.gated) not in t5_files.FEED_FORWARDS.values():
            raise errors.UserError(
                f"config.model.activation = {self.activation!r}: must be 'relu' or 'gelu_tanh', "
                "because config.model.gated is true"
            )
        if self.relative_buckets < 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise errors.UserError(
                f"config.model.relative_buckets = {self.relative_buckets}: must be 4 or more and "
                f"less than twice relative_max_distance = {self.relative_max_distance}"
            )

    @property
    def attention_dropout_rate(self) -> float:
        return self.dropout_rate

    def kernel_std(self, name: str) -> float:
        """Returns the standard deviation of the normal that kernel `name` is drawn from.

        Truncation reduces the standard deviation; after that, it is init_std / sqrt(fan-in). For
        the query it is also divided by sqrt(head_dim), because T5 does not scale the scores.
        """
        fan_ins = {
            "query": self.hidden_size * self.head_dim,
            "out": self.num_heads * self.head_dim,
            "wo": self.intermediate_size,
        }
        return self.init_std * fan_ins.get(name, self.hidden_size) ** -0.5 / layers.TRUNCATED_STD


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
    fields = {"activation": "gelu_tanh", "gated": True, "tied_embeddings": False}
    return {**sizes, **fields, "vocab_size": vocab_size, "dropout_rate": 0.0}


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
OBJECTIVE = {"name": "span_corruption"}  # the published pretraining objective
HEADS = ("lm",)
# {variant: fields of the objective}: ByT5 masks spans of 20 bytes on average (arXiv 2105.13626,
# section 3.1).
VARIANT_OBJECTIVES = {f"byt5_{name}": {"mean_noise_span_length": 20.0} for name in _BYT5_SIZES}
SMOKE = {**layers.SMOKE, "num_decoder_layers": 2, "head_dim": 32}

# Version 1.0: section 3.7 of the paper. mT5 and ByT5: table 1 of their papers.
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


class Embeddings(nn.Module):
    """Word embeddings. Positions are used only in the attention."""

    config: Config

    def setup(self):
        config = self.config
        rows = layers.padded_vocab_size(config.vocab_size)
        std = config.init_std / layers.TRUNCATED_STD
        self.word = layers.Embed(rows, config.hidden_size, config.vocab_size, std)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        return self.word(input_ids).astype(self.config.dtype)


class Model(nn.Module):
    """T5. Inputs are int32[B, L] for the encoder and int32[B, T] for the decoder."""

    config: Config

    def setup(self):
        config = self.config
        self.embeddings = Embeddings(config)
        self.encoder = t5_layers.Stack(config, config.num_layers, bidirectional=True)
        self.decoder = t5_layers.Stack(config, config.num_decoder_layers, bidirectional=False)
        if "lm" in config.heads and not config.tied_embeddings:
            self.lm_head = t5_layers.OutputMap(config)

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
        """Returns a dict of outputs; without `decoder_input_ids` only the encoder runs.

        Masks are 1 on tokens, 0 on padding. Packed rows have segment ids instead, 0 on padding.
        Position ids are inputs only because packed batches have them; they are ignored. T5 needs
        only distances, and within a segment, which is contiguous, these equal distances in the row.

        If both run, the outputs are:
        last_hidden_state [B, T, D] of the decoder, normed;
        encoder_last_hidden_state [B, L, D], normed;
        logits [B, T, rows of the word table], float32, with the head "lm";
        hidden_states [1 + num_decoder_layers, B, T, D] of the decoder and encoder_hidden_states
        [1 + num_layers, B, L, D], if `output_hidden_states`; the last of each is normed.

        If only the encoder runs, the outputs are its last_hidden_state [B, L, D] and, if
        `output_hidden_states`, its hidden_states.
        """
        del position_ids, decoder_position_ids
        encoder_mask = masks.of_batch(attention_mask, segment_ids)
        memory_BSD, encoder_hidden = self._encode(input_ids, encoder_mask, deterministic)
        if decoder_input_ids is None:
            outputs = {"last_hidden_state": memory_BSD}
            return outputs | ({"hidden_states": encoder_hidden} if output_hidden_states else {})
        places = jnp.arange(decoder_input_ids.shape[1])
        mask = masks.causal() & masks.of_batch(decoder_attention_mask, decoder_segment_ids)
        if segment_ids is not None:
            encoder_mask = masks.segments(decoder_segment_ids, segment_ids)  # type: ignore[arg-type]
        x_BTD, hidden, _ = self.decoder(
            self.embeddings(decoder_input_ids), mask, (places, places),
            memory_BSD=memory_BSD, memory_mask=encoder_mask, deterministic=deterministic,
        )  # fmt: skip
        outputs = {"last_hidden_state": x_BTD, "encoder_last_hidden_state": memory_BSD}
        if output_hidden_states:
            outputs |= {"hidden_states": hidden, "encoder_hidden_states": encoder_hidden}
        if "lm" in self.config.heads:
            outputs["logits"] = self._logits(x_BTD)
        return outputs

    def _encode(
        self, input_ids: jax.Array, mask: masks.Mask, deterministic: bool
    ) -> tuple[jax.Array, jax.Array]:
        places = jnp.arange(input_ids.shape[1])
        x_BLD, hidden, _ = self.encoder(
            self.embeddings(input_ids), mask, (places, places), deterministic=deterministic
        )
        return x_BLD, hidden

    def _logits(self, x_BTD: jax.Array) -> jax.Array:
        config = self.config
        if config.tied_embeddings:
            scale = config.hidden_size**-0.5 if config.scaled_output else 1.0
            logits_BTV = self.embeddings.word.attend(x_BTD * scale)
        else:
            logits_BTV = self.lm_head(x_BTD)
        real_11V = jnp.arange(logits_BTV.shape[-1])[None, None] < config.vocab_size
        logits_BTV = logits_BTV.astype(jnp.float32) + jnp.where(real_11V, 0.0, layers.MASKED)
        return sharding.constrain(logits_BTV, ("batch", "length", "vocab"))

    def start_cache(
        self, input_ids: jax.Array, length: int, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Encodes the inputs and returns a decoder cache with `length` slots.

        The cache contains key and value [num_decoder_layers, B, length, N, H], which are empty;
        cross_key and cross_value [num_decoder_layers, B, L, N, H], computed from the encoder's
        states; and cross_mask bool[1, B, L], True on tokens. The batch is the second axis of each
        array.
        """
        config = self.config
        mask = masks.of_batch(attention_mask, None)
        x_BSD, _ = self._encode(input_ids, mask, True)
        projections = self.variables["params"]["decoder"]["layers"]["cross_attention"]
        batch_size, input_length = input_ids.shape
        shape = (config.num_decoder_layers, batch_size, length, config.num_heads, config.head_dim)
        cache = {name: jnp.zeros(shape, config.dtype) for name in ("key", "value")}
        for name in ("key", "value"):  # for all layers at once
            kernel = projections[name]["kernel"].astype(x_BSD.dtype)
            cache[f"cross_{name}"] = jnp.einsum("bsd,kdnh->kbsnh", x_BSD, kernel)
        visible_BS = mask.dense(1, input_length)[:, 0]
        return cache | {"cross_mask": jnp.broadcast_to(visible_BS, (1, batch_size, input_length))}

    def decode_step(
        self, decoder_input_ids: jax.Array, cache: dict[str, jax.Array], index: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns (logits [B, T, V], new cache) for T tokens, cached from slot `index` on."""
        queries = index + jnp.arange(decoder_input_ids.shape[1])
        keys = jnp.arange(cache["key"].shape[2])
        layer_cache = {name: array for name, array in cache.items() if name != "cross_mask"}
        x_BTD, _, new_cache = self.decoder(
            self.embeddings(decoder_input_ids), masks.causal(index), (queries, keys),
            memory_mask=masks.padding(cache["cross_mask"][0]), cache=layer_cache, index=index,
            deterministic=True,
        )  # fmt: skip
        return self._logits(x_BTD), cache | new_cache


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one source and one target sequence.

    A multiply-add is two FLOPs. length, predictions: the lengths of the encoder and of the decoder,
    which computes vocabulary logits at every position.
    """
    width, heads = config.hidden_size, config.num_heads * config.head_dim
    mlp = (3 if config.gated else 2) * width * config.intermediate_size
    projections = 4 * width * heads

    def layer(queries: int) -> int:
        return queries * (projections + 2 * queries * heads + mlp)

    cross = predictions * (projections // 2 + 2 * length * heads) + length * projections // 2
    head = predictions * width * layers.padded_vocab_size(config.vocab_size)
    return 2 * (
        config.num_layers * layer(length)
        + config.num_decoder_layers * (layer(predictions) + cross)
        + head * ("lm" in config.heads)
    )
