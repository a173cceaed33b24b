"""Attention for rows of up to about a thousand tokens, as one Pallas kernel for TPUs.

All keys of a row fit into a TPU's on-chip memory (VMEM). So a kernel computes the scores, the
softmax and the dropout of some queries against all keys, and writes nothing but the output. The
backward kernel computes the scores again; only queries, keys, values and masks are saved for it.
The dropout masks are those of `hashing.weight_bits` for weights [B, N, L, S]. Scores and
softmax are float32, as in the plain computation of `models.common.attention`.

The arrays stay [B, L, N * H], as the dense layers before and after the attention have them, because
a TPU pads the last axis of an array to 128 lanes. A block has 128 lanes, which are one head of 128
or two heads of 64. In a block of two heads, the products of a head are 128 wide too: its queries
are 0 in the lanes of the other head. A matrix unit that is 128 wide, as in v4, v5e and v5p, takes
no longer for this than for a head of 64 alone.

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

from bertjax import device_groups, hashing
from bertjax.models.common import disentangled, layers, masks, row_distances, row_kernels

LANES = row_kernels.LANES
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
    strided: bool = True


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    options: Options,
    query_BLD: jax.Array,
    key_BSD: jax.Array,
    value_BSD: jax.Array,
    shared: Mapping[str, jax.Array],
    inputs: Mapping[str, jax.Array],
) -> jax.Array:
    """Returns softmax(scores) value, [B, L, N * H], in the dtype of the queries.

    The scores are query key^T plus what `shared` has:
        bias: float32[1, N, L, S].
        c2p, p2c: tables of `disentangled.Terms.expanded`, [2 L, N * H]; L and S are equal then, and
            the mask has no `causal` and no `window`.
    L and S are multiples of 128, and N * H is one of W.
    inputs: the arrays that the options and the mask need, out of these:
        key_bias: float32[B, 1, S], added to the scores of all queries; hides keys.
        query_segments int32[B, 1, L], key_segments int32[B, 1, S]: a query sees only keys with the
            same number.
        prefix: int32[B, 1, S]; where it is not 0, the key is exempt from `causal`.
        everywhere: int32[]; 1 disables the window.
        row_keys: int32[B], `hashing.row_keys` of the dropout. head_numbers: int32[N], the index of
            each head among all heads, of which a device may have a part.
    """
    return _forward(options, query_BLD, key_BSD, value_BSD, shared, inputs)[0]


def of_shard(
    arrays: Mapping[str, jax.Array],
    mask: masks.Mask,
    bias: jax.Array | disentangled.Terms | None,
    seed: jax.Array | None,
    rate: float,
    device: Any,
) -> tuple[Callable, dict[str, jax.Array]]:
    """Returns (function, other_arrays) to compute the attention of one device's rows and heads.

    function: returns the output [B, L, N, H] for {name: array} of `arrays` and of `other_arrays`.
    arrays: query [B, L, N, H], key and value [B, S, N, H], of which only the shapes are used here.
    bias, seed, rate: see `kernels.Extras`. device: the device to compile for, or a description.
    """
    if isinstance(bias, disentangled.Terms):
        shared = {
            term: jnp.pad(table_TNH, ((0, 1), (0, 0), (0, 0)))  # 2 L rows
            for term, table_TNH in bias.expanded().items()
        }
    else:
        shared = {} if bias is None else {"bias": bias}
    options = Options(
        arrays["query"].shape[-1],
        rate=0.0 if seed is None else rate,
        causal=mask.causal,
        window=mask.window,
        everywhere_share=mask.everywhere_share,
        interpret=device.platform == "cpu",
        strided=device.platform == "tpu" and not device.device_kind.startswith("TPU v4"),
    )
    inputs = _inputs_of(arrays, mask, seed if options.rate else None)

    def attend_shard(arrays: dict[str, jax.Array]) -> jax.Array:
        def flat(name: str) -> jax.Array:
            array = arrays[name]
            return array if name == "bias" else array.reshape(*array.shape[:-2], -1)

        out_BLD = attend(
            options,
            *map(flat, ("query", "key", "value")),
            {name: flat(name) for name in shared},
            {name: arrays[name] for name in inputs},
        )
        return out_BLD.reshape(arrays["query"].shape)

    return attend_shard, inputs | shared


def _inputs_of(
    arrays: Mapping[str, jax.Array], mask: masks.Mask, seed: jax.Array | None
) -> dict[str, jax.Array]:
    """Returns the `inputs` of `attend` for a mask, and for dropout with this seed unless None.

    arrays: "query" [B, L, N, H] and "key" [B, S, N, H], of which only the shapes are used.
    """
    batch, _, num_heads, _ = arrays["query"].shape
    inputs = {}

    def add_mask(name: str, array_BS: jax.Array, dtype: Any) -> None:
        shape = (batch, 1, array_BS.shape[-1])
        inputs[name] = jnp.broadcast_to(array_BS[:, None].astype(dtype), shape)

    if mask.query_segments is not None:
        visible_BS = mask.key_segments > 0
        if mask.keys is not None:
            visible_BS &= mask.keys.astype(bool)
        add_mask("query_segments", mask.query_segments, jnp.int32)
        add_mask("key_segments", jnp.where(visible_BS, mask.key_segments, -1), jnp.int32)
    elif mask.keys is not None:
        add_mask("key_bias", jnp.where(mask.keys.astype(bool), 0.0, layers.MASKED), jnp.float32)
    if mask.prefix is not None:
        add_mask("prefix", mask.prefix, jnp.int32)
    if mask.everywhere is not None:
        inputs["everywhere"] = mask.everywhere.astype(jnp.int32)
    if seed is not None:
        keys_B = hashing.row_keys(seed, batch, device_groups.first_row(batch))
        inputs["row_keys"] = keys_B.astype(jnp.int32)
        inputs["head_numbers"] = jnp.arange(num_heads, dtype=jnp.int32)
    return inputs


def _forward(options, query_BLD, key_BSD, value_BSD, shared, inputs):
    call = _Call(options, query_BLD, key_BSD, shared, inputs)
    arrays = {"query": query_BLD, "key": key_BSD, "value": value_BSD}
    outputs = call.run("forward", row_kernels.forward, arrays, {"out": (query_BLD, "length")})
    return outputs["out"], (query_BLD, key_BSD, value_BSD, shared, inputs)


def _backward(options, saved, d_out_BLD):
    query_BLD, key_BSD, value_BSD, shared, inputs = saved
    call = _Call(options, query_BLD, key_BSD, shared, inputs)
    arrays = {"query": query_BLD, "key": key_BSD, "value": value_BSD, "d_out": d_out_BLD}
    d_key = key_BSD, "key_length"
    if call.num_blocks > 1:
        parts_QBSD = jax.ShapeDtypeStruct((call.num_blocks, *key_BSD.shape), jnp.float32)
        d_key = parts_QBSD, "parts"
    shapes = {"d_query": (query_BLD, "length"), "d_key": d_key, "d_value": d_key}
    for name, array in shared.items():
        sum_like = jax.ShapeDtypeStruct(array.shape, jnp.float32)
        shapes[f"d_{name}"] = sum_like, _shared_kind(name)
    outputs = call.run("backward", row_kernels.backward, arrays, shapes, ("key_sum", "value_sum"))
    if call.num_blocks > 1:
        for name in ("d_key", "d_value"):
            outputs[name] = jnp.sum(outputs[name], axis=0).astype(key_BSD.dtype)
    d_shared = {name: outputs[f"d_{name}"].astype(array.dtype) for name, array in shared.items()}
    return outputs["d_query"], outputs["d_key"], outputs["d_value"], d_shared, None


def _shared_kind(name: str) -> str:
    return "bias" if name == "bias" else "table"


attend.defvjp(_forward, _backward)


class _Call:
    """The sizes of a call, and what the kernels need to know about it.

    The grid is (blocks of heads, blocks of queries, blocks of rows). The blocks of rows are the
    inner axis, so that a block of what rows share is read only once, and its gradient is summed
    over the batch in VMEM. There is more than one block of queries only if the bias is large; then
    the backward kernel returns the gradients of keys and values in parts, one for each block.
    """

    def __init__(self, options: Options, query_BLD, key_BSD, shared, inputs):
        self.options, self.shared, self.inputs = options, shared, inputs
        self.batch, self.length, self.width = query_BLD.shape
        self.num_keys = key_BSD.shape[1]
        self.tables = [term for term in disentangled.TERMS if term in shared]
        self.heads = LANES // options.head_dim  # in a block
        self.chunk = self.length if self.length % _CHUNK else _CHUNK
        self.block = self.length
        if "bias" in shared:
            row_bytes = self.heads * self.num_keys * shared["bias"].dtype.itemsize
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
            "table": pl.BlockSpec((2 * num_keys, LANES), lambda g, *_: (0, g)),
            "query_mask": pl.BlockSpec((rows, 1, block), lambda g, q, b, *_: (b, 0, q)),
            "key_mask": pl.BlockSpec((rows, 1, num_keys), lambda g, q, b, *_: (b, 0, 0)),
        }
        scalars = {n: self.inputs[n].reshape(-1) for n in _SCALARS if n in self.inputs}
        operands, specs = dict(arrays), {}
        for array in arrays:
            specs[array] = blocks["key_length" if array in ("key", "value") else "length"]
        for shared, array in self.shared.items():
            operands[shared], specs[shared] = array, blocks[_shared_kind(shared)]
        for mask, array in self.inputs.items():
            if mask not in scalars:
                operands[mask] = array
                specs[mask] = blocks["query_mask" if mask == "query_segments" else "key_mask"]
        scratches = {n: pltpu.VMEM((self.num_keys, LANES), jnp.float32) for n in scratch}
        if "query_segments" in self.inputs:
            scratches["segment_column"] = pltpu.VMEM((block, LANES), jnp.int32)
        names = (*scalars, *operands, *outputs, *scratches)
        inner = "arbitrary" if self.shared and name == "backward" else "parallel"
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
        # The backward kernel computes the terms for distances, and two gradients of each product.
        products = _NUM_PRODUCTS[name]
        products += row_distances.num_products(self) * (1 if name == "forward" else 3)
        return pl.CostEstimate(
            flops=round(2 * products * self.batch * self.width * scores),
            transcendentals=self.batch * self.width // self.options.head_dim * scores,
            bytes_accessed=sum(array.size * array.dtype.itemsize for array in arrays),
        )
