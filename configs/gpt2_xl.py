"""GPT-2 xl (48 x 1600, 1.6B): Radford et al. 2019, in the recipe of Brown et al.

    bertjax pretrain --config=configs/gpt2_xl.py --workdir=run/ --config.data.path=prepared/

As configs/gpt2_small.py, with the rate of the 1.3B model in arXiv 2005.14165, table 2.1: 100,000
steps of 512 rows of 1,024 tokens, 52G tokens, 5.4e20 FLOPs. Parameters and moments lie split over
16 chips, and the layers are recomputed in the backward pass. Attention is the kernel for TPUs; on a
GPU give --config.attention=cudnn.
TPU v5e-256: 7 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("gpt2", "xl", "causal_lm")
    config.model.update(dropout_rate=0.0, embedding_dropout_rate=0.0, attention_dropout_rate=0.0)
    config.data.length = 1024
    config.batch_size = 512
    config.num_steps = 100_000
    config.optimizer.learning_rate = 2e-4
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 715  # 375M tokens
    config.optimizer.end_rate = 2e-5
    config.optimizer.weight_decay = 0.1
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.remat = "full"
    config.mesh = "fsdp:16"
    config.attention = "splash"
    config.topology = "v5e-256"
    return config_lib.choose(config, arg)
