"""ModernBERT base (22 x 768, 149M), Warner et al., arXiv 2412.13663, table 3: all three phases.

    bertjax pretrain --config=configs/modernbert_base.py --workdir=run/ --config.data.path=prepared/

2.0T tokens, packed with documents that are masked from each other; 30% of the tokens are masked.
1. 1.719T tokens in rows of 1,024. The batch grows from 768 to 4,608 rows over the first 50G tokens,
   the learning rate over the first 3G; then it is constant.
2. 250G tokens in rows of 8,192, with another rotary base in the global layers and a lower rate.
3. 50G tokens of the same, in which the rate falls by 1 - sqrt.
The tokenizer is byte BPE with 50,368 pieces. The values of table 3 that it leaves open are those of
the authors' files, yamls/modernbert/modernbert-base-*.yaml in AnswerDotAI/ModernBERT. Differences:
the batch grows in six steps and not in every step, since each size is compiled; phases 2 and 3 have
512 rows and not 576; the output of attention has no dropout; the weights are drawn as in BERT.
Attention uses the kernel for TPUs; on a GPU, add --config.attention=cudnn.
TPU v5e-256: about a day if it reaches an MFU of 0.4 (arithmetic, not a run).
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
    config.model.max_length = 8192  # for the second phase; the first one uses data.length
    config.model.global_every = 3  # layers 0, 3, 6 ... attend to the whole sequence
    config.model.local_window = 128  # tokens that other layers attend to, half on each side
    config.model.global_theta = 10_000.0  # in the first phase
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
    config.batch_size = 4608
    config.phases = (
        *config_lib.phases.batch_ramp(768, 4608, num_tokens=50_000_000_000, parts=6),
        {"num_tokens": 1_669_000_000_000},
        {
            "num_tokens": 250_000_000_000,
            "data.length": 8192,
            "batch_size": 512,  # 576 in the paper, which 256 devices do not divide
            "micro_batch_size": 256,
            "model.global_theta": 160_000.0,
            "optimizer.learning_rate": 3e-4,
            "optimizer.weight_decay": 1e-5 / 3e-4,
        },
        {
            "num_tokens": 50_000_000_000,
            "optimizer.schedule": "wsd",
            "optimizer.decay_steps": 11_921,  # the whole phase
            "optimizer.decay_shape": "one_minus_sqrt",
            "optimizer.end_rate": 3e-7,  # a thousandth of the rate
        },
    )
    config.phase2.num_steps = 0  # see config.phases
    config.num_steps = config_lib.phases.total_steps(config)

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
    config.optimizer.schedule = "constant"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 3815  # 3G tokens, in batches of 768 rows
    config.optimizer.end_rate = 0.0  # the last phase has its own
    # The authors' code does not multiply its decay, 1e-5, by the peak rate, 8e-4.
    config.optimizer.weight_decay = 1.25e-2
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 0.0  # StableAdamW clips its updates instead

    # Hardware
    config.micro_batch_size = 768
    config.topology = "v5e-256"

    return config_lib.choose(config, arg)
