"""GPT-2 (Radford et al. 2019): causal pre-norm decoder, learned positions, tied embeddings.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["logits"].shape
    (1, 8, 50304)

For decoding, a cache stores the keys and values of earlier tokens; see `start_cache` and
`decode_step`.

Shapes: B batch, L length, S slots of a cache, D model, N heads, H head dim, V vocab.
"""

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import sharding
from bertjax.models.common import attention, heads, layers, masks

KIND = "decoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "causal_lm"}  # the published pretraining objective
HEADS = ("lm", *heads.DOWNSTREAM)


@dataclasses.dataclass(frozen=True)
class Config(layers.Fields):
    """The model's fields. `dropout_rate` applies to the outputs that are added to the residual."""

    vocab_size: int = 50257
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_length: int = 1024
    activation: str = "gelu_tanh"
    dropout_rate: float = 0.1  # dropout of the outputs that are added to the residual
    embedding_dropout_rate: float = 0.1  # dropout of the embeddings
    attention_dropout_rate: float = 0.1
    layer_norm_eps: float = 1e-5
    init_std: float = 0.02
    heads: tuple[str, ...] = ("lm",)

    def __post_init__(self):
        layers.check_fields(self)
        heads.check(self, HEADS)

    def kernel_std(self, name: str) -> float:
        """Returns init_std, scaled down for the kernels before a residual sum (section 2.3)."""
        return self.init_std / (math.sqrt(2 * self.num_layers) if name in ("out", "wo") else 1.0)


# Table 2 of the paper. Mini is our own.
VARIANTS = {
    "mini": layers.sizes(4, 256),
    "small": layers.sizes(12, 768),
    "medium": layers.sizes(24, 1024),
    "large": layers.sizes(36, 1280),
    "xl": layers.sizes(48, 1600),
}
SMOKE = layers.SMOKE


class Layer(nn.Module):
    """A pre-norm layer.

    Attention and MLP read the normed residual, and their outputs are added to the residual.
    """

    config: Config
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        cache: dict[str, jax.Array] | None,
        mask: masks.Mask,
        index: jax.Array | None,
    ) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array] | None]]:
        """Returns (state, (state, new cache)).

        cache: key and value [B, S, N, H], written from slot `index` on; None means no cache.
        """
        config, deterministic = self.config, self.deterministic
        residual_axes = ("batch", "length", "embed")
        out = attention.Attention(config, name="attention")(
            layers.LayerNorm(config.layer_norm_eps, name="attention_norm")(x_BLD),
            mask,
            deterministic,
            cache=None if cache is None else {**cache, "index": index},  # type: ignore[dict-item]
        )
        out_BLD, cache = (out, None) if cache is None else out
        x_BLD += layers.Dropout(config.dropout_rate, name="attention_dropout")(
            out_BLD, deterministic
        )
        x_BLD = sharding.constrain(x_BLD, residual_axes)
        out_BLD = layers.Mlp(config, name="mlp")(
            layers.LayerNorm(config.layer_norm_eps, name="mlp_norm")(x_BLD)
        )
        x_BLD += layers.Dropout(config.dropout_rate, name="mlp_dropout")(out_BLD, deterministic)
        x_BLD = sharding.constrain(x_BLD, residual_axes)
        return x_BLD, (x_BLD, cache)


class Decoder(nn.Module):
    """A stack of `num_layers` layers; their parameters and their caches are stacked."""

    config: Config

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        cache: dict[str, jax.Array] | None,
        mask: masks.Mask,
        index: jax.Array | None,
        deterministic: bool,
    ) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array] | None]]:
        """Returns (last state, (states after every layer [num_layers, B, L, D], new cache))."""
        stack = layers.stack(Layer, self.config, self.config.num_layers, 2)
        return stack(self.config, deterministic, name="layers")(x_BLD, cache, mask, index)


class Embeddings(nn.Module):
    """The sum of word and position embeddings."""

    config: Config

    def setup(self):
        config = self.config
        rows, width = layers.padded_vocab_size(config.vocab_size), config.hidden_size
        self.word = layers.Embed(rows, width, config.vocab_size, config.init_std)
        self.position = layers.Embed(config.max_length, width, config.max_length, config.init_std)
        self.dropout = layers.Dropout(config.embedding_dropout_rate)

    def __call__(self, input_ids, position_ids, deterministic):
        x_BLD = self.word(input_ids) + self.position(position_ids)
        return self.dropout(x_BLD, deterministic).astype(self.config.dtype)


class Model(heads.Model):
    """GPT-2. Inputs are int32[B, L].

    Each position attends to itself and to the earlier positions of its segment.
    """

    config: Config

    layouts = heads.layouts(
        classifier=heads.Layout(rate=0.0, use_bias=False),
        token_classifier=heads.Layout(rate=0.1),
    )

    def setup(self):
        self.embeddings = Embeddings(self.config)
        self.decoder = Decoder(self.config)
        self.final_norm = layers.LayerNorm(self.config.layer_norm_eps)
        self.setup_downstream()

    def class_features(self, x_BLD: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
        """Returns [B, D]: the state of the last non-padding token, which attends to all others."""
        if attention_mask is None:
            return x_BLD[:, -1]
        last_B = heads.last_position(attention_mask)
        return heads.gather_positions(x_BLD, last_B[:, None])[:, 0]

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        prefix_mask: jax.Array | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        """Returns a dict of the outputs of the decoder and of its heads.

        attention_mask: 1 on tokens, 0 on padding.
        segment_ids: for packed rows; 0 on padding, and the examples of a row are numbered from 1.
        position_ids: by default the indices in the row; packed rows count within each example.
        prefix_mask: for a prefix LM; 1 on positions that the whole segment attends to.

        Always: last_hidden_state [B, L, D], normed.
        If `output_hidden_states`: hidden_states [1 + num_layers, B, L, D]; the last is normed.
        Head lm: logits [B, L, rows of the word table], float32, for the token after each position.
        Fine-tuning heads: the outputs of `heads.Model.add_downstream`.
        """
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None, :]
        causal_mask = masks.causal() if prefix_mask is None else masks.prefix(prefix_mask)
        mask = causal_mask & masks.of_batch(attention_mask, segment_ids)
        first_BLD = self.embeddings(input_ids, position_ids, deterministic)
        x_BLD, (hidden, _) = self.decoder(first_BLD, None, mask, None, deterministic)
        x_BLD = self.final_norm(x_BLD)
        outputs = {"last_hidden_state": x_BLD}
        if output_hidden_states:
            outputs["hidden_states"] = jnp.concatenate([first_BLD[None], hidden[:-1], x_BLD[None]])
        if "lm" in self.config.heads:
            outputs["logits"] = self._logits(x_BLD)
        return self.add_downstream(outputs, attention_mask, deterministic=deterministic)

    def _logits(self, x_BLD: jax.Array) -> jax.Array:
        logits_BLV = self.embeddings.word.attend(x_BLD).astype(jnp.float32)
        real_11V = jnp.arange(logits_BLV.shape[-1])[None, None] < self.config.vocab_size
        logits_BLV += jnp.where(real_11V, 0.0, layers.MASKED)
        return sharding.constrain(logits_BLV, ("batch", "length", "vocab"))

    def start_cache(self, batch_size: int, length: int) -> dict[str, jax.Array]:
        """Returns an empty cache with `length` slots: key and value [num_layers, B, S, N, H]."""
        config = self.config
        shape = (config.num_layers, batch_size, length, config.num_heads, config.head_dim)
        return {name: jnp.zeros(shape, config.dtype) for name in ("key", "value")}

    def decode_step(
        self,
        input_ids: jax.Array,
        cache: dict[str, jax.Array],
        index: jax.Array,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        *,
        prefix: bool = False,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns (logits [B, T, V], new cache) for T tokens, cached in the slots from `index` on.

        attention_mask: int32[B, S], 0 on slots of padding. A token does not attend to later slots.
        prefix: whether the T tokens are a prefix; if so, they attend to each other in both
        directions.
        position_ids: int32[B, T]; None means the slot numbers.
        """
        slots_T = index + jnp.arange(input_ids.shape[1])
        mask = masks.causal(index)
        if prefix:
            mask = masks.padding(jnp.arange(cache["key"].shape[2])[None] <= slots_T[-1])
        if attention_mask is not None:
            mask &= masks.padding(attention_mask)
        position_ids = slots_T[None, :] if position_ids is None else position_ids
        x_BTD = self.embeddings(input_ids, position_ids, True)
        x_BTD, (_, cache) = self.decoder(x_BTD, cache, mask, index, True)
        return self._logits(self.final_norm(x_BTD)), cache


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one sequence: two per multiply-add.

    predictions: the number of positions with vocabulary logits. Attention counts all pairs of
    positions, although half of them are masked.
    """
    width, mlp = config.hidden_size, config.intermediate_size
    projections = 4 * length * width * width
    attention = 2 * length * length * width
    layer = projections + attention + 2 * length * width * mlp
    head = predictions * width * layers.padded_vocab_size(config.vocab_size)
    return 2 * (config.num_layers * layer + head * ("lm" in config.heads))


# models/bert.py explains these tables. (i, n, axis): our array is part i of n of a fused tensor of
# Hugging Face, which is split along this axis. Hugging Face stores GPT-2's kernels as [in, out].
_OUR_LAYER, _LAYER = "decoder/layers/", "transformer.h.{}."
HF_NAMES = (
    ("embeddings/word/embedding", "transformer.wte.weight", "vocab_rows"),
    ("embeddings/position/embedding", "transformer.wpe.weight", "same"),
    (_OUR_LAYER + "attention_norm/scale", _LAYER + "ln_1.weight", "same"),
    (_OUR_LAYER + "attention_norm/bias", _LAYER + "ln_1.bias", "same"),
    (_OUR_LAYER + "attention/query/kernel", _LAYER + "attn.c_attn.weight", "conv_out", (0, 3, 1)),
    (_OUR_LAYER + "attention/key/kernel", _LAYER + "attn.c_attn.weight", "conv_out", (1, 3, 1)),
    (_OUR_LAYER + "attention/value/kernel", _LAYER + "attn.c_attn.weight", "conv_out", (2, 3, 1)),
    (_OUR_LAYER + "attention/query/bias", _LAYER + "attn.c_attn.bias", "heads", (0, 3, 0)),
    (_OUR_LAYER + "attention/key/bias", _LAYER + "attn.c_attn.bias", "heads", (1, 3, 0)),
    (_OUR_LAYER + "attention/value/bias", _LAYER + "attn.c_attn.bias", "heads", (2, 3, 0)),
    (_OUR_LAYER + "attention/out/kernel", _LAYER + "attn.c_proj.weight", "conv_in"),
    (_OUR_LAYER + "attention/out/bias", _LAYER + "attn.c_proj.bias", "same"),
    (_OUR_LAYER + "mlp_norm/scale", _LAYER + "ln_2.weight", "same"),
    (_OUR_LAYER + "mlp_norm/bias", _LAYER + "ln_2.bias", "same"),
    (_OUR_LAYER + "mlp/wi/kernel", _LAYER + "mlp.c_fc.weight", "conv"),
    (_OUR_LAYER + "mlp/wi/bias", _LAYER + "mlp.c_fc.bias", "same"),
    (_OUR_LAYER + "mlp/wo/kernel", _LAYER + "mlp.c_proj.weight", "conv"),
    (_OUR_LAYER + "mlp/wo/bias", _LAYER + "mlp.c_proj.bias", "same"),
    ("final_norm/scale", "transformer.ln_f.weight", "same"),
    ("final_norm/bias", "transformer.ln_f.bias", "same"),
)
HF_TIED = {"lm_head.weight": "transformer.wte.weight"}
HF_SKIPPED = ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")  # causal masks
HF_PREFIX = "transformer."  # names in a file of the bare decoder lack it
HF_HEADS = {
    "ForSequenceClassification": {"classifier/logits": "score"},
    "ForTokenClassification": {"token_classifier/logits": "classifier"},
    "ForQuestionAnswering": {"span/logits": "qa_outputs"},
}


def _read(content: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    del tensors
    return {"intermediate_size": content["n_inner"] or 4 * content["n_embd"]}


HF_MODEL_TYPES = ("gpt2",)  # model_type values that this family reads
HF_CONFIG = {
    "model_type": "gpt2",
    "fields": {
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_length",
        "activation_function": "activation",
        "resid_pdrop": "dropout_rate",
        "embd_pdrop": "embedding_dropout_rate",
        "attn_pdrop": "attention_dropout_rate",
        "layer_norm_epsilon": "layer_norm_eps",
        "initializer_range": "init_std",
    },
    "fixed": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    "architectures": {(): "GPT2Model", ("lm",): "GPT2LMHeadModel"},
    "read": _read,
    "types": {"n_inner": int | None, "n_embd": int},
    "write": lambda fields: {"n_inner": fields["intermediate_size"]},
}
