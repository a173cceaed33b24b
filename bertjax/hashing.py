"""Computes random bits on the device from a seed and a position, the same for any sharding.

    hash_bits(seed, (B, L, D)) >= rate * 2**32      # True where dropout keeps an element

Each row (an index of the first axis) has a key, which is hashed with the position in the row. NOTE:
the key is used twice. If it were used once, two keys that differ only in their low bits would give
two rows the same bits in a different order.
"""

import jax
import jax.numpy as jnp

PAIR = 64  # the distance between two queries whose attention weights share a hash


def hash_bits(seed: jax.Array, shape: tuple[int, ...], first_row: jax.Array | int = 0) -> jax.Array:
    """Returns uint32[shape] of random bits: a hash of (seed, position), the same for any sharding.

    The compiler fuses the hash into its consumer; JAX's threefry and rbg write their bits to
    memory. first_row: as in `row_keys`.
    """
    return _hash(row_keys(seed, shape[0], first_row), shape)


def weight_bits(
    seed: jax.Array, shape: tuple[int, int, int, int], first_row: jax.Array | int = 0
) -> jax.Array:
    """Returns uint32[B, N, L, S] of random bits for attention weights, the same for any sharding.

    Two queries that are PAIR places apart share a hash, which a kernel computes once: see `paired`.
    first_row: as in `row_keys`.
    """
    batch, num_heads, length, num_keys = shape
    head_N11 = jax.lax.broadcasted_iota(jnp.uint32, (num_heads, 1, 1), 0)
    query_1L1 = jax.lax.broadcasted_iota(jnp.uint32, (1, length, 1), 1)
    key_11S = jax.lax.broadcasted_iota(jnp.uint32, (1, 1, num_keys), 2)
    second_1L1 = query_1L1 & jnp.uint32(PAIR)
    first_NL1 = head_N11 * jnp.uint32(length) + (query_1L1 ^ second_1L1)
    position_NLS = first_NL1 * jnp.uint32(num_keys) + key_11S
    bits = bits_at(position_NLS[None], row_keys(seed, batch, first_row).reshape(-1, 1, 1, 1))
    return bits << jnp.where(second_1L1 > 0, jnp.uint32(16), jnp.uint32(0))[None]


def paired(bits_at_first: jax.Array, num_queries: int) -> jax.Array:
    """Returns the `weight_bits` [num_queries, S] of at most 2 * PAIR consecutive queries.

    bits_at_first: `bits_at` of the queries, [at most PAIR, S]. The first query is a multiple of
    2 * PAIR. The bits of the second PAIR queries are the lower halves of those of the first.
    """
    if num_queries <= PAIR:
        return bits_at_first
    return jnp.concatenate([bits_at_first, (bits_at_first << 16)[: num_queries - PAIR]])


def hash_bits_by_row(seed_B: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns uint32[B, ...] of random bits: a hash of (the row's seed, position in the row).

    A row's bits do not depend on the rest of the batch. seed_B: int32[B] or uint32[B]. shape:
    (B, ...).
    """
    return _hash(_mix32(seed_B.astype(jnp.uint32), jnp.uint32(0)), shape)


def row_keys(seed: jax.Array, num_rows: int, first_row: jax.Array | int = 0) -> jax.Array:
    """Returns uint32[num_rows]: the key of each row in `hash_bits(seed, (num_rows, ...))`.

    first_row: the index of the first row, if the rows are a part of a larger array.
    """
    row = jnp.arange(num_rows, dtype=jnp.uint32) + jnp.asarray(first_row, jnp.uint32)
    return _mix32(row + seed, jnp.uint32(0))


def bits_at(position: jax.Array, key: jax.Array) -> jax.Array:
    """Returns uint32[...]: the bits of `hash_bits` at positions in the row that has this key.

    A kernel that computes a part of a row needs this. position: uint32[...], row-major indices in
    the row.
    """
    return _mix32(position ^ key, key)


def keeps(bits: jax.Array, rate: float) -> jax.Array:
    """Returns bool[...]: where dropout with this rate keeps the element with these bits."""
    return bits >= jnp.uint32(rate * 2**32)


def _hash(key_B: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns uint32[shape]. key_B: uint32[B], the key of each row."""
    return bits_at(_position_in_row(shape), key_B.reshape(-1, *(1,) * (len(shape) - 1)))


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
