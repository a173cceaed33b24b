"""Attention kernels for `config.attention`, which never store all scores in memory at once.

    rows    Pallas on a TPU, for rows of up to MAX_ROW tokens; see `models.common.row_attention`
    splash  Pallas on a TPU; skips blocks that a causal or local mask hides
    cudnn   flash attention on a GPU, in bfloat16

The value xla is not a kernel but the plain computation in `models.common.attention`. The kernels
agree with xla except at padding queries, whose outputs are unspecified but finite. `check` and
`check_mesh` reject what a kernel does not support; there is no silent fallback. The value auto
means, on TPUs, the first of rows and splash that supports a call, and xla elsewhere.

For example, ModernBERT-base with 8 rows of 1,024 tokens per TPU v5e chip and no remat needs 10.0
GiB of temporaries with splash and 24.3 GiB with xla, which does not fit (according to the compiler
of libtpu 0.0.42.1).

Shapes: B batch, L length, S key length, N heads, H head dim.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models.common import disentangled, masks

LENGTH_MULTIPLE = 128  # splash needs lengths that are a multiple of a TPU's vector width
_BLOCKS = (512, 256, 128)  # block sizes of splash: the largest that divides the length is used
_PLATFORMS = {"rows": "tpu", "splash": "tpu", "cudnn": "gpu"}
_OLD_TPUS = ("TPU v2", "TPU v3")
ROW_WIDTHS = (64, 128)  # widths of heads of which one or two fill the 128 lanes of a TPU's vectors
MIN_ROW, MAX_ROW = 64, 1024  # lengths of queries and keys that rows supports

_AXES: dict[str, tuple[str | None, ...]] = {
    "query": ("batch", "length", "heads", "head_dim"),
    "key": ("batch", "key_length", "heads", "head_dim"),
    "value": ("batch", "key_length", "heads", "head_dim"),
    "query_ids": ("batch", "length"),
    "key_ids": ("batch", "key_length"),
    "everywhere": (),
    "mask": ("batch", None, None),
    "bias": (None, "heads", "length", "key_length"),
    "c2p": (None, "heads", "head_dim"),
    "p2c": (None, "heads", "head_dim"),
    "key_bias": ("batch", None, None),
    "query_segments": ("batch", None, None),
    "key_segments": ("batch", None, None),
    "prefix": ("batch", None, None),
    "row_keys": ("batch",),
    "head_numbers": ("heads",),
}


@dataclasses.dataclass(frozen=True)
class Extras:
    """What is added to the plain attention; of the kernels, only rows supports it.

    bias: added to the scores: float32 [1, N, L, S], DeBERTa's terms for distances, or None. seed,
    rate: seed and rate of the dropout of the attention weights; if seed is None, there is no
    dropout.
    """

    bias: jax.Array | disentangled.Terms | None = None
    seed: jax.Array | None = None
    rate: float = 0.0


def attend(
    name: str,
    query_BLNH: jax.Array,
    key_BSNH: jax.Array,
    value_BSNH: jax.Array,
    mask: masks.Mask,
    extras: Extras = Extras(),
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
    if name == "rows":
        for ok, key, value, allowed in _call_conditions(query_BLNH, key_BSNH, mask, extras.bias):
            if not ok:
                raise errors.UserError(
                    f"config.attention = 'rows': {key} = {value} must be {allowed}; use 'auto'"
                )
        # Imported here because importing Pallas takes half a second.
        from bertjax.models.common import row_attention

        function, other_arrays = row_attention.of_shard(
            arrays, mask, extras.bias, extras.seed, extras.rate, _device()
        )
    else:
        function, other_arrays = _KERNELS[name](mask, *query_BLNH.shape[:2], key_BSNH.shape[1])
    return sharding.map_shards(function, arrays | other_arrays, _AXES, like="query")


def kernel_platform(device: Any) -> str:
    """Returns the platform whose kernels `auto` may choose on the device.

    It is "" for TPUs before v4, where Pallas does not multiply matrices in bfloat16.
    """
    return "" if device.device_kind in _OLD_TPUS else device.platform


def chosen(
    name: str,
    query_BLNH: jax.Array,
    key_BSNH: jax.Array,
    mask: masks.Mask,
    bias: Any,
    *,
    has_dropout: bool,
) -> str:
    """Returns `name`; for "auto" the name of the computation to use for these inputs.

    bias: an array that is added to the scores, a function that returns it, or None. has_dropout:
    whether attention weights are dropped in this call.
    """
    if name != "auto":
        return name
    if kernel_platform(_device()) != "tpu" or sharding.splits("length"):
        return "xla"
    if all(ok for ok, *_ in _call_conditions(query_BLNH, key_BSNH, mask, bias)):
        return "rows"
    lengths = query_BLNH.shape[1], key_BSNH.shape[1]
    is_plain = bias is None and not has_dropout and mask.prefix is None and mask.start is None
    return "splash" if is_plain and _is_long(*lengths) else "xla"


def _is_long(*lengths: int) -> bool:
    """Returns whether `auto` chooses splash for these lengths, if splash supports the rest."""
    return max(lengths) > MAX_ROW and all(length % LENGTH_MULTIPLE == 0 for length in lengths)


# Whether a requirement of rows is met; the key it is about, its value, and the allowed values.
_Condition = tuple[bool, str, Any, str]


def _call_conditions(
    query_BLNH: jax.Array, key_BSNH: jax.Array, mask: masks.Mask, bias: Any
) -> Iterator[_Condition]:
    num_heads, head_dim = query_BLNH.shape[2:]
    mesh = jax.sharding.get_abstract_mesh()
    shards = 1 if mesh.empty else mesh.shape["tensor"]
    num_heads = num_heads // shards if num_heads % shards == 0 else num_heads
    lengths = {"length": query_BLNH.shape[1], "key length": key_BSNH.shape[1]}
    has_distances = isinstance(bias, disentangled.Terms)
    yield from _row_conditions(num_heads, head_dim, lengths, has_distances)
    yield mask.start is None, "the first position", "given", "0, without a cache"
    if has_distances:
        is_whole = not mask.causal and not mask.window
        yield is_whole, "the mask", "causal or local", "of keys and segments only, for distances"
    else:
        is_simple = bias is None or (not callable(bias) and len(bias) == 1)
        yield is_simple, "the bias", "of each row", "the same array for all rows"


def _row_conditions(
    num_heads: int, head_dim: int, lengths: Mapping[str, int], has_distances: bool
) -> Iterator[_Condition]:
    """Yields the requirements of rows.

    num_heads: the heads of a device. has_distances: whether scores have DeBERTa's terms.
    """
    yield head_dim in ROW_WIDTHS, "model.head_dim", head_dim, "64 or 128"
    yield (
        num_heads * head_dim % ROW_WIDTHS[-1] == 0,
        "model.num_heads",
        num_heads,
        "even on each device, because heads of width 64 are computed in pairs",
    )
    for key, length in lengths.items():
        is_short = MIN_ROW <= length <= LENGTH_MULTIPLE and not has_distances
        is_long = length % LENGTH_MULTIPLE == 0 and length <= MAX_ROW
        allowed = f"a multiple of {LENGTH_MULTIPLE} up to {MAX_ROW}"
        if not has_distances:
            allowed = f"{MIN_ROW} to {LENGTH_MULTIPLE}, or {allowed}"
        yield is_short or is_long, key, length, allowed


def in_training(
    name: str, model: Any, length: int, mesh_sizes: Mapping[str, int], platform: str
) -> str:
    """Returns `name`; for "auto" what it means for self-attention over rows of `length` tokens.

    It is the answer of `chosen` for masks that all kernels support. model: the family's Config.
    platform: the `kernel_platform` of the devices.
    """
    if name != "auto":
        return name
    if platform != "tpu" or mesh_sizes["sequence"] > 1:
        return "xla"
    num_heads = model.num_heads // mesh_sizes["tensor"]
    sizes = num_heads, model.head_dim, {"length": length}
    if all(ok for ok, *_ in _row_conditions(*sizes, model.score_bias == "distances")):
        return "rows"
    is_plain = model.score_bias == "none" and model.attention_dropout_rate == 0.0
    return "splash" if is_plain and _is_long(length) else "xla"


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
    interpret = _device().platform == "cpu"
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


def _device() -> Any:
    """Returns the device to compile for, or a description with its platform and kind.

    In ahead-of-time compilation, it may differ from the devices of this machine.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0] if device is None else device


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
PLAIN = ("auto", "xla")  # values that support everything
NAMES = (*PLAIN, "rows", *_KERNELS)


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
    if name in PLAIN:
        return
    condition = f"with config.attention = {name!r}"
    if name == "rows":
        sizes = model.num_heads, model.head_dim, lengths
        for ok, key, value, allowed in _row_conditions(*sizes, model.score_bias == "distances"):
            errors.check(ok, key, value, f"{allowed} {condition} ('auto' allows any)")
        return
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
    if name in PLAIN:
        return
    target = platform or mesh.devices.flat[0].platform
    supported = [*PLAIN, *(kernel for kernel, runs_on in _PLATFORMS.items() if runs_on == target)]
    allowed = f"{', '.join(supported[:-1])} or {supported[-1]} on a {target}"
    errors.check(name in supported, "attention", name, allowed)
    allowed = "'xla' if the mesh axis 'sequence' is larger than 1"
    errors.check(mesh.shape["sequence"] == 1, "attention", name, allowed)
