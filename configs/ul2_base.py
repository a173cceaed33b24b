"""UL2 base (T5 v1.1, 12 + 12 x 768, 248M): mixture of denoisers, Tay et al., arXiv 2205.05131.

    bertjax pretrain --config=configs/ul2_base.py --workdir=run/ --config.data.path=prepared/

500,000 steps of 128 rows of 512 + 512 tokens (section 4.1): 65G tokens, 4.9e19 FLOPs. Adafactor
with T5's inverse square root rate. Unlike the paper's, documents are packed in rows.
TPU v5e-16: 11 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("t5", "v1_1_base", "denoisers")
    config.data.length = 512
    config.batch_size = 128
    config.optimizer.clip_norm = 0.0
    config.num_steps = 500_000
    config.optimizer.name = "adafactor"
    config.optimizer.schedule = "rsqrt"
    config.optimizer.learning_rate = 1e-2  # 1 / sqrt(step) from step 10,000 on, constant before
    config.optimizer.start_rate = 1e-2
    config.optimizer.weight_decay = 0.0
    config.topology = "v5e-16"
    return config_lib.choose(config, arg)
