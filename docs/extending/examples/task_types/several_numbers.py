"""Predicts several numbers for one or two texts, such as the valence and the arousal of a sentence.

The head "classifier" has one output for each number. The loss is the squared error, summed over the
numbers. A label is a list of numbers.

Shapes: B batch, C numbers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.finetuning import rows
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.objectives.common import losses

Example = examples_lib.Sentence


@dataclasses.dataclass(frozen=True)
class Config:
    """Options: how many numbers there are."""

    count: int = 2  # numbers in each label

    def __post_init__(self):
        errors.check(self.count >= 2, "kind.count", self.count, "2 or more")


class TaskType(base.TaskType):
    """Predicts `config.count` numbers with the head "classifier"."""

    model_kinds = ("encoder", "decoder")
    heads = ("classifier",)
    libraries = ("scipy",)
    Config = Config

    def num_labels(self) -> int:
        """Returns the number of outputs of the head."""
        return self.config.count

    # Examples to rows

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError for a label that is not `config.count` finite numbers."""
        count = self.config.count
        for example in examples:
            if example.label is not None and (
                np.shape(example.label) != (count,) or not np.isfinite(example.label).all()
            ):
                raise errors.UserError(
                    f"{example.where or self.task}: label {example.label!r} is not {count} numbers"
                )

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row."""
        number = rows.Feature(np.float32, "")
        return rows.FEATURES | {"label": number, "label_weight": number}

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each example as one row. An example without a label has weight 0."""
        form, encoded = rows.Form(self.tokenizer), []
        truncated = np.zeros(len(examples), bool)
        ids = rows.encode(self.tokenizer, [example.texts for example in examples])
        for i, (example, texts) in enumerate(zip(examples, ids, strict=True)):
            enclosed = form.enclose(texts, self.lengths.length)
            is_known = example.label is not None
            numbers = example.label if is_known else np.zeros(self.config.count)
            label = {
                "label": np.array(numbers, np.float32),
                "label_weight": np.array(is_known, np.float32),
            }
            encoded.append(enclosed.row | label)
            truncated[i] = enclosed.truncated
        return rows.Encoded(encoded, np.arange(len(examples)), truncated)

    # The model

    def normalizers(self, batch: base.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the example weights}, by which the loss sum is divided."""
        return {"numbers_loss": losses.label_weights(batch).sum()}

    def loss(self, apply: base.Apply, batch: base.Batch) -> metrics.Terms:
        """Returns numbers_loss, the squared error summed over the numbers."""
        numbers_BC = apply(**losses.inputs(batch, rows.INPUTS))["class_logits"]
        error_B = ((numbers_BC - batch["label"]) ** 2).sum(axis=1)
        weights_B = losses.label_weights(batch)
        return {"numbers_loss": ((error_B * weights_B).sum(), weights_B.sum())}

    def outputs(self, apply: base.Apply, batch: base.Batch) -> dict[str, jax.Array]:
        """Returns {"numbers" float32[B, C]}."""
        return {"numbers": apply(**losses.inputs(batch, rows.INPUTS))["class_logits"]}

    # Outputs to predictions

    def decode(
        self, examples: Sequence[Example], encoded: Any, outputs: Mapping[str, np.ndarray]
    ) -> list[base.Prediction]:
        """Returns {"numbers": a list of numbers} for each example."""
        return [{"numbers": numbers_C.tolist()} for numbers_C in outputs["numbers"]]

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[base.Prediction]
    ) -> dict[str, float]:
        """Returns pearson and spearman, each the mean over the numbers; {} without labels."""
        pairs = zip(examples, predictions, strict=True)
        pairs = [(e.label, p["numbers"]) for e, p in pairs if e.label is not None]
        if not pairs:
            return {}
        targets_BC, numbers_BC = (np.array(values) for values in zip(*pairs, strict=True))
        each = [
            scores_lib.correlations(targets, numbers)
            for targets, numbers in zip(targets_BC.T, numbers_BC.T, strict=True)
        ]
        return {name: float(np.mean([scores[name] for scores in each])) for name in each[0]}

    def lines(self, prediction: base.Prediction, top: int) -> list[str]:
        """Returns a prediction as a line of text: its numbers."""
        return ["   ".join(f"{number:.4f}" for number in prediction["numbers"])]
