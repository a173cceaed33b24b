"""A matrix product whose gradient by the second operand, the kernel, is fast on CPUs too.

That gradient is x^T g. XLA on a CPU has fast kernels for float32 products only if the first operand
is not transposed. For a kernel that is much wider than high, or the reverse, it pays to transpose
the smaller operand in memory before: x, or g, which gives the transpose of the result. The
gradients of BERT's kernels of 4:1 then take 0.5 to 0.9 of the time (an AMD EPYC with AVX2; see
benchmarks/README.md, section train_step.py).
"""

import jax
import jax.numpy as jnp

_MIN_RATIO = 2  # of a kernel's sides; products with other kernels are no faster


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns x @ kernel: [M, N] from [M, K] and [K, N]."""
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _backward(saved: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    height, width = kernel.shape
    on_cpu = _transposed_product
    if x.dtype == jnp.float32 and width >= _MIN_RATIO * height:
        on_cpu = _with_x_transposed
    elif x.dtype == jnp.float32 and height >= _MIN_RATIO * width:
        on_cpu = _with_g_transposed
    gradient = jax.lax.platform_dependent(x, g, cpu=on_cpu, default=_transposed_product)
    return g @ kernel.T, gradient


product.defvjp(_forward, _backward)


def _transposed_product(x: jax.Array, g: jax.Array) -> jax.Array:
    return x.T @ g


def _with_x_transposed(x: jax.Array, g: jax.Array) -> jax.Array:
    return _in_memory(x.T) @ g


def _with_g_transposed(x: jax.Array, g: jax.Array) -> jax.Array:
    return _in_memory(_in_memory(g.T) @ x).T


def _in_memory(x: jax.Array) -> jax.Array:
    """Returns x, which the compiler then cannot fuse with a product."""
    return jax.lax.optimization_barrier(x)
