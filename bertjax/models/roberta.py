"""RoBERTa (Liu et al., arXiv 1907.11692): BERT with one token type and no next sentence prediction.

In the position table, row pad_id is for padding, and the first token of a sequence has row
pad_id + 1. With pad_id 1, 512 positions therefore need a table of 514 rows. NOTE: `pad_id` must
equal the id of padding in the tokenizer.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> params["embeddings"]["position"]["embedding"].shape
    (514, 256)
"""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors
from bertjax.models import bert
from bertjax.models.common import encoders, heads

HEADS = encoders.POOLED_HEADS


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields with RoBERTa's defaults, and `pad_id`."""

    vocab_size: int = 50265
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_id: int = 1  # id of padding in the tokenizer
    heads: tuple[str, ...] = ("mlm",)

    def __post_init__(self):
        encoders.check(self, HEADS)
        # In Hugging Face's RoBERTa the MLM head always has gelu, so the layers must have it too.
        errors.check(self.activation == "gelu", "model.activation", self.activation, "'gelu'")


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "mlm", "pair": "none"}  # the published pretraining objective
SMOKE = bert.SMOKE

# Table 9 of the paper. Mini is our own.
VARIANTS = {name: bert.VARIANTS[name] for name in ("mini", "base", "large")}


class Model(bert.Model):
    """RoBERTa. With one token type, token_type_ids are ignored.

    The classifier has two dense layers. If the model has a pooler (for multiple choice), the pooler
    replaces the first of them.
    """

    config: Config

    layouts = heads.layouts(classifier=heads.Layout(activation="tanh", first_rate=None))

    @property
    def first_position(self) -> int:
        """Returns the row of the position table for the first token of a sequence."""
        return self.config.pad_id + 1

    def positions(self, input_ids: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
        """Returns the default position_ids, which count tokens from 0."""
        if attention_mask is None:
            return super().positions(input_ids, None)
        # Padding gets position -1, which selects row pad_id. Padding on the left works too.
        tokens_BL = attention_mask.astype(jnp.int32)
        return jnp.cumsum(tokens_BL, axis=1) * tokens_BL - 1


flops_per_sequence = bert.flops_per_sequence


# The encoder's names are BERT's with another prefix (models/bert.py explains the tables).
HF_NAMES = tuple(
    (ours, theirs.replace("bert.", "roberta.", 1), rule)
    for ours, theirs, rule in bert.HF_NAMES
    if theirs.startswith("bert.")
) + (
    ("mlm_head/transform/kernel", "lm_head.dense.weight", "transpose"),
    ("mlm_head/transform/bias", "lm_head.dense.bias", "same"),
    ("mlm_head/norm/scale", "lm_head.layer_norm.weight", "same"),
    ("mlm_head/norm/bias", "lm_head.layer_norm.bias", "same"),
    ("mlm_head/bias", "lm_head.bias", "vocab_rows"),
)
HF_TIED = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
HF_SKIPPED = ("roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids")
HF_PREFIX = "roberta."
HF_DROPPED = ("nsp_head/", *bert.HF_DROPPED)

HF_HEADS = bert.HF_HEADS | {
    "ForSequenceClassification": {
        "classifier/transform": "classifier.dense",
        "classifier/logits": "classifier.out_proj",
    },
}


def _read(content: dict[str, Any], tensors: Collection[str]) -> dict[str, int]:
    del tensors
    rows, pad = content["max_position_embeddings"], content["pad_token_id"]
    return {"max_length": rows - pad - 1, "pad_id": pad}


HF_MODEL_TYPES = ("roberta", "camembert", "xlm-roberta")  # model_type values that this family reads
HF_CONFIG = {
    "model_type": "roberta",
    "fields": {k: v for k, v in bert.HF_CONFIG["fields"].items() if v != "max_length"},
    "fixed": bert.HF_CONFIG["fixed"],
    "read": _read,
    "types": {"max_position_embeddings": int, "pad_token_id": int},
    "write": lambda fields: {
        "max_position_embeddings": fields["pad_id"] + 1 + fields["max_length"],
        "pad_token_id": fields["pad_id"],
    },
    "import_heads": (("pooler", "mlm"),),
    "architectures": {
        (): "RobertaModel",
        ("pooler",): "RobertaModel",
        ("mlm",): "RobertaForMaskedLM",
        ("pooler", "mlm"): "RobertaForMaskedLM",
    },
}
