"""ALBERT beside transformers' AlbertForPreTraining: hidden states, both heads, the losses."""

from typing import Any

import jax
import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from bertjax.objectives import mlm
from tests.parity_cases import bert

FAMILY = "albert"
CONFIG = mlm.Config(pair="sop", masking="ngram")

# Keys of transformers' AlbertConfig. Of the wide ones a part of the heads, each as wide as there.
SHAPES: dict[str, dict[str, Any]] = {
    "base, 12 layers": {
        "vocab_size": 501, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 40,
    },
    "large / 2": {
        "vocab_size": 777, "hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
        "intermediate_size": 2048, "max_position_embeddings": 48,
    },
    "xlarge / 4": {
        "vocab_size": 300, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 2048, "max_position_embeddings": 32,
    },
    "xxlarge / 8": {
        "vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
        "intermediate_size": 2048, "max_position_embeddings": 64, "embedding_size": 64,
    },
    "3 groups of 2, version 1": {
        "vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 6, "num_hidden_groups": 3,
        "num_attention_heads": 4, "intermediate_size": 160, "embedding_size": 24,
        "max_position_embeddings": 50, "type_vocab_size": 3, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    },
}  # fmt: skip

# Parameters of a full-size AlbertForPreTraining.
COUNTS = {
    "mini": 4_858_290,
    "base": 11_813_810,
    "large": 17_847_474,
    "xlarge": 59_021_490,
    "xxlarge": 223_158_450,
}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.AlbertConfig(**shape)
    config._attn_implementation = "eager"
    return parity.randomize(transformers.AlbertForPreTraining(config).eval())


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    layers, width, heads = {
        "mini": (4, 256, 4), "base": (12, 768, 12), "large": (24, 1024, 16),
        "xlarge": (24, 2048, 16), "xxlarge": (12, 4096, 64),
    }[variant]  # fmt: skip
    config = transformers.AlbertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    return parity.count_parameters(lambda: transformers.AlbertForPreTraining(config))


def batch(shape: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """That of BERT with labels of the order."""
    made = bert.batch(shape, seed)
    made["sentence_order_label"] = made.pop("next_sentence_label")
    return made


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of their model by our names."""
    features = {
        name: torch.tensor(batch[name], dtype=torch.long)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    orders = torch.tensor(batch["sentence_order_label"]).long()
    labels = torch.full(batch["input_ids"].shape, -100)
    labels.scatter_(
        1, torch.tensor(batch["masked_positions"]).long(), torch.tensor(batch["masked_ids"]).long()
    )
    with torch.no_grad():
        out = model(
            **features, labels=labels, sentence_order_label=orders, output_hidden_states=True
        )
        logits = out.prediction_logits
        tensors = {
            "hidden_states": torch.stack(out.hidden_states),
            "pooled_output": model.albert(**features).pooler_output,
            "mlm_logits": logits,
            "sop_logits": out.sop_logits,
            "mlm_loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "sop_loss": torch.nn.functional.cross_entropy(out.sop_logits, orders),
            "loss": out.loss,
        }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_outputs(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same outputs by our model."""
    apply = parity.bind(model, params)
    names = ("input_ids", "attention_mask", "token_type_ids")
    outputs = apply(**{name: batch[name] for name in names}, output_hidden_states=True)
    names = ("hidden_states", "pooled_output", "mlm_logits", "sop_logits")
    losses = parity.losses(mlm, CONFIG, apply, batch)
    return {name: outputs[name] for name in names} | losses


real = bert.real
