"""Answers to a few hundred questions of one's own, with an encoder.

    bertjax finetune --recipe=custom_qa --model=squad_model/ --train=own.json --output=out/

Source: Ram et al., arXiv 2101.00438 (Splinter), for 16 to 1,024 questions: 10 epochs,
batches of 12, rate 3e-5, warm-up over a tenth of the steps, Adam with bias correction. They also
train at least 200 steps: with fewer than 240 questions, raise --config.num_epochs. --model is best
a model that the recipe qa has trained on SQuAD. --train: SQuAD's JSON.
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
                "batch_size": 12,
                "num_epochs": 10,
                "learning_rates": (3e-5,),
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.1,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "kind.doc_stride": 128,
                "seeds": 3,
            },
        ),
        arg,
    )
