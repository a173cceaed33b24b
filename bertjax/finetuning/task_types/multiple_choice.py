"""Multiple choice: scores each choice after its context, with a softmax over the choices.

BERT was trained like this on SWAG (Devlin et al., arXiv 1810.04805, section 4.4). Questions with
fewer choices than others are padded with empty choices, which are masked out.

Shapes: B batch, N choices.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics
from bertjax.finetuning import rows
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.models.common import layers
from bertjax.objectives.common import losses

Example = examples_lib.Choice


@dataclasses.dataclass(frozen=True)
class Config:
    """This task type has no options."""


class TaskType(base.TaskType):
    """Predicts one of several choices; the head "classifier" scores each of them."""

    model_kinds = ("encoder", "decoder")
    packs = True
    heads = ("pooler", "classifier")  # families without a pooler use only the classifier
    Config = Config
    hf_class = "ForMultipleChoice"
    hf_task = "multiple_choice"
    hf_num_labels = 1
    hf_pooled = True

    def num_labels(self) -> int:
        """Returns 1, because the head gives one score for each choice."""
        return 1

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError for fewer than two choices, or a label that is not a choice's index."""
        for example in examples:
            place, count = example.where or self.task, len(example.choices)
            if count < 2:
                raise errors.UserError(
                    f"{place}: the number of choices is {count}; it must be 2 or more"
                )
            if example.label is not None and not 0 <= example.label < count:
                raise errors.UserError(
                    f"{place}: label {example.label} is not the number of a choice: give 0 to "
                    f"{count - 1}"
                )

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row; the inputs are [N, L]."""
        return {
            **rows.FEATURES,
            "choice_mask": rows.Feature(np.int32, ""),
            "label": rows.Feature(np.int32, ""),
            "label_weight": rows.Feature(np.float32, ""),
        }

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes an example as one row of N inputs: the context, if any, with each choice."""
        form = rows.Form(self.tokenizer)
        width = max((len(example.choices) for example in examples), default=0)
        pairs = [
            (example.context, choice) if example.context else (choice,)
            for example in examples
            for choice in example.choices
        ]
        ids = iter(rows.encode(self.tokenizer, pairs))
        encoded, truncated = [], np.zeros(len(examples), bool)
        for i, example in enumerate(examples):
            inputs = [form.enclose(next(ids), self.lengths.length) for _ in example.choices]
            truncated[i] = any(enclosed.truncated for enclosed in inputs)
            row = rows.stack([enclosed.row for enclosed in inputs], width)
            row["choice_mask"] = (np.arange(width) < len(example.choices)).astype(np.int32)
            row["label"] = np.array(example.label or 0, np.int32)
            row["label_weight"] = np.array(example.label is not None, np.float32)
            encoded.append(row)
        return rows.Encoded(encoded, np.arange(len(examples)), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the example weights}, by which the loss sum is divided."""
        return {"choice_loss": losses.label_weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns choice_loss, the cross entropy in nats, and choice_accuracy."""
        logits_BN = _logits(apply, batch)
        return losses.classification(
            "choice", logits_BN, batch["label"], losses.label_weights(batch)
        )

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"scores" float32[B, N]}: the probabilities of the choices."""
        return {"scores": jax.nn.softmax(_logits(apply, batch))}

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """Returns {"label", "text", "probabilities": {choice: p}} for each example.

        label, text: index and text of the likeliest choice. probabilities: best first; the
        probabilities of equal choices are added.
        """
        predictions = []
        for example, scores_N in zip(examples, outputs["scores"], strict=True):
            best = np.argsort(-scores_N[: len(example.choices)], kind="stable")
            probabilities = base.summed((example.choices[i], scores_N[i]) for i in best)
            text = example.choices[best[0]]
            predictions.append(
                {"label": int(best[0]), "text": text, "probabilities": probabilities}
            )
        return predictions

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns the accuracy, 0 to 100, of the examples that have a label; {} if none has one."""
        pairs = [
            (example.label, prediction["label"])
            for example, prediction in zip(examples, predictions, strict=True)
            if example.label is not None
        ]
        return {"accuracy": scores_lib.accuracy(*zip(*pairs, strict=True))} if pairs else {}


def _logits(apply: Callable[..., losses.Batch], batch: losses.Batch) -> jax.Array:
    mask_BN = batch["choice_mask"] > 0
    outputs = rows.flat(apply)(**rows.inputs(batch))
    return jnp.where(mask_BN, outputs["class_logits"].reshape(mask_BN.shape), layers.MASKED)
