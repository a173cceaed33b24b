"""T5 3b (24 + 24 x 1024, 2.9G): the recipe of Raffel et al., arXiv 1910.10683, section 3.1 and 3.7.

    bertjax pretrain --config=configs/t5_3b.py --workdir=run/ --config.data.path=prepared/

524,288 steps of 128 rows of 512 tokens and 114 of targets: 34G tokens, 3.8e20 FLOPs. Adafactor
at 1 / sqrt(max(step, 10,000)), dropout 0.1, no weight decay, no clipping of the gradient.
TPU v5e-128: 10.6 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("t5", "3b", "span_corruption")

    # Model: sections 2.1 and 3.7
    config.model.num_layers = 24  # layers of the encoder
    config.model.num_decoder_layers = 24
    config.model.hidden_size = 1024
    config.model.num_heads = 32
    config.model.head_dim = 128
    config.model.intermediate_size = 16384
    config.model.vocab_size = 32128  # 32,000 pieces and 100 sentinels, padded to a multiple of 128
    config.model.decoder_start_id = -1  # the id of padding
    config.model.max_length = 512
    config.model.relative_buckets = 32
    config.model.relative_max_distance = 128
    config.model.activation = "relu"
    config.model.gated = False
    config.model.tied_embeddings = True
    config.model.scaled_output = True  # divide by sqrt(hidden_size) before the output layer
    config.model.dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-6
    config.model.init_std = 1.0  # factor of each matrix's initial standard deviation
    config.model.heads = ("lm",)

    # Data and steps: section 3.1.2; the paper trained this size longer (section 3.7)
    config.data.length = 512
    config.batch_size = 128
    config.num_steps = 2**19  # 524,288
    config.phase2.num_steps = 0  # one phase only

    # Objective: section 3.3.4
    config.objective.noise_density = 0.15
    config.objective.mean_noise_span_length = 3.0
    config.objective.packing = True  # several texts per row, masked from each other
    config.objective.z_loss = 0.0

    # Optimizer: section 3.1.2; Adafactor does not use betas and eps here
    config.optimizer.name = "adafactor"
    config.optimizer.learning_rate = 1e-2  # until step 10,000, then 1 / sqrt(step)
    config.optimizer.schedule = "rsqrt"
    config.optimizer.start_rate = 1e-2  # no warm-up: the rate is constant in these steps
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.0  # no clipping of the gradient

    # Hardware
    config.mesh = "fsdp:32,tensor:4"  # four rows and eight of the 32 heads per device
    config.topology = "v5e-128"

    return config_lib.choose(config, arg)
