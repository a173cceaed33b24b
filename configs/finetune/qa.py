"""Answers that are spans of a paragraph, as in SQuAD, with an encoder such as BERT.

    bertjax finetune --recipe=qa --model=run/ --data=squad/ --output=out/
    bertjax finetune --recipe=qa --task=squad_v2 --model=run/ --data=squad_v2/ --output=out/

Source: Devlin et al., arXiv 1810.04805, section 4.2: rate 5e-5, batches of 32, 3 epochs; and the
authors' published code: 384 tokens, windows that overlap by 128 tokens, questions of 64 tokens,
answers of at most 30. For SQuAD 2.0 (section 4.3) add --config.batch_size=48 --config.num_epochs=2.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "qa",
            {
                "strategy.name": "full",
                "max_length": 384,
                "batch_size": 32,
                "num_epochs": 3,
                "learning_rates": (5e-5,),
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.1,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "kind.doc_stride": 128,
                "seeds": 1,
            },
        ),
        arg,
    )
