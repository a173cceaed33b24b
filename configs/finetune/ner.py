"""Named entities of general text, with an encoder such as BERT.

    bertjax finetune --recipe=ner --model=run/ --train=train.conll --dev=dev.conll --output=out/

Source: Devlin et al., arXiv 1810.04805, section 5.3 and appendix A.3, for CoNLL-2003: the first
piece of each word is classified; batches of 16, 4 epochs, the best rate on dev, dropout 0.1.
Sentences longer than 128 tokens are split into windows. A cased model is better.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "ner",
            {
                "strategy.name": "full",
                "max_length": 128,
                "batch_size": 16,
                "num_epochs": 4,
                "learning_rates": (2e-5, 3e-5, 5e-5),
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.1,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "seeds": 3,
            },
        ),
        arg,
    )
