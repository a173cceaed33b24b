"""T5 3b (24 + 24 x 1024, 2.9G): the recipe of Raffel et al., arXiv 1910.10683, section 3.1 and 3.7.

    bertjax pretrain --config=configs/t5_3b.py --workdir=run/ --config.data.path=prepared/

524,288 steps of 128 rows of 512 tokens and 114 of targets: 34G tokens, 3.8e20 FLOPs. Adafactor
at 1 / sqrt(max(step, 10,000)), dropout 0.1, no weight decay, no clipping of the gradient.
TPU v5e-256: 5.3 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("t5", "3b", "span_corruption")
    config.data.length = 512
    config.batch_size = 128
    config.num_steps = 2**19
    config.optimizer.name = "adafactor"
    config.optimizer.schedule = "rsqrt"
    config.optimizer.learning_rate = 1e-2  # until step 10,000, then 1 / sqrt(step)
    config.optimizer.start_rate = 1e-2
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0
    config.mesh = "fsdp:64,tensor:4"  # two rows a device, eight of the 32 heads
    config.topology = "v5e-256"
    return config_lib.choose(config, arg)
