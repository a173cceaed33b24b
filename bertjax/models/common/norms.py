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
    bias: if it is None, no bias is added.
    """
    return _forward(x, scale, bias, epsilon, centred)[0]


def _forward(x, scale, bias, epsilon, centred):
    x_f32 = x.astype(jnp.float32)
    mean = jnp.mean(x_f32, axis=-1, keepdims=True) if centred else None
    x_f32 = x_f32 - mean if centred else x_f32
    factor = jax.lax.rsqrt(jnp.mean(jnp.square(x_f32), axis=-1, keepdims=True) + epsilon)
    normed = x_f32 * factor * _expand_dims(scale, x.ndim)
    if bias is not None:
        normed += _expand_dims(bias, x.ndim)
    return normed.astype(x.dtype), (x, scale, bias, mean, factor)


def _backward(epsilon, centred, residuals, grad):
    x, scale, bias, mean, factor = residuals
    x_f32, grad = x.astype(jnp.float32), grad.astype(jnp.float32)
    x_hat = (x_f32 - mean if centred else x_f32) * factor
    row_axes = tuple(range(x.ndim - 1))
    x_hat_grad = grad * _expand_dims(scale, x.ndim)
    unscaled_grad = x_hat_grad - x_hat * jnp.mean(x_hat_grad * x_hat, axis=-1, keepdims=True)
    if centred:
        unscaled_grad -= jnp.mean(x_hat_grad, axis=-1, keepdims=True)
    bias_grad = None if bias is None else jnp.sum(grad, axis=row_axes)
    return (unscaled_grad * factor).astype(x.dtype), jnp.sum(grad * x_hat, axis=row_axes), bias_grad


def _expand_dims(x_D: jax.Array, ndim: int) -> jax.Array:
    return x_D.reshape(*(1,) * (ndim - 1), -1)


normalize.defvjp(_forward, _backward)
