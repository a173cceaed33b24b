"""Attention for rows of up to about a thousand tokens, as one Pallas kernel for TPUs.

All keys of a row fit into a TPU's on-chip memory (VMEM). So a kernel computes the scores, the
softmax and the dropout of some queries against all keys, and writes nothing but the output. The
backward kernel computes the scores again; only queries, keys, values and masks are saved for it.
The dropout masks are those of `layers.drop` on the attention weights [B, N, L, S]. Scores and
softmax are float32, as in the plain computation of `models.common.attention`.

The arrays stay [B, L, N * H], as the dense layers before and after the attention have them, because
a TPU pads the last axis of an array to 128 lanes. A block has 128 lanes, which are one head of 128
or two heads of 64. In a block of two heads, the products of a head are 128 wide too: its queries
are 0 in the lanes of the other head. This costs nothing, because the matrix unit is 128 wide.

Shapes: B batch, L length, S key length, N heads, H head dim, R queries of a chunk, C keys that a
chunk sees, W = 128 lanes of a block.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax import hashing
from bertjax.models.common import layers

LANES = 128
_CHUNK = 128  # queries per chunk; a row that is not a multiple of it is one chunk
_KEY_STEP = 64  # ranges of keys within a window are rounded to a multiple of this
_BLOCK_TOKENS = 1024  # short rows share a grid step until it has this many queries
_BIAS_BYTES = 2**21  # of a block of the bias, which is as large as the scores; queries are split
_SCALARS = ("everywhere", "row_keys", "head_numbers")  # inputs that a kernel reads as scalars
_NUM_PRODUCTS = {"forward": 2, "backward": 5}


@dataclasses.dataclass(frozen=True)
class Options:
    """The static options of a call.

    head_dim: H. rate: the dropout rate; 0.0 means no dropout. causal, window, everywhere_share: as
    in `masks.Mask`. interpret: whether to run the kernels in Pallas' interpreter, as on a CPU.
    """

    head_dim: int
    rate: float = 0.0
    causal: bool = False
    window: int = 0
    everywhere_share: float = 1.0
    interpret: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    options: Options,
    query_BLD: jax.Array,
    key_BSD: jax.Array,
    value_BSD: jax.Array,
    bias_1NLS: jax.Array | None,
    inputs: Mapping[str, jax.Array],
) -> jax.Array:
    """Returns softmax(query key^T + bias) value, [B, L, N * H], in the dtype of the queries.

    L and S are multiples of 128, and N * H is one of W. bias_1NLS: float32, or None.
    inputs: the arrays that the options and the mask need, out of these:
        key_bias: float32[B, 1, S], added to the scores of all queries; hides keys.
        query_segments int32[B, 1, L], key_segments int32[B, 1, S]: a query sees only keys with the
            same number.
        prefix: int32[B, 1, S]; where it is not 0, the key is exempt from `causal`.
        everywhere: int32[]; 1 disables the window.
        row_keys: int32[B], `hashing.row_keys` of the dropout. head_numbers: int32[N], the index of
            each head among all heads, of which a device may have a part.
    """
    return _forward(options, query_BLD, key_BSD, value_BSD, bias_1NLS, inputs)[0]


def _forward(options, query_BLD, key_BSD, value_BSD, bias_1NLS, inputs):
    call = _Call(options, query_BLD, key_BSD, bias_1NLS, inputs)
    arrays = {"query": query_BLD, "key": key_BSD, "value": value_BSD}
    outputs = call.run("forward", _forward_kernel, arrays, {"out": (query_BLD, "length")})
    return outputs["out"], (query_BLD, key_BSD, value_BSD, bias_1NLS, inputs)


def _backward(options, saved, d_out_BLD):
    query_BLD, key_BSD, value_BSD, bias_1NLS, inputs = saved
    call = _Call(options, query_BLD, key_BSD, bias_1NLS, inputs)
    arrays = {"query": query_BLD, "key": key_BSD, "value": value_BSD, "d_out": d_out_BLD}
    d_key = key_BSD, "key_length"
    if call.num_blocks > 1:
        parts_QBSD = jax.ShapeDtypeStruct((call.num_blocks, *key_BSD.shape), jnp.float32)
        d_key = parts_QBSD, "parts"
    shapes = {"d_query": (query_BLD, "length"), "d_key": d_key, "d_value": d_key}
    if bias_1NLS is not None:
        shapes["d_bias"] = bias_1NLS, "bias"
    outputs = call.run("backward", _backward_kernel, arrays, shapes, ("key_sum", "value_sum"))
    if call.num_blocks > 1:
        for name in ("d_key", "d_value"):
            outputs[name] = jnp.sum(outputs[name], axis=0).astype(key_BSD.dtype)
    d_bias_1NLS = outputs["d_bias"] if bias_1NLS is not None else None
    return outputs["d_query"], outputs["d_key"], outputs["d_value"], d_bias_1NLS, None


attend.defvjp(_forward, _backward)


class _Call:
    """The sizes of a call, and what the kernels need to know about it.

    The grid is (blocks of heads, blocks of queries, blocks of rows). The blocks of rows are the
    inner axis, so that a block of the bias is read only once, and its gradient is summed over the
    batch in VMEM. There is more than one block of queries only if the bias is large; then the
    backward kernel returns the gradients of keys and values in parts, one for each block.
    """

    def __init__(self, options: Options, query_BLD, key_BSD, bias_1NLS, inputs):
        self.options, self.bias, self.inputs = options, bias_1NLS, inputs
        self.batch, self.length, self.width = query_BLD.shape
        self.num_keys = key_BSD.shape[1]
        self.heads = LANES // options.head_dim  # in a block
        self.chunk = self.length if self.length % _CHUNK else _CHUNK
        self.block = self.length
        if bias_1NLS is not None:
            row_bytes = self.heads * self.num_keys * bias_1NLS.dtype.itemsize
            while self.block * row_bytes > _BIAS_BYTES and self.block % (2 * self.chunk) == 0:
                self.block //= 2
        self.num_blocks = self.length // self.block
        most = max(1, _BLOCK_TOKENS // max(self.length, self.num_keys))
        self.rows = next(rows for rows in range(most, 0, -1) if self.batch % rows == 0)

    def key_ranges(self, start: int) -> tuple[int, int]:
        """Returns the range of keys that the chunk of queries from `start` on may see."""
        low, high, half = 0, self.num_keys, self.options.window // 2
        if self.num_blocks > 1:  # the first query is not known at compile time
            return low, high
        if self.options.causal and "prefix" not in self.inputs:
            high = min(high, start + self.chunk)
        if self.options.window:
            low = max(0, start - half) // _KEY_STEP * _KEY_STEP
            high = min(high, -(-(start + self.chunk + half) // _KEY_STEP) * _KEY_STEP)
        return low, high

    def run(
        self,
        name: str,
        kernel: Callable,
        arrays: dict[str, jax.Array],
        outputs: dict[str, tuple[jax.Array, str]],
        scratch: tuple[str, ...] = (),
    ) -> dict[str, jax.Array]:
        """Runs a kernel on the grid and returns {name: output}.

        kernel: takes (call, {name: ref}). arrays: all [B, L or S, N * H]. outputs: {name: (an
        array of the same shape and dtype, the kind of its blocks)}. scratch: names of float32
        arrays [S, W].
        """
        rows, block, num_keys = self.rows, self.block, self.num_keys
        blocks = {
            "length": pl.BlockSpec((rows, block, LANES), lambda g, q, b, *_: (b, q, g)),
            "key_length": pl.BlockSpec((rows, num_keys, LANES), lambda g, q, b, *_: (b, 0, g)),
            "parts": pl.BlockSpec((1, rows, num_keys, LANES), lambda g, q, b, *_: (q, b, 0, g)),
            "bias": pl.BlockSpec(
                (1, self.heads, block, num_keys), lambda g, q, b, *_: (0, g, q, 0)
            ),
            "query_mask": pl.BlockSpec((rows, 1, block), lambda g, q, b, *_: (b, 0, q)),
            "key_mask": pl.BlockSpec((rows, 1, num_keys), lambda g, q, b, *_: (b, 0, 0)),
        }
        scalars = {n: self.inputs[n].reshape(-1) for n in _SCALARS if n in self.inputs}
        operands, specs = dict(arrays), {}
        for array in arrays:
            specs[array] = blocks["key_length" if array in ("key", "value") else "length"]
        if self.bias is not None:
            operands["bias"], specs["bias"] = self.bias, blocks["bias"]
        for mask, array in self.inputs.items():
            if mask not in scalars:
                operands[mask] = array
                specs[mask] = blocks["query_mask" if mask == "query_segments" else "key_mask"]
        scratches = {n: pltpu.VMEM((self.num_keys, LANES), jnp.float32) for n in scratch}
        if "query_segments" in self.inputs:
            scratches["segment_column"] = pltpu.VMEM((block, LANES), jnp.int32)
        names = (*scalars, *operands, *outputs, *scratches)
        inner = "arbitrary" if "d_bias" in outputs else "parallel"
        results = pl.pallas_call(
            lambda *refs: kernel(self, dict(zip(names, refs, strict=True))),
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x, _ in outputs.values()],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(scalars),
                grid=(self.width // LANES, self.num_blocks, self.batch // rows),
                in_specs=list(specs.values()),
                out_specs=[blocks[kind] for _, kind in outputs.values()],
                scratch_shapes=list(scratches.values()),
            ),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", inner)
            ),
            cost_estimate=self._cost(name, [*operands.values(), *(x for x, _ in outputs.values())]),
            interpret=self.options.interpret,
            name=f"row_attention_{name}",
        )(*scalars.values(), *operands.values())
        return dict(zip(outputs, results, strict=True))

    def _cost(self, name: str, arrays: list[jax.Array]) -> pl.CostEstimate:
        starts = range(0, self.length, self.chunk)
        scores = sum(self.chunk * (high - low) for low, high in map(self.key_ranges, starts))
        if "everywhere" in self.inputs:  # the mean over the layers
            share, whole = self.options.everywhere_share, self.length * self.num_keys
            scores = round(share * whole + (1 - share) * scores)
        return pl.CostEstimate(
            flops=2 * _NUM_PRODUCTS[name] * self.batch * self.width * scores,
            transcendentals=self.batch * self.width // self.options.head_dim * scores,
            bytes_accessed=sum(array.size * array.dtype.itemsize for array in arrays),
        )


def _dot(a: jax.Array, b: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Returns the product, summed over axis axes[0] of a and axes[1] of b, in float32."""
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a, b, numbers, preferred_element_type=jnp.float32)


class _Row:
    """A row of the batch, with the heads of one block: what the chunks of queries share."""

    def __init__(self, call: _Call, refs: dict[str, Any], place: tuple[Any, ...], index: Any):
        self.call, self.refs, self.place, self.index = call, refs, place, index
        if "query_segments" in refs:  # a column, because queries are along sublanes
            ids_1L = refs["query_segments"][index]
            column = jnp.broadcast_to(ids_1L, (LANES, call.block)).T
            refs["segment_column"][...] = column

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

    def _first_query(self, start: Any) -> Any:
        """Returns the index in the row of the first query of a chunk; `start` is in the block."""
        return start + self.place[1] * self.call.block if self.call.num_blocks > 1 else start

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
        scores_RC = _dot(query_RW, refs["key"][index, low:high, :], (1, 1))
        if "bias" in refs:
            scores_RC += refs["bias"][0, head, pl.ds(start, self.call.chunk), low:high]
        if "key_bias" in refs:
            scores_RC += refs["key_bias"][index, :, low:high]
        visible_RC = self._visible(start, low, high, windowed)
        return scores_RC if visible_RC is None else jnp.where(visible_RC, scores_RC, layers.MASKED)

    def _visible(self, start, low, high, windowed) -> jax.Array | None:
        call, refs, shape = self.call, self.refs, (self.call.chunk, high - low)
        parts = []
        if "query_segments" in refs:
            queries_R1 = refs["segment_column"][pl.ds(start, call.chunk), :1]
            parts.append(queries_R1 == refs["key_segments"][self.index, :, low:high])
        if call.options.causal or windowed:
            column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
            distance_RC = column - jax.lax.broadcasted_iota(jnp.int32, shape, 0)
            distance_RC += low - self._first_query(start)
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
        call, refs, shape = self.call, self.refs, (self.call.chunk, high - low)
        number = refs["head_numbers"][self.place[0] * call.heads + head]
        key = refs["row_keys"][self.place[2] * call.rows + self.index]
        first = (number * call.length + self._first_query(start)) * call.num_keys + low
        row = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        column = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        position_RC = (row * call.num_keys + column + first).astype(jnp.uint32)
        bits_RC = hashing.bits_at(position_RC, key.astype(jnp.uint32))
        return hashing.keeps(bits_RC, call.options.rate)


def _exponentials(scores_RC: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns exp(scores - their maximum), [R, C], and one divided by its sum, [R, 1]."""
    exp_RC = jnp.exp(scores_RC - jnp.max(scores_RC, axis=-1, keepdims=True))
    return exp_RC, 1.0 / jnp.sum(exp_RC, axis=-1, keepdims=True)


def _for_rows(call: _Call, refs: dict[str, Any], function: Callable[[_Row], None]) -> None:
    place = tuple(map(pl.program_id, range(3)))  # not allowed within a loop

    def row(index, _):
        function(_Row(call, refs, place, index))
        return 0

    jax.lax.fori_loop(0, call.rows, row, 0)


def _forward_kernel(call: _Call, refs: dict[str, Any]) -> None:
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
                part_RW = _dot(exp_RC.astype(value_CW.dtype), value_CW, (1, 0))
                parts.append(part_RW * (scale_R1 / (1.0 - rate)))
            out = refs["out"]
            out[row.index, pl.ds(start, call.chunk), :] = row.joined(parts).astype(out.dtype)

        row.for_chunks(chunk)

    _for_rows(call, refs, attend_row)


def _backward_kernel(call: _Call, refs: dict[str, Any]) -> None:
    rate, dtype = call.options.rate, refs["query"].dtype
    if "d_bias" in refs:

        @pl.when(pl.program_id(2) == 0)
        def _():
            refs["d_bias"][...] = jnp.zeros_like(refs["d_bias"])

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
                d_weight_RC = _dot(d_head_RW, refs["value"][row.index, low:high, :], (1, 1))
                kept_RC = exp_RC
                if rate:
                    keep_RC = row.kept(head, start, low, high)
                    kept_RC = jnp.where(keep_RC, exp_RC, 0.0)
                    d_weight_RC = jnp.where(keep_RC, d_weight_RC, 0.0)
                value_sum[low:high, :] += _dot(kept_RC.astype(dtype), d_head_RW, (0, 0))
                product_RC = exp_RC * d_weight_RC
                mean_R1 = jnp.sum(product_RC, axis=-1, keepdims=True) * scale_R1
                d_score_RC = product_RC - exp_RC * mean_R1
                if "d_bias" in refs:
                    rows = pl.ds(start, call.chunk)
                    refs["d_bias"][0, head, rows, low:high] += d_score_RC
                d_score_RC = d_score_RC.astype(dtype)
                key_sum[low:high, :] += _dot(d_score_RC, head_query_RW, (0, 0))
                parts.append(_dot(d_score_RC, refs["key"][row.index, low:high, :], (1, 0)))
            d_query = refs["d_query"]
            d_query[row.index, pl.ds(start, call.chunk), :] = row.joined(parts).astype(dtype)

        row.for_chunks(chunk)
        for ref, total in (("d_key", key_sum), ("d_value", value_sum)):
            place = row.index if call.num_blocks == 1 else (0, row.index)
            refs[ref][place] = total[...].astype(refs[ref].dtype)

    _for_rows(call, refs, differentiate_row)
