"""BERT small (4 x 512, 29M): the recipe of Turc et al., arXiv 1908.08962.

    bertjax pretrain --config=configs/bert_small.py --workdir=run/ --config.data.path=prepared/

900,000 steps of 256 sequences of 128 tokens, then 100,000 of 512: 43G tokens, 4.1e18 FLOPs.
TPU v5e-4: 3.6 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "small", "mlm")

    # Model: one attention head per 64 units of width
    config.model.num_layers = 4
    config.model.hidden_size = 512
    config.model.num_heads = 8
    config.model.intermediate_size = 2048
    config.model.vocab_size = 30522  # as in the released uncased models
    config.model.max_length = 512
    config.model.type_vocab_size = 2
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-12  # as in the authors' code, like init_std
    config.model.init_std = 0.02
    config.model.heads = ("pooler", "mlm", "nsp")

    # Data and steps: as BERT
    config.data.length = 128
    config.batch_size = 256
    config.num_steps = 1_000_000  # steps of both phases together
    config.phase2.num_steps = 100_000  # the last tenth of the steps
    config.phase2.length = 512
    config.phase2.batch_size = 256

    # Objective: as BERT
    config.objective.mask_rate = 0.15
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "nsp"
    config.objective.short_rate = 0.1  # as in the authors' code
    config.objective.random_next_rate = 0.5  # share of pairs with a segment B of another document

    # Optimizer: as BERT, with a higher rate
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 3e-4
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 10_000
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6  # as in the authors' code, like the clipping
    config.optimizer.clip_norm = 1.0

    # Hardware
    config.micro_batch_size = 64  # its activations stay in the vector memory of a TPU core
    config.topology = "v5e-4"

    return config_lib.choose(config, arg)
