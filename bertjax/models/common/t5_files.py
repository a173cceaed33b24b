"""T5 and mT5 in Hugging Face folders: the names of tensors and the keys of config.json."""

from collections.abc import Collection
from typing import Any

from bertjax import errors

# {Hugging Face's feed_forward_proj: (activation, gated)}
UNITS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "gated-relu": ("relu", True),
    "gated-gelu": ("gelu_tanh", True),
}

# Our name, the Hugging Face name, and the conversion (defined in artifact/huggingface.py).
_MAPS = (("query", "q", "heads_out"), ("key", "k", "heads_out"), ("value", "v", "heads_out"),
         ("out", "o", "heads_in"))  # fmt: skip
_UNITS = (("mlp/wi", "wi"), ("mlp/wo", "wo"), ("gated_mlp/wi", "wi_0"),
          ("gated_mlp/wi_gate", "wi_1"), ("gated_mlp/wo", "wo"))  # fmt: skip


def _lines(stack: str, parts: dict[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Returns the lines of HF_NAMES for a stack ("encoder" or "decoder").

    parts: {our name of a part of a layer: Hugging Face's name}, in the order of Hugging Face.
    """
    lines = [
        (f"{stack}/relative_bias/embedding",
         f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "same"),
        (f"{stack}/final_norm/scale", f"{stack}.final_layer_norm.weight", "same"),
    ]  # fmt: skip
    for number, (ours, theirs) in enumerate(parts.items()):
        our, their = f"{stack}/layers/", f"{stack}.block.{{}}.layer.{number}."
        lines.append((f"{our}{ours}_norm/scale", their + "layer_norm.weight", "same"))
        if ours == "mlp":
            maps = [(mine, name, "transpose") for mine, name in _UNITS]
        else:
            maps = [(f"{ours}/{mine}", name, way) for mine, name, way in _MAPS]
        lines += [(f"{our}{m}/kernel", f"{their}{theirs}.{n}.weight", way) for m, n, way in maps]
    return tuple(lines)


HF_NAMES = (
    ("embeddings/word/embedding", "shared.weight", "vocab_rows"),
    *_lines("encoder", {"attention": "SelfAttention", "mlp": "DenseReluDense"}),
    *_lines("decoder", {"attention": "SelfAttention", "cross_attention": "EncDecAttention",
                        "mlp": "DenseReluDense"}),
    ("lm_head/kernel", "lm_head.weight", "vocab_columns"),
)  # fmt: skip
HF_TIED = {
    "encoder.embed_tokens.weight": "shared.weight",
    "decoder.embed_tokens.weight": "shared.weight",
    "lm_head.weight": "shared.weight",
}
HF_SKIPPED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
HF_PREFIX = ""
HF_HEADS: dict[str, dict[str, str]] = {}


# {feed_forward_proj: dense_act_fn}, unless dense_act_fn is feed_forward_proj without "gated-".
# transformers derives dense_act_fn from feed_forward_proj, but a value in the file overrides this.
_UNITS_WITHIN = {"gated-gelu": "gelu_new"}


def _read(content: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    units = content["feed_forward_proj"]
    if units not in UNITS:
        raise errors.UserError(
            f"config.json: feed_forward_proj = {units!r} is not supported; must be one of "
            f"{', '.join(UNITS)}"
        )
    within = _UNITS_WITHIN.get(units, units.removeprefix("gated-"))
    activation, gated = UNITS[units]
    for key, made in (("dense_act_fn", within), ("is_gated_act", gated)):
        if content.get(key, made) != made:
            raise errors.UserError(
                f"config.json: {key} = {content[key]!r} is not supported; must be {made!r}, "
                f"because feed_forward_proj = {units!r}"
            )
    scaled = _scales_output(content)
    bare = (content.get("architectures") or [""])[0].endswith("Model")
    # transformers 5 ties the output projection if the file has no tensor lm_head.weight.
    tied = scaled or not (bare or "lm_head.weight" in tensors)
    start = content["decoder_start_token_id"]
    padded = start is None or start == content["pad_token_id"]
    return {
        "activation": activation,
        "gated": gated,
        "tied_embeddings": tied,
        "scaled_output": scaled or not tied,
        "decoder_start_id": -1 if padded else start,
        "num_decoder_layers": content["num_decoder_layers"] or content["num_layers"],
        "max_length": content.get("n_positions", 1024),  # v1.1 and mT5 files lack this key
    }


def _scales_output(content: dict[str, Any]) -> bool:
    """Returns whether the state is divided by sqrt(d_model) before the output projection.

    transformers 5 always writes tie_word_embeddings = true for a T5. Its key for the scaling is
    scale_decoder_outputs, and it never scales mT5. Version 4 scales if and only if the embeddings
    are tied.
    """
    if content["model_type"] == "mt5":
        of_4 = str(content.get("transformers_version")).startswith("4.")
        return of_4 and content.get("tie_word_embeddings") is True
    tied = content["tie_word_embeddings"] is not False
    return content.get("scale_decoder_outputs", tied) is not False


def _write(fields: dict[str, Any]) -> dict[str, Any]:
    units = fields["activation"], fields["gated"]
    name = next(name for name, ours in UNITS.items() if ours == units)
    scaled = fields["tied_embeddings"] and fields["scaled_output"]
    return {
        "feed_forward_proj": name,
        "is_gated_act": fields["gated"],
        "tie_word_embeddings": scaled,
        "scale_decoder_outputs": scaled,
        "num_decoder_layers": fields["num_decoder_layers"],
    }


def _repeated(fields: dict[str, Any]) -> tuple[str, ...]:
    """Returns ("lm_head.weight",) if the output is tied but not scaled, else ().

    transformers 4 does not tie such an output, so the file must repeat the embeddings as this
    tensor.
    """
    unscaled = fields["tied_embeddings"] and not fields["scaled_output"]
    return ("lm_head.weight",) if unscaled and "lm" in fields["heads"] else ()


HF_MODEL_TYPES = ("t5", "mt5")  # values of model_type read as this family
HF_CONFIG = {
    "model_type": "t5",
    "fields": {
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "d_kv": "head_dim",
        "d_ff": "intermediate_size",
        "num_layers": "num_layers",
        "num_heads": "num_heads",
        "n_positions": "max_length",
        "relative_attention_num_buckets": "relative_buckets",
        "relative_attention_max_distance": "relative_max_distance",
        "dropout_rate": "dropout_rate",
        "layer_norm_epsilon": "layer_norm_eps",
        "initializer_factor": "init_std",
    },
    "fixed": {"is_encoder_decoder": True},
    "architectures": {(): "T5Model", ("lm",): "T5ForConditionalGeneration"},
    "read": _read,
    "types": {
        "feed_forward_proj": str,
        "num_decoder_layers": int | None,
        "decoder_start_token_id": int | None,
        "tie_word_embeddings": bool,
        "scale_decoder_outputs": bool,
    },
    "write": _write,
    "repeated": _repeated,
}
