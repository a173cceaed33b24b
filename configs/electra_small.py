"""ELECTRA small (12 x 256, 14M): the recipe of Clark et al., arXiv 2003.10555, table 6.

    bertjax pretrain --config=configs/electra_small.py --workdir=run/ --config.data.path=prepared/

1,000,000 steps of 128 sequences of 128 tokens: 16G tokens, 1.2e18 FLOPs.
TPU v5e-1: 4.1 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("electra", "small", "replaced_token_detection")
    config.batch_size = 128
    config.optimizer.learning_rate = 5e-4
    config.topology = "v5e-1"
    return config_lib.choose(config, arg)
