"""T5 and mT5 in Hugging Face folders: the names of tensors and the keys of config.json."""

from collections.abc import Collection
from typing import Any

from bertjax import errors

# {Hugging Face's feed_forward_proj: (activation, gated)}
FEED_FORWARDS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "gated-relu": ("relu", True),
    "gated-gelu": ("gelu_tanh", True),
}

# Our name, the Hugging Face name, and the conversion (defined in artifact/huggingface.py).
_PROJECTIONS = (("query", "q", "heads_out"), ("key", "k", "heads_out"), ("value", "v", "heads_out"),
                ("out", "o", "heads_in"))  # fmt: skip
_MLP_KERNELS = (("mlp/wi", "wi"), ("mlp/wo", "wo"), ("gated_mlp/wi", "wi_0"),
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
    for number, (part, hf_part) in enumerate(parts.items()):
        prefix, hf_prefix = f"{stack}/layers/", f"{stack}.block.{{}}.layer.{number}."
        lines.append((f"{prefix}{part}_norm/scale", hf_prefix + "layer_norm.weight", "same"))
        if part == "mlp":
            kernels = [(name, hf_name, "transpose") for name, hf_name in _MLP_KERNELS]
        else:
            kernels = [(f"{part}/{name}", hf_name, rule) for name, hf_name, rule in _PROJECTIONS]
        lines += [
            (f"{prefix}{name}/kernel", f"{hf_prefix}{hf_part}.{hf_name}.weight", rule)
            for name, hf_name, rule in kernels
        ]
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
_DENSE_ACT_FNS = {"gated-gelu": "gelu_new"}


def _read(content: dict[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    feed_forward = content["feed_forward_proj"]
    if feed_forward not in FEED_FORWARDS:
        raise errors.UserError(
            f"config.json: feed_forward_proj = {feed_forward!r} is not supported; must be one of "
            f"{', '.join(FEED_FORWARDS)}"
        )
    dense_act_fn = _DENSE_ACT_FNS.get(feed_forward, feed_forward.removeprefix("gated-"))
    activation, gated = FEED_FORWARDS[feed_forward]
    for key, expected in (("dense_act_fn", dense_act_fn), ("is_gated_act", gated)):
        if content.get(key, expected) != expected:
            raise errors.UserError(
                f"config.json: {key} = {content[key]!r} is not supported; must be {expected!r}, "
                f"because feed_forward_proj = {feed_forward!r}"
            )
    scaled_output = _scales_output(content)
    is_bare = (content.get("architectures") or [""])[0].endswith("Model")
    # transformers 5 ties the output projection if the file has no tensor lm_head.weight.
    tied_embeddings = scaled_output or not (is_bare or "lm_head.weight" in tensors)
    start_id = content["decoder_start_token_id"]
    starts_with_pad = start_id is None or start_id == content["pad_token_id"]
    return {
        "activation": activation,
        "gated": gated,
        "tied_embeddings": tied_embeddings,
        "scaled_output": scaled_output or not tied_embeddings,
        "decoder_start_id": -1 if starts_with_pad else start_id,
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
        version_4 = str(content.get("transformers_version")).startswith("4.")
        return version_4 and content.get("tie_word_embeddings") is True
    tied = content["tie_word_embeddings"] is not False
    return content.get("scale_decoder_outputs", tied) is not False


def _write(fields: dict[str, Any]) -> dict[str, Any]:
    feed_forward = fields["activation"], fields["gated"]
    name = next(name for name, value in FEED_FORWARDS.items() if value == feed_forward)
    scaled = fields["tied_embeddings"] and fields["scaled_output"]
    return {
        "feed_forward_proj": name,
        "is_gated_act": fields["gated"],
        "tie_word_embeddings": scaled,
        "scale_decoder_outputs": scaled,
        "num_decoder_layers": fields["num_decoder_layers"],
    }


def _repeated_tensors(fields: dict[str, Any]) -> tuple[str, ...]:
    """Returns ("lm_head.weight",) if the output is tied but not scaled, else ().

    transformers 4 does not tie such an output, so the file must repeat the embeddings as this
    tensor.
    """
    tied_unscaled = fields["tied_embeddings"] and not fields["scaled_output"]
    return ("lm_head.weight",) if tied_unscaled and "lm" in fields["heads"] else ()


HF_MODEL_TYPES = ("t5", "mt5")  # model_type values that this family reads
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
    "repeated": _repeated_tensors,
}
