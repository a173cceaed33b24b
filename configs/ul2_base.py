"""UL2 base (T5 v1.1, 12 + 12 x 768, 248M): mixture of denoisers, Tay et al., arXiv 2205.05131.

    bertjax pretrain --config=configs/ul2_base.py --workdir=run/ --config.data.path=prepared/

500,000 steps of 128 rows of 512 + 512 tokens (section 4.1): 65G tokens, 4.9e19 FLOPs. Adafactor
with T5's inverse square root rate. Unlike in the paper, documents are packed in rows.
TPU v5e-16: 11 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("t5", "v1_1_base", "denoisers")

    # Model: T5 v1.1 base
    config.model.num_layers = 12  # layers of the encoder
    config.model.num_decoder_layers = 12
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.head_dim = 64
    config.model.intermediate_size = 2048
    config.model.vocab_size = 32128  # 32,000 pieces and 100 sentinels, padded to a multiple of 128
    config.model.decoder_start_id = -1  # the id of padding
    config.model.max_length = 512
    config.model.relative_buckets = 32
    config.model.relative_max_distance = 128
    config.model.activation = "gelu_tanh"
    config.model.gated = True  # arXiv 2002.05202
    config.model.tied_embeddings = False  # the output layer has its own table
    config.model.dropout_rate = 0.0  # none in pretraining
    config.model.layer_norm_eps = 1e-6
    config.model.init_std = 1.0  # factor of each matrix's initial standard deviation
    config.model.heads = ("lm",)

    # Data and steps: section 4.1
    config.data.length = 512  # tokens of the inputs, and as many of the targets
    config.batch_size = 128
    config.num_steps = 500_000
    config.phase2.num_steps = 0  # one phase only

    # Objective: table 1, seven denoisers with equal shares of the rows. Four are X: spans of 3, 8
    # and 64 tokens that mask 50% of the text, and spans of 64 tokens that mask 15%.
    config.objective.r_rate = 2 / 7  # two are R: spans of 3 and of 8 tokens, 15% of the text
    config.objective.s_rate = 1 / 7  # one is S: the last quarter of the text
    config.objective.mode_tokens = True  # inputs start with a token for R, S or X
    config.objective.packing = True  # several texts per row, unlike in the paper
    config.objective.z_loss = 0.0

    # Optimizer: T5's (arXiv 1910.10683, section 3.1.2); Adafactor does not use betas and eps here
    config.optimizer.name = "adafactor"
    config.optimizer.learning_rate = 1e-2  # until step 10,000, then 1 / sqrt(step)
    config.optimizer.schedule = "rsqrt"
    config.optimizer.start_rate = 1e-2  # no warm-up: the rate is constant in these steps
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0  # no clipping of the gradient

    # Hardware
    config.topology = "v5e-16"

    return config_lib.choose(config, arg)
