"""Attention kernels for `config.attention`, which never store all scores in memory at once.

    splash  Pallas on a TPU; skips blocks that a causal or local mask hides
    cudnn   flash attention on a GPU, in bfloat16

The third value, xla, is not a kernel but the plain computation in `models.common.attention`. The
kernels agree with xla except at padding queries, whose outputs are unspecified but finite.
`check` and `check_mesh` reject what a kernel does not support; there is no silent fallback.

For example, ModernBERT-base with 8 rows of 1,024 tokens per TPU v5e chip and no remat needs 10.0
GiB of temporaries with splash and 24.3 GiB with xla, which does not fit (according to the compiler
of libtpu 0.0.42.1).

Shapes: B batch, L length, S key length, N heads, H head dim.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models.common import masks

LENGTH_MULTIPLE = 128  # splash needs lengths that are a multiple of a TPU's vector width
_BLOCKS = (512, 256, 128)  # block sizes of splash: the largest that divides the length is used
_PLATFORMS = {"splash": "tpu", "cudnn": "gpu"}

_AXES: dict[str, tuple[str | None, ...]] = {
    "query": ("batch", "length", "heads", "head_dim"),
    "key": ("batch", "key_length", "heads", "head_dim"),
    "value": ("batch", "key_length", "heads", "head_dim"),
    "query_ids": ("batch", "length"),
    "key_ids": ("batch", "key_length"),
    "everywhere": (),
    "seen": ("batch", None, None),
}


def attend(
    name: str, query_BLNH: jax.Array, key_BSNH: jax.Array, value_BSNH: jax.Array, mask: masks.Mask
) -> jax.Array:
    """Returns softmax(query key^T) value, [B, L, N, H], computed by kernel `name`.

    The caller scales the queries. Each device of the current mesh computes its own rows and heads.
    Raises UserError if the kernel does not support the mask, or if the mesh shards the length.
    """
    if sharding.splits("length"):
        raise errors.UserError(
            f"config.attention = {name!r}: must be xla if the mesh has the axis sequence"
        )
    arrays = {"query": query_BLNH, "key": key_BSNH, "value": value_BSNH}
    function, extra = _KERNELS[name](mask, *query_BLNH.shape[:2], key_BSNH.shape[1])
    return sharding.map_shards(function, arrays | extra, _AXES, like="query")


def _splash(mask: masks.Mask, batch: int, queries: int, keys: int) -> tuple[Callable, dict]:
    """Returns (function, extra) to compute the attention of one device's rows and heads.

    function: returns the output for {name: array} of query, key, value and the arrays in `extra`.
    extra: {name: array} of the inputs that describe the mask.
    """
    # Imported here because importing Pallas takes half a second.
    from jax.experimental.pallas.ops.tpu import splash_attention

    if mask.prefix is not None or mask.start is not None:
        raise errors.UserError(
            "config.attention = 'splash': does not support a prefix or a cache; use xla"
        )
    rows, columns = _block(queries), _block(keys)
    sizes = splash_attention.BlockSizes(
        block_q=rows, block_kv=columns, block_kv_compute=columns,
        block_q_dkv=rows, block_kv_dkv=columns, block_kv_dkv_compute=columns,
        block_q_dq=rows, block_kv_dq=columns,
    )  # fmt: skip
    interpret = _platform() == "cpu"
    extra = {}
    if mask.keys is not None or mask.query_segments is not None:
        query_ids = jnp.ones((1, 1), jnp.int32)
        key_ids = query_ids
        if mask.query_segments is not None:
            query_ids, key_ids = mask.query_segments, mask.key_segments
        if mask.keys is not None:
            key_ids = jnp.where(mask.keys.astype(bool), key_ids, -1)
        extra["query_ids"] = jnp.broadcast_to(query_ids, (batch, queries)).astype(jnp.int32)
        extra["key_ids"] = jnp.broadcast_to(key_ids, (batch, keys)).astype(jnp.int32)
    if mask.everywhere is not None:
        extra["everywhere"] = mask.everywhere

    def kernel(window: int, num_heads: int) -> Callable:
        shape, half = (queries, keys), window // 2
        if window:
            seen = splash_attention.LocalMask(shape, (half, 0 if mask.causal else half), 0)
        elif mask.causal:
            seen = splash_attention.CausalMask(shape)
        else:
            seen = splash_attention.FullMask(shape)
        heads = splash_attention.MultiHeadMask([seen] * num_heads)
        made = splash_attention.make_splash_mha(
            heads, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
        )
        return jax.vmap(lambda *inputs: made(*inputs))

    def of_device(arrays: dict[str, jax.Array]) -> jax.Array:
        inputs = [jnp.swapaxes(arrays[name], 1, 2) for name in ("query", "key", "value")]
        if "query_ids" in arrays:
            inputs.append(splash_attention.SegmentIds(arrays["query_ids"], arrays["key_ids"]))
        num_heads = inputs[0].shape[1]
        near = kernel(mask.window, num_heads)
        if "everywhere" in arrays:
            far = kernel(0, num_heads)
            mixed_BNLH = jax.lax.cond(arrays["everywhere"], far, near, *inputs)
        else:
            mixed_BNLH = near(*inputs)
        return jnp.swapaxes(mixed_BNLH, 1, 2)

    return of_device, extra


def _block(length: int) -> int:
    sizes = [size for size in _BLOCKS if length % size == 0]
    if not sizes:
        raise errors.UserError(
            f"config.attention = 'splash': length {length} must be a multiple of {LENGTH_MULTIPLE}"
        )
    return sizes[0]


def _platform() -> str:
    """Returns the platform to compile for.

    In ahead-of-time compilation, it may differ from the platform of this machine.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _cudnn(mask: masks.Mask, batch: int, queries: int, keys: int) -> tuple[Callable, dict]:
    """Like `_splash`, but `extra` has the mask as one bool array [B or 1, L, S].

    The causal part of the mask is not in the array but passed as a flag, unless there is a prefix
    or a cache.
    """
    only_before = mask.causal and mask.prefix is None and mask.start is None
    rest = dataclasses.replace(mask, causal=False) if only_before else mask
    extra = {}
    if rest.causal or rest.window or jax.tree.leaves(rest):
        seen_BLS = rest.dense(queries, keys)
        extra["seen"] = jnp.broadcast_to(seen_BLS, (len(seen_BLS), queries, keys))

    def of_device(arrays: dict[str, jax.Array]) -> jax.Array:
        return jax.nn.dot_product_attention(
            arrays["query"], arrays["key"], arrays["value"],
            mask=arrays["seen"][:, None] if "seen" in arrays else None,
            scale=1.0, is_causal=only_before, implementation="cudnn",
        )  # fmt: skip

    return of_device, extra


_KERNELS = {"splash": _splash, "cudnn": _cudnn}
NAMES = ("xla", *_KERNELS)


def check(
    name: str,
    model: Any,
    dtype: str,
    lengths: Mapping[str, int],
    features: Collection[str],
) -> None:
    """Raises UserError if the kernel `name` does not support the config.

    model: the family's Config. dtype: `config.dtype`. lengths: {config key: tokens per sequence},
    for the phase of training to check. features: names of the features in the objective's batches.
    """
    errors.check(name in NAMES, "attention", name, f"one of {', '.join(NAMES)}")
    if name == "xla":
        return
    here = f"with config.attention = {name!r}"
    rate = model.attention_dropout_rate
    errors.check(rate == 0.0, "model.attention_dropout_rate", rate,
                 f"0.0 {here}, which has no dropout; xla has it")  # fmt: skip
    if name == "splash":
        errors.check("prefix_mask" not in features, "attention", name,
                     "xla for an objective with a prefix mask")  # fmt: skip
        for key, length in lengths.items():
            errors.check(length % LENGTH_MULTIPLE == 0, key, length,
                         f"a multiple of {LENGTH_MULTIPLE} {here} (xla: any)")  # fmt: skip
    else:
        errors.check(dtype != "float32", "dtype", dtype, f"bfloat16 {here}")
        fits = model.head_dim % 8 == 0 and model.head_dim <= 128
        errors.check(fits, "model.num_heads", model.num_heads,
                     f"such that the width of heads is 8, 16, ... or 128 {here}")  # fmt: skip


def check_mesh(name: str, mesh: Any, platform: str | None = None) -> None:
    """Raises UserError if the devices do not support kernel `name`, or the mesh shards the length.

    platform: the platform of the devices; None: the platform of the mesh's devices, so the mesh
    must not be abstract.
    """
    if name == "xla":
        return
    have = platform or mesh.devices.flat[0].platform
    there = ["xla", *(kernel for kernel, runs_on in _PLATFORMS.items() if runs_on == have)]
    errors.check(name in there, "attention", name, f"{' or '.join(there)} on a {have}")
    errors.check(mesh.shape["sequence"] == 1, "attention", name, "xla if the mesh has the axis "
                                                                 "sequence")
