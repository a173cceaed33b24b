"""Losses of text vectors: ranking, cosine and margin-MSE.

Each function takes the vectors of all texts of the global batch and returns terms (sum, weight), to
be divided once. On a mesh, the queries stay split over the devices and the candidates are gathered,
so that the texts of all devices are negatives.

Shapes: B batch, N texts of an example (query, positive, hard negatives), D model, M candidates, H
hard negatives of a batch, K hard negatives of an example.
"""

import jax
import jax.numpy as jnp

from bertjax import metrics, sharding
from bertjax.models.common import layers
from bertjax.objectives.common import losses


def ranking(
    vectors_BND: jax.Array,
    numbers_BN: jax.Array,
    weights_B: jax.Array,
    scale: float,
    *,
    symmetric: bool,
) -> metrics.Terms:
    """Returns ranking_loss, in nats, and ranking_accuracy: each query among all candidates.

    vectors_BND: of length 1. numbers_BN: equal texts have equal numbers; -1 is padding. Pairs that
    share a text are never each other's negatives, and a positive of a query is never its negative.
    symmetric: whether to average with the loss of the other direction, which ranks the query of
    each positive among all queries.
    """
    places_B = jnp.arange(len(weights_B))
    pair_B2 = numbers_BN[:, :2]
    same_BB = (pair_B2[:, None, :, None] == pair_B2[None, :, None, :]).any(axis=(-2, -1))
    candidates_BB = jnp.eye(len(weights_B), dtype=bool) | (~same_BB & (weights_B > 0)[None])
    query_BD, positive_BD = vectors_BND[:, 0], vectors_BND[:, 1]
    logits_BM = jnp.where(candidates_BB, _logits(query_BD, positive_BD, scale), layers.MASKED)
    if vectors_BND.shape[1] > 2:
        hard_HD = vectors_BND[:, 2:].reshape(-1, vectors_BND.shape[-1])
        candidates_BH = _hard_negatives(numbers_BN, same_BB, weights_B)
        logits_BH = jnp.where(candidates_BH, _logits(query_BD, hard_HD, scale), layers.MASKED)
        logits_BM = jnp.concatenate([logits_BM, logits_BH], axis=1)
    terms = losses.classification("ranking", logits_BM, places_B, weights_B)
    if not symmetric:
        return terms
    logits_BB = jnp.where(candidates_BB, _logits(positive_BD, query_BD, scale), layers.MASKED)
    backward = losses.classification("ranking", logits_BB, places_B, weights_B)
    return {
        name: (0.5 * (total + backward[name][0]), weight) for name, (total, weight) in terms.items()
    }


def cosine(vectors_BND: jax.Array, targets_B: jax.Array, weights_B: jax.Array) -> metrics.Terms:
    """Returns cosine_loss: the squared error of the inner product of query and second text."""
    error_B = ((vectors_BND[:, 0] * vectors_BND[:, 1]).sum(axis=-1) - targets_B) ** 2
    return {"cosine_loss": ((error_B * weights_B).sum(), weights_B.sum())}


def margin_mse(
    vectors_BND: jax.Array, margins_BK: jax.Array, weights_BK: jax.Array
) -> metrics.Terms:
    """Returns margin_mse_loss, the squared error of the margins to those of a teacher.

    A margin is the query's inner product with its positive minus that with a hard negative.
    """
    products_BN = jnp.einsum("bd,bnd->bn", vectors_BND[:, 0], vectors_BND[:, 1:])
    error_BK = (products_BN[:, :1] - products_BN[:, 1:] - margins_BK) ** 2
    return {"margin_mse_loss": ((error_BK * weights_BK).sum(), weights_BK.sum())}


def _logits(query_BD: jax.Array, candidate_MD: jax.Array, scale: float) -> jax.Array:
    candidate_MD = sharding.constrain(candidate_MD, (None, None))
    return scale * sharding.constrain(query_BD @ candidate_MD.T, ("batch", None))


def _hard_negatives(numbers_BN: jax.Array, same_BB: jax.Array, weights_B: jax.Array) -> jax.Array:
    """Returns bool[B, H]: whether a hard negative of the batch is a negative of each row.

    It is not if it is padding, or a text of a pair that shares a text with the row's pair.
    same_BB: whether two pairs share a text.
    """
    number_H = numbers_BN[:, 2:].reshape(-1)
    is_text_BH = (numbers_BN[:, :2, None] == number_H[None, None]).any(axis=1)
    matches_BH = same_BB.astype(jnp.float32) @ is_text_BH.astype(jnp.float32) > 0
    exists_H = (number_H >= 0) & (jnp.repeat(weights_B, numbers_BN.shape[1] - 2) > 0)
    return ~matches_BH & exists_H[None]
