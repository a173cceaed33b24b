"""Matrix products: the gradients of wide, high and square kernels, and how a CPU computes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.common import products


def _arrays(height, width, dtype):
    rng = np.random.default_rng(0)
    shapes = (24, height), (height, width), (24, width)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def _gradients(product, x, kernel, g):
    return jax.vjp(product, x, kernel)[1](g)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("height", "width"), [(16, 32), (32, 16), (16, 24)])
def test_gradients_are_those_of_a_plain_product(height, width, dtype):
    arrays = _arrays(height, width, dtype)
    found = jax.jit(_gradients, static_argnums=0)(products.product, *arrays)
    expected = jax.jit(_gradients, static_argnums=0)(jnp.matmul, *arrays)
    for one, other in zip(found, expected, strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())


@pytest.mark.parametrize(("height", "width"), [(64, 256), (256, 64)])
def test_no_first_operand_is_transposed_on_a_cpu(height, width):
    arrays = _arrays(height, width, "float32")

    def program(product):
        lowered = jax.jit(_gradients, static_argnums=0).lower(product, *arrays)
        return lowered.compile().as_text()

    assert "lhs_contracting_dims={0}" in program(jnp.matmul)
    assert "lhs_contracting_dims={0}" not in program(products.product)
