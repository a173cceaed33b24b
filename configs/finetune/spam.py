"""Spam and other rare classes, with an encoder and a few thousand labels or fewer.

    bertjax finetune --recipe=spam --model=run/ --train=messages.tsv --output=out/

Source: Mosbach et al., arXiv 2006.04884, for small data: 20 epochs, rate 2e-5, batches
of 16, warm-up over a tenth of the steps, Adam with bias correction, weight decay 0.01. Classes are
weighted by their inverse frequency, which the source does not do, because spam is rare. --data:
columns `sentence` (or `text`) and `label`.
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
                "batch_size": 16,
                "num_epochs": 20,
                "learning_rates": (2e-5,),
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.1,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "kind.class_weights": True,
                "seeds": 3,
            },
        ),
        arg,
    )
