"""DeBERTa-v3 base (12 x 768, 184M + 142M): the recipe of He et al., arXiv 2111.09543.

    bertjax pretrain --config=configs/deberta_v3_base.py --workdir=run/ --config.data.path=prepared/

125,000 steps of 2,048 sequences of 512 tokens: 131G tokens, 1.6e20 FLOPs. This is the base model of
the paper's comparisons, on Wikipedia and books (section 3.1); the released models saw 160 GB of
text. TPU v5e-256: 0.92 hours at least (`bertjax plan`: MFU at most 0.96; not a run).

The sizes of both models are those of the authors' code (microsoft/DeBERTa,
experiments/language_model/rtd_base.json). `bertjax tokenizer --kind=unigram` trains a tokenizer of
the same kind as the published one.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("deberta", "base", "replaced_token_detection")

    # Model: rtd_base.json
    config.model.num_layers = 12
    config.model.generator_num_layers = 6  # half of the discriminator's; the same width
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.embedding_size = 0  # as wide as the layers
    config.model.vocab_size = 128100
    config.model.max_length = 512
    config.model.type_vocab_size = 0
    config.model.position_terms = ("c2p", "p2c")
    config.model.position_buckets = 256
    config.model.max_relative_positions = 0  # as long as max_length
    config.model.shared_position_projections = True
    config.model.relative_norm = True
    config.model.position_biased_input = False
    config.model.enhanced_mask_decoder = True  # of the generator: masked_language_model.py
    config.model.conv_kernel_size = 0  # only version 2 has a convolution
    config.model.conv_activation = "gelu"
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-7
    config.model.init_std = 0.02
    config.model.heads = ("mlm", "rtd")

    # Data and steps: section 3.1
    config.data.length = 512
    config.batch_size = 2048
    config.num_steps = 125_000
    config.phase2.num_steps = 0  # one phase only

    # Objective: section 3.1, and ELECTRA (arXiv 2003.10555)
    config.objective.mask_rate = 0.15
    config.objective.masking = "token"
    config.objective.mask_token_rate = 1.0  # each chosen token; the generator fills it in
    config.objective.random_token_rate = 0.0
    config.objective.pair = "none"
    config.objective.cross_documents = True  # samples may continue into the next document
    config.objective.packing = False
    config.objective.short_rate = 0.0  # the authors' code has only full sequences
    config.objective.rtd_weight = 50.0  # weight of the discriminator's loss; the generator's is 1

    # Optimizer: section 3.1; what it does not say is as in ELECTRA, table 6
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
    config.optimizer.clip_norm = 1.0

    # Hardware
    config.topology = "v5e-256"

    return config_lib.choose(config, arg)
