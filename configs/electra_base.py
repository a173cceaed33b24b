"""ELECTRA base (12 x 768, 110M + 10M): the recipe of Clark et al., arXiv 2003.10555, table 6.

    bertjax pretrain --config=configs/electra_base.py --workdir=run/ --config.data.path=prepared/

766,000 steps of 256 sequences of 512 tokens: 100G tokens, 6.7e19 FLOPs (the paper says 6.4e19).
TPU v5e-16: 15 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("electra", "base", "replaced_token_detection")

    # Model: table 6
    config.model.num_layers = 12  # layers of the discriminator and of the generator
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.embedding_size = 768
    config.model.generator_hidden_size = 256  # 1/3 of the discriminator
    config.model.generator_num_heads = 4
    config.model.generator_intermediate_size = 1024
    config.model.vocab_size = 30522  # as in BERT's uncased models
    config.model.max_length = 512
    config.model.type_vocab_size = 2
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-12
    config.model.init_std = 0.02
    config.model.heads = ("mlm", "rtd")

    # Data and steps: table 6
    config.data.length = 512
    config.batch_size = 256
    config.num_steps = 766_000
    config.phase2.num_steps = 0  # one phase only

    # Objective: sections 2 and 3, table 6
    config.objective.mask_rate = 0.15
    config.objective.masking = "token"
    config.objective.mask_token_rate = 1.0  # each chosen token; the generator fills it in
    config.objective.random_token_rate = 0.0
    config.objective.pair = "none"
    config.objective.cross_documents = True  # samples may continue into the next document
    config.objective.packing = False
    config.objective.short_rate = 0.1  # as BERT
    config.objective.rtd_weight = 50.0  # weight of the discriminator's loss; the generator's is 1

    # Optimizer: table 6
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-4
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 10_000
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 1.0  # as in the authors' code

    # Hardware
    config.topology = "v5e-16"

    return config_lib.choose(config, arg)
