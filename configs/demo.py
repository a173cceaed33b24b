"""The demo: BERT tiny (2 x 128) of Turc et al., arXiv 1908.08962, on the built-in corpus.

    bash launch/demo.sh
    bertjax pretrain --config=configs/demo.py --workdir=demo/run --config.data.path=demo/prepared

5,000 steps of 32 sequences of 32 tokens. The run takes minutes on two CPU cores, so it differs from
the paper's recipe: short sequences, a small vocabulary, no dropout, a high learning rate, and a
larger init_std (0.02 is meant for a width of 768). A TPU v5e-1 would need seconds.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "tiny", "mlm")

    # Model: BERT tiny, with a smaller vocabulary and shorter sequences
    config.model.num_layers = 2
    config.model.hidden_size = 128
    config.model.num_heads = 2
    config.model.intermediate_size = 512
    config.model.vocab_size = 2048
    config.model.max_length = 128
    config.model.type_vocab_size = 2
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.0  # no dropout, because the run is short
    config.model.attention_dropout_rate = 0.0
    config.model.layer_norm_eps = 1e-12
    config.model.init_std = 0.08  # larger than BERT's 0.02, which is meant for a width of 768
    config.model.heads = ("pooler", "mlm", "nsp")

    # Data and steps
    config.data.length = 32
    config.batch_size = 32
    config.num_steps = 5_000
    config.phase2.num_steps = 0  # one phase only

    # Objective: as BERT
    config.objective.mask_rate = 0.15
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "nsp"
    config.objective.short_rate = 0.1
    config.objective.random_next_rate = 0.5  # share of pairs with a segment B of another document

    # Optimizer: as BERT, with a higher rate
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 200
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 1.0

    # Log, evaluation and checkpoints
    config.log_every = 50
    config.eval.every = 500
    config.eval.max_samples = 1_000
    config.checkpoint.every = 500

    # Hardware
    config.topology = "v5e-1"

    return config_lib.choose(config, arg)
