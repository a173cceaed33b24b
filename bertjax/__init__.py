"""bertjax: pretraining and fine-tuning of BERT and its relatives in JAX and Flax.

import bertjax

bert = bertjax.load("run/")
bert.fill_mask("The [MASK] sat on the mat.")
vectors = bert.encode(["A cat sat.", "A dog ran."])
bertjax.load("gpt2/").generate(["The cat sat on"], max_new_tokens=20)

bertjax.finetune(model="run/", task="classification", train="train.tsv", output="out/")
bertjax.load("out/").predict("I loved this movie.")     # {"label": "positive", ...}
"""

import os
from typing import TYPE_CHECKING

from bertjax import finetune as finetune  # can be called

if TYPE_CHECKING:
    from bertjax.inference import Pretrained


def load(path: str | os.PathLike) -> "Pretrained":
    """The model in a workdir, a step of one, an artifact or a Hugging Face folder, ready to use.

    The result has `model`, `params`, `tokenizer`, `encode(texts)`, `fill_mask(text)`,
    `generate(prompts)`, and computes in float32. One that was fine-tuned also has
    `predict(inputs)` and `evaluate(examples)`. Raises `errors.UserError` naming the file that is
    absent or damaged.
    """
    # Imported here: jax and flax take seconds, and the verbs that read text need neither.
    from bertjax import inference
    from bertjax.artifact import loading

    source = loading.load(path)
    if source.task is None:
        return inference.Pretrained(source)
    from bertjax.finetune import predictor

    return predictor.Predictor(source)
