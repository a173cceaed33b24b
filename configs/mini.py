"""All families at mini size (4 layers x 256), each with its own objective, on the same tokens.

    bertjax pretrain --config=configs/mini.py:t5 --workdir=run/ --config.data.path=prepared/

The argument is the family: albert, bert, deberta, electra, gpt2, modernbert, roberta, spanbert, t5
(default: bert). All use one recipe: 1,000 steps of 64 sequences of 32 tokens, 2.0M tokens, no
dropout. It is made for comparisons in minutes on two CPU cores (benchmarks/families.py), not for
good models; a TPU v5e-1 needs seconds. The tokenizer of the data must have at most 8,192 pieces,
and padding with id 0.

Sequences are short, because a masked model first has to learn which positions are neighbours: with
64 tokens, or twice the rate, models with learned positions stay at the unigram loss for the whole
run.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib

# The sizes of each family; the other fields of its model keep their defaults.
SIZES = {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "intermediate_size": 1024}
MODELS = {
    "albert": {**SIZES, "embedding_size": 128, "num_groups": 1},
    "bert": SIZES,
    "deberta": {**SIZES, "generator_num_layers": 2, "position_buckets": 32},
    "distilbert": SIZES,
    "electra": {
        **SIZES,
        "embedding_size": 128,
        "generator_hidden_size": 64,
        "generator_num_heads": 1,
        "generator_intermediate_size": 256,
    },
    "gpt2": SIZES,
    "modernbert": {**SIZES, "intermediate_size": 384, "global_every": 3, "local_window": 32},
    "roberta": {**SIZES, "pad_id": 0},
    "spanbert": {**SIZES, "max_span_tokens": 80},
    "t5": {**SIZES, "num_decoder_layers": 4, "head_dim": 64, "vocab_size": 8192 + 100},  # sentinels
}

MASKS = {"mask_rate": 0.15, "mask_token_rate": 0.8, "random_token_rate": 0.1, "short_rate": 0.1}
OBJECTIVES = {
    "albert": {**MASKS, "masking": "ngram", "max_ngram": 3, "pair": "sop"},
    "bert": {**MASKS, "masking": "token", "pair": "nsp", "random_next_rate": 0.5},
    "deberta": {
        **MASKS,
        "masking": "token",
        "mask_token_rate": 1.0,
        "random_token_rate": 0.0,
        "rtd_weight": 50.0,
    },
    "distilbert": {
        **MASKS,
        "masking": "token",
        "temperature": 2.0,
        "mlm_weight": 2.0,
        "soft_weight": 5.0,
        "cosine_weight": 1.0,
    },
    "electra": {
        **MASKS,
        "masking": "token",
        "mask_token_rate": 1.0,
        "random_token_rate": 0.0,
        "rtd_weight": 50.0,
    },
    "gpt2": {"packing": True},
    "modernbert": {
        **MASKS,
        "masking": "token",
        "mask_rate": 0.3,
        "packing": True,
        "short_rate": 0.0,
    },
    "roberta": {**MASKS, "masking": "token", "cross_documents": True},
    "spanbert": {
        **MASKS,
        "masking": "span",
        "span_p": 0.2,
        "max_span_words": 10,
        "cross_documents": False,
        "short_rate": 0.0,
    },
    "t5": {"noise_density": 0.15, "mean_noise_span_length": 3.0, "packing": True},
}


def get_config(arg: str = "") -> ConfigDict:
    """The config of a family's mini; "smoke" shrinks that of bert to seconds on a CPU."""
    family = "bert" if arg in ("", "smoke") else arg
    config = config_lib.default(family, "mini")

    # Model
    config.model.vocab_size = 8192
    config.model.max_length = 128
    for name in config.model:
        if name.endswith("dropout_rate"):
            config.model[name] = 0.0
    config.model.update(MODELS.get(family, {}))  # your own family keeps its own sizes

    # Data and steps
    config.data.length = 32
    config.batch_size = 64
    config.num_steps = 1_000
    config.phase2.num_steps = 0  # one phase only

    # Objective: the family's own
    config.objective.update(OBJECTIVES.get(family, {}))

    # Optimizer
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4
    if family == "t5":
        # T5's embeddings have an initial deviation of 1, so no single rate suits all its parameters
        config.optimizer.name = "adamw_rms"
        config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 100
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 1.0

    # Log, evaluation and checkpoints
    config.log_every = 50
    config.eval.every = 250
    config.eval.max_samples = 2_000
    config.checkpoint.every = 250

    # Hardware
    config.topology = "v5e-1"

    return config_lib.choose(config, "smoke" if arg == "smoke" else "")
