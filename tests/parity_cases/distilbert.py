"""DistilBERT beside transformers' DistilBertForMaskedLM: hidden states, logits, loss."""

from typing import Any

import numpy as np

from benchmarks import parity
from benchmarks.parity import transformers
from tests.parity_cases import roberta

FAMILY = "distilbert"

# Keys of transformers' DistilBertConfig.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": {
        "vocab_size": 1000, "dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024,
        "max_position_embeddings": 64,
    },
    "base, 2 layers": {
        "vocab_size": 501, "dim": 768, "n_layers": 2, "n_heads": 12, "hidden_dim": 3072,
        "max_position_embeddings": 48,
    },
    "3 x 96, relu": {
        "vocab_size": 333, "dim": 96, "n_layers": 3, "n_heads": 2, "hidden_dim": 200,
        "max_position_embeddings": 40, "activation": "relu",
    },
}  # fmt: skip

# Parameters of a full-size DistilBertForMaskedLM.
COUNTS = {"mini": 11_201_082, "base": 66_985_530}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.DistilBertConfig(**shape)
    config._attn_implementation = "eager"
    return parity.randomize(transformers.DistilBertForMaskedLM(config).eval())


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    sizes = {
        "mini": {"n_layers": 4, "dim": 256, "n_heads": 4, "hidden_dim": 1024},
        "base": {},
    }
    config = transformers.DistilBertConfig(**sizes[variant])
    return parity.count_parameters(lambda: transformers.DistilBertForMaskedLM(config))


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sequences as long as there are positions."""
    return roberta.masked_batch(shape["vocab_size"], shape["max_position_embeddings"], 0)


their_outputs = roberta.their_outputs
our_outputs = roberta.our_outputs
real = roberta.real
