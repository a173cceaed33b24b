"""GPT-2 small (12 x 768, 124M): Radford et al. 2019, in the recipe of Brown et al.

    bertjax pretrain --config=configs/gpt2_small.py --workdir=run/ --config.data.path=prepared/

GPT-2's learning rates were not published; these are from arXiv 2005.14165, table 2.1 and appendix
B. 100,000 steps of 512 rows of 1,024 tokens of packed documents: 52G tokens, 4.5e19 FLOPs. There is
no dropout, because text is read only once. The tokenizer is byte BPE: bertjax tokenizer --kind=bpe
--vocab_size=50257; bertjax prepare --splitter=none keeps line breaks. Attention uses the kernel for
TPUs; on a GPU, add --config.attention=cudnn.
TPU v5e-16: 10 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("gpt2", "small", "causal_lm")

    # Model: table 2 and section 2.3 of Radford et al.
    config.model.num_layers = 12
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.vocab_size = 50257
    config.model.max_length = 1024
    config.model.activation = "gelu_tanh"
    config.model.dropout_rate = 0.0  # no dropout, because text is read once
    config.model.embedding_dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.model.layer_norm_eps = 1e-5
    config.model.init_std = 0.02
    config.model.heads = ("lm",)

    # Data and steps
    config.data.length = 1024
    config.batch_size = 512
    config.num_steps = 100_000
    config.phase2.num_steps = 0  # one phase only

    # Objective
    config.objective.packing = True  # several documents per row, masked from each other

    # Optimizer: arXiv 2005.14165, table 2.1 and appendix B
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 6e-4  # of the 125M model
    config.optimizer.schedule = "cosine"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 715  # 375M tokens
    config.optimizer.end_rate = 6e-5  # a tenth of the peak
    config.optimizer.weight_decay = 0.1
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.optimizer.clip_norm = 1.0

    # Hardware
    config.micro_batch_size = 64
    config.topology = "v5e-16"

    return config_lib.choose(config, arg)
