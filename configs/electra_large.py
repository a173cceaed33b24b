"""ELECTRA large (24 x 1024, 335M + 51M): the recipe of Clark et al., arXiv 2003.10555, table 6.

    bertjax pretrain --config=configs/electra_large.py --workdir=run/ --config.data.path=prepared/

400,000 steps of 2,048 sequences of 512 tokens, 25% of them masked: 419G tokens, 9.1e20 FLOPs.
TPU v5e-256: 13 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("electra", "large", "replaced_token_detection")
    config.objective.mask_rate = 0.25
    config.data.length = 512
    config.batch_size = 2048
    config.micro_batch_size = 1024
    config.num_steps = 400_000
    config.optimizer.learning_rate = 2e-4
    config.topology = "v5e-256"
    return config_lib.choose(config, arg)
