"""Continues pretraining of a published BERT base on text of a domain, as BioBERT and SciBERT did.

    bertjax import --input=bert-base-uncased/ --output=bert/
    bertjax prepare --tokenizer=bert/tokenizer --input='papers/*.jsonl' --output=prepared/
    bertjax pretrain --config=configs/domain_adaptation.py --workdir=run/ \\
        --config.data.path=prepared/ --config.init_from=bert/

12,500 steps of 2,048 sequences of 512 tokens: 13G tokens, the budget of Gururangan et al., "Don't
Stop Pretraining" (arXiv 2004.10964, table 13), with their rate of 5e-4 and without a
task on sentence pairs. TPU v5e-16: 1.7 hours if it reaches an MFU of 0.4 (arithmetic, not a run).

To use a vocabulary of the domain (SciBERT, arXiv 1903.10676), train a tokenizer, prepare the text
with it, and add --config.init_vocabulary=shared_pieces --config.model.vocab_size=SIZE. Pieces that
both vocabularies contain keep the checkpoint's embeddings; the others are initialised. For any
other checkpoint, leave out --config: the config is then made from the model at --config.init_from,
with batches of 256 sequences and a rate of 1e-4.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "base", "mlm")

    # Model: the checkpoint's, here BERT base
    config.model.num_layers = 12
    config.model.hidden_size = 768
    config.model.num_heads = 12
    config.model.intermediate_size = 3072
    config.model.vocab_size = 30522
    config.model.max_length = 512
    config.model.type_vocab_size = 2
    config.model.activation = "gelu"
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.layer_norm_eps = 1e-12
    config.model.init_std = 0.02
    config.model.heads = ("pooler", "mlm")  # heads missing in the checkpoint are initialised

    # Data and steps: arXiv 2004.10964, table 13 (its batch of "2058" is 2048 in their commands)
    config.data.length = 512
    config.batch_size = 2048
    config.num_steps = 12_500
    config.phase2.num_steps = 0  # one phase only

    # Objective: no task on sentence pairs
    config.objective.mask_rate = 0.15
    config.objective.masking = "whole_word"
    config.objective.mask_token_rate = 0.8  # share of the chosen tokens replaced by [MASK]
    config.objective.random_token_rate = 0.1  # replaced by a random piece; the rest is unchanged
    config.objective.pair = "none"
    config.objective.cross_documents = True  # samples may continue into the next document
    config.objective.packing = False
    config.objective.short_rate = 0.1

    # Optimizer: arXiv 2004.10964, table 13
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 5e-4
    config.optimizer.schedule = "linear"
    config.optimizer.start_rate = 0.0
    config.optimizer.warmup_steps = 750  # 6%
    config.optimizer.end_rate = 0.0
    config.optimizer.weight_decay = 0.01
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-6
    config.optimizer.clip_norm = 1.0  # the default of their command; the table has no value

    # Log, evaluation and checkpoints
    config.eval.every = 500
    config.checkpoint.every = 500

    # Hardware
    config.micro_batch_size = 256
    config.topology = "v5e-16"

    return config_lib.choose(config, arg)
