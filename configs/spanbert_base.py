"""SpanBERT base (12 x 768, 111M): the recipe of Joshi et al., arXiv 1907.10529, section 3.3.

    bertjax pretrain --config=configs/spanbert_base.py --workdir=run/ --config.data.path=prepared/

2,400,000 steps of 256 sequences of up to 512 tokens of one document: 315G tokens, 1.9e20 FLOPs. The
paper's tokenizer is BERT's cased one, 28,996 pieces.
TPU v5e-64: 11 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("spanbert", "base")
    config.data.length = 512
    config.num_steps = 2_400_000
    config.optimizer.weight_decay = 0.1
    config.optimizer.eps = 1e-8
    config.topology = "v5e-64"
    return config_lib.choose(config, arg)
