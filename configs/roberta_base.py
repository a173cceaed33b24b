"""RoBERTa base (12 x 768, 125M): the recipe of Liu et al., arXiv 1907.11692, table 9.

    bertjax pretrain --config=configs/roberta_base.py --workdir=run/ --config.data.path=prepared/

500,000 steps of 8,192 sequences of 512 tokens: 2.1T tokens, 1.3e21 FLOPs. Full sentences that go on
into the next document, other masks in every pass. The tokenizer is byte BPE, 50,265 pieces:
bertjax tokenizer --kind=bpe --vocab_size=50265.
TPU v5e-256: 17 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("roberta", "base")  # no next sentence prediction
    config.objective.short_rate = 0.0
    config.data.length = 512
    config.batch_size = 8192
    config.micro_batch_size = 4096
    config.num_steps = 500_000
    config.optimizer.learning_rate = 6e-4
    config.optimizer.warmup_steps = 24_000
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 0.0
    config.topology = "v5e-256"
    return config_lib.choose(config, arg)
