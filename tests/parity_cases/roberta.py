"""RoBERTa beside transformers' RobertaForMaskedLM: every hidden state, the logits, the loss.

What it takes to compare any model that has a head for hidden tokens and no other is here too.
"""

from typing import Any

import jax
import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from bertjax.objectives import mlm

FAMILY = "roberta"

# Keys of transformers' RobertaConfig. The published large is twice as wide as here.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": {
        "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024, "max_position_embeddings": 66, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "base, 2 layers": {
        "vocab_size": 501, "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 50, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "large / 2, 3 layers": {
        "vocab_size": 777, "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
        "intermediate_size": 2048, "max_position_embeddings": 40, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "padding id 3, two types": {
        "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "max_position_embeddings": 36, "pad_token_id": 3,
    },
}  # fmt: skip

# Parameters of a full-size RobertaForMaskedLM.
COUNTS = {"mini": 16_275_801, "base": 124_697_433, "large": 355_412_057}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.RobertaConfig(**shape)
    config._attn_implementation = "eager"
    return parity.randomize(transformers.RobertaForMaskedLM(config).eval())


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    layers, width = {"mini": (4, 256), "base": (12, 768), "large": (24, 1024)}[variant]
    config = transformers.RobertaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    return parity.count_parameters(lambda: transformers.RobertaForMaskedLM(config))


def masked_batch(vocab_size: int, length: int, pad_id: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Five sequences of unequal length, the last padded on the left, with hidden tokens.

    Padding is `pad_id` and no token is, since RoBERTa counts the positions of theirs by it.
    """
    rng = np.random.default_rng(seed)
    lengths = np.array([length, length // 2, 7, length - 1, length // 3])
    mask = np.arange(length) < lengths[:, None]
    mask[-1] = mask[-1, ::-1]
    tokens = rng.integers(0, vocab_size - 1, (5, length))
    tokens += tokens >= pad_id
    hidden = np.stack([np.sort(rng.permutation(np.flatnonzero(row))[:5]) for row in mask])
    return {
        "input_ids": np.where(mask, tokens, pad_id).astype(np.int32),
        "attention_mask": mask.astype(np.int32),
        "masked_positions": hidden.astype(np.int32),
        "masked_ids": rng.integers(0, vocab_size, hidden.shape, np.int32),
        "masked_weights": np.ones(hidden.shape, np.float32),
    }


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sequences as long as there are positions."""
    pad = shape.get("pad_token_id", 1)
    return masked_batch(shape["vocab_size"], shape["max_position_embeddings"] - pad - 1, pad)


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of a model of theirs for masked language modelling, by our names."""
    features = {name: torch.tensor(batch[name]).long() for name in ("input_ids", "attention_mask")}
    labels = torch.full(batch["input_ids"].shape, -100)
    labels.scatter_(
        1, torch.tensor(batch["masked_positions"]).long(), torch.tensor(batch["masked_ids"]).long()
    )
    with torch.no_grad():
        out = model(**features, labels=labels, output_hidden_states=True)
    tensors = {
        "hidden_states": torch.stack(out.hidden_states),
        "mlm_logits": out.logits,
        "mlm_loss": out.loss,
    }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_outputs(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same outputs by our model."""
    apply = parity.bind(model, params)
    names = ("input_ids", "attention_mask")
    outputs = apply(**{name: batch[name] for name in names}, output_hidden_states=True)
    losses = parity.losses(mlm, mlm.Config(pair="none"), apply, batch)
    return {
        "hidden_states": outputs["hidden_states"],
        "mlm_logits": outputs["mlm_logits"],
        "mlm_loss": losses["mlm_loss"],
    }


def real(name: str, value: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """What stands on tokens, not on padding."""
    tokens = batch["attention_mask"].astype(bool)
    if name == "hidden_states":
        return value[:, tokens]
    return value[tokens] if name == "mlm_logits" else value
