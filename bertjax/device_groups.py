"""Sums over groups of devices that send nothing to each other until the end.

Along the mesh axes `slice` and `data`, nothing but the batch is split. So the devices with the same
place on these axes, a group, have all parameters, and can add up the gradients of their own rows in
a loop over micro-batches. Then one collective adds up the sums of the groups.

    device_groups.sum_over_groups(gradients, batch, params)   # gradients(rows of a group, params)
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

AXES = ("slice", "data")  # of the mesh; they number the groups


def sum_over_groups(function: Callable[..., Any], batch: dict[str, jax.Array], *args: Any) -> Any:
    """Returns the sum of function(rows, *args) over groups of devices, with one collective.

    A group has the devices with the same place on AXES. Its rows of the batch are passed to
    `function`, which computes without the other groups: what it adds up in a loop is sent once,
    after the loop. Over the other axes of the mesh, the compiler splits arrays as elsewhere. If
    there is only one group, the result is function(batch, *args).

    function: returns a tree of arrays, each a sum over rows. It may call `first_row`. batch:
    {feature: array}, with a number of rows that is a multiple of the number of groups. args: trees
    of arrays, the same for all groups.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in AXES if not mesh.empty and mesh.shape[axis] > 1)
    if not axes:
        return function(batch, *args)

    def summed(batch, *args):
        return jax.lax.psum(function(batch, *args), axes)

    mapped = jax.shard_map(
        summed,
        in_specs=(PartitionSpec(axes), *(PartitionSpec() for _ in args)),
        out_specs=PartitionSpec(),
        axis_names=set(axes),
        check_vma=False,
    )
    return mapped(batch, *args)


def first_row(num_rows: int) -> jax.Array | int:
    """Returns the index, among the rows of all groups, of the first row of this group.

    It is 0 outside `sum_over_groups`. num_rows: the number of rows of each group.
    """
    axes = tuple(a for a in AXES if a in jax.sharding.get_abstract_mesh().manual_axes)
    return jax.lax.axis_index(axes) * num_rows if axes else 0
