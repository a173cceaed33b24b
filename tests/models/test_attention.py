"""A bias that depends on queries and keys, beside plain NumPy, in values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import bert
from bertjax.models.common import attention, masks
from tests.helpers import meshes

B, L, N, H = 2, 6, 2, 4
D = N * H
REACH = 3  # relative positions are clipped to [-REACH, REACH)
REAL = np.arange(L) < np.array([[L], [4]])  # the second row ends with padding


def _config(*, unroll_layers):
    return bert.Config(
        hidden_size=D, num_heads=N, init_std=0.5, attention_dropout_rate=0.0,
        unroll_layers=unroll_layers,
    )  # fmt: skip


def _inputs():
    """The module's parameters, its input, and two tables [2 REACH, N, H] of relative positions."""
    keys = jax.random.split(jax.random.key(0), 4)
    x_BLD = jax.random.normal(keys[0], (B, L, D))
    module = attention.Attention(_config(unroll_layers=True))
    params = module.init(keys[1], x_BLD, masks.Mask(), True)["params"]
    shape = (2 * REACH, N, H)
    tables = {n: jax.random.normal(k, shape) for n, k in zip("kq", keys[2:], strict=True)}
    return params, x_BLD, tables


def _rows():
    """int[L, S]: the row of the tables for a query and a key."""
    place_L = np.arange(L)
    return np.clip(place_L[:, None] - place_L[None], -REACH, REACH - 1) + REACH


def _disentangled(tables, query_BLNH, key_BSNH):
    """Content to position and position to content (DeBERTa, arXiv 2006.03654, section 3.1)."""
    of_queries_BNLR = jnp.einsum("blnh,rnh->bnlr", query_BLNH, tables["k"])
    of_keys_BNSR = jnp.einsum("bsnh,rnh->bnsr", key_BSNH, tables["q"])
    rows_LS = _rows()
    bias_BNLS = jnp.take_along_axis(of_queries_BNLR, rows_LS[None, None], axis=3)
    other_BNSL = jnp.take_along_axis(of_keys_BNSR, rows_LS.T[None, None], axis=3)
    return bias_BNLS + jnp.swapaxes(other_BNSL, 2, 3)


def _output(unroll_layers, params, x_BLD, tables):
    module = attention.Attention(_config(unroll_layers=unroll_layers))
    bias = functools.partial(_disentangled, tables)
    return module.apply({"params": params}, x_BLD, masks.padding(REAL), True, bias=bias)


def _plain(params, x_BLD, tables):
    """The same in NumPy's float64, a query and a key at a time."""
    params, tables = jax.tree.map(np.float64, (params, tables))
    x_BLD = np.float64(x_BLD)

    def heads(name):
        part = params[name]
        return np.einsum("bld,dnh->blnh", x_BLD, part["kernel"]) + part["bias"]

    query, key, value = heads("query") / H**0.5, heads("key"), heads("value")
    mixed = np.zeros((B, L, N, H))
    for b, i, n in np.ndindex(B, L, N):
        seen = np.flatnonzero(REAL[b])
        scores = np.zeros(len(seen))
        for slot, j in enumerate(seen):
            row = min(max(i - j, -REACH), REACH - 1) + REACH
            scores[slot] = query[b, i, n] @ (key[b, j, n] + tables["k"][row, n])
            scores[slot] += key[b, j, n] @ tables["q"][row, n]
        weights = np.exp(scores - scores.max())
        mixed[b, i, n] = weights / weights.sum() @ value[b, seen, n]
    return np.einsum("blnh,nhd->bld", mixed, params["out"]["kernel"]) + params["out"]["bias"]


def _total(function, *inputs):
    weights_BLD = np.random.default_rng(1).standard_normal((B, L, D))
    return (function(*inputs) * weights_BLD * REAL[:, :, None]).sum()


@pytest.mark.parametrize("unroll_layers", [True, False])  # False: recomputed for the gradient
def test_a_bias_of_queries_and_keys_agrees_with_numpy(unroll_layers):
    inputs = _inputs()
    found = jax.jit(functools.partial(_output, unroll_layers))(*inputs)
    np.testing.assert_allclose(found, _plain(*inputs), atol=1e-5)
    without = _output(unroll_layers, *inputs[:2], jax.tree.map(jnp.zeros_like, inputs[2]))
    assert np.abs(found - without).max() > 0.1, "the bias matters"


@pytest.mark.parametrize("unroll_layers", [True, False])
def test_its_gradients_agree_with_differences_of_numpy(unroll_layers):
    inputs = _inputs()
    total = functools.partial(_total, functools.partial(_output, unroll_layers))
    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)
    flat, tree = jax.tree.flatten(jax.tree.map(np.float64, inputs))
    for n, (leaf, gradient) in enumerate(zip(flat, jax.tree.leaves(gradients), strict=True)):
        direction = np.random.default_rng(n).standard_normal(leaf.shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = [*flat[:n], leaf + step * direction, *flat[n + 1 :]]
            ends.append(_total(_plain, *jax.tree.unflatten(tree, moved)))
        slope = (ends[0] - ends[1]) / 2e-5
        assert (np.float64(gradient) * direction).sum() == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_padding_is_not_seen_through_the_bias():
    params, x_BLD, tables = _inputs()
    total = functools.partial(_total, functools.partial(_output, True), params)
    gradient_BLD = jax.grad(total)(x_BLD, tables)
    assert np.all(gradient_BLD[~REAL] == 0) and np.all(np.any(gradient_BLD[REAL] != 0, axis=-1))


def test_a_function_and_an_array_are_the_same_bias():
    params, x_BLD, _ = _inputs()
    array = jax.random.normal(jax.random.key(5), (1, N, L, L))
    module = attention.Attention(_config(unroll_layers=False))
    apply = functools.partial(module.apply, {"params": params}, x_BLD, masks.padding(REAL), True)
    np.testing.assert_array_equal(apply(bias=array), apply(bias=lambda query, key: array))


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 1, 1, 2)])
def test_a_bias_of_queries_and_keys_on_a_mesh(shape):
    inputs = _inputs()
    expected = jax.jit(functools.partial(_output, False))(*inputs)
    with jax.set_mesh(meshes.of(*shape)):
        found = jax.jit(functools.partial(_output, False))(*inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)
