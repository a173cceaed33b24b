"""The bodies of the kernels of `models.common.row_attention`: a grid step, forward and backward.

A body takes a `call` of `row_attention`, which has the sizes and options, and {name: ref} of the
blocks in VMEM. Shapes are named as in `row_attention`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertjax import hashing
from bertjax.models.common import layers, row_distances

LANES = 128  # of a TPU's vectors


class _Row:
    """A row of the batch, with the heads of one block: what the chunks of queries share."""

    def __init__(self, call: Any, refs: dict[str, Any], place: tuple[Any, ...], index: Any):
        self.call, self.refs, self.place, self.index = call, refs, place, index
        if "query_segments" in refs:  # a column, because queries are along sublanes
            ids_1L = refs["query_segments"][index]
            column = jnp.broadcast_to(ids_1L, (LANES, call.block)).T
            refs["segment_column"][...] = column

    @staticmethod
    def product(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
        """Returns the product, summed over axis axes[0] of a and axes[1] of b, in float32."""
        numbers = (((axes[0],), (axes[1],)), ((), ()))
        return jax.lax.dot_general(a, b, numbers, preferred_element_type=jnp.float32)

    def for_chunks(self, function: Callable) -> None:
        """Calls `function(start, low, high, windowed)` for each chunk of queries.

        The chunk has the queries from `start` on; it may see the keys from `low` to `high`.
        windowed: whether the window restricts the keys.
        """
        if "everywhere" in self.refs:
            everywhere = self.refs["everywhere"][0] != 0
            pl.when(everywhere)(lambda: self._all_chunks(function, False))
            pl.when(jnp.logical_not(everywhere))(lambda: self._all_chunks(function, True))
        else:
            self._all_chunks(function, self.call.options.window > 0)

    def _all_chunks(self, function: Callable, windowed: bool) -> None:
        call = self.call
        whole = 0, call.num_keys
        if windowed or call.options.causal:
            for start in range(0, call.block, call.chunk):
                is_local = windowed or not call.options.window
                function(start, *(call.key_ranges(start) if is_local else whole), windowed)
            return

        def chunk(number, _):
            start = pl.multiple_of(number * call.chunk, call.chunk)
            function(start, *whole, windowed)
            return 0

        jax.lax.fori_loop(0, call.block // call.chunk, chunk, 0)

    def chunk_of(self, name: str, start: Any) -> jax.Array:
        """Returns the chunk [R, W] of an array of queries or outputs."""
        return self.refs[name][self.index, pl.ds(start, self.call.chunk), :]

    def _places(self, start, low, high) -> tuple[jax.Array, jax.Array]:
        """Returns the indices in the row of a chunk's queries, int32[R, 1], and keys, [1, C]."""
        first = start + self.place[1] * self.call.block if self.call.num_blocks > 1 else start
        queries_R1 = jax.lax.broadcasted_iota(jnp.int32, (self.call.chunk, 1), 0) + first
        return queries_R1, jax.lax.broadcasted_iota(jnp.int32, (1, high - low), 1) + low

    def of_head(self, x_RW: jax.Array, head: int) -> jax.Array:
        """Returns x with 0 in the lanes of the other heads of the block."""
        if self.call.heads == 1:
            return x_RW
        return x_RW * self._lanes(head).astype(x_RW.dtype)

    def joined(self, parts: list[jax.Array]) -> jax.Array:
        """Returns [R, W], which has the lanes of each head from the part [R, W] of this head."""
        joined = parts[0]
        for head, part in enumerate(parts[1:], 1):
            joined = jnp.where(self._lanes(head), part, joined)
        return joined

    def _lanes(self, head: int) -> jax.Array:
        lane_1W = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        return lane_1W // self.call.options.head_dim == head

    def scores(self, query_RW, head, start, low, high, windowed) -> jax.Array:
        """Returns the scores float32[R, C] of a head; query_RW is 0 in the other heads' lanes."""
        refs, index = self.refs, self.index
        scores_RC = self.product(query_RW, refs["key"][index, low:high, :], (1, 1))
        if "bias" in refs:
            scores_RC += refs["bias"][0, head, pl.ds(start, self.call.chunk), low:high]
        if self.call.tables:
            scores_RC += row_distances.scores(self, query_RW, head, start)
        if "key_bias" in refs:
            scores_RC += refs["key_bias"][index, :, low:high]
        visible_RC = self._visible(start, low, high, windowed)
        return scores_RC if visible_RC is None else jnp.where(visible_RC, scores_RC, layers.MASKED)

    def _visible(self, start, low, high, windowed) -> jax.Array | None:
        call, refs, parts = self.call, self.refs, []
        if "query_segments" in refs:
            queries_R1 = refs["segment_column"][pl.ds(start, call.chunk), :1]
            parts.append(queries_R1 == refs["key_segments"][self.index, :, low:high])
        if call.options.causal or windowed:
            queries_R1, keys_1C = self._places(start, low, high)
            distance_RC = keys_1C - queries_R1
        if call.options.causal:
            past_RC = distance_RC <= 0
            if "prefix" in refs:
                past_RC |= refs["prefix"][self.index, :, low:high] != 0
            parts.append(past_RC)
        if windowed:
            parts.append(jnp.abs(distance_RC) <= call.options.window // 2)
        return functools.reduce(jnp.logical_and, parts) if parts else None

    def kept(self, head, start, low, high) -> jax.Array:
        """Returns bool[R, C]: where the dropout keeps the weights of a head."""
        call, refs = self.call, self.refs
        number = refs["head_numbers"][self.place[0] * call.heads + head]
        key = refs["row_keys"][self.place[2] * call.rows + self.index]
        queries_R1, keys_1C = self._places(start, low, high)
        queries_R1 = queries_R1[: hashing.PAIR]
        # NOTE: the vector unit limits the kernel, so the position is a single sum of a column and a
        # row, and only half of the queries are hashed.
        position = (number * call.length + queries_R1) * call.num_keys + keys_1C
        bits = hashing.bits_at(position.astype(jnp.uint32), key.astype(jnp.uint32))
        return hashing.keeps(hashing.paired(bits, call.chunk), call.options.rate)


def _exponentials(scores_RC: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns exp(scores - their maximum), [R, C], and one divided by its sum, [R, 1]."""
    exp_RC = jnp.exp(scores_RC - jnp.max(scores_RC, axis=-1, keepdims=True))
    return exp_RC, 1.0 / jnp.sum(exp_RC, axis=-1, keepdims=True)


def _for_rows(call: Any, refs: dict[str, Any], function: Callable[[_Row], None]) -> None:
    place = tuple(map(pl.program_id, range(3)))  # not allowed within a loop

    def row(index, _):
        function(_Row(call, refs, place, index))
        return 0

    jax.lax.fori_loop(0, call.rows, row, 0)


def forward(call: Any, refs: dict[str, Any]) -> None:
    """Computes the block "out" of a grid step."""
    rate = call.options.rate

    def attend_row(row: _Row) -> None:
        def chunk(start, *keys):
            query_RW = row.chunk_of("query", start)
            parts, (low, high, _) = [], keys
            for head in range(call.heads):
                exp_RC, scale_R1 = _exponentials(
                    row.scores(row.of_head(query_RW, head), head, start, *keys)
                )
                if rate:
                    exp_RC = jnp.where(row.kept(head, start, low, high), exp_RC, 0.0)
                value_CW = refs["value"][row.index, low:high, :]
                part_RW = row.product(exp_RC.astype(value_CW.dtype), value_CW, (1, 0))
                parts.append(part_RW * (scale_R1 / (1.0 - rate)))
            out = refs["out"]
            out[row.index, pl.ds(start, call.chunk), :] = row.joined(parts).astype(out.dtype)

        row.for_chunks(chunk)

    _for_rows(call, refs, attend_row)


def backward(call: Any, refs: dict[str, Any]) -> None:
    """Computes the blocks of a grid step: "d_query", "d_key", "d_value", and of what rows share."""
    rate, dtype = call.options.rate, refs["query"].dtype

    if call.shared:

        @pl.when(pl.program_id(2) == 0)
        def _():
            for name in call.shared:
                sum_ref = refs[f"d_{name}"]
                sum_ref[...] = jnp.zeros_like(sum_ref)

    def differentiate_row(row: _Row) -> None:
        key_sum, value_sum = refs["key_sum"], refs["value_sum"]
        key_sum[...] = jnp.zeros_like(key_sum)
        value_sum[...] = jnp.zeros_like(value_sum)

        def chunk(start, *keys):
            query_RW, d_out_RW = row.chunk_of("query", start), row.chunk_of("d_out", start)
            parts, (low, high, _) = [], keys
            for head in range(call.heads):
                head_query_RW = row.of_head(query_RW, head)
                exp_RC, scale_R1 = _exponentials(row.scores(head_query_RW, head, start, *keys))
                # The weights are exp * scale. The factor `scale` is applied to the gradient of the
                # output, which has fewer elements.
                d_head_RW = row.of_head(d_out_RW, head).astype(jnp.float32)
                d_head_RW = (d_head_RW * (scale_R1 / (1.0 - rate))).astype(dtype)
                d_weight_RC = row.product(d_head_RW, refs["value"][row.index, low:high, :], (1, 1))
                kept_RC = exp_RC
                if rate:
                    keep_RC = row.kept(head, start, low, high)
                    kept_RC = jnp.where(keep_RC, exp_RC, 0.0)
                    d_weight_RC = jnp.where(keep_RC, d_weight_RC, 0.0)
                value_sum[low:high, :] += row.product(kept_RC.astype(dtype), d_head_RW, (0, 0))
                product_RC = exp_RC * d_weight_RC
                mean_R1 = jnp.sum(product_RC, axis=-1, keepdims=True) * scale_R1
                d_score_RC = product_RC - exp_RC * mean_R1
                if "d_bias" in refs:
                    rows = pl.ds(start, call.chunk)
                    refs["d_bias"][0, head, rows, low:high] += d_score_RC
                narrow_RC = d_score_RC.astype(dtype)
                key_sum[low:high, :] += row.product(narrow_RC, head_query_RW, (0, 0))
                part_RW = row.product(narrow_RC, refs["key"][row.index, low:high, :], (1, 0))
                if call.tables:
                    part_RW += row_distances.differentiate(
                        row, d_score_RC, head_query_RW, head, start
                    )
                parts.append(part_RW)
            d_query = refs["d_query"]
            d_query[row.index, pl.ds(start, call.chunk), :] = row.joined(parts).astype(dtype)

        row.for_chunks(chunk)
        for ref, total in (("d_key", key_sum), ("d_value", value_sum)):
            place = row.index if call.num_blocks == 1 else (0, row.index)
            refs[ref][place] = total[...].astype(refs[ref].dtype)

    _for_rows(call, refs, differentiate_row)
