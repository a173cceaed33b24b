"""T5 beside transformers' T5ForConditionalGeneration and MT5ForConditionalGeneration.

Every hidden state of both stacks, the logits, the loss. Version 1.1 has two tables, which
transformers 5 ties all the same: they are taken apart first.
"""

from typing import Any

import jax
import numpy as np

from benchmarks import parity
from benchmarks.parity import torch, transformers
from bertjax.models import t5
from bertjax.objectives import span_corruption

FAMILY = "t5"

_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

# Keys of transformers' T5Config; "mt5" is ours.
SHAPES: dict[str, dict[str, Any]] = {
    "small, 2 layers": {
        "vocab_size": 1000, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 2,
        "num_heads": 8,
    },
    "3b / 4, 2 layers": {  # heads together wider than the state
        "vocab_size": 501, "d_model": 256, "d_kv": 128, "d_ff": 4096, "num_layers": 2,
        "num_heads": 8,
    },
    "v1_1_base, 2 layers": {
        "vocab_size": 384, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 1,
        "num_heads": 12, **_V1_1,
    },
    "mt5_small / 2, 2 layers": {  # heads together narrower than the state
        "mt5": True, "vocab_size": 1100, "d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2,
        "num_heads": 3,
    },
    "byt5_small / 4, 4 + 2 layers": {
        "vocab_size": 384, "d_model": 368, "d_kv": 64, "d_ff": 896, "num_layers": 4,
        "num_decoder_layers": 2, "num_heads": 3, **_V1_1,
    },
    "other buckets": {
        "vocab_size": 300, "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 3, "num_heads": 2,
        "relative_attention_num_buckets": 16, "relative_attention_max_distance": 20,
        "layer_norm_epsilon": 1e-5,
    },
}  # fmt: skip

COUNTS = {
    "mini": 15_570_688,
    "small": 60_506_624,
    "base": 222_903_552,
    "large": 737_668_096,
    "3b": 2_851_598_336,
    "11b": 11_307_321_344,
    "v1_1_small": 76_961_152,
    "v1_1_base": 247_577_856,
    "v1_1_large": 783_150_080,
    "v1_1_3b": 2_849_757_184,
    "v1_1_11b": 11_135_332_352,
    "mt5_small": 300_176_768,
    "mt5_base": 582_401_280,
    "mt5_large": 1_229_581_312,
    "mt5_xl": 3_742_619_648,
    "mt5_xxl": 12_921_057_280,
    "byt5_small": 299_637_760,
    "byt5_base": 581_653_248,
    "byt5_large": 1_228_183_552,
    "byt5_xl": 3_737_801_728,
    "byt5_xxl": 12_906_899_328,
}


def theirs(shape: dict[str, Any]) -> Any:
    """Their model with random weights."""
    fields = {**shape, "decoder_start_token_id": 0}
    if fields.pop("mt5", False):
        config, model = transformers.MT5Config, transformers.MT5ForConditionalGeneration
    else:
        config, model = transformers.T5Config, transformers.T5ForConditionalGeneration
    config = config(**fields)
    config._attn_implementation = "eager"
    untied = shape.get("mt5") or shape.get("tie_word_embeddings") is False
    made = parity.randomize(_untied(model(config).eval()) if untied else model(config).eval())
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith(".q.weight"):  # their start makes up for scores that are not scaled
                parameter.mul_(shape["d_kv"] ** -0.5)
            elif name.endswith(".wo.weight"):  # a product of two maps comes in
                parameter.mul_(0.3)
    return made


def _untied(model: Any) -> Any:
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    return model


def their_count(variant: str) -> int:
    """Parameters of their model of the published size, nothing allocated."""
    fields = t5.VARIANTS[variant]
    config = transformers.T5Config(
        vocab_size=fields.get("vocab_size", 32128),
        d_model=fields["hidden_size"],
        d_kv=fields.get("head_dim", 64),
        d_ff=fields["intermediate_size"],
        num_layers=fields["num_layers"],
        num_decoder_layers=fields["num_decoder_layers"],
        num_heads=fields["num_heads"],
        **(_V1_1 if fields.get("gated") else {}),
    )

    def make() -> Any:
        model = transformers.T5ForConditionalGeneration(config)
        return _untied(model) if fields.get("gated") else model

    return parity.count_parameters(make)


def batch(shape: dict[str, Any]) -> dict[str, np.ndarray]:
    """Five pairs of unequal lengths, long enough for the buckets of far positions."""
    rng = np.random.default_rng(0)
    length, targets = 160, 40
    lengths = np.array([length, length // 2, 7, length - 1, length // 3])
    target_lengths = np.array([targets // 2, targets, 1, targets - 1, 5])

    def tokens(rows: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        mask = np.arange(width) < rows[:, None]
        ids = rng.integers(1, shape["vocab_size"], mask.shape)
        return np.where(mask, ids, 0).astype(np.int32), mask

    input_ids, mask = tokens(lengths, length)
    labels, target_mask = tokens(target_lengths, targets)
    return {
        "input_ids": input_ids,
        "attention_mask": mask.astype(np.int32),
        "decoder_input_ids": np.pad(labels, ((0, 0), (1, 0)))[:, :-1],
        "decoder_attention_mask": target_mask.astype(np.int32),
        "targets": labels,
        "loss_weights": target_mask.astype(np.float32),
    }


def their_outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of their model by our names."""
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    features = {name: torch.tensor(batch[name]).long() for name in names}
    labels = torch.tensor(np.where(batch["loss_weights"] > 0, batch["targets"], -100)).long()
    with torch.no_grad():
        out = model(**features, labels=labels, output_hidden_states=True)
    tensors = {
        "hidden_states": torch.stack(out.decoder_hidden_states),
        "encoder_hidden_states": torch.stack(out.encoder_hidden_states),
        "encoder_last_hidden_state": out.encoder_last_hidden_state,
        "logits": out.logits,
        "lm_loss": out.loss,
    }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_outputs(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same outputs by our model."""
    apply = parity.bind(model, params)
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    outputs = apply(**{name: batch[name] for name in names}, output_hidden_states=True)
    losses = parity.losses(span_corruption, span_corruption.Config(), apply, batch)
    del outputs["last_hidden_state"]  # the last of hidden_states
    return outputs | {"lm_loss": losses["lm_loss"]}


def real(name: str, value: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """What stands on tokens, not on padding."""
    tokens = batch["attention_mask"].astype(bool)
    decoded = batch["decoder_attention_mask"].astype(bool)
    if name == "encoder_last_hidden_state":
        return value[tokens]
    if name.endswith("hidden_states"):
        return value[:, tokens if name.startswith("encoder") else decoded]
    return value[decoded] if name == "logits" else value
