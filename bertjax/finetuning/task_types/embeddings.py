"""Sentence embeddings: texts with the same meaning get similar vectors.

Two encoders with shared parameters (Reimers & Gurevych, Sentence-BERT, arXiv 1908.10084) encode the
texts of a pair. The vector of a text is the mean of the last hidden states of its tokens, or the
last hidden state of its first token. There are two losses:

    ranking    For pairs that match. The second texts of the other pairs in the batch are negatives,
               and so are the hard negatives of all pairs: texts that follow the two of a pair.
               The loss is the cross entropy of scaled cosines (Henderson et al., arXiv 1705.00652,
               section 4; sentence-transformers' MultipleNegativesRankingLoss).
    cosine     For pairs with a score. The loss is the squared error between the cosine and
               score / max_score.

Pairs that share a text are never each other's negatives, and a text that matches is never a hard
negative. If the pairs have scores, the evaluation correlates them with the cosines. Otherwise it
measures how well the second text of a pair is retrieved from the second texts and hard negatives of
all pairs.

Shapes: B batch, N texts of an example, L length, D model, R first texts of a block, M candidates,
H hard negatives of a batch.
"""

import collections
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
from bertjax.models.common import heads as heads_lib
from bertjax.models.common import layers
from bertjax.objectives.common import losses

Example = examples_lib.Sentence
LOSSES = ("ranking", "cosine")
POOLINGS = ("mean", "cls")
SIMILARITIES = 2**25  # maximum in memory at once: a block of first texts times all second texts


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of the pooling and of the loss."""

    loss: str = "ranking"  # ranking: pairs that match; cosine: pairs with scores
    pooling: str = "mean"  # mean: average last hidden state of all tokens; cls: of the first
    scale: float = 20.0  # ranking: cosines are multiplied by this (inverse temperature)
    max_score: float = 5.0  # cosine: the highest score of a pair; 5 in STS-B

    def __post_init__(self):
        def check(ok: bool, name: str, allowed: str) -> None:
            errors.check(ok, f"kind.{name}", getattr(self, name), allowed)

        check(self.loss in LOSSES, "loss", f"one of {', '.join(LOSSES)}")
        check(self.pooling in POOLINGS, "pooling", f"one of {', '.join(POOLINGS)}")
        check(self.scale > 0, "scale", "above 0")
        check(self.max_score > 0, "max_score", "above 0")


class TaskType(base.TaskType):
    """Trains a model to map texts to vectors, which are pooled from its states without a head."""

    model_kinds = ("encoder",)
    any_texts = True
    across_rows = True  # the loss compares a row with the other rows of its batch
    heads = ()  # the vectors are pooled from the last hidden states
    Config = Config

    @property
    def pooling(self) -> str:
        """How the vector of a text is pooled from its tokens, one of POOLINGS."""
        return self.config.pooling

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns []: there are no classes.

        Raises UserError for a pair with a label if the loss is "ranking", and for a pair without a
        score if it is "cosine".
        """
        for example in examples:
            if self.config.loss == "ranking" and example.label is not None:
                raise _labelled_match(example, "train")
            if self.config.loss == "cosine" and example.label is None:
                raise errors.UserError(
                    f"{example.where or 'train'}: no score, which config.kind.loss = 'cosine' "
                    "needs; for pairs that match use 'ranking'"
                )
        return []

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError if the examples differ in the number of texts, or a score is invalid.

        A score is invalid if it is not a number from 0 to max_score, or belongs to a single text.
        Single texts are accepted here, since their vectors can be predicted; `loss` rejects them.
        """
        for example in examples:
            place, score, texts = example.where or self.task, example.label, len(example.texts)
            is_single = texts == 1
            if is_single != (len(examples[0].texts) == 1) or (is_single and score is not None):
                raise errors.UserError(
                    f"{place}: the number of texts is {texts}; all examples must be pairs "
                    "(sentence1 and sentence2), or all must be single texts without scores"
                )
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
        label = rows.Feature(np.float32 if self.config.loss == "cosine" else np.int32, "")
        return {**rows.FEATURES, "label": label, "label_weight": rows.Feature(np.float32, "")}

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each example as one row with an input for each text.

        For loss "cosine", the label is score / max_score. For loss "ranking", the label has one
        number for each text; equal texts have equal numbers. Examples with fewer negatives than
        others have empty texts of number -1.
        """
        form = rows.Form(self.tokenizer)
        ids = rows.encode(self.tokenizer, [example.texts for example in examples])
        numbers_BN = _numbers(examples)
        encoded, truncated = [], np.zeros(len(examples), bool)
        for i, (example, texts) in enumerate(zip(examples, ids, strict=True)):
            inputs = [form.enclose([text], self.lengths.length) for text in texts]
            truncated[i] = any(enclosed.truncated for enclosed in inputs)
            row = rows.stack([enclosed.row for enclosed in inputs], numbers_BN.shape[1])
            if self.config.loss == "cosine":
                row["label"] = np.array((example.label or 0.0) / self.config.max_score, np.float32)
                row["label_weight"] = np.array(example.label is not None, np.float32)
            else:
                row["label"] = numbers_BN[i]
                row["label_weight"] = np.array(1, np.float32)
            encoded.append(row)
        return rows.Encoded(encoded, np.arange(len(examples)), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns {loss name: sum of the example weights}, by which the loss sum is divided."""
        return {f"{self.config.loss}_loss": losses.label_weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns ranking_loss, in nats, and ranking_accuracy; for loss "cosine", cosine_loss.

        The cosine_loss is the squared error between the cosine and the scaled score. Raises
        UserError for single texts.
        """
        vectors_BND = _vectors(self.config, apply, batch)
        if vectors_BND.shape[1] < 2:
            raise errors.UserError("embeddings are trained on pairs: give sentence1 and sentence2")
        weights_B = losses.label_weights(batch)
        if self.config.loss == "cosine":
            error_B = (_cosines(vectors_BND) - batch["label"]) ** 2
            return {"cosine_loss": ((error_B * weights_B).sum(), weights_B.sum())}
        logits_BB = self.config.scale * vectors_BND[:, 0] @ vectors_BND[:, 1].T
        diagonal_BB = jnp.eye(len(weights_B), dtype=bool)
        pair_B2 = batch["label"][:, :2]
        same_BB = (pair_B2[:, None, :, None] == pair_B2[None, :, None, :]).any(axis=(-2, -1))
        candidates_BB = diagonal_BB | (~same_BB & (weights_B > 0)[None])
        logits_BM = jnp.where(candidates_BB, logits_BB, layers.MASKED)
        if vectors_BND.shape[1] > 2:
            hard_HD = vectors_BND[:, 2:].reshape(-1, vectors_BND.shape[-1])
            logits_BH = self.config.scale * vectors_BND[:, 0] @ hard_HD.T
            candidates_BH = _hard_negatives(batch["label"], same_BB, weights_B)
            logits_BH = jnp.where(candidates_BH, logits_BH, layers.MASKED)
            logits_BM = jnp.concatenate([logits_BM, logits_BH], axis=1)
        return losses.classification("ranking", logits_BM, jnp.arange(len(weights_B)), weights_B)

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"vectors": float32[B, N, D]}; each vector has length 1."""
        return {"vectors": _vectors(self.config, apply, batch)}

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """Returns {"similarity": cosine} for each pair, or {"vector": [D]} for each single text.

        With loss "ranking", the second texts and the negatives of all pairs, called candidates,
        are ranked by their cosine with the first text of each pair. A prediction then also has
        "nearest", the candidate with the highest cosine, and "rank", the rank of the best match,
        from 1. A match is a text that is paired with this first text in any example. A candidate
        that equals the first text is excluded, unless it is a match. A text with the same cosine as
        the best match ranks before the match.
        """
        vectors_NBD = np.swapaxes(np.asarray(outputs["vectors"], np.float32), 0, 1)
        if len(vectors_NBD) == 1:
            return [{"vector": vector.tolist()} for vector in vectors_NBD[0]]
        first_BD, second_BD = vectors_NBD[:2]
        similarity_B = np.einsum("bd,bd->b", first_BD, second_BD)
        if self.config.loss != "ranking":
            return [{"similarity": similarity} for similarity in similarity_B.tolist()]
        numbers_BN = _numbers(examples)
        first_B, second_B = numbers_BN[:, :2].T
        numbers_M, place_M = np.unique(numbers_BN[:, 1:], return_index=True)
        place_M, numbers_M = place_M[numbers_M >= 0], numbers_M[numbers_M >= 0]  # -1 is padding
        row_M, text_M = np.divmod(place_M, numbers_BN.shape[1] - 1)
        candidates_MD = vectors_NBD[1 + text_M, row_M]
        matches = collections.defaultdict(list)
        for first, second in zip(first_B, second_B, strict=True):
            matches[first].append(second)
        predictions, size = [], max(1, SIMILARITIES // len(place_M))
        for start in range(0, len(examples), size):
            cosines_RM = first_BD[start : start + size] @ candidates_MD.T
            for i, cosines_M in enumerate(cosines_RM, start):
                matches_M = np.zeros(len(place_M), bool)
                matches_M[np.searchsorted(numbers_M, matches[first_B[i]])] = True
                cosines_M = np.where((numbers_M == first_B[i]) & ~matches_M, -np.inf, cosines_M)
                before_M = ~matches_M & ~(
                    cosines_M < cosines_M[matches_M].max()
                )  # true for NaN as well
                best = cosines_M.argmax()
                predictions.append(
                    {
                        "similarity": float(similarity_B[i]),
                        "rank": 1 + int(before_M.sum()),
                        "nearest": examples[row_M[best]].texts[1 + text_M[best]],
                    }
                )
        return predictions

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns pearson and spearman over the pairs that have a score.

        If no pair has one, returns accuracy_at_1 and mrr. Raises UserError if there are neither
        scores nor ranks.
        """
        pairs = [
            (example.label, prediction["similarity"])
            for example, prediction in zip(examples, predictions, strict=True)
            if isinstance(example.label, float | int)
        ]
        if pairs:
            return scores_lib.correlations(*zip(*pairs, strict=True))
        if "rank" not in predictions[0]:
            kind = "pairs without scores" if "similarity" in predictions[0] else "single texts"
            expected = "pairs with scores" if self.config.loss == "cosine" else "pairs"
            raise errors.UserError(
                f"{examples[0].where or 'examples'}: {kind} cannot be scored here; give {expected}"
            )
        return scores_lib.retrieval([prediction["rank"] for prediction in predictions])

    def lines(self, prediction: dict[str, Any], top: int) -> list[str]:
        """Returns the vector of a single text, or the cosine of a pair."""
        if "vector" in prediction:
            return [f"[{', '.join(f'{value:.6g}' for value in prediction['vector'])}]"]
        return [f"cosine {prediction['similarity']:.4f}"]


def _vectors(config: Config, apply: Callable[..., losses.Batch], batch: losses.Batch) -> jax.Array:
    """Returns the vectors of all texts, float32[B, N, D], of length 1."""
    states = rows.flat(apply)(**losses.inputs(batch, rows.INPUTS))["last_hidden_state"]
    mask_BNL = batch["attention_mask"]
    states_BNLD = states.reshape(*mask_BNL.shape, -1)
    vectors_BND = heads_lib.pool(states_BNLD, mask_BNL, config.pooling)
    square_BN1 = (vectors_BND**2).sum(axis=-1, keepdims=True)
    return vectors_BND * jax.lax.rsqrt(jnp.maximum(square_BN1, 1e-24))


def _cosines(vectors_BND: jax.Array) -> jax.Array:
    return (vectors_BND[:, 0] * vectors_BND[:, 1]).sum(axis=-1)


def _hard_negatives(label_BN: jax.Array, same_BB: jax.Array, weights_B: jax.Array) -> jax.Array:
    """Returns bool[B, H]: whether a hard negative of the batch is a negative of each row.

    It is not if it is padding, or a text of a pair that shares a text with the row's pair.
    same_BB: whether two pairs share a text.
    """
    number_H = label_BN[:, 2:].reshape(-1)
    is_text_BH = (label_BN[:, :2, None] == number_H[None, None]).any(axis=1)
    matches_BH = same_BB.astype(jnp.float32) @ is_text_BH.astype(jnp.float32) > 0
    exists_H = (number_H >= 0) & (jnp.repeat(weights_B, label_BN.shape[1] - 2) > 0)
    return ~matches_BH & exists_H[None]


def _numbers(examples: Sequence[Example]) -> np.ndarray:
    """Returns int32[B, N]: a number for each text; equal texts have equal numbers.

    The number of texts that an example lacks is -1.
    """
    numbers: dict[str, int] = {}
    result_BN = np.full((len(examples), max(len(e.texts) for e in examples)), -1, np.int32)
    for i, example in enumerate(examples):
        for j, text in enumerate(example.texts):
            result_BN[i, j] = numbers.setdefault(text, len(numbers))
    return result_BN


def _labelled_match(example: Example, where: str) -> errors.UserError:
    return errors.UserError(
        f"{example.where or where}: has the label {example.label!r}, but config.kind.loss = "
        "'ranking' needs matching pairs without labels; remove the labels and the pairs that do "
        "not match, or train on scores with --task=similarity"
    )
