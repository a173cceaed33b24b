"""Every family at mini size (4 layers x 256), each with its own objective, on the same tokens.

    bertjax pretrain --config=configs/mini.py:t5 --workdir=run/ --config.data.path=prepared/

The argument is the family: albert, bert, electra, gpt2, modernbert, roberta, spanbert, t5; without
one, bert. One recipe for all: 1,000 steps of 64 sequences of 32 tokens, 2.0M tokens, no dropout.
Made for comparisons in minutes on two CPU cores (benchmarks/families.py), not for good models; a
TPU v5e-1 needs seconds. The tokenizer of the data has at most 8,192 pieces, and padding with id 0.

The sequences are short because a masked model first has to find out where its neighbours are: with
64 tokens, or twice the rate, those with learned positions stay at the unigram loss all the while.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config of a family's mini; "smoke" shrinks that of bert to seconds on a CPU."""
    family = "bert" if arg in ("", "smoke") else arg
    config = config_lib.default(family, "mini")
    for name in config.model:
        if name.endswith("dropout_rate"):
            config.model[name] = 0.0
    config.model.vocab_size = 8192
    config.model.max_length = 128
    if family == "t5":
        config.model.vocab_size += 100  # sentinels
        # T5's tables start with a deviation of 1: a rate is too low for them or too high for others
        config.optimizer.name = "adamw_rms"
        config.optimizer.learning_rate = 1e-2
    else:
        config.optimizer.learning_rate = 5e-4
    if family == "roberta":
        config.model.pad_id = 0
    config.data.length = 32
    config.batch_size = 64
    config.num_steps = 1_000
    config.optimizer.warmup_steps = 100
    config.log_every = 50
    config.eval.every = 250
    config.eval.max_samples = 2_000
    config.checkpoint.every = 250
    config.topology = "v5e-1"
    return config_lib.choose(config, "smoke" if arg == "smoke" else "")
