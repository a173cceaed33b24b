"""ALBERT base (12 x 768, shared layers, 12M): the recipe of Lan et al., arXiv 1909.11942, 4.1.

    bertjax pretrain --config=configs/albert_base.py --workdir=run/ --config.data.path=prepared/

125,000 steps of 4,096 sequences of 512 tokens: 262G tokens, 1.5e20 FLOPs. The learning rate depends
on the batch size: 1.76e-3 does not converge with batches of 512 (google-research/albert #29); with
another batch size, scale the rate by the square root of the ratio. The model is version 2 (no
dropout), which the authors trained longer than the paper says. The tokenizer is SentencePiece with
30,000 pieces: bertjax tokenizer --kind=unigram --vocab_size=30000.
TPU v5e-64: 8 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("albert", "base", "mlm")

    # Model: table 1, version 2
    config.model.num_layers = 12
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.embedding_size = 128  # section 3.1: embeddings are narrower than the layers
    config.model.num_groups = 1  # all layers share their parameters
    config.model.vocab_size = 30000
    config.model.max_length = 512
    config.model.type_vocab_size = 2
    config.model.activation = "gelu_tanh"  # as in the authors' code
    config.model.dropout_rate = 0.0  # version 2 has none
    config.model.attention_dropout_rate = 0.0
    config.model.layer_norm_eps = 1e-12
    config.model.init_std = 0.02
    config.model.heads = ("pooler", "mlm", "sop")

    # Data and steps: section 4.1
    config.data.length = 512
    config.batch_size = 4096
    config.num_steps = 125_000
    config.phase2.num_steps = 0  # one phase only

    # Objective: n-gram masking (section 4.1) and sentence order (section 3.1)
    config.objective.mask_rate = 0.15
    config.objective.masking = "ngram"
    config.objective.max_ngram = 3  # n words have probability ~ 1 / n
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "sop"
    config.objective.short_rate = 0.1  # share of samples cut to a random shorter length

    # Optimizer: section 4.1
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = 1.76e-3  # for batches of 4,096
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 3_125
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01  # as in the authors' code, like the values below
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 1.0

    # Hardware
    config.micro_batch_size = 1024
    config.topology = "v5e-64"

    return config_lib.choose(config, arg)
