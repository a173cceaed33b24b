"""ELECTRA base (12 x 768, 110M + 10M): the recipe of Clark et al., arXiv 2003.10555, table 6.

    bertjax pretrain --config=configs/electra_base.py --workdir=run/ --config.data.path=prepared/

766,000 steps of 256 sequences of 512 tokens: 100G tokens, 6.7e19 FLOPs (the paper says 6.4e19).
TPU v5e-16: 15 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("electra", "base", "replaced_token_detection")
    config.data.length = 512
    config.num_steps = 766_000
    config.optimizer.learning_rate = 2e-4
    config.topology = "v5e-16"
    return config_lib.choose(config, arg)
