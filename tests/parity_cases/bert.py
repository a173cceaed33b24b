"""BERT beside transformers' BertForPreTraining: every hidden state, both heads, the losses."""

from typing import Any

import jax
import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from bertjax.objectives import mlm

FAMILY = "bert"

# Keys of transformers' BertConfig.
SHAPES: dict[str, dict[str, Any]] = {
    "4 x 64, gelu": {
        "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 256, "max_position_embeddings": 64, "hidden_act": "gelu",
    },
    "8 x 128, gelu_new": {
        "vocab_size": 997, "hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 2,
        "intermediate_size": 384, "max_position_embeddings": 96, "hidden_act": "gelu_new",
    },
    "2 x 384, gelu_pytorch_tanh": {
        "vocab_size": 5121, "hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 1000, "max_position_embeddings": 128, "type_vocab_size": 3,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5,
    },
}  # fmt: skip

# Parameters of a full-size BertForPreTraining.
COUNTS = {
    "tiny": 4_433_468,
    "mini": 11_267_900,
    "small": 29_058_876,
    "medium": 41_668_412,
    "base": 110_106_428,
    "large": 336_226_108,
}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.BertConfig(**shape)
    config._attn_implementation = "eager"
    return parity.randomize(transformers.BertForPreTraining(config).eval())


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    sizes = {
        "tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512),
        "base": (12, 768), "large": (24, 1024),
    }  # fmt: skip
    layers, width = sizes[variant]
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    return parity.count_parameters(lambda: transformers.BertForPreTraining(config))


def batch(shape: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Five sequences of unequal length, two segments, hidden tokens and pair labels."""
    rng = np.random.default_rng(seed)
    length = shape["max_position_embeddings"] - 3
    lengths = np.array([length, length // 2, 7, length - 1, length // 3])
    places = np.arange(length)
    types = shape.get("type_vocab_size", 2)
    type_ids = np.minimum(places * types // lengths[:, None], types - 1)
    hidden = np.stack([np.sort(rng.permutation(n)[:5]) for n in lengths])
    return {
        "input_ids": rng.integers(0, shape["vocab_size"], (5, length), np.int32),
        "attention_mask": (places < lengths[:, None]).astype(np.int32),
        "token_type_ids": type_ids.astype(np.int32),
        "masked_positions": hidden.astype(np.int32),
        "masked_ids": rng.integers(0, shape["vocab_size"], hidden.shape, np.int32),
        "masked_weights": np.ones(hidden.shape, np.float32),
        "next_sentence_label": np.array([0, 1, 1, 0, 1], np.int32),
    }


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of their model by our names."""
    features = {
        name: torch.tensor(batch[name], dtype=torch.long)
        for name in ("input_ids", "attention_mask", "token_type_ids", "next_sentence_label")
    }
    labels = torch.full(batch["input_ids"].shape, -100)
    labels.scatter_(
        1, torch.tensor(batch["masked_positions"]).long(), torch.tensor(batch["masked_ids"]).long()
    )
    with torch.no_grad():
        out = model(**features, labels=labels, output_hidden_states=True)
        encoder = {n: t for n, t in features.items() if n != "next_sentence_label"}
        pooled = model.bert(**encoder).pooler_output
        logits, pairs = out.prediction_logits, out.seq_relationship_logits
        losses = {
            "mlm_loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "nsp_loss": torch.nn.functional.cross_entropy(pairs, features["next_sentence_label"]),
            "loss": out.loss,
        }
    tensors = {
        "hidden_states": torch.stack(out.hidden_states),
        "pooled_output": pooled,
        "mlm_logits": logits,
        "nsp_logits": pairs,
        **losses,
    }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_outputs(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same outputs by our model."""
    apply = parity.bind(model, params)
    names = ("input_ids", "attention_mask", "token_type_ids")
    outputs = apply(**{name: batch[name] for name in names}, output_hidden_states=True)
    losses = parity.losses(mlm, mlm.Config(), apply, batch)
    names = ("hidden_states", "pooled_output", "mlm_logits", "nsp_logits")
    return {name: outputs[name] for name in names} | losses


def real(name: str, value: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """What stands on tokens, not on padding."""
    tokens = batch["attention_mask"].astype(bool)
    if name == "hidden_states":
        return value[:, tokens]
    return value[tokens] if name == "mlm_logits" else value
