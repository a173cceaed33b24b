"""BERT tiny (2 x 128, 4.4M): the recipe of Turc et al., arXiv 1908.08962.

    bertjax pretrain --config=configs/bert_tiny.py --workdir=run/ --config.data.path=prepared/

900,000 steps of 256 sequences of 128 tokens, then 100,000 of 512: 43G tokens, 2.8e17 FLOPs.
TPU v5e-1: 1.0 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "tiny", "mlm")
    config.phase2.num_steps = 100_000
    config.optimizer.learning_rate = 3e-4
    config.topology = "v5e-1"
    return config_lib.choose(config, arg)
