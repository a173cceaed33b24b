"""Where arrays live: the mesh, and two tables that say which axis of what is split over it.

`PARAM_AXES` maps a parameter's path to logical axes, one a dimension (None: whole); what is stacked
over layers has one more in front. The same table covers the optimizer's moments, whose paths
end alike. `AXIS_RULES` maps logical axes to mesh axes. An axis whose size the mesh axis does not
divide stays whole.

    mesh = sharding.make_mesh("fsdp:4,tensor:2")
    with jax.set_mesh(mesh): ...
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax import errors

MESH_AXES = ("data", "fsdp", "tensor", "sequence")

AXIS_RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "length": ("sequence",),
    "key_length": (),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "head_dim": (),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "layers": (),
}
# The embed axis of an activation stays whole: its fsdp devices already split the batch.
ACTIVATION_RULES = {**AXIS_RULES, "embed": ()}

# The first pattern found in the path decides. What is gathered from a table split along embed has
# to be rebuilt whole before its batch can be split, so word embeddings are split by vocabulary
# alone and the small tables not at all.
PARAM_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"word/embedding$", ("vocab", None)),
    (r"(position|token_type)/embedding$", (None, None)),
    (r"relative_bias/embedding$", (None, "heads")),
    (r"(query|key|value)/kernel$", ("embed", "heads", "head_dim")),
    (r"(query|key|value)/bias$", ("heads", "head_dim")),
    (r"out/kernel$", ("heads", "head_dim", "embed")),
    (r"(wi|wi_gate)/kernel$", ("embed", "mlp")),
    (r"wi/bias$", ("mlp",)),
    (r"wo/kernel$", ("mlp", "embed")),
    (r"lm_head/kernel$", ("embed", "vocab")),
    (r"(dense|transform|project|classifier|nsp_head|sop_head)/kernel$", ("embed", None)),
    (r"mlm_head/bias$", ("vocab",)),
    (r"(out|wo|dense|transform|project|classifier|nsp_head|sop_head)/bias$", (None,)),
    (r"norm/(scale|bias)$", (None,)),
)


def parse_mesh(text: str) -> dict[str, int]:
    """Sizes of the mesh axes of "fsdp:4,tensor:2": what is not named is 1, but data is -1.

    One size may be -1: the devices that the others leave; data is then 1 unless it is named.
    Raises UserError for another form.
    """
    sizes = {}
    for part in text.split(","):
        axis, _, size = part.strip().partition(":")
        if axis not in MESH_AXES or axis in sizes or not re.fullmatch(r"-1|[1-9]\d*", size):
            allowed = 'sizes of axes like "fsdp:4,tensor:2", the axes being ' + ", ".join(MESH_AXES)
            errors.check(False, "mesh", text, f"{allowed}; one size may be -1")
        sizes[axis] = int(size)
    data = 1 if -1 in sizes.values() else -1
    return {axis: sizes.get(axis, data if axis == "data" else 1) for axis in MESH_AXES}


def make_mesh(text: str = "data:-1", devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of all devices, or those given, with the sizes of `parse_mesh`.

    Raises UserError when the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = parse_mesh(text)
    known = int(np.prod([size for size in sizes.values() if size != -1]))
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) == 1 and len(devices) % known == 0:
        sizes[open_axes[0]] = len(devices) // known
    if int(np.prod(list(sizes.values()))) != len(devices):
        raise errors.UserError(
            f"config.mesh = {text!r} does not multiply to the {len(devices)} devices there are; "
            "one of its sizes may be -1"
        )
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), MESH_AXES, axis_types=types, devices=devices)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the batch axis is split."""
    return int(np.prod([mesh.shape[axis] for axis in AXIS_RULES["batch"]]))


def _spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh_shape: Any, rules: dict
) -> PartitionSpec:
    entries = []
    for axis, size in zip(axes, shape, strict=True):
        names = tuple(name for name in rules[axis] if mesh_shape[name] > 1) if axis else ()
        parts = int(np.prod([mesh_shape[name] for name in names]))
        entries.append(names if names and size % parts == 0 else None)
    return PartitionSpec(*entries)


def constrain(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """Pins the logical axes of an activation to the mesh in use; outside a mesh returns `x`."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    spec = _spec(axes, x.shape, mesh.shape, ACTIVATION_RULES)
    return jax.lax.with_sharding_constraint(x, spec)


def path_name(path: Sequence[Any]) -> str:
    """The path of a leaf as "encoder/layers/mlp/wi/kernel"."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def param_axes(path: str) -> tuple[str | None, ...]:
    """Logical axes of the parameter at `path`. KeyError for a name that the table does not know."""
    for pattern, axes in PARAM_AXES:
        if re.search(pattern, path):
            return ("layers", *axes) if "/layers/" in path else axes
    raise KeyError(f"no line in sharding.PARAM_AXES for the parameter {path}")


def state_shardings(mesh: Mesh, abstract_state: Any) -> Any:
    """A NamedSharding for every leaf of a state: parameters and moments by the table."""

    def one(path, leaf):
        name = path_name(path)
        if leaf.ndim == 0 or not re.search(r"(^|/)(params|mu|nu)/", name):
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, _spec(param_axes(name), leaf.shape, mesh.shape, AXIS_RULES))

    return jax.tree_util.tree_map_with_path(one, abstract_state)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(AXIS_RULES["batch"]))


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Sorted numbers of the rows of a global batch which this process's devices hold."""
    places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    starts = sorted({index[0].indices(batch_size)[:2] for index in places.values()})
    return np.concatenate([np.arange(start, stop) for start, stop in starts])


def global_batch(mesh: Mesh, batch_size: int, local: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """One jax.Array a feature over the mesh, out of the rows `local_rows` of each process."""
    place = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(place, rows, (batch_size, *rows.shape[1:]))
        for name, rows in local.items()
    }
