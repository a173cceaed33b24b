"""ModernBERT beside transformers' ModernBertForMaskedLM: hidden states, logits, loss.

Sequences are longer than the window of the local layers, so both kinds of layers differ.
"""

from typing import Any

import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from tests.parity_cases import roberta

FAMILY = "modernbert"

# Keys of transformers' ModernBertConfig, in both of its versions. The published large is twice as
# wide as here.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": {
        "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 384, "local_attention": 32, "max_position_embeddings": 70,
    },
    "base, 2 layers": {
        "vocab_size": 501, "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 1152, "local_attention": 128, "max_position_embeddings": 150,
    },
    "large / 2, 5 layers": {
        "vocab_size": 777, "hidden_size": 512, "num_hidden_layers": 5, "num_attention_heads": 8,
        "intermediate_size": 1312, "local_attention": 64, "max_position_embeddings": 80,
    },
    "2 of 4 global, other bases": {
        "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2,
        "intermediate_size": 96, "local_attention": 7, "max_position_embeddings": 30,
        "global_attn_every_n_layers": 2, "global_rope_theta": 5000.0, "local_rope_theta": 300.0,
    },
}  # fmt: skip

# Parameters of a full-size ModernBertForMaskedLM.
COUNTS = {"mini": 15_240_896, "base": 149_655_232, "large": 395_881_664}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    config = transformers.ModernBertConfig(pad_token_id=0, **ids, **shape)
    config._attn_implementation = "eager"
    model = parity.randomize(transformers.ModernBertForMaskedLM(config).eval())
    # No norm follows on a residual sum, so rounding adds up: with kernels as large as those of
    # `randomize` theirs and ours are both off float64 by 1e-4 after five layers.
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.ndim > 1:
                parameter /= 1.5
    return model


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    layers, width, heads, mlp = {
        "mini": (4, 256, 4, 384),
        "base": (22, 768, 12, 1152),
        "large": (28, 1024, 16, 2624),
    }[variant]
    config = transformers.ModernBertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=mlp,
    )
    return parity.count_parameters(lambda: transformers.ModernBertForMaskedLM(config))


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sequences as long as there are positions."""
    return roberta.masked_batch(shape["vocab_size"], shape["max_position_embeddings"], 0)


their_outputs = roberta.their_outputs
our_outputs = roberta.our_outputs
real = roberta.real
