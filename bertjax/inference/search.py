"""Exact search among vectors: the corpus vectors with the largest inner products with each query.

    hits = search.top_k(queries_QD, corpus_ND, k=10)
    hits.indices_QK, hits.scores_QK         # best first

The vectors are compared block by block, so that memory does not grow with the product of the two
numbers of vectors. The corpus is read once, in order: it may be a `np.memmap` of a file that is
larger than the memory. For cosines, give vectors of length 1.

Shapes: Q queries, N corpus vectors, D model, K results of a query; R queries and M corpus vectors
of a block.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import progress
from bertjax.inference import batching

BLOCK = 16_384  # corpus vectors compared at once
_QUERIES = 1024  # queries compared at once: with BLOCK, 64 MiB of scores


class Hits(NamedTuple):
    """The best corpus vectors of each query, best first; of equal scores, the lower index first.

    scores_QK: float32, inner products. indices_QK: int64, rows of the corpus.
    """

    scores_QK: np.ndarray
    indices_QK: np.ndarray


def top_k(
    queries_QD: Any,
    corpus_ND: Any,
    k: int,
    *,
    block: int = BLOCK,
    on_progress: progress.Done = lambda done, total: None,
) -> Hits:
    """Returns the `k` corpus vectors with the largest inner products with each query.

    If the corpus has fewer than `k` vectors, returns all of them. The arrays may have any floating
    type; the products are computed in float32 on the default device.

    block: the number of corpus vectors compared at once. on_progress: called with (number of
    compared corpus vectors, their total) after each block.

    Raises ValueError if `k` or `block` is below 1, if the widths differ, or if a vector is not
    finite.
    """
    num_queries, num_vectors = len(queries_QD), len(corpus_ND)
    if k < 1 or block < 1:
        raise ValueError(f"k = {k} and block = {block} must be 1 or more")
    if np.ndim(queries_QD) != 2 or queries_QD.shape[1:] != corpus_ND.shape[1:]:
        raise ValueError(f"queries {queries_QD.shape} and corpus {corpus_ND.shape} differ in width")
    k = min(k, num_vectors)
    block = min(block, batching.power_of_two(max(num_vectors, 1)))
    rows = min(_QUERIES, batching.power_of_two(max(num_queries, 1)))
    scores_QK = np.full((num_queries, k), -np.inf, np.float32)
    indices_QK = np.full((num_queries, k), -1, np.int64)
    if not k:
        return Hits(scores_QK, indices_QK)
    for start in range(0, num_vectors, block):
        corpus_MD, count = _block(corpus_ND, start, block, "corpus")
        corpus_MD = jax.device_put(corpus_MD)
        for first in range(0, num_queries, rows):
            queries_RD, num_rows = _block(queries_QD, first, rows, "queries")
            best = jax.device_get(_best(queries_RD, corpus_MD, count, min(k, block)))
            part = slice(first, first + num_rows)
            # Earlier indices come first, so that a stable sort prefers them for equal scores.
            scores = np.concatenate([scores_QK[part], best[0][:num_rows]], axis=1)
            indices = np.concatenate([indices_QK[part], best[1][:num_rows] + start], axis=1)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores_QK[part] = np.take_along_axis(scores, order, axis=1)
            indices_QK[part] = np.take_along_axis(indices, order, axis=1)
        on_progress(min(start + block, num_vectors), num_vectors)
    return Hits(scores_QK, indices_QK)


def _block(vectors: Any, start: int, size: int, name: str) -> tuple[np.ndarray, int]:
    """Returns (`size` vectors from `start` on in float32, padded with zeros, their number)."""
    part = np.asarray(vectors[start : start + size], np.float32)
    if not np.isfinite(part).all():
        row = start + int(np.argmin(np.isfinite(part).all(axis=1)))
        raise ValueError(f"{name}: vector {row} has values that are not finite")
    return np.pad(part, ((0, size - len(part)), (0, 0))), len(part)


@functools.partial(jax.jit, static_argnames="k")
def _best(
    queries_RD: jax.Array, corpus_MD: jax.Array, count: int, k: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the k largest scores [R, K] and their places among the first `count` vectors."""
    # HIGHEST: TPUs and GPUs otherwise round the factors, and near neighbours change places.
    scores_RM = jnp.matmul(queries_RD, corpus_MD.T, precision=jax.lax.Precision.HIGHEST)
    is_vector_M = jnp.arange(len(corpus_MD)) < count
    return jax.lax.top_k(jnp.where(is_vector_M[None], scores_RM, -jnp.inf), k)
