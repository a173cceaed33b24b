"""Makes the mesh, and defines with two tables how every array is split over it.

`PARAM_AXES` maps a parameter's path to logical axes, one per dimension (None: not split). Arrays
that are stacked over layers have one more axis in front. The same table covers gradients and the
optimizer's moments, whose paths end like the parameters'. `AXIS_RULES` maps logical axes to mesh
axes. A dimension that is not divisible by the size of the mesh axis is not split.

Parameters are stored sharded over fsdp and all-gathered before use. For kernels the compiler does
this by itself, since the shardings of the activations around them are fixed (`constrain`). A
vocabulary table needs `gathered`. Otherwise each device looks up parts of rows, and the devices
must exchange these parts.

The axis `slice` is the outermost one. Its parts are the TPU slices, joined by the data-center
network, which is much slower than the links inside a slice. It splits only the batch, so only sums
of gradients and of losses cross it, once a step.

    mesh = sharding.make_mesh("fsdp:4,tensor:2")
    with jax.set_mesh(mesh): ...
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax import errors

MESH_AXES = ("slice", "data", "fsdp", "tensor", "sequence")
INNER_AXES = MESH_AXES[1:]  # the axes inside a slice

AXIS_RULES: dict[str, tuple[str, ...]] = {
    "batch": ("slice", "data", "fsdp"),
    "length": ("sequence",),
    "key_length": (),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "head_dim": (),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "layers": (),
}
# The embed axis of an activation is not split: the fsdp devices already split the batch.
ACTIVATION_RULES = {**AXIS_RULES, "embed": ()}

# The first pattern that matches decides. Tables of a few hundred rows are not worth splitting.
# A family from another package inserts lines for its own parameter names when it is imported.
PARAM_AXES: list[tuple[str, tuple[str | None, ...]]] = [
    (r"word/embedding$", ("vocab", "embed")),
    (r"(position|token_type)/embedding$", (None, None)),
    (r"relative_bias/embedding$", (None, "heads")),
    (r"(query|key|value)/kernel$", ("embed", "heads", "head_dim")),
    (r"(query|key|value)/bias$", ("heads", "head_dim")),
    (r"out/kernel$", ("heads", "head_dim", "embed")),
    (r"(wi|wi_gate)/kernel$", ("embed", "mlp")),
    (r"wi/bias$", ("mlp",)),
    (r"wo/kernel$", ("mlp", "embed")),
    (r"lm_head/kernel$", ("embed", "vocab")),
    (r"(dense|transform|project|classifier|logits|nsp_head|sop_head)/kernel$", ("embed", None)),
    (r"projection/\d+/kernel$", ("embed", None)),
    (r"projection/\d+/bias$", (None,)),
    (r"adapter/down/kernel$", ("embed", None)),
    (r"adapter/up/kernel$", (None, "embed")),
    (r"kernel/lora_[ab]$", (None, None)),
    (r"mlm_head/bias$", ("vocab",)),
    (r"(out|wo|dense|transform|project|classifier|logits|nsp_head|sop_head)/bias$", (None,)),
    (r"adapter/(down|up)/bias$", (None,)),
    (r"norm/(scale|bias)$", (None,)),
    (r"conv/kernel$", (None, "embed", None)),
    (r"conv/bias$", (None,)),
]


def parse_mesh(text: str) -> dict[str, int]:
    """Parses a text such as "fsdp:4,tensor:2"; returns {axis: size} of the axes that it names.

    The size -1, which `slice` cannot have, means all remaining devices. Raises UserError if the
    text is malformed.
    """
    sizes = {}
    for part in text.split(","):
        axis, _, size = part.strip().partition(":")
        pattern = r"[1-9]\d*" if axis == "slice" else r"-1|[1-9]\d*"
        if axis not in MESH_AXES or axis in sizes or not re.fullmatch(pattern, size):
            allowed = 'axis sizes such as "fsdp:4,tensor:2", of the axes ' + ", ".join(MESH_AXES)
            errors.check(False, "mesh", text, f"{allowed}; one size, not slice's, may be -1")
        sizes[axis] = int(size)
    return sizes


def mesh_sizes(text: str, num_devices: int, num_slices: int | None = None) -> dict[str, int]:
    """Returns the size of every mesh axis, in the order of MESH_AXES, on `num_devices` devices.

    An axis that the text does not name has size 1, with two exceptions. The axis `slice` has the
    size `num_slices`, and `data` has all remaining devices if no other axis has size -1.

    text: as in `config.mesh`. num_slices: the number of slices of the hardware, see
    `hardware_slices`. Raises UserError if the product of the sizes is not `num_devices`, or if the
    text names another number of slices than `num_slices`.
    """
    named = parse_mesh(text)
    slices = named.pop("slice", num_slices or 1)
    if num_slices not in (None, slices):
        raise errors.UserError(
            f"config.mesh = {text!r}: slice must be {num_slices}, the number of slices of the "
            "hardware"
        )
    sizes = {"slice": slices} | {axis: named.get(axis, 1) for axis in INNER_AXES}
    if "data" not in named and -1 not in named.values():
        sizes["data"] = -1
    fixed_size = math.prod(size for size in sizes.values() if size != -1)
    free_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(free_axes) == 1 and num_devices % fixed_size == 0:
        sizes[free_axes[0]] = num_devices // fixed_size
    if math.prod(sizes.values()) != num_devices:
        product, devices = num_devices, "devices"
        if slices > 1 and "slice" not in text:
            product, devices = num_devices // slices, f"devices in each of the {slices} slices"
        raise errors.UserError(
            f"config.mesh = {text!r}: the product of its sizes must be {product}, the number of "
            f"{devices}; one of its sizes may be -1"
        )
    return sizes


def hardware_slices(devices: Sequence[jax.Device]) -> int | None:
    """Returns the number of TPU slices that contain the devices; None if they are not TPUs.

    Other hardware has no slices. There, any size of the axis `slice` is valid.
    """
    if devices[0].platform != "tpu":
        return None
    return len({getattr(device, "slice_index", 0) for device in devices})


def described(mesh: Mesh, dtype: str) -> str:
    """Returns a description of the devices, the axes larger than 1 and the activation dtype."""
    axes = ",".join(f"{name}:{size}" for name, size in mesh.shape.items() if size > 1) or "data:1"
    return f"{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}, {dtype}"


def make_mesh(text: str = "data:-1", devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh of `devices` (default: all) with the sizes that `mesh_sizes` returns.

    Each part of the axis `slice` is one slice of TPUs. On other hardware it is a group of
    consecutive devices. On a TPU, several other axes may share one axis of the torus.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(text, len(devices), hardware_slices(devices))
    inner_shape = tuple(sizes[axis] for axis in INNER_AXES)
    if devices[0].platform == "tpu":
        devices = sorted(devices, key=lambda device: getattr(device, "slice_index", 0))
    groups = np.split(np.array(devices), sizes["slice"])
    grids = [
        mesh_utils.create_device_mesh(inner_shape, list(group), allow_split_physical_axes=True)
        for group in groups
    ]
    return Mesh(np.stack(grids), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def batch_shards(mesh: Mesh) -> int:
    """Returns the number of parts that the batch axis is split into."""
    return int(np.prod([mesh.shape[axis] for axis in AXIS_RULES["batch"]]))


def _spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh_shape: Any, rules: dict
) -> PartitionSpec:
    entries = []
    for axis, size in zip(axes, shape, strict=True):
        mesh_axes = tuple(name for name in rules[axis] if mesh_shape[name] > 1) if axis else ()
        num_parts = int(np.prod([mesh_shape[name] for name in mesh_axes]))
        entries.append(mesh_axes if mesh_axes and size % num_parts == 0 else None)
    return PartitionSpec(*entries)


def _current_sizes() -> dict[str, int]:
    """Returns {axis: size} of the current mesh; {} outside a mesh.

    Within `device_groups.sum_over_groups` the arrays are those of one group, so that the axes that
    number the groups have size 1.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return {axis: 1 if axis in mesh.manual_axes else size for axis, size in mesh.shape.items()}


def _with_sharding(x: jax.Array, axes: Sequence[str | None], rules: dict) -> jax.Array:
    sizes = _current_sizes()
    if math.prod(sizes.values()) == 1:
        return x
    return jax.lax.with_sharding_constraint(x, _spec(axes, x.shape, sizes, rules))


def constrain(x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Fixes the sharding of an activation with these logical axes; no effect outside a mesh."""
    return _with_sharding(x, axes, ACTIVATION_RULES)


def splits(axis: str) -> bool:
    """Returns whether the current mesh splits this logical axis of activations."""
    sizes = _current_sizes()
    return bool(sizes) and any(sizes[name] > 1 for name in ACTIVATION_RULES[axis])


def map_shards(
    function: Callable[[dict[str, jax.Array]], jax.Array],
    arrays: dict[str, jax.Array],
    axes: Mapping[str, Sequence[str | None]],
    like: str,
) -> jax.Array:
    """Applies `function` to each device's shards, for operations that the compiler cannot split.

    axes: {name of an array: its logical axes}; the arrays are split like activations. like: the
    name of the array whose sharding the result has. Returns `function(arrays)` outside a mesh.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(arrays)
    sizes = _current_sizes()
    specs = {
        name: _spec(axes[name], array.shape, sizes, ACTIVATION_RULES)
        for name, array in arrays.items()
    }
    mapped = jax.shard_map(
        function,
        in_specs=(specs,),
        out_specs=specs[like],
        axis_names=set(mesh.axis_names) - set(mesh.manual_axes),
        check_vma=False,
    )
    return mapped(arrays)


def map_layers(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Applies `function` to an array [layers, ...], with each device computing whole layers.

    function: computes each layer by itself and keeps the shape. Every device gets the whole array,
    computes its share of the layers, and receives the results of the others. If there are fewer
    layers than devices, some devices have no share. Returns function(x) outside a mesh.

    Every slice computes all layers, so that no results are sent between slices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(x)
    slice_devices = mesh.size // mesh.shape["slice"]
    num_layers, share = len(x), -(-len(x) // slice_devices)
    num_shares = -(-num_layers // share)
    padding = [(0, num_shares * share - num_layers), *((0, 0) for _ in x.shape[1:])]

    def own_share(x):
        index = jax.lax.axis_index(INNER_AXES)
        start = jnp.minimum(index, num_shares - 1) * share
        result = function(jax.lax.dynamic_slice_in_dim(x, start, share))
        result = jnp.where(index < num_shares, result, 0)
        result = jax.lax.dynamic_update_slice_in_dim(jnp.zeros_like(x), result, start, 0)
        return jax.lax.psum(result, INNER_AXES)  # exact: all terms but one are 0

    whole = PartitionSpec()
    mapped = jax.shard_map(own_share, in_specs=whole, out_specs=whole, check_vma=False)
    return mapped(jnp.pad(x, padding))[:num_layers]


def path_name(path: Sequence[Any]) -> str:
    """Returns the path of a leaf as "encoder/layers/mlp/wi/kernel"."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def param_axes(path: str) -> tuple[str | None, ...]:
    """Returns the logical axes of the parameter at `path`. Raises KeyError if no line matches."""
    for pattern, axes in PARAM_AXES:
        if re.search(pattern, path):
            return ("layers", *axes) if "/layers/" in path else axes
    raise KeyError(f"no line in sharding.PARAM_AXES for the parameter {path}")


def gathered(param: jax.Array, path: str) -> jax.Array:
    """All-gathers the parameter at `path` over fsdp before use. Returns `param` outside a mesh.

    Its gradient is summed over the devices and split again, by `constrain_params`.
    """
    return _with_sharding(param, param_axes(path), ACTIVATION_RULES)


def gather_tables(params: Any) -> Any:
    """Gathers the vocabulary tables in a tree like the parameters; see `gathered`.

    A loop over micro-batches that uses the result gathers them once. The other parameters stay
    split.
    """

    def gather(path, leaf):
        name = path_name(path)
        return gathered(leaf, name) if "vocab" in param_axes(name) else leaf

    if jax.sharding.get_abstract_mesh().empty:
        return params
    return jax.tree_util.tree_map_with_path(gather, params)


def constrain_params(params: Any) -> Any:
    """Constrains a tree like the parameters, such as the gradients, to the parameters' shardings.

    Without this the compiler may accumulate the gradients of micro-batches in unsharded arrays, as
    large as the model, on each device.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _with_sharding(leaf, param_axes(path_name(path)), AXIS_RULES), params
    )


def state_shardings(mesh: Mesh, abstract_state: Any) -> Any:
    """Returns a NamedSharding for every leaf of a state; PARAM_AXES splits parameters and moments.

    All other leaves are replicated. These include Adafactor's factored moments (means over rows and
    over columns), which are small: for T5-3b they take 13 MB, while the parameters take 11.4 GB.
    """

    def leaf_sharding(path, leaf):
        name = path_name(path)
        if leaf.ndim == 0 or not re.search(r"(^|/)(params|ema|mu|nu|trace)/", name):
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, _spec(param_axes(name), leaf.shape, mesh.shape, AXIS_RULES))

    return jax.tree_util.tree_map_with_path(leaf_sharding, abstract_state)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: rows over slice, data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(AXIS_RULES["batch"]))


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Copies the arrays to every device of the mesh. All processes must pass the same values."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the sorted indices of a global batch's rows that are on this process's devices."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    ranges = sorted({index[0].indices(batch_size)[:2] for index in indices.values()})
    return np.concatenate([np.arange(start, stop) for start, stop in ranges])


def global_batch(mesh: Mesh, batch_size: int, local: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Builds a global jax.Array for each feature from the `local_rows` of each process."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows, (batch_size, *rows.shape[1:]))
        for name, rows in local.items()
    }


def fetch(tree: Any) -> Any:
    """Returns a copy of the tree with unsharded arrays on the host.

    NOTE: with several processes, all of them must call it; every process gets the whole arrays.
    """

    def fetch_leaf(x: Any) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(fetch_leaf, tree))


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Makes each process compute alone in the block, on its first device only.

    Use it for work that every process repeats, with the same result. Yields whether there are
    several processes; with only one process, the context manager changes nothing.
    """
    if jax.process_count() == 1:
        yield False
        return
    with on_one_device():
        yield True


@contextlib.contextmanager
def on_one_device() -> Iterator[None]:
    """Makes the process compute on its first device only in the block, whatever the mesh outside.

    Use it for a model that is not sharded, such as one that only predicts.
    """
    device = jax.local_devices()[0]
    with jax.set_mesh(make_mesh("data:1", [device])), jax.default_device(device):
        yield
