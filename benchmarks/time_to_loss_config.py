"""Configs of benchmarks/time_to_loss.py: a BERT of 4 layers and width 256, and its recipes.

    bertjax pretrain --config=benchmarks/time_to_loss_config.py:same,1000 --workdir=run/ \\
        --config.data.path=prepared/

The argument is the name of a recipe and the number of steps of each of its phases:

    same,STEPS                 the recipe that transformers is given, too
    best,STEPS,STEPS,STEPS     CHANGES and PHASES: Muon, 40% masks, first short rows, then long ones
    modern,STEPS               a ModernBERT with as many parameters, see `modern`

The tokenizer of the data must have at most 8,192 pieces.
"""

from typing import Any

from ml_collections import ConfigDict

from bertjax import config as config_lib

LENGTH = 128  # of the rows that all models are scored on
MODEL = {
    "num_layers": 4, "hidden_size": 256, "num_heads": 4, "intermediate_size": 1024,
    "vocab_size": 8192, "max_length": LENGTH, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip
DROPOUT, INIT_STD = 0.1, 0.02  # of the recipe "same", as published

# The recipe of both libraries: BERT's, with a higher rate, as for small models; it was not tuned.
SAME = {
    "batch_size": 32, "learning_rate": 1e-3, "warmup": 0.1, "weight_decay": 0.01,
    "b1": 0.9, "b2": 0.999, "eps": 1e-6, "clip_norm": 1.0, "mask_rate": 0.15,
}  # fmt: skip

# {recipe: the keys that it changes}; benchmarks/README.md has the runs that chose them.
MUON = {"optimizer.name": "muon", "optimizer.learning_rate": 4e-3}
NO_DROPOUT = {"model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0}
CHANGES: dict[str, dict[str, Any]] = {
    "same": {},
    "best": {**MUON, **NO_DROPOUT, "objective.mask_rate": 0.4},
    "modern": {**MUON, "objective.mask_rate": 0.3},
}

# {recipe: the share of the time that each phase gets, and the keys that it changes}
PHASES: dict[str, tuple[tuple[float, dict[str, Any]], ...]] = {
    "same": ((1.0, {}),),
    "best": (
        (0.25, {"data.length": 32, "batch_size": 64}),
        (0.2, {"data.length": 64, "batch_size": 32}),
        (0.55, {"data.length": LENGTH, "batch_size": 16}),
    ),
    "modern": ((1.0, {"batch_size": 16}),),
}


def get_config(arg: str = "") -> ConfigDict:
    """Returns the config for one of the arguments listed above; by default `same,1000`."""
    name, *counts = (arg or "same,1000").split(",")
    steps = [int(count) for count in counts]
    config = modern(sum(steps)) if name == "modern" else same(sum(steps))
    config.update_from_flattened_dict(CHANGES[name])
    config.phases = tuple(
        {"num_steps": count, **keys} for count, (_, keys) in zip(steps, PHASES[name], strict=True)
    )
    return config


def modern(num_steps: int) -> ConfigDict:
    """Returns the config of a ModernBERT with as many parameters, for rows of one text."""
    config = config_lib.default("modernbert", "mini", "mlm")
    config.model.update({
        **{key: MODEL[key] for key in ("num_layers", "hidden_size", "num_heads", "vocab_size",
                                       "max_length")},
        "intermediate_size": 680, "global_every": 3, "local_window": 32,
    })  # fmt: skip
    base = same(num_steps)
    for key in ("data", "objective", "optimizer", "eval"):
        config[key].update(base[key])
    for key in ("batch_size", "num_steps", "dtype", "log_every", "topology"):
        config[key] = base[key]
    config.phase2.num_steps = 0
    return config


def same(num_steps: int) -> ConfigDict:
    """Returns the config of BERT's recipe."""
    config = config_lib.default("bert", "mini", "mlm")
    config.model.update(MODEL)
    config.model.dropout_rate = config.model.attention_dropout_rate = DROPOUT
    config.model.init_std = INIT_STD
    config.model.heads = ("mlm",)

    # Data and steps
    config.data.length = LENGTH
    config.batch_size = SAME["batch_size"]
    config.num_steps = num_steps
    config.phase2.num_steps = 0

    # Objective: single texts, as transformers' collator
    config.objective.mask_rate = SAME["mask_rate"]
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8
    config.objective.random_token_rate = 0.1
    config.objective.pair = "none"
    config.objective.cross_documents = True
    config.objective.short_rate = 0.0

    # Optimizer
    config.optimizer.name = "adamw"
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = config.optimizer.end_rate = 0.0
    config.optimizer.warmup_steps = round(SAME["warmup"] * num_steps)
    for key in ("learning_rate", "weight_decay", "b1", "b2", "eps", "clip_norm"):
        config.optimizer[key] = SAME[key]

    # Log, evaluation and checkpoints: the models are scored after the run
    config.dtype = "bfloat16"
    config.log_every = 50
    config.eval.every = num_steps
    config.eval.max_samples = 32
    config.topology = "v5e-1"
    return config
