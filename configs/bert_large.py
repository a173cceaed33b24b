"""BERT large (24 x 1024, 336M): the recipe of Devlin et al., arXiv 1810.04805, appendix A.2.

    bertjax pretrain --config=configs/bert_large.py --workdir=run/ --config.data.path=prepared/

900,000 steps of 256 sequences of 128 tokens, then 100,000 of 512: 43G tokens, 8.2e19 FLOPs.
TPU v5e-16: 18 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "large", "mlm")
    config.phase2.num_steps = 100_000
    config.micro_batch_size = 128  # so that the long sequences fit
    config.topology = "v5e-16"
    return config_lib.choose(config, arg)
