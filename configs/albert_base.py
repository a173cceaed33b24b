"""ALBERT base (12 x 768, one layer for all, 12M): the recipe of Lan et al., arXiv 1909.11942, 4.1.

    bertjax pretrain --config=configs/albert_base.py --workdir=run/ --config.data.path=prepared/

125,000 steps of 4,096 sequences of 512 tokens: 262G tokens, 1.5e20 FLOPs. Batch and rate belong
together: 1.76e-3 does not converge with batches of 512 (google-research/albert #29); with another
batch scale the rate by the square root of the ratio. The model is version 2 (no dropout), which the
authors trained longer than the paper says. The tokenizer is SentencePiece, 30,000 pieces:
bertjax tokenizer --kind=unigram --vocab_size=30000.
TPU v5e-64: 8 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("albert", "base")  # n-gram masking, sentence order
    config.data.length = 512
    config.batch_size = 4096
    config.micro_batch_size = 1024
    config.num_steps = 125_000
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 1.76e-3
    config.optimizer.warmup_steps = 3_125
    config.topology = "v5e-64"
    return config_lib.choose(config, arg)
