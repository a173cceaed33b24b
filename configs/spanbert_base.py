"""SpanBERT base (12 x 768, 111M): the recipe of Joshi et al., arXiv 1907.10529, section 3.3.

    bertjax pretrain --config=configs/spanbert_base.py --workdir=run/ --config.data.path=prepared/

2,400,000 steps of 256 sequences of up to 512 tokens of one document: 315G tokens, 1.9e20 FLOPs. The
paper's tokenizer is BERT's cased one, with 28,996 pieces.
TPU v5e-64: 11 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("spanbert", "base", "span_boundary")

    # Model: BERT base, cased
    config.model.num_layers = 12
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.max_span_tokens = 80  # span positions with their own embedding
    config.model.vocab_size = 28996
    config.model.max_length = 512
    config.model.type_vocab_size = 2
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-12
    config.model.init_std = 0.02
    config.model.heads = ("mlm", "sbo")

    # Data and steps: section 4.2
    config.data.length = 512
    config.batch_size = 256
    config.num_steps = 2_400_000
    config.phase2.num_steps = 0  # one phase only: all sequences are long

    # Objective: sections 3.1 to 3.3
    config.objective.mask_rate = 0.15
    config.objective.masking = "span"
    config.objective.span_p = 0.2  # n words have probability ~ (1 - span_p) ** n
    config.objective.max_span_words = 10  # maximum length of a span
    config.objective.mask_token_rate = 0.8  # share of the spans replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "none"  # no next sentence prediction
    config.objective.cross_documents = False  # each sequence is from one document
    config.objective.packing = False
    config.objective.short_rate = 0.0

    # Optimizer: section 4.2
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 10_000
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.1
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 1.0

    # Hardware
    config.topology = "v5e-64"

    return config_lib.choose(config, arg)
