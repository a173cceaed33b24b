"""Activation functions that save only their derivative for the backward pass.

They save one number per element. JAX's automatic differentiation of the formulas would save three
or four. Values and derivatives are computed in float32 and stored in the dtype of the input.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

# A function of x that returns (value, derivative), both float32.
Curve = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def _gelu(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """GELU: x times the standard normal CDF (Hendrycks & Gimpel, arXiv 1606.08415)."""
    distribution = 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * jnp.square(x)) * (1.0 / math.sqrt(2.0 * math.pi))
    return x * distribution, distribution + x * density


def _gelu_tanh(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The tanh approximation of GELU (same paper, section 2), used by GPT-2 and T5 v1.1."""
    scale, cubic = math.sqrt(2.0 / math.pi), 0.044715
    tanh = jnp.tanh(scale * (x + cubic * x * x * x))
    inner = scale * (1.0 + 3.0 * cubic * jnp.square(x))
    slope = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - jnp.square(tanh)) * inner
    return 0.5 * x * (1.0 + tanh), slope


def _activation(curve: Curve) -> Callable[[jax.Array], jax.Array]:
    def value_and_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = curve(x.astype(jnp.float32))
        return value.astype(x.dtype), slope.astype(x.dtype)

    @jax.custom_jvp
    def activation(x: jax.Array) -> jax.Array:
        return value_and_slope(x)[0]

    @activation.defjvp
    def _(primals, tangents):
        value, slope = value_and_slope(*primals)
        return value, slope * tangents[0]

    return activation


FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _activation(_gelu),
    "gelu_tanh": _activation(_gelu_tanh),
    "relu": jax.nn.relu,
}
WITH_TANH = {**FUNCTIONS, "tanh": jnp.tanh}  # of heads and convolutions
