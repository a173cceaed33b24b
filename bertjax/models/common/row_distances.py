"""DeBERTa's terms for distances (`models.common.disentangled`) in the kernels of `row_attention`.

The product of queries or keys with a table of distances has a column for each distance. To become
scores, each of its rows moves by one place more than the row above; the gradient moves back. TPUs
from v5 on rotate the rows of a block by growing amounts (`pltpu.roll` with a stride), but not by
falling ones. So the gradient is turned upside down before and after. TPUs v4 and the interpreter
rotate in seven steps, one for each bit of a row's number.

c2p is computed for a chunk of R queries and all C keys, which have R + C - 1 distances. p2c is
computed for R keys at a time; they have 2 R - 1 distances to the chunk.

Shapes are named as in `row_attention`; U distances, a multiple of R.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_SUBLANES = 8  # rows of a TPU's vector of 4-byte numbers


def num_products(call: Any) -> float:
    """Returns how many times the FLOPs of a product of queries and keys the terms take."""
    of_term = {"c2p": 1 + call.chunk / call.num_keys, "p2c": 2}
    return sum(of_term[term] for term in call.tables)


def scores(row: Any, query_RW: jax.Array, head: int, start: Any) -> jax.Array:
    """Returns the terms of the scores of the chunk from query `start` on, float32[R, C].

    query_RW is 0 in the lanes of other heads.
    """
    parts = []
    if "c2p" in row.refs:
        table_UW = row.refs["c2p"][_distances_of_queries(row, start), :]
        parts.append(_skewed(row, row.product(query_RW, table_UW, (1, 1)), row.call.num_keys))
    if "p2c" in row.refs:
        blocks = []
        for first in range(0, row.call.num_keys, row.call.chunk):
            table_UW = row.refs["p2c"][_distances_of_keys(row, start, first), :]
            product_RU = row.product(_keys(row, head, first), table_UW, (1, 1))
            blocks.append(_skewed(row, product_RU, row.call.chunk).T)
        parts.append(jnp.concatenate(blocks, axis=1))
    return sum(parts[1:], parts[0])


def differentiate(
    row: Any, d_score_RC: jax.Array, query_RW: jax.Array, head: int, start: Any
) -> jax.Array:
    """Adds the gradients of tables and keys to their sums.

    Returns the gradient of the queries, float32[R, W]. d_score_RC: float32. query_RW is 0 in the
    lanes of other heads.
    """
    refs, dtype = row.refs, query_RW.dtype
    d_query_RW = jnp.zeros(query_RW.shape, jnp.float32)
    if "c2p" in refs:
        places = _distances_of_queries(row, start)
        d_product_RU = _unskewed(row, d_score_RC, places.size).astype(dtype)
        refs["d_c2p"][places, :] += row.product(d_product_RU, query_RW, (0, 0))
        d_query_RW = row.product(d_product_RU, refs["c2p"][places, :], (1, 0))
    if "p2c" in refs:
        for first in range(0, row.call.num_keys, row.call.chunk):
            keys = slice(first, first + row.call.chunk)
            places = _distances_of_keys(row, start, first)
            d_product_RU = _unskewed(row, d_score_RC[:, keys].T, places.size).astype(dtype)
            refs["d_p2c"][places, :] += row.product(d_product_RU, _keys(row, head, first), (0, 0))
            d_key_RW = row.product(d_product_RU, refs["p2c"][places, :], (1, 0))
            refs["key_sum"][keys, :] += row.of_head(d_key_RW, head)
    return d_query_RW


def _keys(row: Any, head: int, first: int) -> jax.Array:
    """Returns R keys [R, W] of a head, from key `first` on, with 0 in the lanes of other heads."""
    return row.of_head(row.refs["key"][row.index, first : first + row.call.chunk, :], head)


def _distances_of_queries(row: Any, start: Any) -> Any:
    """Returns the rows of the table of c2p, of falling distances, for a chunk and all keys."""
    call = row.call
    first = pl.multiple_of(call.num_keys - call.chunk - start, call.chunk)
    return pl.ds(first, call.num_keys + call.chunk)


def _distances_of_keys(row: Any, start: Any, first: int) -> Any:
    """Returns the rows of the table of p2c, of growing distances, for a chunk and R keys."""
    call = row.call
    lowest = pl.multiple_of(call.num_keys - call.chunk - first + start, call.chunk)
    return pl.ds(lowest, 2 * call.chunk)


def _skewed(row: Any, x_RU: jax.Array, width: int) -> jax.Array:
    """Returns y [R, width] with y[i, j] = x[i, j - i + R - 1]; float32."""
    return _rotated(row, x_RU, 1 - len(x_RU), 1)[:, :width]


def _unskewed(row: Any, y_RC: jax.Array, distances: int) -> jax.Array:
    """Returns the gradient [R, U] of x from the gradient of y in `_skewed`; float32."""
    padded_RU = jnp.pad(y_RC, ((0, 0), (0, distances - y_RC.shape[1])))
    return _rotated(row, padded_RU, len(y_RC) - 1, -1)


def _rotated(row: Any, x_RU: jax.Array, shift: int, step: int) -> jax.Array:
    """Returns y with y[i, j + shift + step * i] = x[i, j], columns modulo U. step: 1 or -1."""
    size, columns = x_RU.shape
    if not row.call.options.strided:
        place_RU = jax.lax.broadcasted_iota(jnp.int32, x_RU.shape, 0)
        for power in range((size - 1).bit_length()):
            moved_RU = pltpu.roll(x_RU, step * 2**power % columns, 1)
            x_RU = jnp.where(place_RU >> power & 1 == 1, moved_RU, x_RU)
        return pltpu.roll(x_RU, shift % columns, 1)
    if step == 1:
        return pltpu.roll(x_RU, shift % columns, 1, stride=1, stride_axis=0)
    return _upside_down(_rotated(row, _upside_down(x_RU), shift + 1 - size, 1))


def _upside_down(x_RU: jax.Array) -> jax.Array:
    """Returns the rows in reverse order: a gather within each vector, since Pallas has no `rev`."""
    shape = _SUBLANES, x_RU.shape[1]
    order = _SUBLANES - 1 - jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    starts = range(x_RU.shape[0] - _SUBLANES, -1, -_SUBLANES)
    groups = [jnp.take_along_axis(x_RU[i : i + _SUBLANES], order, axis=0) for i in starts]
    return jnp.concatenate(groups, axis=0)
