"""A vector for a text, so that texts of one meaning are near each other.

Two encoders that share their parameters (Reimers & Gurevych, Sentence-BERT, arXiv 1908.10084)
read a pair of texts; the vector is the mean of the last states or the state of the first token.

    ranking    the second text is the match of the first, and the second texts of the other pairs of
               the batch are not: cross entropy of scaled cosines (Henderson et al., arXiv
               1705.00652, section 4; sentence-transformers' MultipleNegativesRankingLoss)
    cosine     the pair has a score, and the cosine is to be score / max_score: squared error

Pairs that share a text are never taken for each other's negatives. Scores are the correlations of
the cosine where the pairs have scores, else those of finding the second text of a pair among the
second texts of all.

Shapes: B batch, N texts of an example, L length, D model, R first texts of a block, M candidates.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import kind, rows
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.models.common import heads as heads_lib
from bertjax.models.common import layers
from bertjax.objectives.common import losses

KINDS = ("encoder",)
LIBRARIES = ()
ACROSS_ROWS = True  # every other row of the batch is what a text is told from
Example = examples_lib.Sentence
LOSSES = ("ranking", "cosine")
POOLINGS = ("mean", "cls")
SIMILARITIES = 2**25  # that are in memory at once, of some first texts with all second ones


@dataclasses.dataclass(frozen=True)
class Config:
    """How a vector is made and what it is trained for."""

    loss: str = "ranking"  # ranking: pairs that match; cosine: pairs with scores
    pooling: str = "mean"  # of the last states: mean of all tokens, or cls, that of the first
    scale: float = 20.0  # ranking: factor of the cosines, the inverse of a temperature
    max_score: float = 5.0  # cosine: the score of a pair of one meaning; STS-B goes to 5

    def __post_init__(self):
        def check(ok: bool, name: str, allowed: str) -> None:
            errors.check(ok, f"kind.{name}", getattr(self, name), allowed)

        check(self.loss in LOSSES, "loss", f"one of {', '.join(LOSSES)}")
        check(self.pooling in POOLINGS, "pooling", f"one of {', '.join(POOLINGS)}")
        check(self.scale > 0, "scale", "above 0")
        check(self.max_score > 0, "max_score", "above 0")


def heads(config: Config) -> tuple[str, ...]:
    """None: the vectors are made of the last states."""
    return ()


def num_labels(config: Config, labels: Sequence[str]) -> int:
    """0: there is no head."""
    return 0


def labels(config: Config, examples: Sequence[Example]) -> list[str]:
    """None: a pair has a score, or matches. UserError for pairs that are of the other loss."""
    for example in examples:
        if config.loss == "ranking" and example.label is not None:
            raise _labelled_match(example, "train")
        if config.loss == "cosine" and example.label is None:
            raise errors.UserError(
                f"{example.where or 'train'}: no score, which config.kind.loss = 'cosine' learns; "
                "leave it at 'ranking' for pairs that match"
            )
    return []


def check(config: Config, examples: Sequence[Example], labels: Sequence[str], where: str) -> None:
    """UserError for what is no pair of texts, and with loss cosine for a score out of range.

    Single texts can only be given vectors.
    """
    for example in examples:
        place, score, texts = example.where or where, example.label, len(example.texts)
        if texts != len(examples[0].texts) or (texts != 2 and score is not None):
            raise errors.UserError(
                f"{place}: texts: {texts}; give pairs, sentence1 and sentence2, or single texts"
            )
        if score is None:
            continue
        if config.loss == "ranking" and isinstance(score, str):
            raise _labelled_match(example, where)
        if not isinstance(score, float | int) or not 0 <= score <= config.max_score:
            raise errors.UserError(
                f"{place}: score {score!r} is not between 0 and config.kind.max_score = "
                f"{config.max_score:g}"
            )


def features(config: Config) -> dict[str, kind.Feature]:
    """Every array of a row; the inputs are [N, L]."""
    label = kind.Feature(np.float32 if config.loss == "cosine" else np.int32, "")
    return {**rows.FEATURES, "label": label, "label_weight": kind.Feature(np.float32, "")}


def encode(
    config: Config,
    examples: Sequence[Example],
    tokenizer: tokenizer_lib.Tokenizer,
    labels: Sequence[str],
    lengths: kind.Lengths,
) -> kind.Encoded:
    """A row an example, an input a text.

    The label is score / max_score, or the numbers of the texts, equal for equal ones.
    """
    form = rows.Form(tokenizer)
    ids = rows.encode(tokenizer, [example.texts for example in examples])
    numbers_BN = _numbers(examples)
    encoded, truncated = [], np.zeros(len(examples), bool)
    for i, (example, texts) in enumerate(zip(examples, ids, strict=True)):
        made = [form.enclose([text], lengths.length) for text in texts]
        truncated[i] = any(each.truncated for each in made)
        row = rows.stack([each.row for each in made], len(made))
        if config.loss == "cosine":
            row["label"] = np.array((example.label or 0.0) / config.max_score, np.float32)
            row["label_weight"] = np.array(example.label is not None, np.float32)
        else:
            row["label"] = numbers_BN[i]
            row["label_weight"] = np.array(1, np.float32)
        encoded.append(row)
    return kind.Encoded(encoded, np.arange(len(examples)), truncated)


def normalizers(config: Config, batch: losses.Batch) -> dict[str, jax.Array]:
    """What each loss is divided by, once: the weight of the batch."""
    return {f"{config.loss}_loss": losses.label_weights(batch).sum()}


def loss(config: Config, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
    """ranking_loss, in nats, and ranking_accuracy; or cosine_loss, a squared error."""
    vectors_BND = _vectors(config, apply, batch)
    if vectors_BND.shape[1] != 2:
        raise errors.UserError("embeddings are trained on pairs: give sentence1 and sentence2")
    weights_B = losses.label_weights(batch)
    if config.loss == "cosine":
        error_B = (_cosines(vectors_BND) - batch["label"]) ** 2
        return {"cosine_loss": ((error_B * weights_B).sum(), weights_B.sum())}
    logits_BB = config.scale * vectors_BND[:, 0] @ vectors_BND[:, 1].T
    own_BB = jnp.eye(len(weights_B), dtype=bool)
    same_BBNN = batch["label"][:, None, :, None] == batch["label"][None, :, None, :]
    same_BB = same_BBNN.any(axis=(-2, -1))
    candidates_BB = own_BB | (~same_BB & (weights_B > 0)[None])
    logits_BB = jnp.where(candidates_BB, logits_BB, layers.MASKED)
    return losses.classification("ranking", logits_BB, jnp.arange(len(weights_B)), weights_B)


def outputs(
    config: Config, apply: Callable[..., losses.Batch], batch: losses.Batch
) -> dict[str, jax.Array]:
    """{"vectors" float32[B, N, D]} of length 1."""
    return {"vectors": _vectors(config, apply, batch)}


def decode(
    config: Config,
    examples: Sequence[Example],
    encoded: kind.Encoded,
    outputs: dict[str, np.ndarray],
    labels: Sequence[str],
    tokenizer: tokenizer_lib.Tokenizer,
) -> list[dict[str, Any]]:
    """Of a pair {"similarity": cosine}, with loss "ranking" also {"rank": of its second text as an
    answer to the first, or of another that is paired with it, "nearest": the answer}; of a single
    text {"vector": [D]}.

    A text is no answer to itself. What is as near as a right answer stands before it.
    """
    vectors_NBD = np.swapaxes(np.asarray(outputs["vectors"], np.float32), 0, 1)
    if len(vectors_NBD) == 1:
        return [{"vector": vector.tolist()} for vector in vectors_NBD[0]]
    first_BD, second_BD = vectors_NBD
    similarity_B = np.einsum("bd,bd->b", first_BD, second_BD)
    if config.loss != "ranking":
        return [{"similarity": similarity} for similarity in similarity_B.tolist()]
    first_B, second_B = _numbers(examples).T
    numbers_M, column_M = np.unique(second_B, return_index=True)  # each of the second texts once
    right = collections.defaultdict(list)
    for first, second in zip(first_B, second_B, strict=True):
        right[first].append(second)
    found, size = [], max(1, SIMILARITIES // len(column_M))
    for start in range(0, len(examples), size):
        cosines_RM = first_BD[start : start + size] @ second_BD[column_M].T
        for i, cosines_M in enumerate(cosines_RM, start):
            right_M = np.zeros(len(column_M), bool)
            right_M[np.searchsorted(numbers_M, right[first_B[i]])] = True
            cosines_M = np.where((numbers_M == first_B[i]) & ~right_M, -np.inf, cosines_M)
            before_M = ~right_M & ~(cosines_M < cosines_M[right_M].max())  # also what is no number
            found.append(
                {
                    "similarity": float(similarity_B[i]),
                    "rank": 1 + int(before_M.sum()),
                    "nearest": examples[column_M[cosines_M.argmax()]].texts[1],
                }
            )
    return found


def scores(
    config: Config,
    examples: Sequence[Example],
    predictions: Sequence[dict[str, Any]],
    labels: Sequence[str],
) -> dict[str, float]:
    """pearson and spearman of the pairs that have a score; without any accuracy_at_1 and mrr.

    UserError for what can only be given vectors, or no ranks.
    """
    pairs = [
        (example.label, prediction["similarity"])
        for example, prediction in zip(examples, predictions, strict=True)
        if isinstance(example.label, float | int)
    ]
    if pairs:
        return scores_lib.correlations(*zip(*pairs, strict=True))
    if "rank" not in predictions[0]:
        what = "pairs without scores" if "similarity" in predictions[0] else "single texts"
        asked = "pairs with scores" if config.loss == "cosine" else "pairs"
        raise errors.UserError(
            f"{examples[0].where or 'examples'}: {what} cannot be scored here; give {asked}"
        )
    return scores_lib.retrieval([prediction["rank"] for prediction in predictions])


def _vectors(config: Config, apply: Callable[..., losses.Batch], batch: losses.Batch) -> jax.Array:
    """float32[B, N, D] of length 1."""
    states = rows.flat(apply)(**losses.inputs(batch, rows.INPUTS))["last_hidden_state"]
    mask_BNL = batch["attention_mask"]
    states_BNLD = states.reshape(*mask_BNL.shape, -1)
    vectors_BND = heads_lib.pool(states_BNLD, mask_BNL, config.pooling)
    square_BN1 = (vectors_BND**2).sum(axis=-1, keepdims=True)
    return vectors_BND * jax.lax.rsqrt(jnp.maximum(square_BN1, 1e-24))


def _cosines(vectors_BND: jax.Array) -> jax.Array:
    return (vectors_BND[:, 0] * vectors_BND[:, 1]).sum(axis=-1)


def _numbers(examples: Sequence[Example]) -> np.ndarray:
    """int32[B, N] of the texts, the same for equal ones."""
    number: dict[str, int] = {}
    return np.array(
        [[number.setdefault(text, len(number)) for text in e.texts] for e in examples], np.int32
    )


def _labelled_match(example: Example, where: str) -> errors.UserError:
    return errors.UserError(
        f"{example.where or where}: label {example.label!r}, but config.kind.loss = 'ranking' "
        "takes pairs that match, without labels: keep only those, or train on scores by "
        "--task=similarity"
    )
