"""Meshes of the virtual devices by their shape: of(2, 2, 2) splits data, fsdp and tensor in two."""

import math

import jax

from bertjax import sharding


def text(*shape: int) -> str:
    """The shape as `config.mesh` has it."""
    return ",".join(f"{axis}:{size}" for axis, size in zip(sharding.MESH_AXES, shape, strict=False))


def of(*shape: int) -> jax.sharding.Mesh:
    """The mesh, on the first of the devices."""
    return sharding.make_mesh(text(*shape), jax.devices()[: math.prod(shape)])
