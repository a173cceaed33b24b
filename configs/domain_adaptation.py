"""A published BERT base goes on with the text of a domain, as BioBERT and SciBERT did.

    bertjax import --input=bert-base-uncased/ --output=bert/
    bertjax prepare --tokenizer=bert/tokenizer --input='papers/*.jsonl' --output=prepared/
    bertjax pretrain --config=configs/domain_adaptation.py --workdir=run/ \\
        --config.data.path=prepared/ --config.init_from=bert/

12,500 steps of 2,048 sequences of 512 tokens: 13G tokens, the budget of Gururangan et al., "Don't
Stop Pretraining" (arXiv 2004.10964, appendix), with their rate of 5e-4; the task on pairs of
sentences is left out. TPU v5e-16: 1.7 hours if it reaches an MFU of 0.4 (arithmetic, not a run).

With a vocabulary of the domain (SciBERT, arXiv 1903.10676): train one, prepare the text with it,
and add --config.init_vocabulary=shared_pieces --config.model.vocab_size=SIZE. Embeddings of the
pieces that both vocabularies have are the checkpoint's, the others start fresh. Another checkpoint
than BERT base: config.family and config.model say what it is, as in its own config file.
"""

from ml_collections import ConfigDict

from bertjax import config as config_lib


def get_config(arg: str = "") -> ConfigDict:
    """The config; "smoke" shrinks it to seconds on a CPU."""
    config = config_lib.default("bert", "base", "mlm")
    config.model.heads = ("pooler", "mlm")  # what the checkpoint lacks of these starts fresh
    config.objective.pair = "none"
    config.objective.masking = "whole_word"
    config.data.length = 512
    config.batch_size = 2048
    config.micro_batch_size = 256
    config.num_steps = 12_500
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 750  # 6%
    config.optimizer.eps = 1e-6
    config.optimizer.b2 = 0.98
    config.eval.every = 500
    config.checkpoint.every = 500
    return config_lib.choose(config, arg)
