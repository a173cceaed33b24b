"""Predicts a label or a number for one or two texts (Devlin et al., arXiv 1810.04805, 4.1).

The head reads the position that the model's family provides: the pooled first token of BERT, the
last token of a decoder. The loss is cross entropy for labels, squared error for numbers (STS-B).

Shapes: B batch, C labels.
"""

import collections
import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics, plugins
from bertjax.artifact import artifact, cross_encoder, hf_tasks
from bertjax.data.tokenizers import special_tokens
from bertjax.finetuning import rows
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.objectives.common import losses

Example = examples_lib.Sentence
TOP = 10  # a prediction lists the probabilities of at most this many labels


@dataclasses.dataclass(frozen=True)
class Config:
    """Options: labels or numbers, and class weights."""

    regression: bool = False  # predict a number instead of a label
    class_weights: bool = False  # weigh the labels so that rare ones count as much as frequent ones
    sigmoid: bool = False  # regression: numbers from 0 to 1, by a sigmoid of the logit

    def __post_init__(self):
        errors.check(self.regression or not self.sigmoid, "kind.sigmoid", self.sigmoid,
                     "false for labels; only numbers can be predicted by a sigmoid")  # fmt: skip
        errors.check(not (self.regression and self.class_weights), "kind.class_weights",
                     self.class_weights, "false for numbers, which have no classes")  # fmt: skip


class TaskType(base.TaskType):
    """Predicts a label or a number with the head "classifier"."""

    model_kinds = ("encoder", "decoder")
    libraries = ("sklearn",)
    weighs_classes = True
    packs = True
    heads = ("classifier",)
    former = types.MappingProxyType({"sigmoid": False})
    Config = Config
    output_notes = types.MappingProxyType(
        {"scores": "the probability of each label, or the predicted number of a regression"}
    )

    def num_labels(self) -> int:
        """Returns the number of labels; 1 for regression."""
        return 1 if self.config.regression else len(self.labels)

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns the labels that occur: integers by value, then other names; [] for regression."""
        if self.config.regression:
            return []
        return in_order(str(example.label) for example in examples if example.label is not None)

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError if there are fewer than two labels, or an example is invalid.

        An example is invalid if its label is not one of `labels` (for regression: not a finite
        number), if it has more than two texts, or if its number of texts differs from that of the
        first example.
        """
        if not self.config.regression and len(self.labels) < 2:
            content = f"only the label {self.labels[0]!r}" if self.labels else "no label"
            raise errors.UserError(
                f"{self.task}: the training data has {content}; at least two are needed"
            )
        labels = set(self.labels)
        check_texts(self.task, examples)
        for example in examples:
            place = example.where or self.task
            if example.label is None:
                continue
            if self.config.regression:
                if not isinstance(example.label, float | int) or not np.isfinite(example.label):
                    raise errors.UserError(f"{place}: label {example.label!r} is not a number")
            elif example.label not in labels:
                raise base.not_trained(place, f"label {example.label!r}", self.labels)

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row."""
        label = rows.Feature(np.float32 if self.config.regression else np.int32, "")
        return {**rows.FEATURES, "label": label, "label_weight": rows.Feature(np.float32, "")}

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each example as one row. An example without a label has weight 0.

        With class_weights, a label has weight 1 / (C s), where s is its share of the labelled
        examples, as in scikit-learn's "balanced" (King & Zeng, Logistic Regression in Rare Events
        Data, 2001).
        """
        form = rows.Form(self.tokenizer)
        ids = rows.encode(self.tokenizer, [example.texts for example in examples])
        index = {name: i for i, name in enumerate(self.labels)}
        counts = collections.Counter(example.label for example in examples)
        total = sum(n for label, n in counts.items() if label is not None)
        encoded, truncated = [], np.zeros(len(examples), bool)
        for i, (example, texts) in enumerate(zip(examples, ids, strict=True)):
            row, *_, truncated[i] = form.enclose(texts, self.lengths.length)
            label, weight = example.label, 1.0
            if label is None:
                value, weight = 0, 0.0
            else:
                value = label if self.config.regression else index[label]
                weight = (
                    total / (len(self.labels) * counts[label]) if self.config.class_weights else 1.0
                )
            row["label"] = np.array(value, np.float32 if self.config.regression else np.int32)
            row["label_weight"] = np.array(weight, np.float32)
            encoded.append(row)
        return rows.Encoded(encoded, np.arange(len(examples)), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the example weights}, by which the loss sum is divided."""
        return {"label_loss": losses.label_weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns label_loss and, for labels, label_accuracy.

        label_loss is the cross entropy in nats; for regression, the squared error.
        """
        logits_BC = apply(**rows.inputs(batch))["class_logits"]
        weights_B = losses.label_weights(batch)
        if self.config.regression:
            error_B = (self._numbers(logits_BC)[:, 0] - batch["label"]) ** 2
            return {"label_loss": ((error_B * weights_B).sum(), weights_B.sum())}
        terms = losses.classification("label", logits_BC, batch["label"], weights_B)
        if self.config.class_weights:  # accuracy ignores the class weights
            known_B = (weights_B > 0).astype(jnp.float32)
            plain = losses.classification("label", logits_BC, batch["label"], known_B)
            terms["label_accuracy"] = plain["label_accuracy"]
        return terms

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"scores" float32[B, C]}: the probabilities of the labels, or the number."""
        logits_BC = apply(**rows.inputs(batch))["class_logits"]
        scores_BC = self._numbers if self.config.regression else jax.nn.softmax
        return {"scores": scores_BC(logits_BC)}

    def _numbers(self, logits_BC: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(logits_BC) if self.config.sigmoid else logits_BC

    can_be_taught = True

    def soft_targets(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the log probabilities, which are logits up to a constant, or the numbers."""
        scores = outputs["scores"]
        return scores if self.config.regression else np.log(np.maximum(scores, 1e-30))

    def teacher_loss(
        self, outputs: losses.Batch, targets_BC: jax.Array, temperature: float
    ) -> jax.Array:
        """Returns T^2 KL(teacher, student) at temperature T; for regression, the squared error."""
        logits_BC = outputs["class_logits"]
        if self.config.regression:
            return (logits_BC[:, 0] - targets_BC[:, 0]) ** 2
        return losses.softened_divergence(targets_BC, logits_BC, temperature)

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """Returns {"label": likeliest label, "probabilities": {label: p}} for each example.

        "probabilities" holds the TOP likeliest labels, best first. For regression, a prediction is
        {"label": the number}.
        """
        if self.config.regression:
            return [{"label": float(value)} for value in outputs["scores"][:, 0]]
        predictions = []
        for scores_C in outputs["scores"]:
            best = np.argsort(-scores_C, kind="stable")[:TOP]
            probabilities = {self.labels[i]: float(scores_C[i]) for i in best}
            predictions.append({"label": self.labels[best[0]], "probabilities": probabilities})
        return predictions

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns the scores of the examples that have a label; {} if none has one.

        Numbers: pearson and spearman. Labels: accuracy, macro_f1 and mcc. With two labels also f1,
        roc_auc and average_precision, for which the second label is the positive one.
        """
        pairs = zip(examples, predictions, strict=True)
        pairs = [(e.label, p) for e, p in pairs if e.label is not None]
        if not pairs:
            return {}
        targets, outputs = [label for label, _ in pairs], [p["label"] for _, p in pairs]
        if self.config.regression:
            return scores_lib.correlations(targets, outputs)
        result = {
            "accuracy": scores_lib.accuracy(targets, outputs),
            "macro_f1": scores_lib.macro_f1(targets, outputs, self.labels),
            "mcc": scores_lib.mcc(targets, outputs),
        }
        if len(self.labels) == 2:
            positive = self.labels[1]
            probabilities = [p["probabilities"][positive] for _, p in pairs]
            result["f1"] = scores_lib.f1(targets, outputs, self.labels)
            result |= scores_lib.auc([target == positive for target in targets], probabilities)
        return result

    hf_class = "ForSequenceClassification"
    hf_task = "classification"
    hf_labelled = True

    @classmethod
    def hf_reads(cls, content: Mapping[str, Any]) -> bool:
        """Returns whether the model predicts one label or one number for each text."""
        is_multi_label = content.get("problem_type") == "multi_label_classification"
        return not (is_multi_label or is_reranker(content))

    @classmethod
    def hf_derived(
        cls, content: Mapping[str, Any], labels: list[str], where: Any
    ) -> tuple[str, list[str], dict[str, Any]]:
        """Returns (name, labels, config) of the task of a folder that bertjax did not write.

        As in transformers, a model with a single label predicts a number; if sentence-transformers
        wrote it as a CrossEncoder, the number may be a sigmoid of the logit.
        """
        is_regression = content.get("problem_type") == "regression"
        if is_regression and len(labels) > 1:
            raise errors.UserError(
                f"{where}: regression with {len(labels)} outputs is not supported, only with 1"
            )
        if is_regression or len(labels) == 1:
            activation = cross_encoder.activation(content, where)
            options = {"regression": True} | ({"sigmoid": True} if activation == "sigmoid" else {})
            return "regression", [], options
        return cls.hf_task, labels, {}

    @classmethod
    def hf_config(cls, model: artifact.Artifact) -> dict[str, Any]:
        """Returns problem_type; for a number, the keys of a CrossEncoder with the same score.

        For a decoder, also returns pad_token_id (see `hf_padding`).
        """
        if model.fields["num_labels"] != 1:
            return {"problem_type": "single_label_classification"} | hf_padding(model)
        options = {} if model.task is None else model.task["config"]
        name = "sigmoid" if options.get("sigmoid", False) else "identity"
        return {"problem_type": "regression"} | cross_encoder.keys(name) | hf_padding(model)


def check_texts(task: str, examples: Sequence[Example]) -> None:
    """Raises UserError unless all examples have one text, or all have two."""
    for example in examples:
        place = example.where or task
        if len(example.texts) != len(examples[0].texts):
            raise errors.UserError(
                f"{place}: the number of texts is {len(example.texts)}, but the first line has "
                f"{len(examples[0].texts)}: every line must have the same number"
            )
        if len(example.texts) > 2:
            raise errors.UserError(
                f"{place}: the number of texts is {len(example.texts)}; it must be 1 or 2"
            )


def in_order(labels: Iterable[str]) -> list[str]:
    """Returns the different labels in order: integers by value, then other names."""
    return sorted(
        set(labels), key=lambda name: (int(name), name) if _is_int(name) else (np.inf, name)
    )


def is_reranker(content: Mapping[str, Any]) -> bool:
    """Returns whether a config.json has one label and is, by its task, that of a reranker."""
    section, labels = content.get(hf_tasks.KEY), content.get("id2label")
    task = section.get("task") if isinstance(section, dict) else None
    is_rerank = isinstance(task, dict) and task.get("kind") == "rerank"
    return is_rerank and isinstance(labels, dict) and len(labels) == 1


def hf_padding(model: artifact.Artifact) -> dict[str, Any]:
    """Returns pad_token_id for a decoder; {} for other models.

    transformers classifies a decoder's text at the last token before the padding.
    """
    if plugins.family(model.family).KIND != "decoder":
        return {}
    specials = model.tokenizer.specials
    end = special_tokens.end_of_text(specials)
    return {"pad_token_id": specials.pad if specials.pad >= 0 else end}


def _is_int(name: str) -> bool:
    return name.removeprefix("-").isdecimal()
