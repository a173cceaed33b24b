"""ModernBERT (Warner et al., arXiv 2412.13663): pre-norm, rotary positions, gated MLPs, no biases.

Every third layer, starting with the first, is global: it attends to the whole sequence. The others
are local: they attend to a window around each token and use another rotary base. All layers still
run in one loop: a flag per layer selects the mask and the angles. Local layers save time with
`config.attention` = "rows" or "splash", which skip most scores outside the window; "xla" computes
all scores.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["mlm_logits"].shape
    (1, 8, 50432)
"""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, schema, sharding
from bertjax.models.common import (
    attention,
    encoders,
    heads,
    hf_tables,
    layers,
    masks,
    positions,
)

HEADS = encoders.HEADS
POOLINGS = ("cls", "mean")


@dataclasses.dataclass(frozen=True)
class Config(encoders.Fields):
    """The model's fields. Dropout is off by default, as in the released models."""

    vocab_size: int = 50368
    hidden_size: int = 768
    num_layers: int = 22
    num_heads: int = 12
    intermediate_size: int = 1152  # width of the gate and of the part that the gate multiplies
    max_length: int = 8192
    global_every: int = 3  # layers 0, n, 2n ... have global attention, the others local
    local_window: int = 128  # tokens that local layers attend to, half of them on each side
    global_theta: float = 160_000.0  # rotary base of the global layers
    local_theta: float = 10_000.0  # rotary base of the local layers
    activation: str = "gelu"
    classifier_pooling: str = "cls"  # what the classifier reads: cls (first state) or mean
    embedding_dropout_rate: float = 0.0  # dropout of the embeddings
    attention_dropout_rate: float = 0.0  # dropout of attention weights and outputs
    mlp_dropout_rate: float = 0.0  # dropout of the feed-forward blocks
    layer_norm_eps: float = 1e-5
    init_std: float = 0.02
    heads: tuple[str, ...] = ("mlm",)

    def __post_init__(self):
        encoders.check(self, HEADS)
        # Hugging Face has one activation for the layers and one for the head; here both are gelu.
        errors.check(self.activation == "gelu", "model.activation", self.activation, "'gelu'")
        errors.check(self.classifier_pooling in POOLINGS, "model.classifier_pooling",
                     self.classifier_pooling, f"one of {', '.join(POOLINGS)}")  # fmt: skip
        if self.head_dim % 2:
            raise errors.UserError(
                f"config.model.num_heads = {self.num_heads}: makes heads of width {self.head_dim}, "
                "but rotary positions need an even width"
            )

    def kernel_std(self, name: str) -> float:
        """Returns init_std, scaled down for kernels before a residual sum, as in transformers."""
        return self.init_std / (math.sqrt(2 * self.num_layers) if name in ("out", "wo") else 1.0)


KIND = "encoder"
INPUTS = ("input_ids",)
# The published pretraining objective.
OBJECTIVE = {
    "name": "mlm", "pair": "none", "mask_rate": 0.3,
    "packing": True, "cross_documents": False, "short_rate": 0.0,
}  # fmt: skip
SMOKE = {**layers.SMOKE, "local_window": 16}

# Table 4 of the paper. Mini is our own; its window is small enough to matter at length 128.
VARIANTS = {
    "mini": {
        "num_layers": 4,
        "hidden_size": 256,
        "num_heads": 4,
        "intermediate_size": 384,
        "local_window": 32,
    },
    "base": {},
    "large": {
        "num_layers": 28,
        "hidden_size": 1024,
        "num_heads": 16,
        "intermediate_size": 2624,
    },
}


def _norm(config: Config, name: str | None = None) -> layers.LayerNorm:
    return layers.LayerNorm(config.layer_norm_eps, use_bias=False, name=name)


class Layer(nn.Module):
    """A pre-norm layer: attention and MLP, each added to the residual.

    The first layer has no norm before its attention. For all layers to have the same parameters,
    each layer ends with the norm for the next layer's attention, and the loop carries (residual,
    normed residual). The last layer's `next_norm` is the final norm of the model.
    """

    config: Config
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        carry: tuple[jax.Array, jax.Array],
        is_global: jax.Array,
        mask: masks.Mask,
        rotary: tuple[Any, Any],
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Returns (new carry, residual).

        mask: the mask without a window. rotary: (tables of global layers, tables of local layers).
        """
        config, deterministic = self.config, self.deterministic
        residual_axes = ("batch", "length", "embed")
        x_BLD, normed_BLD = carry
        global_share = -(-config.num_layers // config.global_every) / config.num_layers
        mask &= masks.local(config.local_window, is_global, global_share)
        tables = jax.tree.map(functools.partial(jnp.where, is_global), *rotary)
        attend = attention.Attention(config, use_bias=False, name="attention")
        out_BLD = attend(normed_BLD, mask, deterministic, rotary=tables)
        out_BLD = layers.Dropout(config.attention_dropout_rate, name="dropout")(
            out_BLD, deterministic
        )
        x_BLD = sharding.constrain(x_BLD + out_BLD, residual_axes)
        mlp = layers.Mlp(
            config, use_bias=False, gated=True, dropout_rate=config.mlp_dropout_rate, name="mlp"
        )
        x_BLD = x_BLD + mlp(_norm(config, "mlp_norm")(x_BLD), deterministic)
        x_BLD = sharding.constrain(x_BLD, residual_axes)
        return (x_BLD, _norm(config, "next_norm")(x_BLD)), x_BLD


class Encoder(nn.Module):
    """A stack of global and local layers."""

    config: Config

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        mask: masks.Mask,
        position_ids: jax.Array,
        *,
        deterministic: bool,
        keep_hidden: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns (normed last state, residual after each layer or None unless `keep_hidden`)."""
        config = self.config
        rotary = tuple(
            positions.rotary_tables(position_ids, config.head_dim, theta)
            for theta in (config.global_theta, config.local_theta)
        )
        is_global = np.arange(config.num_layers) % config.global_every == 0
        stack = layers.stack(Layer, config, config.num_layers, 2)
        (_, last_BLD), hidden = stack(config, deterministic, name="layers")(
            (x_BLD, x_BLD), jnp.asarray(is_global), mask, rotary
        )
        return last_BLD, hidden if keep_hidden else None


class Embeddings(nn.Module):
    """Layer-normed word embeddings. Positions are used only in the attention."""

    config: Config

    def setup(self):
        config = self.config
        rows = layers.padded_vocab_size(config.vocab_size)
        self.word = layers.Embed(rows, config.hidden_size, config.vocab_size, config.init_std)
        self.norm = _norm(config)
        self.dropout = layers.Dropout(config.embedding_dropout_rate)

    def __call__(self, input_ids: jax.Array, deterministic: bool) -> jax.Array:
        x_BLD = self.norm(self.word(input_ids))
        return self.dropout(x_BLD, deterministic).astype(self.config.dtype)


class Model(encoders.Model):
    """ModernBERT. `encoders.Model` describes inputs and outputs."""

    config: Config

    layouts = dict.fromkeys(
        heads.DOWNSTREAM,
        heads.Layout(activation="gelu", norm=True, rate=0.0, starts_as="mlm_head"),
    )

    def setup(self):
        config = self.config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        if config.is_pair:
            self.generator_encoder = Encoder(config.generator)
        self.setup_heads()

    def new_mlm_head(self) -> heads.MlmHead:
        """Returns the module for the head "mlm"."""
        return heads.MlmHead(self.config, use_bias=False)

    def class_features(self, x_BLD: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
        """Returns [B, D]: the first token's state or the mean; see `config.classifier_pooling`."""
        if attention_mask is None:
            attention_mask = jnp.ones(x_BLD.shape[:2], jnp.int32)
        pooled_BD = heads.pool(x_BLD, attention_mask, self.config.classifier_pooling)
        return pooled_BD.astype(x_BLD.dtype)

    def states(
        self, inputs: encoders.Inputs, *, of_generator: bool = False, keep_hidden: bool = False
    ) -> encoders.States:
        """Returns the states of the encoder, or of the generator's encoder of a pair.

        last is normed. hidden is the residual before each layer, then last.
        """
        first_BLD = self.embeddings(inputs.input_ids, inputs.deterministic)
        encoder = self.generator_encoder if of_generator else self.encoder
        x_BLD, hidden = encoder(
            first_BLD,
            inputs.mask,
            inputs.position_ids,
            deterministic=inputs.deterministic,
            keep_hidden=keep_hidden,
        )
        if keep_hidden:
            hidden = jnp.concatenate([first_BLD[None], hidden[:-1], x_BLD[None]])
        return encoders.States(x_BLD, hidden, x_BLD, self.embeddings.word)


def _body_flops(config: Config, length: int) -> int:
    width = config.hidden_size
    projections = length * width * (4 * width + 3 * config.intermediate_size)
    num_global = -(-config.num_layers // config.global_every)
    num_keys = num_global * length + (config.num_layers - num_global) * min(
        length, config.local_window + 1
    )
    attention = 2 * length * width * num_keys
    return 2 * (config.num_layers * projections + attention)


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of a forward pass; see `encoders.flops_per_sequence`.

    In local layers, only the scores inside the window are counted.
    """
    return encoders.flops_per_sequence(_body_flops, config, length, predictions)


# artifact/huggingface.py explains these tables, including (i, n, axis), "{+1}" and "|".
_LAYER = "model.layers.{}."
HF_NAMES = (
    ("embeddings/word/embedding", "model.embeddings.tok_embeddings.weight", "vocab_rows"),
    ("embeddings/norm/scale", "model.embeddings.norm.weight", "same"),
    ("encoder/layers/attention/query/kernel", _LAYER + "attn.Wqkv.weight", "heads_out", (0, 3, 0)),
    ("encoder/layers/attention/key/kernel", _LAYER + "attn.Wqkv.weight", "heads_out", (1, 3, 0)),
    ("encoder/layers/attention/value/kernel", _LAYER + "attn.Wqkv.weight", "heads_out", (2, 3, 0)),
    ("encoder/layers/attention/out/kernel", _LAYER + "attn.Wo.weight", "heads_in"),
    ("encoder/layers/mlp_norm/scale", _LAYER + "mlp_norm.weight", "same"),
    ("encoder/layers/mlp/wi/kernel", _LAYER + "mlp.Wi.weight", "transpose", (0, 2, 0)),
    ("encoder/layers/mlp/wi_gate/kernel", _LAYER + "mlp.Wi.weight", "transpose", (1, 2, 0)),
    ("encoder/layers/mlp/wo/kernel", _LAYER + "mlp.Wo.weight", "transpose"),
    (
        "encoder/layers/next_norm/scale",
        "model.layers.{+1}.attn_norm.weight|model.final_norm.weight",
        "same",
    ),
    ("mlm_head/transform/kernel", "head.dense.weight", "transpose"),
    ("mlm_head/norm/scale", "head.norm.weight", "same"),
    ("mlm_head/bias", "decoder.bias", "vocab_rows"),
)
HF_TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
HF_SKIPPED = ()
HF_DROPPED = ("nsp_head/", "sop_head/", "sbo_head/", "rtd_head/")  # transformers has none of them
HF_PREFIX = "model."


def _head_modules(head: str) -> dict[str, str]:
    return {
        f"{head}/transform": "head.dense",
        f"{head}/norm": "head.norm",
        f"{head}/logits": "classifier",
    }


HF_HEADS = {
    "ForSequenceClassification": _head_modules("classifier"),
    "ForMultipleChoice": _head_modules("classifier"),
    "ForTokenClassification": _head_modules("token_classifier"),
    "ForQuestionAnswering": _head_modules("span"),
}

_FULL, _LOCAL = "full_attention", "sliding_attention"


@dataclasses.dataclass(frozen=True)
class _Rope(schema.Open):
    rope_type: str = "default"
    rope_theta: float | None = None


def _read(content: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Reads the rotary bases and the period of global layers, as transformers 4 or 5 write them."""
    del tensors
    values: dict[str, Any] = {
        "global_theta": content["global_rope_theta"],
        "local_theta": content["local_rope_theta"],
        "global_every": content["global_attn_every_n_layers"],
    }
    for kind, name in ((_FULL, "global_theta"), (_LOCAL, "local_theta")):
        rope = (content.get("rope_parameters") or {}).get(kind) or {}
        if rope.get("rope_type", "default") != "default":
            raise errors.UserError(f"config.json: rope_type {rope['rope_type']!r} is not supported")
        values[name] = rope.get("rope_theta", values[name])
    if types := content.get("layer_types"):
        values["global_every"] = period = [*types[1:], _FULL].index(_FULL) + 1
        if types != [_LOCAL if i % period else _FULL for i in range(len(types))]:
            raise errors.UserError(
                f"config.json: layer_types = {types} is not supported; the first layer and then "
                "every n-th one must be global"
            )
    if values["local_theta"] is None:  # transformers 4 then uses global_theta
        values["local_theta"] = values["global_theta"]
    fields = {}
    for name, value in values.items():
        default = getattr(Config(), name)
        fields[name] = default if value is None else type(default)(value)
    return fields


HF_MODEL_TYPES = ("modernbert",)  # model_type values that this family reads
HF_CONFIG = {
    "model_type": "modernbert",
    "fields": {
        **hf_tables.SIZES,
        "local_attention": "local_window",
        "hidden_activation": "activation",
        "classifier_pooling": "classifier_pooling",
        "embedding_dropout": "embedding_dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "mlp_dropout": "mlp_dropout_rate",
        "norm_eps": "layer_norm_eps",
        "initializer_range": "init_std",
    },
    "fixed": {
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "classifier_activation": "gelu",
        "rope_scaling": None,
    },
    "read": _read,
    "types": {
        "rope_parameters": dict[str, _Rope | None] | None,
        "layer_types": list[str] | None,
        "global_rope_theta": float,
        "local_rope_theta": float | None,
        "global_attn_every_n_layers": Annotated[int, schema.Between(1)],
    },
    # transformers 4 names the keys like this; version 5 accepts these names too.
    "write": lambda fields: {
        "global_rope_theta": fields["global_theta"],
        "local_rope_theta": fields["local_theta"],
        "global_attn_every_n_layers": fields["global_every"],
        **dict.fromkeys(("cls_token_id", "sep_token_id")),  # null: no default ids
    },
    "architectures": {(): "ModernBertModel", ("mlm",): "ModernBertForMaskedLM"},
}
