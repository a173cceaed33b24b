"""Layer norms over the last axis, computed in float32, with little memory for the backward pass.

They save x, in its own dtype, and at most two numbers per row. JAX's automatic differentiation of
the formula saves three float32 arrays of the size of x. Shapes: x [..., D], scale and bias [D].
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalize(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float, centred: bool
) -> jax.Array:
    """Returns scale * (x - mean) / sqrt(variance + epsilon) + bias, in the dtype of x.

    centred: True is layer norm (Ba et al., arXiv 1607.06450). False is RMSNorm (Zhang & Sennrich,
    arXiv 1910.07467): no mean is subtracted, and the mean square replaces the variance.
    bias: None: no bias is added.
    """
    return _forward(x, scale, bias, epsilon, centred)[0]


def _forward(x, scale, bias, epsilon, centred):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True) if centred else None
    wide = wide - mean if centred else wide
    factor = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon)
    normed = wide * factor * _rows(scale, x.ndim)
    if bias is not None:
        normed += _rows(bias, x.ndim)
    return normed.astype(x.dtype), (x, scale, bias, mean, factor)


def _backward(epsilon, centred, kept, slope):
    x, scale, bias, mean, factor = kept
    wide, slope = x.astype(jnp.float32), slope.astype(jnp.float32)
    unit = (wide - mean if centred else wide) * factor
    rows = tuple(range(x.ndim - 1))
    inner = slope * _rows(scale, x.ndim)
    outer = inner - unit * jnp.mean(inner * unit, axis=-1, keepdims=True)
    if centred:
        outer -= jnp.mean(inner, axis=-1, keepdims=True)
    of_bias = None if bias is None else jnp.sum(slope, axis=rows)
    return (outer * factor).astype(x.dtype), jnp.sum(slope * unit, axis=rows), of_bias


def _rows(x_D: jax.Array, ndim: int) -> jax.Array:
    return x_D.reshape(*(1,) * (ndim - 1), -1)


normalize.defvjp(_forward, _backward)
