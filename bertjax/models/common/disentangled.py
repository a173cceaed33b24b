"""Disentangled attention (DeBERTa, He et al., arXiv 2006.03654, section 3.1).

Besides query and key, each attention score has up to two terms that depend on the distance between
the query and the key (equation 4):

    c2p  content to position: the query times the projected embedding of the distance
    p2c  position to content: the key times the projected embedding of the distance

Distances are query - key. Version 2 groups long distances into buckets of logarithmic width.

Shapes: B batch, L queries, S keys (as many as queries), N heads, H head dim, R rows of the table of
relative positions, T = 2 L - 1 distances.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import sharding

TERMS = ("c2p", "p2c")


def log_buckets(distance: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance, an odd function: int64 with the shape of `distance`.

    Distances up to num_buckets / 2 have buckets of their own. The others share buckets that grow
    logarithmically, such that max_distance - 1 has the bucket num_buckets - 1. The formula is that
    of `make_log_bucket_position` in microsoft/DeBERTa and in transformers.
    """
    middle = num_buckets // 2
    size = np.abs(distance)
    far = np.maximum(size, middle + 1) / middle
    growth = np.log(max((max_distance - 1) / middle, 1 + 1 / middle))
    log_bucket = middle + np.ceil(np.log(far) / growth * (middle - 1)).astype(np.int64)
    return np.where(size <= middle, distance, np.sign(distance) * log_bucket)


def table_rows(length: int, num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the row of the table of relative positions for each distance: int64[T].

    The distances are length - 1, ..., 1 - length. If num_buckets is 0, each distance up to
    max_distance has a row. The table has twice as many rows as buckets (or as max_distance).
    """
    distance = np.arange(length - 1, -length, -1)
    if num_buckets:
        distance = log_buckets(distance, num_buckets, max_distance)
    half = num_buckets or max_distance
    return np.clip(distance + half, 0, 2 * half - 1)


def rows_of_any_length(
    length: int, longest: int, num_buckets: int, max_distance: int
) -> np.ndarray | jax.Array:
    """Returns `table_rows`; a slice of those of `longest` if `length` is a symbolic dimension.

    `length` is symbolic if `jax.export` traces a program for all lengths up to `longest`.
    """
    if isinstance(length, int):
        return table_rows(length, num_buckets, max_distance)
    rows_T = jnp.asarray(table_rows(longest, num_buckets, max_distance))
    return rows_T[longest - length : longest + length - 1]


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of the scores of a layer, as a function of its queries and keys.

    tables: {term: projected table of relative positions [R, N, H]}. rows_T: see `table_rows`. All
    scaling is up to the caller.
    """

    tables: Mapping[str, jax.Array]
    rows_T: np.ndarray | jax.Array

    def __call__(self, query_BLNH: jax.Array, key_BSNH: jax.Array) -> jax.Array:
        """Returns the sum of the terms, [B, N, L, S]."""
        # A mesh may shard the queries' length. Here every device computes all of it, because
        # `_skewed` has no equivalent on shards.
        axes = ("batch", "key_length", "heads", "head_dim")
        query_BLNH, key_BSNH = (sharding.constrain(x, axes) for x in (query_BLNH, key_BSNH))
        total, tables = jnp.zeros((), query_BLNH.dtype), self.expanded()
        if "c2p" in tables:
            total += _skewed(jnp.einsum("blnh,tnh->bnlt", query_BLNH, tables["c2p"]))
        if "p2c" in tables:
            by_key_BNSL = _skewed(jnp.einsum("bsnh,tnh->bnst", key_BSNH, tables["p2c"]))
            total += jnp.swapaxes(by_key_BNSL, 2, 3)
        return sharding.constrain(total, ("batch", "heads", "key_length", "key_length"))

    def expanded(self) -> dict[str, jax.Array]:
        """Returns {term: [T, N, H]}, the table's row of each distance.

        From left to right, the keys of a query have falling distances, and the queries of a key
        growing ones. So have the rows of c2p and p2c.
        """
        rows_T = {"c2p": self.rows_T, "p2c": self.rows_T[::-1]}
        return {term: _expanded(table, rows_T[term]) for term, table in self.tables.items()}


def _expanded(table_RNH: jax.Array, rows_T: np.ndarray | jax.Array) -> jax.Array:
    """Returns [T, N, H]: the table's row of each distance.

    The lookup is a product with one-hot vectors, so its gradient is a product too, not a scatter.
    """
    one_hot_TR = jax.nn.one_hot(rows_T, table_RNH.shape[0], dtype=table_RNH.dtype)
    table_TNH = jnp.einsum("tr,rnh->tnh", one_hot_TR, table_RNH)
    return sharding.constrain(table_TNH, (None, "heads", "head_dim"))


def _skewed(x_BNLT: jax.Array) -> jax.Array:
    """Returns y [B, N, L, L] with y[i, j] = x[i, j - i + L - 1].

    Shifts each row by one more place than the row above (Music Transformer, Huang et al., arXiv
    1809.04281, section 3.4.1). It is a slice of the flattened array: no gather, and no scatter in
    the backward pass, both of which are slow on a TPU.
    """
    batch, heads, length, width = x_BNLT.shape
    padded = jnp.pad(x_BNLT, [(0, 0), (0, 0), (0, 0), (0, 1)])
    flat = padded.reshape(batch, heads, length * (width + 1))
    flat = flat[:, :, length - 1 : length - 1 + length * width]
    return flat.reshape(batch, heads, length, width)[..., :length]
