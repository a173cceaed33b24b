"""Named entities of a special domain, such as diseases, genes or parts of contracts.

    bertjax finetune --recipe=domain_ner --model=run/ --train=train.conll --dev=dev.conll \\
        --output=out/

Source: Lee et al., arXiv 1901.08746 (BioBERT): rates 1e-5 to 5e-5, batches of 10 to
64, and more than 20 epochs until NER is best. The evaluation after each epoch chooses the best one.
A model pretrained on the domain is better: configs/domain_adaptation.py continues a pretraining.
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
                "batch_size": 32,
                "num_epochs": 20,
                "learning_rates": (1e-5, 3e-5, 5e-5),
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.1,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "evals_per_epoch": 1,
                "early_stopping": 5,
                "seeds": 3,
            },
        ),
        arg,
    )
