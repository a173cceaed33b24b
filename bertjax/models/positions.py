"""Rotary positions (Su et al., arXiv 2104.09864): angles, and turning queries and keys by them."""

import jax
import jax.numpy as jnp


def rotary_tables(
    position_ids: jax.Array, head_dim: int, theta: float
) -> tuple[jax.Array, jax.Array]:
    """cos and sin of the angles, float32 [B, L, H], for positions [B, L] (equation 34).

    Dimension i is paired with i + H / 2, at the frequency theta ** (-2 i / H).
    """
    frequency = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle_BLH = jnp.tile(position_ids[..., None] * frequency, 2)
    return jnp.cos(angle_BLH), jnp.sin(angle_BLH)


def rotate(x_BLNH: jax.Array, rotary: tuple[jax.Array, jax.Array]) -> jax.Array:
    """x turned by the angles of `rotary_tables`."""
    cos_BLH, sin_BLH = rotary
    wide = x_BLNH.astype(jnp.float32)
    low, high = jnp.split(wide, 2, axis=-1)
    turned = jnp.concatenate([-high, low], axis=-1)
    return (wide * cos_BLH[:, :, None] + turned * sin_BLH[:, :, None]).astype(x_BLNH.dtype)
