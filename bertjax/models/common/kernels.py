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
    "mask": ("batch", None, None),
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
            f"config.attention = {name!r}: must be 'xla' if the mesh axis 'sequence' is larger "
            "than 1"
        )
    arrays = {"query": query_BLNH, "key": key_BSNH, "value": value_BSNH}
    function, mask_arrays = _KERNELS[name](mask, *query_BLNH.shape[:2], key_BSNH.shape[1])
    return sharding.map_shards(function, arrays | mask_arrays, _AXES, like="query")


def _splash(mask: masks.Mask, batch: int, num_queries: int, num_keys: int) -> tuple[Callable, dict]:
    """Returns (function, mask_arrays) to compute the attention of one device's rows and heads.

    function: returns the output for {name: array} of query, key, value and of `mask_arrays`.
    mask_arrays: {name: array} of the inputs that describe the mask.
    """
    # Imported here because importing Pallas takes half a second.
    from jax.experimental.pallas.ops.tpu import splash_attention

    if mask.prefix is not None or mask.start is not None:
        raise errors.UserError(
            "config.attention = 'splash': does not support a prefix or a cache; use 'xla'"
        )
    query_block, key_block = _block_size(num_queries), _block_size(num_keys)
    sizes = splash_attention.BlockSizes(
        block_q=query_block, block_kv=key_block, block_kv_compute=key_block,
        block_q_dkv=query_block, block_kv_dkv=key_block, block_kv_dkv_compute=key_block,
        block_q_dq=query_block, block_kv_dq=key_block,
    )  # fmt: skip
    interpret = _platform() == "cpu"
    mask_arrays = {}
    if mask.keys is not None or mask.query_segments is not None:
        query_ids = jnp.ones((1, 1), jnp.int32)
        key_ids = query_ids
        if mask.query_segments is not None:
            query_ids, key_ids = mask.query_segments, mask.key_segments
        if mask.keys is not None:
            key_ids = jnp.where(mask.keys.astype(bool), key_ids, -1)
        mask_arrays["query_ids"] = jnp.broadcast_to(query_ids, (batch, num_queries)).astype(
            jnp.int32
        )
        mask_arrays["key_ids"] = jnp.broadcast_to(key_ids, (batch, num_keys)).astype(jnp.int32)
    if mask.everywhere is not None:
        mask_arrays["everywhere"] = mask.everywhere

    def make_kernel(window: int, num_heads: int) -> Callable:
        shape, half = (num_queries, num_keys), window // 2
        if window:
            head_mask = splash_attention.LocalMask(shape, (half, 0 if mask.causal else half), 0)
        elif mask.causal:
            head_mask = splash_attention.CausalMask(shape)
        else:
            head_mask = splash_attention.FullMask(shape)
        head_masks = splash_attention.MultiHeadMask([head_mask] * num_heads)
        attend_heads = splash_attention.make_splash_mha(
            head_masks, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
        )
        return jax.vmap(lambda *inputs: attend_heads(*inputs))

    def attend_shard(arrays: dict[str, jax.Array]) -> jax.Array:
        inputs = [jnp.swapaxes(arrays[name], 1, 2) for name in ("query", "key", "value")]
        if "query_ids" in arrays:
            inputs.append(splash_attention.SegmentIds(arrays["query_ids"], arrays["key_ids"]))
        num_heads = inputs[0].shape[1]
        local_kernel = make_kernel(mask.window, num_heads)
        if "everywhere" in arrays:
            global_kernel = make_kernel(0, num_heads)
            context_BNLH = jax.lax.cond(arrays["everywhere"], global_kernel, local_kernel, *inputs)
        else:
            context_BNLH = local_kernel(*inputs)
        return jnp.swapaxes(context_BNLH, 1, 2)

    return attend_shard, mask_arrays


def _block_size(length: int) -> int:
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


def _cudnn(mask: masks.Mask, batch: int, num_queries: int, num_keys: int) -> tuple[Callable, dict]:
    """Like `_splash`, but `mask_arrays` has the mask as one bool array [B or 1, L, S].

    The causal part of the mask is not in the array but passed as a flag, unless there is a prefix
    or a cache.
    """
    is_causal = mask.causal and mask.prefix is None and mask.start is None
    dense_mask = dataclasses.replace(mask, causal=False) if is_causal else mask
    mask_arrays = {}
    if dense_mask.causal or dense_mask.window or jax.tree.leaves(dense_mask):
        visible_BLS = dense_mask.dense(num_queries, num_keys)
        mask_arrays["mask"] = jnp.broadcast_to(
            visible_BLS, (len(visible_BLS), num_queries, num_keys)
        )

    def attend_shard(arrays: dict[str, jax.Array]) -> jax.Array:
        return jax.nn.dot_product_attention(
            arrays["query"], arrays["key"], arrays["value"],
            mask=arrays["mask"][:, None] if "mask" in arrays else None,
            scale=1.0, is_causal=is_causal, implementation="cudnn",
        )  # fmt: skip

    return attend_shard, mask_arrays


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
    condition = f"with config.attention = {name!r}"
    rate = model.attention_dropout_rate
    errors.check(rate == 0.0, "model.attention_dropout_rate", rate,
                 f"0.0 {condition}, which has no dropout; 'xla' has it")  # fmt: skip
    if name == "splash":
        errors.check("prefix_mask" not in features, "attention", name,
                     "'xla' for an objective with a prefix mask")  # fmt: skip
        for key, length in lengths.items():
            errors.check(length % LENGTH_MULTIPLE == 0, key, length,
                         f"a multiple of {LENGTH_MULTIPLE} {condition} "
                         "('xla' allows any)")  # fmt: skip
    else:
        errors.check(dtype != "float32", "dtype", dtype, f"'bfloat16' {condition}")
        valid_width = model.head_dim % 8 == 0 and model.head_dim <= 128
        errors.check(valid_width, "model.num_heads", model.num_heads,
                     f"such that the width of heads is 8, 16, ... or 128 {condition}")  # fmt: skip


def check_mesh(name: str, mesh: Any, platform: str | None = None) -> None:
    """Raises UserError if the devices do not support kernel `name`, or the mesh shards the length.

    platform: the platform of the devices; None means the platform of the mesh's devices, for which
    the mesh must not be abstract.
    """
    if name == "xla":
        return
    target = platform or mesh.devices.flat[0].platform
    supported = ["xla", *(kernel for kernel, runs_on in _PLATFORMS.items() if runs_on == target)]
    errors.check(name in supported, "attention", name, f"{' or '.join(supported)} on a {target}")
    errors.check(mesh.shape["sequence"] == 1, "attention", name, "'xla' if the mesh axis "
                                                                 "'sequence' is larger than 1")
