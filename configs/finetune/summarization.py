"""Summaries of documents, with a T5.

    bertjax finetune --recipe=summarization --model=t5/ --data=articles/ --output=out/

Source: Raffel et al., arXiv 1910.10683, section 3.1.2 and appendix A: Adafactor at the constant
rate 1e-3, batches of 128, 512 tokens, dropout 0.1, the prefix "summarize: ", and beam search with 4
beams and a length penalty of 0.6. A batch is computed 8 rows at a time, which does not change it.
The source trains 2^18 steps; the number of epochs is ours. --data: columns `source` and `target`.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "summarization",
            {
                "strategy.name": "full",
                "max_length": 512,
                "batch_size": 128,
                "num_epochs": 3,
                "learning_rates": (1e-3,),
                "micro_batch_size": 8,
                "optimizer.name": "adafactor",
                "optimizer.schedule": "constant",
                "optimizer.warmup_rate": 0.0,
                "optimizer.weight_decay": 0.0,
                "optimizer.clip_norm": 0.0,
                "dropout_rate": 0.1,
                "kind.max_target_length": 128,
                "kind.num_beams": 4,
                "kind.length_penalty": 0.6,
                "seeds": 1,
            },
        ),
        arg,
    )
