"""T5 v1.1 base (12 + 12 x 768, 248M): gated units (arXiv 2002.05202), two tables, no dropout.

    bertjax pretrain --config=configs/t5_v1_1_base.py --workdir=run/ --config.data.path=prepared/

The recipe of Raffel et al., arXiv 1910.10683, section 3.1: 524,288 steps of 128 rows of 512 tokens
and 114 of targets: 34G tokens, 2.9e19 FLOPs. Adafactor at 1 / sqrt(max(step, 10,000)).
Plain AdamW diverges on this model. AdamW relative to each matrix does not (arXiv 2309.02373), with
--config.optimizer.name=adamw_rms --config.optimizer.schedule=cosine
--config.optimizer.start_rate=0 --config.optimizer.end_rate=1e-5 --config.optimizer.clip_norm=1
TPU v5e-16: 6.3 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("t5", "v1_1_base", "span_corruption")
    config.data.length = 512
    config.batch_size = 128
    config.num_steps = 2**19
    config.optimizer.name = "adafactor"
    config.optimizer.schedule = "rsqrt"
    config.optimizer.learning_rate = 1e-2  # until step 10,000, then 1 / sqrt(step)
    config.optimizer.start_rate = 1e-2
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.topology = "v5e-16"
    return config_lib.choose(config, arg)
