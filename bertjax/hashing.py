"""Computes random bits on the device from a seed and a position, the same for any sharding.

    hash_bits(seed, (B, L, D)) >= rate * 2**32      # True where dropout keeps an element

Each row (an index of the first axis) has a key, which is hashed with the position in the row. NOTE:
the key is used twice. If it were used once, two keys that differ only in their low bits would give
two rows the same bits in a different order.
"""

import jax
import jax.numpy as jnp


def hash_bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns uint32[shape] of random bits: a hash of (seed, position), the same for any sharding.

    The compiler fuses the hash into its consumer; JAX's threefry and rbg write their bits to
    memory.
    """
    row = jax.lax.broadcasted_iota(jnp.uint32, (shape[0],) + (1,) * (len(shape) - 1), 0)
    return _hash(row + seed, shape)


def hash_bits_by_row(seed_B: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns uint32[B, ...] of random bits: a hash of (the row's seed, position in the row).

    A row's bits do not depend on the rest of the batch. seed_B: int32[B] or uint32[B]. shape:
    (B, ...).
    """
    return _hash(seed_B.astype(jnp.uint32).reshape(-1, *(1,) * (len(shape) - 1)), shape)


def _hash(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns uint32[shape]. seed: uint32[B, 1, ..., 1], one for each row."""
    key = _mix32(seed, jnp.uint32(0))
    return _mix32(_position_in_row(shape) ^ key, key)


def _mix32(x: jax.Array, key: jax.Array) -> jax.Array:
    # triple32 of Chris Wellons' hash-prospector (public domain), a bijection of x for each key.
    # NOTE: it has three rounds. With two, as in MurmurHash3's finalizer, the bits of positions that
    # are a multiple of 4096 apart have correlations of up to 1%.
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15) ^ key) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


def _position_in_row(shape: tuple[int, ...]) -> jax.Array:
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        index = index * jnp.uint32(shape[axis]) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return index
