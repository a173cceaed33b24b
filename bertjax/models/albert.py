"""ALBERT (Lan et al., arXiv 1909.11942), version 2: factorised embeddings and shared layers.

ALBERT is BERT with three changes. The embedding matrix is factorised into V x E and E x D (section
3.1). All layers of a group share their parameters, whose gradient is the sum over these layers; the
published models have `num_groups` = 1. The task on pairs of segments is sentence order prediction.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["sop_logits"].shape
    (1, 2)

Shapes: B batch, L length, V vocab, D model, E embedding.
"""

import dataclasses

import flax.linen as nn
import jax

from bertjax import errors
from bertjax.models import bert
from bertjax.models.common import encoders, heads, hf_tables, layers, masks, post_norm

HEADS = encoders.POOLED_HEADS
DROPOUT_RATE = 0.1  # before a classifier's last dense layer; version 2 has no dropout elsewhere


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields, with the defaults of ALBERT version 2, and ALBERT's additional fields."""

    vocab_size: int = 30000
    embedding_size: int = 128  # width of the embeddings
    num_groups: int = 1  # groups of consecutive layers that share their parameters
    activation: str = "gelu_tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    heads: tuple[str, ...] = ("pooler", "mlm", "sop")

    def __post_init__(self):
        encoders.check(self, HEADS)
        heads.check_pooled(self, "classifier")
        errors.check(self.num_layers % self.num_groups == 0, "model.num_groups", self.num_groups,
                     f"a divisor of config.model.num_layers = {self.num_layers}")  # fmt: skip

    @property
    def generator_num_layers(self) -> int:
        """Returns the number of layers of a pair's generator, in as many groups."""
        return max(1, self.num_layers // self.num_groups // 2) * self.num_groups


def _variant(num_layers: int, hidden_size: int, num_heads: int) -> dict[str, int]:
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "intermediate_size": 4 * hidden_size,
    }


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "mlm", "pair": "sop", "masking": "ngram"}  # the published objective
SMOKE = {**bert.SMOKE, "embedding_size": 32}

# Table 1 of the paper; the numbers of heads are those of the released models. Mini is our own.
VARIANTS = {
    "mini": _variant(4, 256, 4),
    "base": _variant(12, 768, 12),
    "large": _variant(24, 1024, 16),
    "xlarge": _variant(24, 2048, 16),
    "xxlarge": _variant(12, 4096, 64),
}


class Embeddings(bert.Embeddings):
    """BERT's embeddings of width E, projected to width D.

    NOTE: E is `config.hidden_size` of the config passed here; D is the field `hidden_size`.
    """

    hidden_size: int = 768

    def setup(self):
        super().setup()
        self.project = layers.dense(self.hidden_size, self.config)

    def __call__(self, input_ids, token_type_ids, position_ids, deterministic):
        x_BLE = super().__call__(input_ids, token_type_ids, position_ids, deterministic)
        return self.project(x_BLE)


class Group(nn.Module):
    """One layer applied num_layers / num_groups times with the same parameters."""

    config: Config
    deterministic: bool

    @nn.compact
    def __call__(self, x_BLD: jax.Array, _: None, mask: masks.Mask) -> tuple[jax.Array, jax.Array]:
        config = self.config
        layers_per_group = config.num_layers // config.num_groups
        layer_stack = layers.stack(post_norm.Layer, config, layers_per_group, 1, shared=True)
        return layer_stack(config, self.deterministic, name="layer")(x_BLD, None, mask)


class Encoder(nn.Module):
    """A stack of `num_groups` groups; parameters are stacked over the groups."""

    config: Config

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, mask: masks.Mask, *, deterministic: bool, keep_hidden: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns (last hidden state, states after every layer [num_layers, B, L, D] or None).

        The second is None unless `keep_hidden`.
        """
        config = self.config
        # Remat applies to each layer inside a group, so it is turned off for the group itself.
        group_config = dataclasses.replace(config, remat="none")
        # A loop around the loop of a single group would copy all that the layers save for the
        # backward pass into one array and out of it again. `init` makes every collection mutable.
        if config.num_groups == 1 and not self.is_mutable_collection(layers.WEIGHTS):
            groups = layers.stack_of_one(Group)
        else:
            groups = layers.stack(Group, group_config, config.num_groups, 1)
        x_BLD, hidden = groups(config, deterministic, name="layers")(x_BLD, None, mask)
        return x_BLD, hidden.reshape(-1, *x_BLD.shape) if keep_hidden else None


class Model(bert.Model):
    """ALBERT. `encoders.Model` describes inputs and outputs."""

    config: Config

    encoder_type = Encoder  # type: ignore[assignment]

    layouts = heads.layouts(
        classifier=heads.Layout(pooled=True, rate=DROPOUT_RATE),
        token_classifier=heads.Layout(rate=DROPOUT_RATE),
    )

    def new_embeddings(self) -> Embeddings:
        """Returns the module for the embeddings."""
        config = self.config
        embed_config = dataclasses.replace(config, hidden_size=config.embedding_size, num_heads=1)
        return Embeddings(embed_config, hidden_size=config.hidden_size)


def _body_flops(config: Config, length: int) -> int:
    width, embedding, mlp = config.hidden_size, config.embedding_size, config.intermediate_size
    attention = 4 * length * width * width + 2 * length * length * width
    layer = attention + 2 * length * width * mlp
    return 2 * (length * embedding * width + config.num_layers * layer)


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of a forward pass; see `encoders.flops_per_sequence`."""
    return encoders.flops_per_sequence(_body_flops, config, length, predictions)


# models/bert.py explains these tables.
_GROUP = "albert.encoder.albert_layer_groups.{}.albert_layers.0."
HF_NAMES = (
    *hf_tables.embeddings("albert."),
    (
        "embeddings/project/kernel",
        "albert.encoder.embedding_hidden_mapping_in.weight",
        "transpose",
    ),
    ("embeddings/project/bias", "albert.encoder.embedding_hidden_mapping_in.bias", "same"),
    ("encoder/layers/layer/attention/query/kernel", _GROUP + "attention.query.weight", "heads_out"),
    ("encoder/layers/layer/attention/query/bias", _GROUP + "attention.query.bias", "heads"),
    ("encoder/layers/layer/attention/key/kernel", _GROUP + "attention.key.weight", "heads_out"),
    ("encoder/layers/layer/attention/key/bias", _GROUP + "attention.key.bias", "heads"),
    ("encoder/layers/layer/attention/value/kernel", _GROUP + "attention.value.weight", "heads_out"),
    ("encoder/layers/layer/attention/value/bias", _GROUP + "attention.value.bias", "heads"),
    ("encoder/layers/layer/attention/out/kernel", _GROUP + "attention.dense.weight", "heads_in"),
    ("encoder/layers/layer/attention/out/bias", _GROUP + "attention.dense.bias", "same"),
    ("encoder/layers/layer/attention_norm/scale", _GROUP + "attention.LayerNorm.weight", "same"),
    ("encoder/layers/layer/attention_norm/bias", _GROUP + "attention.LayerNorm.bias", "same"),
    ("encoder/layers/layer/mlp/wi/kernel", _GROUP + "ffn.weight", "transpose"),
    ("encoder/layers/layer/mlp/wi/bias", _GROUP + "ffn.bias", "same"),
    ("encoder/layers/layer/mlp/wo/kernel", _GROUP + "ffn_output.weight", "transpose"),
    ("encoder/layers/layer/mlp/wo/bias", _GROUP + "ffn_output.bias", "same"),
    ("encoder/layers/layer/mlp_norm/scale", _GROUP + "full_layer_layer_norm.weight", "same"),
    ("encoder/layers/layer/mlp_norm/bias", _GROUP + "full_layer_layer_norm.bias", "same"),
    ("pooler/dense/kernel", "albert.pooler.weight", "transpose"),
    ("pooler/dense/bias", "albert.pooler.bias", "same"),
    ("mlm_head/transform/kernel", "predictions.dense.weight", "transpose"),
    ("mlm_head/transform/bias", "predictions.dense.bias", "same"),
    ("mlm_head/norm/scale", "predictions.LayerNorm.weight", "same"),
    ("mlm_head/norm/bias", "predictions.LayerNorm.bias", "same"),
    ("mlm_head/bias", "predictions.bias", "vocab_rows"),
    ("sop_head/kernel", "sop_classifier.classifier.weight", "transpose"),
    ("sop_head/bias", "sop_classifier.classifier.bias", "same"),
)
HF_TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
HF_SKIPPED = ("albert.embeddings.position_ids", "albert.embeddings.token_type_ids")
HF_DROPPED = ("nsp_head/", "sbo_head/", "rtd_head/")  # no class of transformers has them
HF_PREFIX = "albert."  # names in a file of the bare encoder lack it
HF_HEADS = bert.HF_HEADS
HF_MODEL_TYPES = ("albert",)  # model_type values that this family reads
HF_CONFIG = {
    "model_type": "albert",
    "fields": {
        **bert.HF_CONFIG["fields"],
        "embedding_size": "embedding_size",
        "num_hidden_groups": "num_groups",
    },
    "fixed": {"inner_group_num": 1, "position_embedding_type": "absolute"},
    "architectures": {
        (): "AlbertModel",
        ("pooler",): "AlbertModel",
        ("mlm",): "AlbertForMaskedLM",
        ("pooler", "mlm"): "AlbertForPreTraining",
        ("pooler", "sop"): "AlbertForPreTraining",
        ("pooler", "mlm", "sop"): "AlbertForPreTraining",
    },
}
