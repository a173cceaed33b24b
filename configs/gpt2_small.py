"""GPT-2 small (12 x 768, 124M): Radford et al. 2019, in the recipe of Brown et al.

    bertjax pretrain --config=configs/gpt2_small.py --workdir=run/ --config.data.path=prepared/

GPT-2's rates were not published: these are of arXiv 2005.14165, table 2.1 and appendix B. 100,000
steps of 512 rows of 1,024 tokens, documents packed: 52G tokens, 4.5e19 FLOPs. No dropout, since
text is read once. The tokenizer is byte BPE: bertjax tokenizer --kind=bpe --vocab_size=50257.
Attention is the kernel for TPUs; on a GPU give --config.attention=cudnn.
TPU v5e-16: 10 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("gpt2", "small", "causal_lm")
    config.model.update(dropout_rate=0.0, embedding_dropout_rate=0.0, attention_dropout_rate=0.0)
    config.data.length = 1024
    config.batch_size = 512
    config.micro_batch_size = 64
    config.num_steps = 100_000
    config.optimizer.learning_rate = 6e-4
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 715  # 375M tokens
    config.optimizer.end_rate = 6e-5
    config.optimizer.weight_decay = 0.1
    config.optimizer.b2 = 0.95
    config.optimizer.eps = 1e-8
    config.attention = "splash"
    config.topology = "v5e-16"
    return config_lib.choose(config, arg)
