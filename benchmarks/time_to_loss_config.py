"""Configs of benchmarks/time_to_loss.py: a BERT of 4 layers and width 256, trained by two recipes.

    bertjax pretrain --config=benchmarks/time_to_loss_config.py:same,1000 --workdir=run/ \\
        --config.data.path=prepared/

The argument is the name of a recipe and its number of steps. "same" is the recipe that transformers
is given, too; "best" changes it by BEST.

The tokenizer of the data must have at most 8,192 pieces.
"""

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

# What the recipe "best" changes. Of ten short runs (benchmarks/README.md) it was the best.
BEST = {
    "optimizer.name": "muon", "optimizer.learning_rate": 4e-3, "objective.mask_rate": 0.4,
    "batch_size": 16, "model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0,
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """Returns the config of a recipe and a number of steps; by default `same,1000`."""
    name, _, steps = (arg or "same,1000").partition(",")
    config = same(int(steps))
    if name == "best":
        config.update_from_flattened_dict(BEST)
    return config


def tokens(name: str) -> int:
    """Returns the number of tokens of a step of a recipe, with special ones."""
    return LENGTH * {**SAME, **(BEST if name == "best" else {})}["batch_size"]


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
