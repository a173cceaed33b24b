"""BERT (Devlin et al., arXiv 1810.04805): post-norm encoder, learned positions, MLM and NSP heads.

>>> model = Model(Config(**VARIANTS["tiny"]))
>>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
>>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["mlm_logits"].shape
(1, 8, 30592)
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.models.common import encoders, heads, hf_tables, layers, post_norm

HEADS = encoders.POOLED_HEADS


@dataclasses.dataclass(frozen=True)
class Config(encoders.Fields):
    """The model's fields. `heads` lists the heads on top of the encoder, in the order of HEADS.

    The heads nsp, sop and classifier need the pooler.
    """

    vocab_size: int = 30522  # size of the vocabulary; at least the tokenizer's number of pieces
    hidden_size: int = 768  # width of the hidden states
    num_layers: int = 12  # number of layers
    num_heads: int = 12  # attention heads per layer
    intermediate_size: int = 3072  # width of the feed-forward blocks
    max_length: int = 512  # maximum number of tokens in a sequence
    type_vocab_size: int = 2  # number of token types (segments)
    activation: str = "gelu"  # name of a function in models/common/activations.py
    dropout_rate: float = 0.1  # dropout of the embeddings and of all outputs added to the residual
    attention_dropout_rate: float = 0.1  # dropout of the attention weights
    layer_norm_eps: float = 1e-12  # added to the variance in layer norms
    init_std: float = 0.02  # standard deviation of initial kernels and embeddings
    heads: tuple[str, ...] = ("pooler", "mlm", "nsp")  # heads on top of the model

    def __post_init__(self):
        encoders.check(self, HEADS)
        heads.check_pooled(self, "classifier")


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "mlm", "pair": "nsp"}  # the published pretraining objective
SMOKE = layers.SMOKE

# Base and large: section 3 of the paper. The smaller sizes: Turc et al., arXiv 1908.08962.
VARIANTS = {
    "tiny": layers.sizes(2, 128),
    "mini": layers.sizes(4, 256),
    "small": layers.sizes(4, 512),
    "medium": layers.sizes(8, 512),
    "base": layers.sizes(12, 768),
    "large": layers.sizes(24, 1024),
}


class Embeddings(nn.Module):
    """The layer-normed sum of word, position and (if the model has them) token type embeddings.

    first_position: row of the position table used for the first token of a sequence.
    """

    config: Any
    first_position: int = 0

    def setup(self):
        config = self.config

        def table(num_rows: int, num_used: int) -> layers.Embed:
            return layers.Embed(num_rows, config.hidden_size, num_used, config.init_std)

        self.word = table(layers.padded_vocab_size(config.vocab_size), config.vocab_size)
        num_positions = self.first_position + config.max_length
        self.position = table(num_positions, num_positions)
        if config.type_vocab_size:
            self.token_type = table(config.type_vocab_size, config.type_vocab_size)
        self.norm = layers.LayerNorm(config.layer_norm_eps)
        self.dropout = layers.Dropout(config.dropout_rate)

    def __call__(self, input_ids, token_type_ids, position_ids, deterministic):
        x_BLD = self.word(input_ids) + self.position(self.first_position + position_ids)
        if self.config.type_vocab_size:
            x_BLD += self.token_type(token_type_ids)
        return self.dropout(self.norm(x_BLD), deterministic).astype(self.config.dtype)


class Model(encoders.Model):
    """BERT. `encoders.Model` describes inputs and outputs."""

    config: Config

    encoder_type = post_norm.Encoder

    @property
    def first_position(self) -> int:
        """Returns the row of the position table for the first token of a sequence."""
        return 0

    def new_embeddings(self) -> Embeddings:
        """Returns the module for the embeddings."""
        return Embeddings(self.config, self.first_position)

    def setup(self):
        config = self.config
        self.embeddings = self.new_embeddings()
        self.encoder = self.encoder_type(config)
        if config.is_pair:
            self.generator_encoder = self.encoder_type(config.generator)
        self.setup_heads()

    def states(
        self, inputs: encoders.Inputs, *, of_generator: bool = False, keep_hidden: bool = False
    ) -> encoders.States:
        """Returns the states of the encoder, or of the generator's encoder of a pair."""
        first_BLD = self.embeddings(
            inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.deterministic
        )
        first_BLD = self.project_embeddings(first_BLD, of_generator=of_generator)
        encoder = self.generator_encoder if of_generator else self.encoder
        x_BLD, hidden = encoder(
            first_BLD, inputs.mask, deterministic=inputs.deterministic, keep_hidden=keep_hidden
        )
        if keep_hidden:
            hidden = jnp.concatenate([first_BLD[None], hidden])
        return encoders.States(x_BLD, hidden, x_BLD, self.embeddings.word)

    def project_embeddings(self, x_BLD: jax.Array, *, of_generator: bool) -> jax.Array:
        """Returns the input of the first layer; BERT's is as wide as the embeddings."""
        del of_generator
        return x_BLD


def body_flops(config: Config, length: int) -> int:
    """Returns the FLOPs of all matmuls in the layers, for one sequence: two per multiply-add."""
    width, mlp = config.hidden_size, config.intermediate_size
    projections = 4 * length * width * width
    attention = 2 * length * length * width
    layer = projections + attention + 2 * length * width * mlp
    return 2 * config.num_layers * layer


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of a forward pass; see `encoders.flops_per_sequence`."""
    return encoders.flops_per_sequence(body_flops, config, length, predictions)


# Each line: our path, the Hugging Face name, and the conversion between the two arrays
# (artifact/huggingface.py defines the conversions). Under encoder/layers our arrays are stacked
# over the layers; Hugging Face has one tensor per layer, whose name has the layer's number in place
# of "{}".
_LAYER = "bert.encoder.layer.{}."
HF_NAMES = (
    *hf_tables.embeddings("bert."),
    ("encoder/layers/attention/query/kernel", _LAYER + "attention.self.query.weight", "heads_out"),
    ("encoder/layers/attention/query/bias", _LAYER + "attention.self.query.bias", "heads"),
    ("encoder/layers/attention/key/kernel", _LAYER + "attention.self.key.weight", "heads_out"),
    ("encoder/layers/attention/key/bias", _LAYER + "attention.self.key.bias", "heads"),
    ("encoder/layers/attention/value/kernel", _LAYER + "attention.self.value.weight", "heads_out"),
    ("encoder/layers/attention/value/bias", _LAYER + "attention.self.value.bias", "heads"),
    ("encoder/layers/attention/out/kernel", _LAYER + "attention.output.dense.weight", "heads_in"),
    ("encoder/layers/attention/out/bias", _LAYER + "attention.output.dense.bias", "same"),
    ("encoder/layers/attention_norm/scale", _LAYER + "attention.output.LayerNorm.weight", "same"),
    ("encoder/layers/attention_norm/bias", _LAYER + "attention.output.LayerNorm.bias", "same"),
    ("encoder/layers/mlp/wi/kernel", _LAYER + "intermediate.dense.weight", "transpose"),
    ("encoder/layers/mlp/wi/bias", _LAYER + "intermediate.dense.bias", "same"),
    ("encoder/layers/mlp/wo/kernel", _LAYER + "output.dense.weight", "transpose"),
    ("encoder/layers/mlp/wo/bias", _LAYER + "output.dense.bias", "same"),
    ("encoder/layers/mlp_norm/scale", _LAYER + "output.LayerNorm.weight", "same"),
    ("encoder/layers/mlp_norm/bias", _LAYER + "output.LayerNorm.bias", "same"),
    ("pooler/dense/kernel", "bert.pooler.dense.weight", "transpose"),
    ("pooler/dense/bias", "bert.pooler.dense.bias", "same"),
    ("mlm_head/transform/kernel", "cls.predictions.transform.dense.weight", "transpose"),
    ("mlm_head/transform/bias", "cls.predictions.transform.dense.bias", "same"),
    ("mlm_head/norm/scale", "cls.predictions.transform.LayerNorm.weight", "same"),
    ("mlm_head/norm/bias", "cls.predictions.transform.LayerNorm.bias", "same"),
    ("mlm_head/bias", "cls.predictions.bias", "vocab_rows"),
    ("nsp_head/kernel", "cls.seq_relationship.weight", "transpose"),
    ("nsp_head/bias", "cls.seq_relationship.bias", "same"),
)

# Hugging Face's tensors that duplicate another one (HF_TIED, {duplicate: original}) or that are not
# parameters (HF_SKIPPED).
HF_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
HF_SKIPPED = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
HF_PREFIX = "bert."  # names in a file of the bare encoder lack it

HF_DROPPED = ("sop_head/", "sbo_head/", "rtd_head/")  # no class of transformers has them

# {suffix of a Hugging Face class for a task: {our module: the Hugging Face module}}
HF_HEADS = {
    "ForSequenceClassification": {"classifier/logits": "classifier"},
    "ForMultipleChoice": {"classifier/logits": "classifier"},
    "ForTokenClassification": {"token_classifier/logits": "classifier"},
    "ForQuestionAnswering": {"span/logits": "qa_outputs"},
}

HF_MODEL_TYPES = ("bert",)  # model_type values that this family reads
# Hugging Face's config.json. "fields": {its key: our field}. "fixed": {key: the only value that
# this model supports}. "architectures": {our heads: the class with exactly these heads}.
HF_CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "fields": {
        **hf_tables.SIZES,
        "type_vocab_size": "type_vocab_size",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout_rate",
        "attention_probs_dropout_prob": "attention_dropout_rate",
        "layer_norm_eps": "layer_norm_eps",
        "initializer_range": "init_std",
    },
    "fixed": {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    },
    "architectures": {
        (): "BertModel",
        ("pooler",): "BertModel",
        ("mlm",): "BertForMaskedLM",
        ("pooler", "mlm"): "BertForPreTraining",
        ("pooler", "nsp"): "BertForNextSentencePrediction",
        ("pooler", "mlm", "nsp"): "BertForPreTraining",
    },
}
