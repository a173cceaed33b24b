"""DeBERTa beside transformers' DebertaV2ForMaskedLM: hidden states, logits, loss.

Some sequences are longer than half of the buckets, so distances are grouped.
"""

from typing import Any

import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from tests.parity_cases import roberta

FAMILY = "deberta"

# The keys that every published model of version 2 and 3 has.
_PUBLISHED = {
    "relative_attention": True, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1, "position_biased_input": False,
    "type_vocab_size": 0, "layer_norm_eps": 1e-7,
}  # fmt: skip
# Keys of transformers' DebertaV2Config. The published large is twice as wide as here, the xlarge
# of version 2 four times.
SHAPES: dict[str, dict[str, Any]] = {
    "mini": {
        **_PUBLISHED, "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 70,
        "position_buckets": 32,
    },
    "xsmall, 3 layers": {
        **_PUBLISHED, "vocab_size": 501, "hidden_size": 384, "num_hidden_layers": 3,
        "num_attention_heads": 6, "intermediate_size": 1536, "max_position_embeddings": 300,
        "position_buckets": 256,
    },
    "small and base, 2 layers": {
        **_PUBLISHED, "vocab_size": 501, "hidden_size": 768, "num_hidden_layers": 2,
        "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 50,
        "position_buckets": 16, "legacy": False,
    },
    "large / 2, 3 layers": {
        **_PUBLISHED, "vocab_size": 777, "hidden_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 8, "intermediate_size": 2048, "max_position_embeddings": 40,
        "position_buckets": 8,
    },
    "v2_xlarge / 4, 2 layers": {
        **_PUBLISHED, "vocab_size": 300, "hidden_size": 384, "num_hidden_layers": 2,
        "num_attention_heads": 6, "intermediate_size": 1536, "max_position_embeddings": 40,
        "position_buckets": 16, "conv_kernel_size": 3, "conv_act": "gelu",
    },
    "own projections, no buckets": {
        "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 96, "max_position_embeddings": 30, "embedding_size": 24,
        "relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 20,
        "position_biased_input": True, "type_vocab_size": 2, "conv_kernel_size": 5,
    },
    "one term": {
        **_PUBLISHED, "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 36,
        "position_buckets": 8, "pos_att_type": ["p2c"],
    },
    "no distances": {
        "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "max_position_embeddings": 36,
    },
}  # fmt: skip

# Parameters of a full-size DebertaV2ForMaskedLM.
MLM_COUNTS = {
    "mini": 36_279_140,
    "xsmall": 70_958_820,
    "small": 142_024_548,
    "base": 184_551_780,
    "large": 435_191_908,
    "v2_xlarge": 887_085_156,
    "v2_xxlarge": 1_567_041_636,
}
# As they are trained: a generator, half as deep, and a discriminator with its own embeddings.
COUNTS = {
    "mini": 70_850_917,
    "xsmall": 131_143_141,
    "small": 262_658_149,
    "base": 326_448_997,
    "large": 719_102_053,
    "v2_xlarge": 1_434_065_509,
    "v2_xxlarge": 2_454_000_229,
}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.DebertaV2Config(**shape)
    return parity.randomize(transformers.DebertaV2ForMaskedLM(config).eval())


def _full_size(variant: str, num_layers: int = 0) -> Any:
    """Their config of the published size; num_layers: another number of layers."""
    layers, width = {
        "mini": (4, 256), "xsmall": (12, 384), "small": (6, 768), "base": (12, 768),
        "large": (24, 1024), "v2_xlarge": (24, 1536), "v2_xxlarge": (48, 1536),
    }[variant]  # fmt: skip
    return transformers.DebertaV2Config(
        **_PUBLISHED,
        num_hidden_layers=num_layers or layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        position_buckets=256,
        **({"conv_kernel_size": 3, "conv_act": "gelu"} if variant.startswith("v2") else {}),
    )


def their_mlm_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    config = _full_size(variant)
    return parity.count_parameters(lambda: transformers.DebertaV2ForMaskedLM(config))


def their_count(variant: str) -> int:
    """Parameters of their generator and encoder, and of the head of microsoft/DeBERTa."""
    config = _full_size(variant)
    generator = _full_size(variant, config.num_hidden_layers // 2)
    width = config.hidden_size

    def head() -> Any:
        linear = torch.nn.Linear
        return torch.nn.Sequential(
            torch.nn.LayerNorm(width), linear(width, width), linear(width, 1)
        )

    models = (
        lambda: transformers.DebertaV2ForMaskedLM(generator),
        lambda: transformers.DebertaV2Model(config),
        head,
    )
    return sum(map(parity.count_parameters, models))


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sequences as long as there are positions."""
    return roberta.masked_batch(shape["vocab_size"], shape["max_position_embeddings"], 0)


their_outputs = roberta.their_outputs
our_outputs = roberta.our_outputs
real = roberta.real
