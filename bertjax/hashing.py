"""Random bits on the device as a function of a seed and a place, whatever the sharding."""

import jax
import jax.numpy as jnp


def _mix32(x: jax.Array) -> jax.Array:
    # The 32-bit finalizer of MurmurHash3 (Austin Appleby, public domain): a bijection whose every
    # output bit depends on every input bit.
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def hash_bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32[shape] of random bits: a hash of (seed, place), so any sharding gives the same bits.

    It fuses into its consumer, where threefry and rbg bits are written to memory and read back.
    """
    row = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    return _mix32(_place_in_row(shape) ^ _mix32(row + seed))


def hash_bits_by_row(seed_B: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """uint32[B, ...] of random bits: a hash of (seed of the row, place in it), in any batch.

    seed_B: int32 or uint32[B]; shape: B first.
    """
    seed = seed_B.astype(jnp.uint32).reshape(-1, *(1,) * (len(shape) - 1))
    return _mix32(_place_in_row(shape) ^ _mix32(seed))


def _place_in_row(shape: tuple[int, ...]) -> jax.Array:
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        place = place * jnp.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return place
