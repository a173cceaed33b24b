"""RoBERTa large (24 x 1024, 355M): the recipe of Liu et al., arXiv 1907.11692, table 9.

    bertjax pretrain --config=configs/roberta_large.py --workdir=run/ --config.data.path=prepared/

500,000 steps of 8,192 sequences of 512 tokens: 2.1T tokens, 4.2e21 FLOPs. Input and tokenizer are
those of configs/roberta_base.py; the rate is lower and the warm-up longer.
TPU v5e-256: 58 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("roberta", "large", "mlm")

    # Model: table 9
    config.model.num_layers = 24
    config.model.hidden_size = 1024
    config.model.num_heads = 16
    config.model.intermediate_size = 4096
    config.model.vocab_size = 50265
    config.model.pad_id = 1  # id of padding in the tokenizer; positions start at pad_id + 1
    config.model.max_length = 512
    config.model.type_vocab_size = 1
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-5
    config.model.init_std = 0.02
    config.model.heads = ("mlm",)

    # Data and steps: table 9
    config.data.length = 512
    config.batch_size = 8192
    config.num_steps = 500_000
    config.phase2.num_steps = 0  # one phase only: all sequences are long

    # Objective: sections 4.1 and 4.2
    config.objective.mask_rate = 0.15
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "none"  # no next sentence prediction
    config.objective.cross_documents = True  # samples may continue into the next document
    config.objective.packing = False
    config.objective.short_rate = 0.0

    # Optimizer: table 9
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 4e-4
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 30_000
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 0.0  # no clipping

    # Hardware
    config.micro_batch_size = 2048
    config.topology = "v5e-256"

    return config_lib.choose(config, arg)
