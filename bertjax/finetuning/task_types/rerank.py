"""Reranking: a cross-encoder reads a query and a document together and scores the document.

The head "classifier" gives one number for the two texts (Nogueira & Cho, arXiv 1901.04085). There
are three losses:

    binary        The binary cross entropy between the sigmoid of the score and the label, 0 to 1.
    softmax       The cross entropy between the softmax of the scores of a query's documents and
                  their labels, which are divided by their sum (Gao et al., arXiv 2101.08751).
    margin_mse    The squared error between the margin of two scores, positive minus negative, and
                  that of a teacher (Hofstaetter et al., arXiv 2010.02666).

The default "auto" is margin_mse if train has a teacher's scores, softmax if every example has
documents of two labels, and otherwise binary. With few queries and several negatives for each,
softmax starts to learn hundreds of steps before binary (benchmarks/retrieval.py).

On dev, the candidates of each query are ranked by their scores. `finetuning.retrieval` reranks the
results of a search.

Shapes: B batch, N documents of a row.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax import errors, metrics
from bertjax.artifact import artifact, cross_encoder
from bertjax.finetuning import ranking_scores, rows
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base, classification
from bertjax.objectives.common import losses

Example = examples_lib.Candidates
LOSSES = ("auto", "binary", "softmax", "margin_mse")
TOGETHER = ("softmax", "margin_mse")  # the documents of an example are one row
RELEVANT = 0.5  # documents with this label or a higher one are relevant in the scores


@dataclasses.dataclass(frozen=True)
class Config:
    """The loss."""

    loss: str = "auto"  # binary: labels; softmax: labels of groups; margin_mse: a teacher's scores

    def __post_init__(self):
        errors.check(self.loss in LOSSES, "kind.loss", self.loss, f"one of {', '.join(LOSSES)}")


class TaskType(base.TaskType):
    """Scores documents for a query with the head "classifier"."""

    model_kinds = ("encoder", "decoder")
    libraries = ("pytrec_eval",)
    packs = True
    heads = ("classifier",)
    Config = Config

    def num_labels(self) -> int:
        """Returns 1, because the head gives one score."""
        return 1

    def for_train(self, examples: Sequence[Example]) -> Self:
        """Returns the task type with a loss that fits the examples, in place of "auto"."""
        if self.config.loss != "auto":
            return self
        if any(example.teacher is not None for example in examples):
            return self._with(loss="margin_mse")
        is_grouped = all(len(set(example.labels or ())) > 1 for example in examples)
        return self._with(loss="softmax" if is_grouped else "binary")

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns []: there are no classes.

        Raises UserError if the loss needs a teacher's scores that train lacks, or ignores them, if
        all documents of train have the same label, and for softmax also if those of one example do.
        """
        for example in examples:
            place = example.where or "train"
            if self.config.loss == "margin_mse" and example.teacher is None:
                raise errors.UserError(
                    f"{place}: no scores of a teacher, which config.kind.loss = 'margin_mse' "
                    "needs; give columns query, positive, negative and score"
                )
            if self.config.loss != "margin_mse" and example.teacher is not None:
                raise errors.UserError(
                    f"{place}: has scores of a teacher, which config.kind.loss = "
                    f"'{self.config.loss}' does not use; give --config.kind.loss=margin_mse or "
                    "remove the column"
                )
            if self.config.loss == "softmax" and len(set(example.labels or ())) == 1:
                raise errors.UserError(
                    f"{place}: all documents have the label {example.labels[0]:g}; "
                    "config.kind.loss = 'softmax' compares documents that match a query with "
                    "others: give them in one record, with columns query, positive, negatives or "
                    "query, documents, labels"
                )
        labels = {label for example in examples for label in example.labels or ()}
        if len(labels) == 1:
            raise errors.UserError(
                f"all documents of train have the label {labels.pop():g}: add documents that do "
                "not match, as columns negative_1, negative_2 ... or with label 0"
            )
        return []

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError for an example without documents, or with a wrong number of labels."""
        for example in examples:
            for name, numbers in (("labels", example.labels), ("teacher", example.teacher)):
                if numbers is not None and len(numbers) != len(example.documents):
                    raise errors.UserError(
                        f"{example.where or self.task}: has {len(numbers)} {name} for "
                        f"{len(example.documents)} documents"
                    )

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row; the inputs are [N, L]."""
        number = rows.Feature(np.float32, "")
        return {**rows.FEATURES, "label": number, "label_weight": number}

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each document as a row; for losses of `TOGETHER`, an example as one row.

        Examples with fewer documents than others have empty documents of weight 0. The weight of a
        positive is also 0 for margin_mse, since the loss has a term for each negative.
        """
        form = rows.Form(self.tokenizer)
        together = self.config.loss in TOGETHER
        is_margin = self.config.loss == "margin_mse"
        width = max((len(e.documents) for e in examples), default=1) if together else 1
        pairs = [(e.query, document) for e in examples for document in e.documents]
        ids = iter(rows.encode(self.tokenizer, pairs))
        encoded, owners, truncated = [], [], np.zeros(len(examples), bool)
        for i, example in enumerate(examples):
            inputs = [form.enclose(next(ids), self.lengths.length) for _ in example.documents]
            truncated[i] = any(enclosed.truncated for enclosed in inputs)
            numbers = example.teacher if is_margin else example.labels
            known = numbers is not None
            numbers = numbers if known else (0.0,) * len(inputs)
            size = len(inputs) if together else 1
            for start in range(0, len(inputs), size):
                row = rows.stack([e.row for e in inputs[start : start + size]], width)
                label_N, weight_N = np.zeros((2, width), np.float32)
                label_N[:size] = numbers[start : start + size]
                weight_N[int(is_margin) : size] = known
                row["label"], row["label_weight"] = label_N, weight_N
                encoded.append(row)
                owners.append(i)
        return rows.Encoded(encoded, np.array(owners, int), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the weights}, by which the loss sum is divided."""
        weights_BN = _weights(batch)
        of_queries = self.config.loss == "softmax"
        return {f"{self.config.loss}_loss": (weights_BN.max(1) if of_queries else weights_BN).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns binary_loss or softmax_loss, in nats, or margin_mse_loss."""
        scores_BN, label_BN = _scores(apply, batch), batch["label"]
        weights = _weights(batch)  # [B, N], or [B] for softmax
        if self.config.loss == "binary":
            loss = optax.sigmoid_binary_cross_entropy(scores_BN, label_BN)
        elif self.config.loss == "softmax":
            share_BN = jnp.where(weights > 0, label_BN, 0)
            share_BN /= jnp.maximum(share_BN.sum(1, keepdims=True), 1e-6)
            known_BN = jnp.where(weights > 0, scores_BN, -jnp.inf)
            loss, weights = optax.safe_softmax_cross_entropy(known_BN, share_BN), weights.max(1)
        else:
            margin_BN = scores_BN[:, :1] - scores_BN
            loss = (margin_BN - (label_BN[:, :1] - label_BN)) ** 2
        return {f"{self.config.loss}_loss": ((loss * weights).sum(), weights.sum())}

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"scores" float32[B, N]}: the outputs of the head."""
        return {"scores": _scores(apply, batch)}

    def decode(
        self,
        examples: Sequence[Example],
        encoded: rows.Encoded,
        outputs: Mapping[str, np.ndarray],
    ) -> list[dict[str, Any]]:
        """Returns {"scores": [score of each document]} for each example.

        A score is the output of the head, without a sigmoid; a higher one is better.
        """
        found: list[list[float]] = [[] for _ in examples]
        for owner, scores_N in zip(encoded.owners, outputs["scores"], strict=True):
            found[owner] += scores_N.tolist()
        return [
            {"scores": scores[: len(example.documents)]}
            for example, scores in zip(examples, found, strict=True)
        ]

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns the scores of `ranking_scores` over the queries.

        The candidates of a query are the documents of all examples with this query. Of equal
        scores, the document that is read first ranks last, so that a positive has no advantage.
        Queries whose documents are all relevant, or none of them, are left out. Raises UserError if
        no query is left; returns {} if no example has labels.
        """
        qrels: dict[str, dict[str, int]] = collections.defaultdict(dict)
        run: dict[str, dict[str, float]] = collections.defaultdict(dict)
        names: dict[str, str] = {}  # {document: its name, in the order of the alphabet}
        for example, prediction in zip(examples, predictions, strict=True):
            if example.labels is None:
                continue
            for document, label, score in zip(
                example.documents, example.labels, prediction["scores"], strict=True
            ):
                name = names.setdefault(document, f"{len(names):09d}")
                judged = qrels[example.query]
                judged[name] = max(int(label >= RELEVANT), judged.get(name, 0))
                run[example.query][name] = score
        mixed = {query: judged for query, judged in qrels.items() if len(set(judged.values())) > 1}
        if qrels and not mixed:
            raise errors.UserError(
                f"{examples[0].where or 'examples'}: no query has both relevant documents and "
                "others, so no ranking can be scored; add candidates"
            )
        return ranking_scores.scores(mixed, run) if mixed else {}

    def lines(self, prediction: dict[str, Any], top: int) -> list[str]:
        """Returns the scores of the first `top` documents."""
        return ["score " + "   ".join(f"{score:.4f}" for score in prediction["scores"][:top])]

    hf_class = "ForSequenceClassification"
    hf_task = "rerank"
    hf_labelled = True

    @classmethod
    def hf_reads(cls, content: Mapping[str, Any]) -> bool:
        """Returns whether bertjax wrote the folder for this task.

        Other folders with one label are read as regression, which also gives one number.
        """
        return classification.is_reranker(content)

    @classmethod
    def hf_config(cls, model: artifact.Artifact) -> dict[str, Any]:
        """Returns problem_type, and the keys of a CrossEncoder with the same scores.

        For a decoder, also returns pad_token_id (see `hf_padding`).
        """
        keys = cross_encoder.keys("identity")  # by default, a CrossEncoder applies the sigmoid
        return {"problem_type": "regression"} | keys | classification.hf_padding(model)


def _scores(apply: Callable[..., losses.Batch], batch: losses.Batch) -> jax.Array:
    """Returns float32[B, N]: the output of the head for each document."""
    logits = rows.flat(apply)(**rows.inputs(batch))["class_logits"]
    return logits.astype(jnp.float32).reshape(batch["label"].shape)


def _weights(batch: losses.Batch) -> jax.Array:
    return batch["label_weight"] * losses.example_weights(batch)[:, None]
