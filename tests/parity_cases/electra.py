"""ELECTRA beside transformers' ElectraForPreTraining and ElectraForMaskedLM: its two parts."""

from typing import Any

import jax
import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from bertjax.objectives import mlm
from bertjax.objectives import replaced_token_detection as rtd
from tests.parity_cases import roberta

FAMILY = "electra"

_DISCRIMINATOR = {"architectures": ["ElectraForPreTraining"], "max_position_embeddings": 48}
_GENERATOR = {"architectures": ["ElectraForMaskedLM"], "max_position_embeddings": 48}

# Keys of transformers' ElectraConfig. The published large discriminator and the large
# embeddings are twice as wide as here.
SHAPES: dict[str, dict[str, Any]] = {
    "mini discriminator": {
        **_DISCRIMINATOR, "vocab_size": 1000, "embedding_size": 128, "hidden_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
    },
    "small discriminator, 3 layers": {
        **_DISCRIMINATOR, "vocab_size": 501, "embedding_size": 128, "hidden_size": 256,
        "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 1024,
        "hidden_act": "relu", "type_vocab_size": 3,
    },
    "base discriminator, 2 layers": {
        **_DISCRIMINATOR, "vocab_size": 501, "embedding_size": 768, "hidden_size": 768,
        "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 3072,
    },
    "large discriminator / 2, 3 layers": {
        **_DISCRIMINATOR, "vocab_size": 301, "embedding_size": 512, "hidden_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 8, "intermediate_size": 2048,
    },
    "mini generator": {
        **_GENERATOR, "vocab_size": 1000, "embedding_size": 128, "hidden_size": 64,
        "num_hidden_layers": 4, "num_attention_heads": 1, "intermediate_size": 256,
    },
    "small generator, 3 layers": {
        **_GENERATOR, "vocab_size": 501, "embedding_size": 128, "hidden_size": 64,
        "num_hidden_layers": 3, "num_attention_heads": 1, "intermediate_size": 256,
        "hidden_act": "relu", "type_vocab_size": 3,
    },
    "base generator, 2 layers": {
        **_GENERATOR, "vocab_size": 501, "embedding_size": 768, "hidden_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024,
    },
    "large generator, 2 layers": {
        **_GENERATOR, "vocab_size": 301, "embedding_size": 512, "hidden_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024,
    },
}  # fmt: skip

# Parameters of the full sizes of their two classes.
PART_COUNTS = {
    "mini": {"discriminator": 7_230_977, "generator": 4_220_154},
    "small": {"discriminator": 13_549_057, "generator": 4_620_026},
    "base": {"discriminator": 109_483_009, "generator": 33_740_602},
    "large": {"discriminator": 335_142_913, "generator": 51_295_290},
}
# As they are trained, on one set of embeddings.
COUNTS = {"mini": 7_478_267, "small": 14_196_219, "base": 119_386_427, "large": 354_655_291}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    config = transformers.ElectraConfig(**shape)
    config._attn_implementation = "eager"
    model = getattr(transformers, shape["architectures"][0])(config)
    return parity.randomize(model.eval())


def _full_size(variant: str) -> tuple[Any, Any]:
    """(discriminator, generator) of theirs, of the sizes in table 6 of the paper."""
    layers, width, embedding, narrow = {
        "mini": (4, 256, 128, 64),
        "small": (12, 256, 128, 64),
        "base": (12, 768, 768, 256),
        "large": (24, 1024, 1024, 256),
    }[variant]

    def config(hidden_size: int) -> Any:
        return transformers.ElectraConfig(
            embedding_size=embedding,
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=hidden_size // 64,
            intermediate_size=4 * hidden_size,
        )

    return (
        transformers.ElectraForPreTraining(config(width)),
        transformers.ElectraForMaskedLM(config(narrow)),
    )


def their_part_count(variant: str, part: str) -> int:
    """Parameters of their discriminator or generator, nothing allocated."""
    number = ("discriminator", "generator").index(part)
    return parity.count_parameters(lambda: _full_size(variant)[number])


def their_count(variant: str) -> int:
    """Parameters of both of theirs with the embeddings of one."""
    embeddings = parity.count_parameters(lambda: _full_size(variant)[1].electra.embeddings)
    parts = [their_part_count(variant, part) for part in ("discriminator", "generator")]
    return sum(parts) - embeddings


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sequences as long as there are positions, with token types; what a generator put in."""
    made = roberta.masked_batch(shape["vocab_size"], shape["max_position_embeddings"], 0)
    types = shape.get("type_vocab_size", 2)
    rng = np.random.default_rng(1)
    sampled = rng.integers(0, shape["vocab_size"], made["masked_ids"].shape, np.int32)
    return made | {
        "token_type_ids": rng.integers(0, types, made["input_ids"].shape, np.int32),
        "sampled_ids": np.where(rng.random(sampled.shape) < 0.3, made["masked_ids"], sampled),
        "sample_seed": np.zeros(len(sampled), np.int32),
    }


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of their generator on the masked text, or of their discriminator on the samples,
    by our names."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: torch.tensor(batch[name]).long() for name in names}
    places, truth, sampled = (
        torch.tensor(batch[name]).long()
        for name in ("masked_positions", "masked_ids", "sampled_ids")
    )
    if isinstance(model, transformers.ElectraForMaskedLM):
        head = "mlm"
        labels = torch.full(inputs["input_ids"].shape, -100).scatter(1, places, truth)
    else:
        head = "rtd"
        inputs["input_ids"] = inputs["input_ids"].scatter(1, places, sampled)
        labels = torch.zeros_like(inputs["input_ids"]).scatter(1, places, (sampled != truth).long())
    with torch.no_grad():
        out = model(**inputs, labels=labels, output_hidden_states=True)
    tensors = {
        "hidden_states": torch.stack(out.hidden_states),
        f"{head}_logits": out.logits,
        f"{head}_loss": out.loss,
    }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_outputs(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same outputs by our model."""
    apply = parity.bind(model, params)
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: batch[name] for name in names}
    if model.config.heads == ("mlm",):
        outputs = apply(**inputs, output_hidden_states=True)
        losses = parity.losses(mlm, mlm.Config(pair="none"), apply, batch)
        losses = {"mlm_loss": losses["mlm_loss"]}
    else:

        def both(*, heads_to_run: tuple[str, ...], **features: jax.Array) -> dict[str, jax.Array]:
            """A generator that is sure of what theirs is given, before our discriminator."""
            if heads_to_run == ("rtd",):
                return apply(**features, heads_to_run=heads_to_run)
            return {"mlm_logits": 100 * jax.nn.one_hot(batch["sampled_ids"], 1000)}

        slots = (batch[name] for name in ("masked_positions", "masked_weights", "sampled_ids"))
        inputs["input_ids"] = rtd.place(batch["input_ids"], *slots)
        outputs = apply(**inputs, output_hidden_states=True)
        losses = parity.losses(rtd, rtd.Config(), both, batch)
        losses = {"rtd_loss": losses["rtd_loss"]}
    head = model.config.heads[0]
    return {name: outputs[name] for name in ("hidden_states", f"{head}_logits")} | losses


def real(name: str, value: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """What stands on tokens, not on padding."""
    tokens = batch["attention_mask"].astype(bool)
    return value[tokens] if name == "rtd_logits" else roberta.real(name, value, batch)
