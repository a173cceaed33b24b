"""Meshes of virtual devices by shape: in of(2, 2, 2) data, fsdp and tensor have size 2.

The order is data, fsdp, tensor, sequence, slice; what is left out has size 1.
"""

import math

import jax

from bertjax import sharding


def text(*shape: int) -> str:
    """Returns the shape in the form of `config.mesh`."""
    sizes = zip((*sharding.INNER_AXES, "slice"), shape, strict=False)
    return ",".join(f"{axis}:{size}" for axis, size in sizes)


def of(*shape: int) -> jax.sharding.Mesh:
    """Returns a mesh of this shape on the first devices."""
    return sharding.make_mesh(text(*shape), jax.devices()[: math.prod(shape)])
