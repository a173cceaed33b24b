"""Positions in attention: rotary angles (arXiv 2104.09864) and T5's relative position buckets.

rotary = positions.rotary_tables(position_ids, head_dim=64, theta=10_000.0)
"""

import jax
import jax.numpy as jnp
import numpy as np


def rotary_tables(
    position_ids: jax.Array, head_dim: int, theta: float
) -> tuple[jax.Array, jax.Array]:
    """Returns (cos, sin) of the angles, float32 [B, L, H], for positions [B, L] (equation 34).

    Dimension i is paired with i + H / 2, at the frequency theta ** (-2 i / H).
    """
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle_BLH = jnp.tile(position_ids[..., None] * frequency[None, None], 2)
    return jnp.cos(angle_BLH), jnp.sin(angle_BLH)


def rotate(x_BLNH: jax.Array, rotary: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns x rotated by the angles of `rotary_tables`, in the dtype of x."""
    cos_BLH, sin_BLH = rotary
    x_f32 = x_BLNH.astype(jnp.float32)
    low, high = jnp.split(x_f32, 2, axis=-1)
    rotated_half = jnp.concatenate([-high, low], axis=-1)
    return (x_f32 * cos_BLH[:, :, None] + rotated_half * sin_BLH[:, :, None]).astype(x_BLNH.dtype)


def relative_buckets(
    distance: jax.Array, num_buckets: int, max_distance: int, *, bidirectional: bool
) -> jax.Array:
    """Returns the int32 bucket of each distance key - query (T5, arXiv 1910.10683, section 2.1).

    If `bidirectional`, half of all buckets are for keys after the query; otherwise such keys share
    the bucket of distance 0. In each direction, the first half of the buckets hold one distance
    each. The second half cover logarithmically growing ranges up to `max_distance`. All longer
    distances share the last bucket.
    """
    if bidirectional:
        num_buckets //= 2
    exact = num_buckets // 2
    size = np.arange(max_distance + 1)
    share = np.log(np.maximum(size, 1).astype(np.float32) / exact) / np.log(max_distance / exact)
    log_bucket = exact + (share * (num_buckets - exact) + 1e-5).astype(np.int32)
    table = np.where(size < exact, size, np.minimum(log_bucket, num_buckets - 1))
    size = jnp.abs(distance) if bidirectional else jnp.maximum(-distance, 0)
    bucket = jnp.asarray(table, jnp.int32)[jnp.minimum(size, max_distance)]
    return bucket + num_buckets * (distance > 0) if bidirectional else bucket


def relative_bias(
    table: jax.Array,
    queries_L: jax.Array,
    keys_S: jax.Array,
    max_distance: int,
    *,
    bidirectional: bool,
) -> jax.Array:
    """Returns the bias on the attention scores, float32 [1, N, L, S], for a table [buckets, N].

    queries_L, keys_S: int, the indices of the queries and of the keys in the row.
    """
    distance_LS = keys_S[None, :] - queries_L[:, None]
    buckets_LS = relative_buckets(
        distance_LS, table.shape[0], max_distance, bidirectional=bidirectional
    )
    # The lookup is a product with one-hot vectors, so its gradient is a product too. An indexed
    # lookup would have a scatter of L * S rows as its gradient.
    one_hot_LSK = jax.nn.one_hot(buckets_LS, table.shape[0], dtype=table.dtype)
    return jnp.einsum("lsk,kn->nls", one_hot_LSK, table, precision="highest")[None]
