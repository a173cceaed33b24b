"""The demo: BERT tiny (2 x 128) of Turc et al., arXiv 1908.08962, on the built-in corpus.

    bash launch/demo.sh
    bertjax pretrain --config=configs/demo.py --workdir=demo/run --config.data.path=demo/prepared

5,000 steps of 32 sequences of 32 tokens. Made for minutes on two CPU cores, and so unlike the
paper's recipe in these: short sequences and a small vocabulary, no dropout, a high rate, a wider
start (0.02 is meant for a width of 768). A TPU v5e-1 would do it in seconds.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "tiny", "mlm")
    config.model.vocab_size = 2048
    config.model.max_length = 128
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.model.init_std = 0.08
    config.data.length = 32
    config.batch_size = 32
    config.num_steps = 5_000
    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 200
    config.log_every = 50
    config.eval.every = 500
    config.eval.max_samples = 1_000
    config.checkpoint.every = 500
    config.topology = "v5e-1"
    return config_lib.choose(config, arg)
