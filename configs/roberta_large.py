"""RoBERTa large (24 x 1024, 355M): the recipe of Liu et al., arXiv 1907.11692, table 9.

    bertjax pretrain --config=configs/roberta_large.py --workdir=run/ --config.data.path=prepared/

500,000 steps of 8,192 sequences of 512 tokens: 2.1T tokens, 4.2e21 FLOPs. Input and tokenizer are
those of configs/roberta_base.py; rate and warm-up are lower and longer.
TPU v5e-256: 58 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("roberta", "large")  # no next sentence prediction
    config.objective.short_rate = 0.0
    config.data.length = 512
    config.batch_size = 8192
    config.micro_batch_size = 2048
    config.num_steps = 500_000
    config.optimizer.learning_rate = 4e-4
    config.optimizer.warmup_steps = 30_000
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 0.0
    config.mesh = "fsdp:-1"
    config.topology = "v5e-256"
    return config_lib.choose(config, arg)
