"""DistilBERT base (6 x 768, 67M): distilled from BERT base as in Sanh et al., arXiv 1910.01108.

    bertjax pretrain --config=configs/distilbert_base.py --workdir=run/ \\
        --config.data.path=prepared/ --config.objective.teacher=bert-base/

The teacher is an artifact, a workdir or a Hugging Face folder; the data must have been prepared
with its tokenizer. The student starts as six of its layers, 0, 2, 4, 7, 9 and
11.
6,400 steps of 4,096 sequences of 512 tokens, three passes over BERT's corpus: 13G tokens, 6.7e18
FLOPs, of which the teacher's forward pass makes 2.6e18. The paper tells the batch, the losses and
that there is no next sentence prediction; rate, warm-up, decay, clipping and passes are what the
authors' script has.
TPU v5e-8: 3 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("distilbert", "base", "distillation")
    config.objective.teacher = ""  # no model comes with bertjax: name yours on the command line
    config.objective.short_rate = 0.0
    config.data.length = 512
    config.batch_size = 4096
    config.micro_batch_size = 256
    config.num_steps = 6_400
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 320
    config.optimizer.weight_decay = 0.0
    config.optimizer.b2 = 0.98
    config.optimizer.clip_norm = 5.0
    config.eval.every = 400
    config.checkpoint.every = 400
    config.topology = "v5e-8"
    return config_lib.choose(config, arg)
