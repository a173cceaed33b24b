"""ModernBERT base (22 x 768, 149M): the first phase of Warner et al., arXiv 2412.13663, table 3.

    bertjax pretrain --config=configs/modernbert_base.py --workdir=run/ --config.data.path=prepared/

364,000 steps of 4,608 rows of 1,024 tokens, packed with documents that see only themselves: 1.7T
tokens, 1.4e21 FLOPs. 30% of the tokens are hidden; the rate rises over 3G tokens, stays, and falls
over the last 50G. The tokenizer is byte BPE of 50,368 pieces.
Not as in the paper: the batch does not grow over the first 50G tokens; the rate falls here and not
after 250G tokens of length 8,192 more, and the rotary base of the global layers has from the start
the value that it got for these; AdamW with clipping stands for StableAdamW, which limits the update
by its RMS; the output of attention has no dropout. Attention is the kernel for TPUs; on a GPU
give --config.attention=cudnn.
TPU v5e-256: 20 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("modernbert", "base")  # hides 30%, no pairs of segments
    config.objective.packing = True
    config.data.length = 1024
    config.batch_size = 4608
    config.micro_batch_size = 768
    config.num_steps = 364_000
    config.optimizer.schedule = "wsd"
    config.optimizer.learning_rate = 8e-4
    config.optimizer.warmup_steps = 640
    config.optimizer.decay_steps = 10_600
    config.optimizer.weight_decay = 1e-5
    config.optimizer.b2 = 0.98
    config.attention = "splash"  # long rows, narrow windows, no dropout
    config.topology = "v5e-256"
    return config_lib.choose(config, arg)
