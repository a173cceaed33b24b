"""GPT-2 xl (48 x 1600, 1.6B): Radford et al. 2019, in the recipe of Brown et al.

    bertjax pretrain --config=configs/gpt2_xl.py --workdir=run/ --config.data.path=prepared/

As configs/gpt2_small.py, with the rate of the 1.3B model in arXiv 2005.14165, table 2.1: 100,000
steps of 512 rows of 1,024 tokens, 52G tokens, 5.4e20 FLOPs. Parameters and moments are sharded
over 16 chips, and the layers are recomputed in the backward pass. Attention uses the kernel for
TPUs; on a GPU, add --config.attention=cudnn.
TPU v5e-256: 7 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("gpt2", "xl", "causal_lm")

    # Model: table 2 and section 2.3 of Radford et al.
    config.model.num_layers = 48
    config.model.hidden_size = 1600
    config.model.num_heads = 25
    config.model.intermediate_size = 6400
    config.model.vocab_size = 50257
    config.model.max_length = 1024
    config.model.activation = "gelu_tanh"
    config.model.dropout_rate = 0.0  # no dropout, because text is read once
    config.model.embedding_dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.model.layer_norm_eps = 1e-5
    config.model.init_std = 0.02
    config.model.heads = ("lm",)

    # Data and steps
    config.data.length = 1024
    config.batch_size = 512
    config.num_steps = 100_000
    config.phase2.num_steps = 0  # one phase only

    # Objective
    config.objective.packing = True  # several documents per row, masked from each other

    # Optimizer: arXiv 2005.14165, table 2.1 and appendix B
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-4  # of the 1.3B model
    config.optimizer.schedule = "cosine"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 715  # 375M tokens
    config.optimizer.end_rate = 2e-5  # a tenth of the peak
    config.optimizer.weight_decay = 0.1
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 1.0

    # Hardware
    config.mesh = "fsdp:16"
    config.attention = "splash"  # the kernel for TPUs
    config.topology = "v5e-256"

    return config_lib.choose(config, arg)
