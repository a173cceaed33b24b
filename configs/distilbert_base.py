"""DistilBERT base (6 x 768, 67M): distilled from BERT base as in Sanh et al., arXiv 1910.01108.

    bertjax pretrain --config=configs/distilbert_base.py --workdir=run/ \\
        --config.data.path=prepared/ --config.objective.teacher=bert-base/

The teacher is an artifact, a workdir or a Hugging Face folder; the data must have been prepared
with its tokenizer. The student is initialised from six of its layers, 0, 2, 4, 7, 9 and 11. 6,400
steps of 4,096 sequences of 512 tokens, three passes over BERT's corpus: 13G tokens, 6.7e18 FLOPs,
of which the teacher's forward pass takes 2.6e18. The batch size, the losses and the absence of
next-sentence prediction are those of the paper; learning rate, warm-up, decay, clipping and number
of passes are those of the authors' script.
TPU v5e-8: 3 hours if it reaches an MFU of 0.4 (arithmetic, not a run).
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("distilbert", "base", "distillation")

    # Model: section 3, half the layers of BERT base
    config.model.num_layers = 6
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.vocab_size = 30522
    config.model.max_length = 512
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.init_std = 0.02
    config.model.heads = ("mlm",)

    # Data and steps
    config.data.length = 512
    config.batch_size = 4096  # section 3
    config.num_steps = 6_400  # three passes over BERT's corpus
    config.phase2.num_steps = 0  # one phase only

    # Objective: section 2; the weights are those of the authors' script
    config.objective.mask_rate = 0.15
    config.objective.masking = "token"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "none"  # no next sentence prediction
    config.objective.cross_documents = True  # samples may continue into the next document
    config.objective.packing = False
    config.objective.short_rate = 0.0
    config.objective.teacher = ""  # bertjax contains no model: give yours on the command line
    config.objective.start_from_teacher = True  # from its layers 0, 2, 4, 7, 9 and 11
    config.objective.temperature = 2.0  # temperature of both softmaxes of the soft loss
    config.objective.mlm_weight = 2.0
    config.objective.soft_weight = 5.0
    config.objective.cosine_weight = 1.0

    # Optimizer: the authors' script
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 320  # 5%
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.0
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 5.0

    # Log, evaluation and checkpoints
    config.eval.every = 400
    config.checkpoint.every = 400

    # Hardware
    config.micro_batch_size = 256
    config.topology = "v5e-8"

    return config_lib.choose(config, arg)
