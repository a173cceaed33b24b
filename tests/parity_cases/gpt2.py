"""GPT-2 beside transformers' GPT2LMHeadModel: every hidden state, the logits, the loss."""

from typing import Any

import jax
import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from bertjax.objectives import causal_lm

FAMILY = "gpt2"


def _shape(width: int, heads: int, vocab_size: int, **others: Any) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size, "n_embd": width, "n_head": heads, "n_layer": 2, "n_positions": 48,
        "bos_token_id": 2, "eos_token_id": 3, **others,
    }  # fmt: skip


# Keys of transformers' GPT2Config. Heads of 64 as in all sizes; xl has an odd number of them, and
# half of its width here.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": _shape(256, 4, 1000, n_layer=4),
    "small, 2 layers": _shape(768, 12, 501, n_inner=3072),
    "medium / 2, 3 layers": _shape(512, 8, 777, n_layer=3),
    "large / 2, 2 layers": _shape(640, 10, 384),
    "xl / 1.9, 2 layers": _shape(832, 13, 300),
    "another mlp, relu": _shape(
        64, 2, 300, n_inner=100, activation_function="relu", layer_norm_epsilon=1e-6
    ),
}

# Parameters of a full-size GPT2LMHeadModel.
COUNTS = {
    "mini": 16_287_488,
    "small": 124_439_808,
    "medium": 354_823_168,
    "large": 774_030_080,
    "xl": 1_557_611_200,
}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.GPT2Config(**shape)
    config._attn_implementation = "eager"
    return parity.randomize(transformers.GPT2LMHeadModel(config).eval())


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    sizes = {
        "mini": (4, 256), "small": (12, 768), "medium": (24, 1024), "large": (36, 1280),
        "xl": (48, 1600),
    }  # fmt: skip
    layers, width = sizes[variant]
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64)
    return parity.count_parameters(lambda: transformers.GPT2LMHeadModel(config))


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Four sequences of unequal length, the last token to be predicted but not read."""
    rng = np.random.default_rng(0)
    lengths = np.array([48, 31, 7, 2])
    ids = rng.integers(0, shape["vocab_size"], (4, 49), np.int32)
    mask = np.arange(48) < lengths[:, None]
    return {
        "input_ids": ids[:, :-1],
        "attention_mask": mask.astype(np.int32),
        "targets": ids[:, 1:],
        "loss_weights": mask.astype(np.float32),
    }


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of their model by our names."""
    features = {name: torch.tensor(batch[name]).long() for name in ("input_ids", "attention_mask")}
    labels = torch.tensor(np.where(batch["loss_weights"] > 0, batch["targets"], -100)).long()
    with torch.no_grad():
        out = model(**features, output_hidden_states=True)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
    tensors = {"hidden_states": torch.stack(out.hidden_states), "logits": out.logits}
    return {name: tensor.numpy() for name, tensor in (tensors | {"lm_loss": loss}).items()}


def our_outputs(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same outputs by our model."""
    apply = parity.bind(model, params)
    names = ("input_ids", "attention_mask")
    outputs = apply(**{name: batch[name] for name in names}, output_hidden_states=True)
    losses = parity.losses(causal_lm, causal_lm.Config(packing=False), apply, batch)
    return {
        "hidden_states": outputs["hidden_states"],
        "logits": outputs["logits"],
        "lm_loss": losses["lm_loss"],
    }


def real(name: str, value: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """What stands on tokens, not on padding."""
    tokens = batch["attention_mask"].astype(bool)
    if name == "hidden_states":
        return value[:, tokens]
    return value[tokens] if name == "logits" else value
