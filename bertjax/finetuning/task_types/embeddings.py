"""Sentence embeddings: texts with the same meaning get similar vectors.

Two encoders with shared parameters (Reimers & Gurevych, Sentence-BERT, arXiv 1908.10084) encode the
texts of an example. The vector of a text is pooled from the last hidden states of its tokens. If
the model has dense layers behind the pooling, they are applied, and trained as well (`projection`).
Unless `normalize` is off, the vector is scaled to length 1. There are three losses
(`vector_losses`):

    ranking       For pairs that match. The second texts of the other pairs in the batch are
                  negatives, and so are the hard negatives of all pairs: texts that follow the two
                  of a pair. The loss is the cross entropy of scaled cosines (Henderson et al.,
                  arXiv 1705.00652, section 4; sentence-transformers'
                  MultipleNegativesRankingLoss, and MultipleNegativesSymmetricRankingLoss for
                  both directions).
    cosine        For pairs with a score. The loss is the squared error between the cosine and
                  score / max_score.
    margin_mse    For a query, its positive and hard negatives, with the scores of a teacher. The
                  loss is the squared error between the margins of student and teacher: the score
                  of the positive minus that of a negative (Hofstaetter et al., arXiv 2010.02666).
                  The student's score is the inner product of the vectors.

With `matryoshka`, the loss is the sum of the losses of the vectors truncated to each size (Kusupati
et al., arXiv 2205.13147), so that truncated vectors can be used too. With `chunk_size`, a batch has
the memory of a chunk, and the gradients are those of the whole batch (see `text_vectors`).

With scores, the evaluation correlates them with the similarities. Without, it measures how well the
second text of a pair is retrieved from the second texts and hard negatives of all pairs.

Shapes: B batch, N texts of an example, L length, D vector, K hard negatives of an example.
"""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.artifact import artifact
from bertjax.finetuning import margins as margins_lib
from bertjax.finetuning import projection, rows, text_vectors, vector_losses, vector_ranks
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import queries as queries_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.models.common import heads as heads_lib
from bertjax.objectives.common import losses

Example = examples_lib.Sentence
LOSSES = ("ranking", "cosine", "margin_mse")
_MARGIN_LIMIT = 2.0  # the largest difference of two cosines


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of the vectors and of the loss."""

    loss: str = "ranking"  # ranking: matches; cosine: scores; margin_mse: scores of a teacher
    pooling: str = "mean"  # of the last hidden states: mean, max, cls (first token), last (token)
    normalize: bool = True  # whether the model's vectors have length 1
    scale: float = 20.0  # ranking: cosines are multiplied by this (inverse temperature)
    symmetric: bool = False  # ranking: also find the query of each positive among all queries
    max_score: float = 5.0  # cosine: the highest score of a pair; 5 in STS-B
    matryoshka: tuple[int, ...] = ()  # sizes such as 32,64,128,384: sums their losses; (): off
    chunk_size: int = 0  # rows embedded at once, for large batches (gradient caching); 0: all

    def __post_init__(self):
        def check(ok: bool, name: str, allowed: str) -> None:
            errors.check(ok, f"kind.{name}", getattr(self, name), allowed)

        poolings, sizes = heads_lib.POOLINGS, self.matryoshka
        check(self.loss in LOSSES, "loss", f"one of {', '.join(LOSSES)}")
        check(self.pooling in poolings, "pooling", f"one of {', '.join(poolings)}")
        check(self.scale > 0, "scale", "above 0")
        check(not self.symmetric or self.loss == "ranking", "symmetric", "false unless the loss is "
              "'ranking'")  # fmt: skip
        check(self.max_score > 0, "max_score", "above 0")
        check(all(type(size) is int and size > 0 for size in sizes) and
              len(set(sizes)) == len(sizes), "matryoshka", "different sizes of 1 or more, such as "
              "32,64,128")  # fmt: skip
        check(self.chunk_size >= 0, "chunk_size", "0 or more")


class TaskType(base.TaskType):
    """Trains a model to map texts to vectors: pooled states, and any dense layers behind them."""

    model_kinds = ("encoder",)
    any_texts = searches = packs = True
    heads = ()  # the vectors are pooled from the last hidden states
    Config = Config
    output_notes = types.MappingProxyType({"vectors": "the vector of each text"})

    @property
    def across_rows(self) -> bool:
        """Whether the loss compares a row with the others of its batch, or embeds it in chunks."""
        return self.config.loss == "ranking" or self.config.chunk_size > 0

    def chunks(self, num_rows: int) -> int:
        """Returns the number of chunks of a batch; 1 if it cannot be split evenly."""
        size = self.config.chunk_size
        return num_rows // size if size and num_rows % size == 0 else 1

    @property
    def pooling(self) -> str:
        """How the vector of a text is pooled from its tokens, one of `heads.POOLINGS`."""
        return self.config.pooling

    @property
    def normalize(self) -> bool:
        """Whether the model's vectors have length 1."""
        return self.config.normalize

    @property
    def compares_cosines(self) -> bool:
        """Whether the loss compares texts by their cosine, and not by their inner product."""
        return self.config.normalize or self.config.loss != "margin_mse"

    def for_model(self, source: artifact.Artifact) -> Self:
        """Returns the task type. Raises UserError for Matryoshka sizes above the model's width."""
        width, sizes = projection.width(source), self.config.matryoshka
        errors.check(max(sizes, default=0) <= width, "kind.matryoshka", sizes,
                     f"sizes of at most {width}, the width of the model's vectors")  # fmt: skip
        return self

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns []: there are no classes.

        Raises UserError for an example that the loss cannot be trained on: with a label if the loss
        is "ranking", without a score if it is another one, and without a hard negative or with
        margins that cosines cannot have if it is "margin_mse".
        """
        loss = self.config.loss
        for example in examples:
            where = example.where or "train"
            if loss == "ranking" and example.label is not None:
                raise _labelled_match(example, "train")
            if loss != "ranking" and example.label is None:
                raise errors.UserError(
                    f"{where}: no score, which config.kind.loss = {loss!r} needs; for pairs that "
                    "match use 'ranking'"
                )
            if loss != "margin_mse":
                continue
            margins_lib.check(example, "train")
            highest = max(map(abs, margins_lib.of_label(example.label)))
            if self.config.normalize and highest > _MARGIN_LIMIT:
                raise errors.UserError(
                    f"{where}: the teacher's scores differ by {highest:g}, but those of vectors of "
                    "length 1 by at most 2: set --config.kind.normalize=false, or scale the scores"
                )
        return []

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError if the examples differ in the number of texts, or a score is invalid.

        A score is invalid if it is not a number from 0 to max_score, or belongs to a single text.
        For loss "margin_mse", there must be one for the positive and one for each negative, or one
        margin. Single texts are accepted here, since their vectors can be predicted; `loss` rejects
        them.
        """
        for example in examples:
            place, score, texts = example.where or self.task, example.label, len(example.texts)
            is_single = texts == 1
            if is_single != (len(examples[0].texts) == 1) or (is_single and score is not None):
                raise errors.UserError(
                    f"{place}: the number of texts is {texts}; all examples must be pairs "
                    "(sentence1 and sentence2), or all must be single texts without scores"
                )
            if self.config.loss == "margin_mse":
                if score is not None:
                    margins_lib.check(example, self.task)
                continue
            if texts > 2 and (self.config.loss != "ranking" or score is not None):
                raise errors.UserError(
                    f"{place}: the number of texts is {texts}; only pairs without scores have "
                    "negatives, for config.kind.loss = 'ranking'"
                )
            if score is None:
                continue
            if self.config.loss == "ranking" and isinstance(score, str):
                raise _labelled_match(example, self.task)
            if not isinstance(score, float | int) or not 0 <= score <= self.config.max_score:
                raise errors.UserError(
                    f"{place}: score {score!r} is not between 0 and config.kind.max_score = "
                    f"{self.config.max_score:g}"
                )

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row; the inputs are [N, L]."""
        label = rows.Feature(np.int32 if self.config.loss == "ranking" else np.float32, "")
        return {
            **rows.FEATURES,
            rows.FIRST_MASK: rows.Feature(np.int32, "first_length"),
            "label": label,
            "label_weight": rows.Feature(np.float32, ""),
        }

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each example as one row with an input for each text.

        The label of loss "cosine" is score / max_score. That of "margin_mse" is the teacher's
        margin to each negative; its weight is 0 for negatives that the example lacks. That of
        "ranking" has one number for each text; equal texts have equal numbers. Examples with fewer
        negatives than others have empty texts of number -1.
        """
        if isinstance(examples, queries_lib.Queries):
            return self._encode([*examples, *examples.documents()])
        form = rows.Form(self.tokenizer)
        ids = rows.encode(self.tokenizer, [example.texts for example in examples])
        numbers_BN = vector_ranks.text_numbers(examples)
        num_texts = numbers_BN.shape[1]
        encoded, truncated = [], np.zeros(len(examples), bool)
        for i, (example, texts) in enumerate(zip(examples, ids, strict=True)):
            inputs = [form.enclose([text], self.lengths.length) for text in texts]
            truncated[i] = any(enclosed.truncated for enclosed in inputs)
            row = rows.stack([enclosed.row for enclosed in inputs], num_texts)
            row[rows.FIRST_MASK] = inputs[0].row["attention_mask"]
            is_labelled = example.label is not None
            if self.config.loss == "cosine":
                row["label"] = np.array((example.label or 0.0) / self.config.max_score, np.float32)
                row["label_weight"] = np.array(is_labelled, np.float32)
            elif self.config.loss == "margin_mse":
                margins = margins_lib.of_label(example.label) if is_labelled else []
                row["label"] = np.zeros(max(num_texts - 2, 0), np.float32)
                row["label"][: len(margins)] = margins
                weights = np.arange(len(row["label"])) < len(margins)
                row["label_weight"] = weights.astype(np.float32)
            else:
                row["label"] = numbers_BN[i]
                row["label_weight"] = np.array(1, np.float32)
            encoded.append(row)
        return rows.Encoded(encoded, np.arange(len(examples)), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the example weights}, by which the loss sum is divided."""
        return {f"{self.config.loss}_loss": self._weights(batch).sum()}

    def _weights(self, batch: losses.Batch) -> jax.Array:
        """Returns float32[B], or float32[B, K] for loss "margin_mse"."""
        if self.config.loss == "margin_mse":
            return batch["label_weight"] * losses.example_weights(batch)[:, None]
        return losses.label_weights(batch)

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns the loss and, for "ranking", the accuracy; see `vector_losses`.

        With Matryoshka sizes, the loss is the sum over the sizes, and the accuracy that of the
        largest size. Raises UserError for single texts, and if chunks do not divide the batch.
        """
        count = text_vectors.num_chunks(len(batch["input_ids"]), self.config.chunk_size)
        vectors_BND = text_vectors.vectors(
            apply, batch, self.pooling, self.projection, count, training=True
        )
        if vectors_BND.shape[1] < 2:
            raise errors.UserError("embeddings are trained on pairs: give sentence1 and sentence2")
        sizes = sorted(self.config.matryoshka, reverse=True) or [vectors_BND.shape[-1]]
        terms = self._loss(vectors_BND[..., : sizes[0]], batch)
        name = f"{self.config.loss}_loss"
        for size in sizes[1:]:
            total, weight = terms[name]
            part, _ = self._loss(vectors_BND[..., :size], batch)[name]
            terms = {**terms, name: (total + part, weight)}
        return terms

    def _loss(self, vectors_BND: jax.Array, batch: losses.Batch) -> metrics.Terms:
        config, weights = self.config, self._weights(batch)
        if self.compares_cosines:
            vectors_BND = heads_lib.unit(vectors_BND)
        if config.loss == "cosine":
            return vector_losses.cosine(vectors_BND, batch["label"], weights)
        if config.loss == "margin_mse":
            return vector_losses.margin_mse(vectors_BND, batch["label"], weights)
        return vector_losses.ranking(
            vectors_BND, batch["label"], weights, config.scale, symmetric=config.symmetric
        )

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"vectors": float32[B, N, D]}; each has length 1 if `normalize` is on."""
        count = self.chunks(batch["input_ids"].shape[0])
        vectors_BND = text_vectors.vectors(apply, batch, self.pooling, self.projection, count)
        return {"vectors": heads_lib.unit(vectors_BND) if self.normalize else vectors_BND}

    def single_outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"vectors": float32[B, D]} for a batch of single texts."""
        texts = {name: x[:, None] for name, x in batch.items()}
        whole = self._with(chunk_size=0)  # chunks need a known batch size
        return {"vectors": whole.outputs(apply, texts)["vectors"][:, 0]}

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """Returns {"similarity": cosine} for each pair, or {"vector": [D]} for each single text.

        The similarity is the inner product if the loss is "margin_mse" and `normalize` is off. With
        loss "margin_mse", a prediction also has "margins", the differences to the similarities of
        the negatives.

        Unless the loss is "cosine", the second texts and the negatives of all pairs are ranked by
        their similarity to the first text of each pair. A prediction then also has "nearest", the
        most similar one, and "rank", the rank of the best match, from 1; see `vector_ranks`. With
        Matryoshka sizes, "sizes" has the same numbers of the vectors truncated to each size.

        For `Queries`, returns {"documents": {id: similarity}} for each query.
        """
        vectors_NBD = np.swapaxes(np.asarray(outputs["vectors"], np.float32), 0, 1)
        if isinstance(examples, queries_lib.Queries):
            vectors_ND = vectors_NBD[0]
            return examples.predictions(
                vector_ranks.unit(vectors_ND) if self.compares_cosines else vectors_ND
            )
        if len(vectors_NBD) == 1:
            return [{"vector": vector.tolist()} for vector in vectors_NBD[0]]
        pool = None if self.config.loss == "cosine" else vector_ranks.Pool(examples)
        predictions = self._similarities(examples, vectors_NBD, pool)
        for size in sorted(self.config.matryoshka):
            smaller = self._similarities(examples, vectors_NBD[..., :size], pool)
            for prediction, of_size in zip(predictions, smaller, strict=True):
                prediction.setdefault("sizes", {})[str(size)] = of_size
        return predictions

    def _similarities(
        self, examples: Sequence[Example], vectors_NBD: np.ndarray, pool: vector_ranks.Pool | None
    ) -> list[dict[str, Any]]:
        if self.compares_cosines:
            vectors_NBD = vector_ranks.unit(vectors_NBD)
        products_BN = np.einsum("bd,nbd->bn", vectors_NBD[0], vectors_NBD[1:])
        predictions: list[dict[str, Any]] = [{"similarity": s} for s in products_BN[:, 0].tolist()]
        if pool:
            for prediction, rank in zip(predictions, pool.ranks(vectors_NBD), strict=True):
                prediction.update(rank._asdict())
        if self.config.loss == "margin_mse":
            margins_BK = products_BN[:, :1] - products_BN[:, 1:]
            for prediction, example, margins in zip(predictions, examples, margins_BK, strict=True):
                prediction["margins"] = margins[: len(example.texts) - 2].tolist()
        return predictions

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns pearson and spearman over the pairs that have a score.

        If no pair has one, returns accuracy_at_1 and mrr. For loss "margin_mse", returns
        accuracy_at_1 and mrr, and the correlations of the margins if there are any. With Matryoshka
        sizes, also returns each score of each size, such as "mrr/64". For `Queries`, returns the
        scores of `ranking_scores`. Raises UserError if there are neither scores nor ranks.
        """
        if isinstance(examples, queries_lib.Queries):
            return examples.scores(examples.run(predictions))
        result = self._scores(examples, predictions)
        for size in predictions[0].get("sizes", ()):
            of_size = self._scores(examples, [p["sizes"][size] for p in predictions])
            result |= {f"{name}/{size}": score for name, score in of_size.items()}
        return result

    def _scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        labelled = [
            (example.label, prediction)
            for example, prediction in zip(examples, predictions, strict=True)
            if example.label is not None
        ]
        ranks = [prediction["rank"] for prediction in predictions if "rank" in prediction]
        if self.config.loss == "margin_mse" and ranks:
            targets = [margin for label, _ in labelled for margin in margins_lib.of_label(label)]
            margins = [margin for _, prediction in labelled for margin in prediction["margins"]]
            correlations = scores_lib.correlations(targets, margins) if targets else {}
            return scores_lib.retrieval(ranks) | correlations
        pairs = [(y, p["similarity"]) for y, p in labelled if isinstance(y, float | int)]
        if pairs:
            return scores_lib.correlations(*zip(*pairs, strict=True))
        if not ranks:
            kind = "pairs without scores" if "similarity" in predictions[0] else "single texts"
            expected = "pairs with scores" if self.config.loss == "cosine" else "pairs"
            raise errors.UserError(
                f"{examples[0].where or 'examples'}: {kind} cannot be scored here; give {expected}"
            )
        return scores_lib.retrieval(ranks)

    def lines(self, prediction: dict[str, Any], top: int) -> list[str]:
        """Returns the vector of a single text, or the similarity of a pair."""
        if "vector" in prediction:
            return [f"[{', '.join(f'{value:.6g}' for value in prediction['vector'])}]"]
        name = "cosine" if self.compares_cosines else "inner product"
        return [f"{name} {prediction['similarity']:.4f}"]


def _labelled_match(example: Example, where: str) -> errors.UserError:
    return errors.UserError(
        f"{example.where or where}: has the label {example.label!r}, but config.kind.loss = "
        "'ranking' needs matching pairs without labels; remove the labels and the pairs that do "
        "not match, or train on scores with --task=similarity"
    )
