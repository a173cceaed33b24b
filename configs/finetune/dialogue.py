"""Replies to a dialogue, with a decoder such as GPT-2.

    bertjax finetune --recipe=dialogue --model=gpt2/ --data=dialogues/ --output=out/

Source: Wolf et al., arXiv 1901.08149 (TransferTransfo): batches of 32, rate 6.25e-5 that
falls linearly to 0, weight decay 0.01, 2 epochs; the authors' published code clips gradients at a
norm of 1 and computes 4 rows at a time. The loss is that of the reply only; the paper's second
task, to recognise the right reply, is left out. --data: columns `source`, the turns so far
separated by line breaks, and `target`, the reply.
"""

from bertjax.finetuning import named


def get_recipe(arg: str = "") -> named.Recipe:
    """The recipe; "smoke" shrinks it to a run of seconds on a CPU."""
    return named.choose(
        named.Recipe(
            "text_to_text",
            {
                "strategy.name": "full",
                "max_length": 256,
                "batch_size": 32,
                "num_epochs": 2,
                "learning_rates": (6.25e-5,),
                "micro_batch_size": 4,
                "optimizer.name": "adamw",
                "optimizer.schedule": "linear",
                "optimizer.warmup_rate": 0.0,
                "optimizer.weight_decay": 0.01,
                "optimizer.clip_norm": 1.0,
                "dropout_rate": 0.1,
                "kind.max_target_length": 64,
                "seeds": 1,
            },
        ),
        arg,
    )
