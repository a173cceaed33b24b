"""Topics of news and other documents, with an encoder such as BERT.

    bertjax finetune --recipe=topics --model=run/ --data=news/ --output=out/

Source: Sun et al., arXiv 1905.05583, for AG's News, DBpedia, Yahoo and others: batches
of 24, rate 2e-5, 4 epochs, warm-up over a tenth of the steps, dropout 0.1, 512 tokens. The paper
cuts long texts in the middle; here their end is cut. --data: columns `sentence` (or `text`) and
`label`.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "classification",
            {
                "strategy.name": "full",
                "max_length": 512,
                "batch_size": 24,
                "num_epochs": 4,
                "learning_rates": (2e-5,),
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
