"""Sentiment of sentences and short reviews, with an encoder such as BERT.

    bertjax finetune --recipe=sentiment --model=run/ --data=reviews/ --output=out/

Source: Devlin et al., arXiv 1810.04805, section 4.1 and appendix A.3, for GLUE's SST-2 and other
tasks: batches of 32, 3 epochs, the best rate on dev, linear decay after a warm-up, weight decay
0.01, dropout 0.1. Length 128 is that of the authors' published code; use --config.max_length=512
for long reviews. --data: columns `sentence` (or `text`) and `label`.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "classification",
            {
                "strategy.name": "full",
                "max_length": 128,
                "batch_size": 32,
                "num_epochs": 3,
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
