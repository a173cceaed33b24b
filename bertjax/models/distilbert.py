"""DistilBERT (Sanh et al., arXiv 1910.01108): BERT with fewer layers, no token types, no pooler.

Parameters have the same paths as BERT's, so that a student can be initialized from its teacher.

    >>> model = Model(Config(**VARIANTS["base"]))
    >>> model.config.num_layers
    6
"""

import dataclasses

from bertjax.models import bert
from bertjax.models.common import encoders, heads

HEADS = encoders.HEADS


@dataclasses.dataclass(frozen=True)
class Config(encoders.Fields):
    """The model's fields. The property below fixes the value of BERT's other field."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 6
    num_heads: int = 12
    intermediate_size: int = 3072
    max_length: int = 512
    activation: str = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    init_std: float = 0.02
    heads: tuple[str, ...] = ("mlm",)

    def __post_init__(self):
        encoders.check(self, HEADS)

    @property
    def layer_norm_eps(self) -> float:
        """Returns BERT's value; Hugging Face's config has no key for it."""
        return 1e-12


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "distillation"}  # the published pretraining objective
SMOKE = bert.SMOKE

# Section 3 of the paper: half the layers of BERT base. Mini is our own.
VARIANTS = {"mini": bert.VARIANTS["mini"], "base": {**bert.VARIANTS["base"], "num_layers": 6}}


class Model(bert.Model):
    """DistilBERT.

    Dropout is applied at the same places as in BERT, the teacher, including the attention's output.
    """

    config: Config  # type: ignore[assignment]  # not a bert.Config: no token types

    layouts = heads.layouts(
        classifier=heads.Layout(activation="relu", rate=0.2),
        span=heads.Layout(rate=0.1),
    )


flops_per_sequence = bert.flops_per_sequence


# models/bert.py explains these tables.
_LAYER = "distilbert.transformer.layer.{}."
HF_NAMES = (
    ("embeddings/word/embedding", "distilbert.embeddings.word_embeddings.weight", "vocab_rows"),
    ("embeddings/position/embedding", "distilbert.embeddings.position_embeddings.weight", "same"),
    ("embeddings/norm/scale", "distilbert.embeddings.LayerNorm.weight", "same"),
    ("embeddings/norm/bias", "distilbert.embeddings.LayerNorm.bias", "same"),
    ("encoder/layers/attention/query/kernel", _LAYER + "attention.q_lin.weight", "heads_out"),
    ("encoder/layers/attention/query/bias", _LAYER + "attention.q_lin.bias", "heads"),
    ("encoder/layers/attention/key/kernel", _LAYER + "attention.k_lin.weight", "heads_out"),
    ("encoder/layers/attention/key/bias", _LAYER + "attention.k_lin.bias", "heads"),
    ("encoder/layers/attention/value/kernel", _LAYER + "attention.v_lin.weight", "heads_out"),
    ("encoder/layers/attention/value/bias", _LAYER + "attention.v_lin.bias", "heads"),
    ("encoder/layers/attention/out/kernel", _LAYER + "attention.out_lin.weight", "heads_in"),
    ("encoder/layers/attention/out/bias", _LAYER + "attention.out_lin.bias", "same"),
    ("encoder/layers/attention_norm/scale", _LAYER + "sa_layer_norm.weight", "same"),
    ("encoder/layers/attention_norm/bias", _LAYER + "sa_layer_norm.bias", "same"),
    ("encoder/layers/mlp/wi/kernel", _LAYER + "ffn.lin1.weight", "transpose"),
    ("encoder/layers/mlp/wi/bias", _LAYER + "ffn.lin1.bias", "same"),
    ("encoder/layers/mlp/wo/kernel", _LAYER + "ffn.lin2.weight", "transpose"),
    ("encoder/layers/mlp/wo/bias", _LAYER + "ffn.lin2.bias", "same"),
    ("encoder/layers/mlp_norm/scale", _LAYER + "output_layer_norm.weight", "same"),
    ("encoder/layers/mlp_norm/bias", _LAYER + "output_layer_norm.bias", "same"),
    ("mlm_head/transform/kernel", "vocab_transform.weight", "transpose"),
    ("mlm_head/transform/bias", "vocab_transform.bias", "same"),
    ("mlm_head/norm/scale", "vocab_layer_norm.weight", "same"),
    ("mlm_head/norm/bias", "vocab_layer_norm.bias", "same"),
    ("mlm_head/bias", "vocab_projector.bias", "vocab_rows"),
)
HF_TIED = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
HF_SKIPPED = ("distilbert.embeddings.position_ids",)
HF_PREFIX = "distilbert."
HF_DROPPED = ("nsp_head/", *bert.HF_DROPPED)
_CLASSIFIER = {"classifier/transform": "pre_classifier", "classifier/logits": "classifier"}
HF_HEADS = bert.HF_HEADS | {
    "ForSequenceClassification": _CLASSIFIER,
    "ForMultipleChoice": _CLASSIFIER,
}
HF_MODEL_TYPES = ("distilbert",)  # model_type values that this family reads
HF_CONFIG = {
    "model_type": "distilbert",
    "fields": {
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "hidden_dim": "intermediate_size",
        "max_position_embeddings": "max_length",
        "activation": "activation",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "initializer_range": "init_std",
    },
    "fixed": {"sinusoidal_pos_embds": False},
    "architectures": {(): "DistilBertModel", ("mlm",): "DistilBertForMaskedLM"},
}
