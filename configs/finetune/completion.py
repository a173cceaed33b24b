"""Continuations of texts or code in a style of one's own, with a decoder such as GPT-2.

    bertjax finetune --recipe=completion --model=gpt2/ --data=texts/ --output=out/

Source: Radford et al. 2018 (Improving Language Understanding by Generative Pre-Training), section
4.1: rate 6.25e-5 that falls linearly after a warm-up over 0.2% of the steps, batches of 32, 3
epochs, dropout 0.1, weight decay 0.01. A batch is computed 8 rows at a time, which does not change
it. --data: columns `source`, the beginning, and `target`, the continuation. To train on whole
documents instead, continue the pretraining with configs/domain_adaptation.py.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "text_to_text",
            {
                "strategy.name": "full",
                "max_length": 512,
                "batch_size": 32,
                "num_epochs": 3,
                "learning_rates": (6.25e-5,),
                "micro_batch_size": 8,
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.002,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "kind.max_target_length": 256,
                "seeds": 1,
            },
        ),
        arg,
    )
