"""Predicts any number of labels for one or two texts.

The head is the same as in `classification`. Its outputs are independent: each label has its own
probability, the sigmoid of its logit, and its own threshold above which it is predicted. The loss
is binary cross entropy (Nam et al., arXiv 1312.5419). The thresholds are tuned on dev, each for the
best F1 of its label (the strategy SCut of Yang, "A Study on Thresholding Strategies for Text
Categorization", SIGIR 2001, with a fallback for rare labels, where it overfits).

Shapes: B batch, N examples, C labels.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax import errors, metrics
from bertjax.artifact import artifact
from bertjax.finetuning import rows
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import readers
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base, classification
from bertjax.objectives.common import losses

Example = examples_lib.Sentence
RARE = 10  # the threshold of a label with fewer examples on dev is not tuned
_PROBLEM = "multi_label_classification"  # in config.json of transformers


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of the thresholds."""

    tune_thresholds: bool = True  # choose the thresholds of labels with 10 dev examples or more
    threshold: float = 0.5  # probability above which a label is predicted, unless tuned
    thresholds: tuple[float, ...] = ()  # one for each label, in order; set by the tuning

    def __post_init__(self):
        for name, values in (("threshold", [self.threshold]), ("thresholds", self.thresholds)):
            errors.check(all(0 <= value <= 1 for value in values), f"kind.{name}",
                         getattr(self, name), "in [0, 1]")  # fmt: skip


class TaskType(base.TaskType):
    """Predicts any number of labels for an example with the head "classifier"."""

    model_kinds = ("encoder", "decoder")
    libraries = ("sklearn",)
    packs = True
    heads = ("classifier",)
    Config = Config
    output_notes = types.MappingProxyType(
        {"scores": "the probability of each label; the thresholds are in the task's config"}
    )

    @staticmethod
    def read_label(record: readers.Record, value: Any) -> tuple[str, ...]:
        """Returns the labels of a list, or of a text in which commas separate them.

        Returns () for an empty list or a blank text. Raises UserError for an empty label, and for a
        label that is neither a name nor an integer.
        """
        parts = value if isinstance(value, list) else [value]
        if isinstance(value, str):
            parts = value.split(",") if value.strip() else []
        names = [readers.name(record, part) for part in parts]
        if not all(names):
            raise errors.UserError(
                f"{record.where}: an empty label in {value!r:.60}; commas separate labels"
            )
        return tuple(dict.fromkeys(names))

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns the labels that occur: integers by value, then other names."""
        return classification.in_order(name for e in examples for name in e.class_names())

    def output_bias(self) -> float:
        """Returns the logit of the probability 1 / C, as if each text had one label.

        With a bias of 0, a model of 39 labels learned little in 4 epochs: see
        `benchmarks/README.md`. Lin et al., arXiv 1708.02002, section 3.3, start with such a prior.
        """
        return -math.log(max(len(self.labels) - 1, 1))

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError if there is no label, or an example is invalid.

        An example is invalid if one of its labels is not in `labels`, if it has more than two
        texts, or if its number of texts differs from that of the first example.
        """
        if not self.labels:
            raise errors.UserError(
                f"{self.task}: the training data has no label; at least one is needed"
            )
        count = len(self.config.thresholds)
        errors.check(count in (0, len(self.labels)), "kind.thresholds", self.config.thresholds,
                     f"() or {len(self.labels)} numbers, one for each label")  # fmt: skip
        classification.check_texts(self.task, examples)
        labels = set(self.labels)
        for example in examples:
            for name in example.class_names():
                if name not in labels:
                    place = example.where or self.task
                    raise base.not_trained(place, f"label {name!r}", self.labels)

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row; "label" is a multi-hot float32[C]."""
        label = rows.Feature(np.float32, "")
        return {**rows.FEATURES, "label": label, "label_weight": label}

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each example as one row. An example whose labels are unknown has weight 0."""
        form = rows.Form(self.tokenizer)
        ids = rows.encode(self.tokenizer, [example.texts for example in examples])
        encoded, truncated = [], np.zeros(len(examples), bool)
        targets_NC = self._targets(examples)
        for i, (example, texts) in enumerate(zip(examples, ids, strict=True)):
            row, *_, truncated[i] = form.enclose(texts, self.lengths.length)
            row["label"] = targets_NC[i].astype(np.float32)
            row["label_weight"] = np.array(example.label is not None, np.float32)
            encoded.append(row)
        return rows.Encoded(encoded, np.arange(len(examples)), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the example weights}, by which the loss sum is divided."""
        return {"label_loss": losses.label_weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns label_loss: binary cross entropy in nats, the mean over the labels."""
        logits_BC = self._logits(apply, batch)
        loss_B = optax.sigmoid_binary_cross_entropy(logits_BC, batch["label"]).mean(axis=-1)
        weights_B = losses.label_weights(batch)
        return {"label_loss": ((loss_B * weights_B).sum(), weights_B.sum())}

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"scores" float32[B, C]}: the probability of each label."""
        return {"scores": jax.nn.sigmoid(self._logits(apply, batch))}

    def _logits(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> jax.Array:
        logits_BC = apply(**rows.inputs(batch))["class_logits"]
        return logits_BC.astype(jnp.float32)

    can_be_taught = True

    def soft_targets(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the logit of each label's probability."""
        scores = np.clip(outputs["scores"].astype(np.float64), 1e-12, 1 - 1e-12)
        return np.log(scores) - np.log1p(-scores)

    def teacher_loss(
        self, outputs: losses.Batch, targets_BC: jax.Array, temperature: float
    ) -> jax.Array:
        """Returns T^2 KL(teacher, student) at temperature T, the mean over the labels."""
        pairs = [
            jnp.stack([logits_BC, jnp.zeros_like(logits_BC)], axis=-1)
            for logits_BC in (targets_BC, outputs["class_logits"].astype(jnp.float32))
        ]
        return losses.softened_divergence(*pairs, temperature).mean(axis=-1)

    def decode(
        self,
        examples: Sequence[Example],
        encoded: rows.Encoded,
        outputs: Mapping[str, np.ndarray],
    ) -> list[dict[str, Any]]:
        """Returns {"labels": [label], "probabilities": {label: p}} for each example.

        "labels" has the labels whose probability is above their threshold. "probabilities" has the
        `classification.TOP` likeliest labels. Both begin with the likeliest label.
        """
        thresholds_C, predictions = self._thresholds(), []
        for scores_C in outputs["scores"]:
            order, above_C = np.argsort(-scores_C, kind="stable"), scores_C > thresholds_C
            names = [self.labels[i] for i in order if above_C[i]]
            best = {self.labels[i]: float(scores_C[i]) for i in order[: classification.TOP]}
            predictions.append({"labels": names, "probabilities": best})
        return predictions

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns the scores of the examples whose labels are known; {} if there are none.

        The "micro" scores are F1, precision and recall over all (example, label) pairs together.
        "macro_f1" is the mean F1 of the labels that occur or are predicted. "subset_accuracy" is
        the percentage of examples with exactly the right labels.
        """
        pairs = zip(examples, predictions, strict=True)
        pairs = [(e, e._replace(label=tuple(p["labels"]))) for e, p in pairs if e.label is not None]
        if not pairs:
            return {}
        targets_NC, predicted_NC = (self._targets(side) for side in zip(*pairs, strict=True))
        # NOTE: scikit-learn treats a single column as the classes 0 and 1; class 1 is our label.
        labels = range(len(self.labels)) if len(self.labels) > 1 else [1]
        compute = scores_lib.library("sklearn.metrics").precision_recall_fscore_support
        precision, recall, micro_f1, _ = compute(
            targets_NC, predicted_NC, labels=labels, average="micro", zero_division=0.0
        )
        *_, macro_f1, _ = compute(
            targets_NC, predicted_NC, labels=labels, average="macro", zero_division=np.nan
        )
        result = {
            "micro_f1": micro_f1,
            "macro_f1": np.nan_to_num(macro_f1),
            "subset_accuracy": (targets_NC == predicted_NC).all(axis=1).mean(),
            "micro_precision": precision,
            "micro_recall": recall,
        }
        return {name: 100.0 * float(value) for name, value in result.items()}

    def tuned(
        self,
        examples: Sequence[Example],
        predictions: Sequence[dict[str, Any]],
        outputs: Mapping[str, np.ndarray],
    ) -> "TaskType":
        """Returns the task type with, for each label, the threshold of the best F1 on `examples`.

        A label with fewer than RARE examples gets `config.threshold`. Returns the task type
        unchanged if `config.tune_thresholds` is false or the labels are unknown.
        """
        known_N = np.array([example.label is not None for example in examples], bool)
        if not (self.config.tune_thresholds and known_N.any()):
            return self
        targets_NC = self._targets(examples)[known_N] > 0
        scores_NC = outputs["scores"][known_N]
        default = self.config.threshold
        thresholds = [
            best_threshold(scores_N, targets_N, default) if targets_N.sum() >= RARE else default
            for scores_N, targets_N in zip(scores_NC.T, targets_NC.T, strict=True)
        ]
        return self._with(thresholds=tuple(thresholds))

    def lines(self, prediction: dict[str, Any], top: int) -> list[str]:
        """Returns two lines: the labels, and the probabilities of the likeliest labels."""
        return [", ".join(prediction["labels"]) or "(no label)", *super().lines(prediction, top)]

    def report_notes(self) -> list[str]:
        """Returns a note that the thresholds were tuned on dev; [] if they were not."""
        if not self.config.tune_thresholds:
            return []
        return [
            f"The threshold of each label with {RARE} examples or more on dev is tuned there, so "
            "the scores on dev are too high. The other labels have the usual threshold, "
            f"{self.config.threshold:g}."
        ]

    def _targets(self, examples: Sequence[Example]) -> np.ndarray:
        """Returns int32[N, C]: 1 where the example has the label, else 0."""
        index = {name: i for i, name in enumerate(self.labels)}
        targets_NC = np.zeros((len(examples), len(self.labels)), np.int32)
        for n, example in enumerate(examples):
            targets_NC[n, [index[name] for name in example.class_names()]] = 1
        return targets_NC

    def _thresholds(self) -> np.ndarray:
        """Returns float64[C], the threshold of each label."""
        default = [self.config.threshold] * len(self.labels)
        return np.array(self.config.thresholds or default, np.float64)

    hf_class = "ForSequenceClassification"
    hf_task = "multi_label"
    hf_labelled = True

    @classmethod
    def hf_reads(cls, content: Mapping[str, Any]) -> bool:
        """Returns whether config.json, `content`, describes multi-label classification."""
        return content.get("problem_type") == _PROBLEM

    @classmethod
    def hf_config(cls, model: artifact.Artifact) -> dict[str, Any]:
        """Returns problem_type, and the padding that `classification.hf_padding` describes."""
        return {"problem_type": _PROBLEM, **classification.hf_padding(model)}


def best_threshold(scores_N: np.ndarray, targets_N: np.ndarray, usual: float) -> float:
    """Returns the threshold that gives the best F1 of one label.

    scores_N: probabilities. targets_N: bool[N]; at least one is true. The threshold is the midpoint
    between two neighbouring scores, or between the lowest score and 0, so that it does not depend
    on rounding. If several thresholds give the same F1, the nearest to `usual` is returned.
    """
    order = np.argsort(-scores_N, kind="stable")
    sorted_N = np.append(scores_N[order].astype(float), 0.0)
    right_N = np.cumsum(targets_N[order])
    predicted_N = np.arange(1, len(order) + 1)
    f1_N = 2 * right_N / (predicted_N + targets_N.sum())
    f1_N[sorted_N[:-1] == sorted_N[1:]] = -1.0  # no threshold separates equal scores
    middle_N = (sorted_N[:-1] + sorted_N[1:]) / 2
    best_M = middle_N[f1_N == f1_N.max()]
    return float(best_M[np.argmin(np.abs(best_M - usual))])
