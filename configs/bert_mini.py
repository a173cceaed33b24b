"""BERT mini (4 x 256, 11M): the recipe of Turc et al., arXiv 1908.08962.

    bertjax pretrain --config=configs/bert_mini.py --workdir=run/ --config.data.path=prepared/

900,000 steps of 256 sequences of 128 tokens, then 100,000 of 512: 43G tokens, 1.2e18 FLOPs.
TPU v5e-1: 4.3 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "mini", "mlm")
    config.phase2.num_steps = 100_000
    config.micro_batch_size = 128  # so that the long sequences fit
    config.optimizer.learning_rate = 3e-4
    config.topology = "v5e-1"
    return config_lib.choose(config, arg)
