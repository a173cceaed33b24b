"""DeBERTa-v2 and v3 in Hugging Face folders: the names of tensors and the keys of config.json.

`models/bert.py` explains these tables. The published checkpoints of version 3 also contain the head
of the discriminator (mask_predictions) and absolute positions for the mask decoder, which no class
of transformers reads.
"""

from collections.abc import Collection
from typing import Any

from bertjax import errors
from bertjax.models.common import disentangled, hf_tables

_LAYER = "deberta.encoder.layer.{}."
_SELF = _LAYER + "attention.self."


def _projection(ours: str, theirs: str) -> tuple[tuple[str, str, str], ...]:
    path = f"encoder/layers/{ours}"
    return (
        (f"{path}/kernel", f"{_SELF}{theirs}.weight", "heads_out"),
        (f"{path}/bias", f"{_SELF}{theirs}.bias", "heads"),
    )


def _module(ours: str, theirs: str) -> tuple[tuple[str, str, str], ...]:
    """Returns the lines of a layer norm, whose name ends with "norm", or of a dense layer."""
    leaf, rule = ("scale", "same") if ours.endswith("norm") else ("kernel", "transpose")
    return (
        (f"{ours}/{leaf}", f"{theirs}.weight", rule),
        (f"{ours}/bias", f"{theirs}.bias", "same"),
    )


HF_NAMES = (
    *hf_tables.embeddings("deberta."),
    ("embeddings/project/kernel", "deberta.embeddings.embed_proj.weight", "transpose"),
    ("encoder/relative_position/embedding", "deberta.encoder.rel_embeddings.weight", "same"),
    *_module("encoder/relative_norm", "deberta.encoder.LayerNorm"),
    *_module("encoder/conv", "deberta.encoder.conv.conv"),
    *_module("encoder/conv_norm", "deberta.encoder.conv.LayerNorm"),
    *_projection("attention/query", "query_proj"),
    *_projection("attention/key", "key_proj"),
    *_projection("attention/value", "value_proj"),
    *_projection("position_key", "pos_key_proj"),
    *_projection("position_query", "pos_query_proj"),
    ("encoder/layers/attention/out/kernel", _LAYER + "attention.output.dense.weight", "heads_in"),
    ("encoder/layers/attention/out/bias", _LAYER + "attention.output.dense.bias", "same"),
    *_module("encoder/layers/attention_norm", _LAYER + "attention.output.LayerNorm"),
    *_module("encoder/layers/mlp/wi", _LAYER + "intermediate.dense"),
    *_module("encoder/layers/mlp/wo", _LAYER + "output.dense"),
    *_module("encoder/layers/mlp_norm", _LAYER + "output.LayerNorm"),
    *_module("mlm_head/transform", "cls.predictions.transform.dense"),
    *_module("mlm_head/norm", "cls.predictions.transform.LayerNorm"),
    ("mlm_head/bias", "cls.predictions.bias", "vocab_rows"),
)
HF_TIED = {
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# The head of a model whose config.json has legacy = false: {start of a name: start in HF_NAMES}.
HF_RENAMED = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
HF_SKIPPED = (
    "deberta.embeddings.position_ids",
    "deberta.embeddings.position_embeddings.weight",
    "mask_predictions.*",
)
HF_DROPPED = ("nsp_head/", "sop_head/", "sbo_head/", "rtd_head/")  # transformers has none of them
HF_PREFIX = "deberta."
HF_HEADS = {
    "ForSequenceClassification": {
        "classifier/transform": "pooler.dense",
        "classifier/logits": "classifier",
    },
    "ForMultipleChoice": {
        "classifier/transform": "pooler.dense",
        "classifier/logits": "classifier",
    },
    "ForTokenClassification": {"token_classifier/logits": "classifier"},
    "ForQuestionAnswering": {"span/logits": "qa_outputs"},
}

_CONV_ACTIVATIONS = ("tanh", "gelu", "relu")  # values of conv_act, which have the same names here


def _read(content: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    del tensors
    width, terms = content["hidden_size"], content["pos_att_type"] or ()
    if isinstance(terms, str):
        terms = tuple(term.strip() for term in terms.lower().split("|"))

    def check(ok: bool, key: str, allowed: str) -> None:
        if not ok:
            raise errors.UserError(
                f"config.json: {key} = {content[key]!r} is not supported; must be {allowed}"
            )

    relative = content["relative_attention"]
    known = set(terms) <= set(disentangled.TERMS) and len(set(terms)) == len(terms)
    check(known and bool(terms) == relative, "pos_att_type",
          f"some of {', '.join(disentangled.TERMS)}, if relative_attention is true")  # fmt: skip
    head_size = width // content["num_attention_heads"]
    check(content["attention_head_size"] in (None, head_size), "attention_head_size",
          f"{head_size}, the share of each head of hidden_size")  # fmt: skip
    norms = [norm.strip() for norm in content["norm_rel_ebd"].lower().split("|")]
    check(norms in (["none"], ["layer_norm"]), "norm_rel_ebd", "'none' or 'layer_norm'")
    kernel_size = max(content["conv_kernel_size"], 0)
    check(content["conv_act"] in _CONV_ACTIVATIONS, "conv_act",
          f"one of {', '.join(_CONV_ACTIVATIONS)}")  # fmt: skip
    embedding_size = content["embedding_size"] or width
    check(content["legacy"] or embedding_size == width, "embedding_size",
          f"hidden_size = {width} if legacy is false")  # fmt: skip
    return {
        "embedding_size": 0 if embedding_size == width else embedding_size,
        "position_terms": tuple(term for term in disentangled.TERMS if term in terms),
        "position_buckets": max(content["position_buckets"], 0),
        "max_relative_positions": max(content["max_relative_positions"], 0),
        "relative_norm": norms == ["layer_norm"],
        "conv_kernel_size": kernel_size,
        "conv_activation": content["conv_act"],
    }


def _write(fields: dict[str, Any]) -> dict[str, Any]:
    if fields["enhanced_mask_decoder"] and "mlm" in fields["heads"]:
        raise errors.UserError(
            "transformers has no enhanced mask decoder, which this model predicts masked tokens "
            "with: export it with --format=artifact"
        )
    if fields["conv_activation"] not in _CONV_ACTIVATIONS:
        raise errors.UserError(
            f"config.model.conv_activation = '{fields['conv_activation']}': an export can have "
            f"{', '.join(_CONV_ACTIVATIONS)}; export this model with --format=artifact"
        )
    return {
        "embedding_size": fields["embedding_size"] or fields["hidden_size"],
        "attention_head_size": fields["hidden_size"] // fields["num_heads"],
        "relative_attention": bool(fields["position_terms"]),
        "pos_att_type": list(fields["position_terms"]),
        "position_buckets": fields["position_buckets"] or -1,
        "max_relative_positions": fields["max_relative_positions"] or -1,
        "norm_rel_ebd": "layer_norm" if fields["relative_norm"] else "none",
        "conv_kernel_size": fields["conv_kernel_size"],
        "conv_act": fields["conv_activation"],
        "pooler_hidden_size": fields["hidden_size"],
        "legacy": True,
    }


HF_MODEL_TYPES = ("deberta-v2",)  # model_type values that this family reads
HF_CONFIG: dict[str, Any] = {
    "model_type": "deberta-v2",
    "fields": {
        **hf_tables.SIZES,
        "type_vocab_size": "type_vocab_size",
        "position_biased_input": "position_biased_input",
        "share_att_key": "shared_position_projections",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout_rate",
        "attention_probs_dropout_prob": "attention_dropout_rate",
        "layer_norm_eps": "layer_norm_eps",
        "initializer_range": "init_std",
    },
    "fixed": {"conv_groups": 1},
    "fixed_in_class": {
        "ForSequenceClassification": {"pooler_hidden_act": "gelu"},
        "ForMultipleChoice": {"pooler_hidden_act": "gelu"},
    },
    "read": _read,
    "types": {
        "embedding_size": int | None,
        "attention_head_size": int | None,
        "relative_attention": bool,
        "pos_att_type": str | list[str] | None,
        "position_buckets": int,
        "max_relative_positions": int,
        "norm_rel_ebd": str,
        "conv_kernel_size": int,
        "conv_act": str,
        "legacy": bool,
    },
    "write": _write,
    "import_heads": (("mlm",),),
    "architectures": {
        (): "DebertaV2Model",
        ("mlm",): "DebertaV2ForMaskedLM",
    },
}
