"""ELECTRA small (12 x 256, 14M): the recipe of Clark et al., arXiv 2003.10555, table 6.

    bertjax pretrain --config=configs/electra_small.py --workdir=run/ --config.data.path=prepared/

1,000,000 steps of 128 sequences of 128 tokens: 16G tokens, 1.2e18 FLOPs.
TPU v5e-1: 4.1 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("electra", "small", "replaced_token_detection")

    # Model: table 6
    config.model.num_layers = 12  # layers of the discriminator and of the generator
    config.model.hidden_size = 256
    config.model.num_heads = 4
    config.model.intermediate_size = 1024
    config.model.embedding_size = 128
    config.model.generator_hidden_size = 64  # 1/4 of the discriminator
    config.model.generator_num_heads = 1
    config.model.generator_intermediate_size = 256
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
    config.data.length = 128  # section 3.3
    config.batch_size = 128
    config.num_steps = 1_000_000
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
    config.optimizer.learning_rate = 5e-4
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
    config.micro_batch_size = 32  # its activations stay in the vector memory of a TPU core
    config.topology = "v5e-1"

    return config_lib.choose(config, arg)
