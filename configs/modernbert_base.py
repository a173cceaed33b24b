"""ModernBERT base (22 x 768, 149M): the first phase of Warner et al., arXiv 2412.13663, table 3.

    bertjax pretrain --config=configs/modernbert_base.py --workdir=run/ --config.data.path=prepared/

364,000 steps of 4,608 rows of 1,024 tokens, packed with documents that are masked from each other:
1.7T tokens, 1.4e21 FLOPs. 30% of the tokens are masked. The learning rate rises over 3G tokens, is
constant, and falls over the last 50G. The tokenizer is byte BPE with 50,368 pieces. Differences
from the paper: the batch does not grow over the first 50G tokens; the rate falls in this phase, not
after another 250G tokens of length 8,192; the rotary base of the global layers has from the start
the value that the paper uses for these; the output of attention has no dropout. Attention uses the
kernel for TPUs; on a GPU, add --config.attention=cudnn.
TPU v5e-256: 20 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("modernbert", "base", "mlm")

    # Model: table 4
    config.model.num_layers = 22
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 1152  # width of the gate, and of the part that it multiplies
    config.model.vocab_size = 50368
    config.model.max_length = 8192  # for the second phase; this phase uses data.length
    config.model.global_every = 3  # layers 0, 3, 6 ... attend to the whole sequence
    config.model.local_window = 128  # tokens that other layers attend to, half on each side
    config.model.global_theta = 160_000.0  # the paper's value for its second phase, of length 8,192
    config.model.local_theta = 10_000.0
    config.model.activation = "gelu"
    config.model.embedding_dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0  # the paper uses 0.1 for the attention output
    config.model.mlp_dropout_rate = 0.0
    config.model.layer_norm_eps = 1e-5
    config.model.init_std = 0.02
    config.model.heads = ("mlm",)

    # Data and steps: table 3
    config.data.length = 1024
    config.batch_size = 4608  # constant, from the first step on
    config.num_steps = 364_000
    config.phase2.num_steps = 0  # only the first phase of the paper

    # Objective: table 3, no pairs of segments
    config.objective.mask_rate = 0.3
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "none"
    config.objective.cross_documents = False
    config.objective.packing = True  # several documents per row, masked from each other
    config.objective.short_rate = 0.0

    # Optimizer: table 3
    config.optimizer.name = "stable_adamw"
    config.optimizer.learning_rate = 8e-4
    config.optimizer.schedule = "wsd"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 640  # 3G tokens
    config.optimizer.decay_steps = 10_600  # the last 50G tokens
    config.optimizer.decay_shape = "one_minus_sqrt"
    config.optimizer.end_rate = 0.0
    # The authors' code does not multiply its decay, 1e-5, by the peak rate, 8e-4.
    config.optimizer.weight_decay = 1.25e-2
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 0.0  # StableAdamW clips its updates instead

    # Hardware
    config.micro_batch_size = 768
    config.attention = "splash"  # long rows, narrow windows, no dropout
    config.topology = "v5e-256"

    return config_lib.choose(config, arg)
