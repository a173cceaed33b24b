"""Meshes of virtual devices by shape: in of(2, 2, 2) data, fsdp and tensor have size 2."""

import math

import jax

from bertjax import sharding


def text(*shape: int) -> str:
    """Returns the shape in the form of `config.mesh`."""
    return ",".join(f"{axis}:{size}" for axis, size in zip(sharding.MESH_AXES, shape, strict=False))


def of(*shape: int) -> jax.sharding.Mesh:
    """Returns a mesh of this shape on the first devices."""
    return sharding.make_mesh(text(*shape), jax.devices()[: math.prod(shape)])
