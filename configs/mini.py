"""Every family at mini size (4 layers x 256), each with its own objective, on the same tokens.

    bertjax pretrain --config=configs/mini.py:t5 --workdir=run/ --config.data.path=prepared/

The argument is the family: albert, bert, electra, gpt2, modernbert, roberta, spanbert, t5. One
recipe for all: 1,000 steps of 32 sequences of 64 tokens, no dropout. Made for comparisons in
minutes on two CPU cores (benchmarks/families.py), not for good models; a TPU v5e-1 needs seconds.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "bert") -> ConfigDict:
    """The config of a family's mini."""
    config = config_lib.default(arg or "bert", "mini")
    for name in config.model:
        if name.endswith("dropout_rate"):
            config.model[name] = 0.0
    config.data.length = 64
    config.batch_size = 32
    config.num_steps = 1_000
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 100
    config.log_every = 50
    config.eval.every = 250
    config.eval.max_samples = 2_000
    config.checkpoint.every = 250
    config.topology = "v5e-1"
    return config
