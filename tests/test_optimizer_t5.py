"""Adafactor and RMS-scaled AdamW: matrix by matrix, beside optax on plain matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax import optimizer, plugins, sharding
from bertjax import step as step_lib
from tests.helpers import meshes

PLAIN = {"schedule": "constant", "warmup_steps": 0, "clip_norm": 0.0, "weight_decay": 0.0}
LAYERS, WIDTH, HEADS = 3, 136, (2, 72)  # both sides of 128, from which on Adafactor factors


def _array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def _stacked():
    """Three layers of scales far apart; kernels with heads, one too small to be factored."""
    scale = jnp.array([1e-5, 1.0, 30.0])
    kernels = {
        "query": _array(0, LAYERS, WIDTH, *HEADS) * scale[:, None, None, None],
        "out": _array(1, LAYERS, *HEADS, WIDTH) * scale[::-1, None, None, None],
    }
    layers = {
        "attention": {name: {"kernel": kernel} for name, kernel in kernels.items()},
        "mlp": {"wi": {"kernel": _array(2, LAYERS, WIDTH, 40), "bias": _array(3, LAYERS, 40)}},
        "mlp_norm": {"scale": 1 + _array(4, LAYERS, WIDTH)},
    }
    tables = {"word": {"embedding": _array(5, 150, WIDTH)}, "norm": {"scale": _array(6, WIDTH)}}
    return {"embeddings": tables, "encoder": {"layers": layers}}


def _plain(params):
    """The same parameters as matrices and vectors, a layer at a time: what optax is made for."""

    def cut(layer):
        attention, mlp = layer["attention"], layer["mlp"]
        return {
            "query": attention["query"]["kernel"].reshape(WIDTH, -1),
            "out": attention["out"]["kernel"].reshape(-1, WIDTH),
            "wi": mlp["wi"],
            "scale": layer["mlp_norm"]["scale"],
        }

    layers = params["encoder"]["layers"]
    return {
        "embeddings": params["embeddings"],
        **{str(i): cut(jax.tree.map(lambda x, i=i: x[i], layers)) for i in range(LAYERS)},
    }


def _run(tx, params, view, steps=20):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for step in range(steps):
        grads = jax.tree.map(lambda x, s=step: jnp.cos(3.0 * x + s) * (1.0 + s), _stacked())
        updates, state = update(view(grads), state, params)
        params = optax.apply_updates(params, updates)
    return params


def _assert_close(ours, theirs, start):
    """Equal changes of every matrix, measured by its own largest change."""

    def one(a, b, first):
        change = np.abs(np.asarray(b) - np.asarray(first)).max()
        assert change > 0
        assert np.abs(np.asarray(a) - np.asarray(b)).max() <= 1e-6 * max(change, np.abs(b).max())

    jax.tree.map(one, ours, theirs, start)


def test_adafactor_is_optax_adafactor_on_each_matrix():
    config = optimizer.Config(name="adafactor", learning_rate=0.01, **PLAIN)
    reference = optax.adafactor(0.01)
    stacked = _run(optimizer.make(config, 100), _stacked(), lambda tree: tree)
    plain = _plain(_stacked())
    _assert_close(_plain(stacked), _run(reference, plain, _plain), plain)


def test_adafactor_by_hand_after_one_step():
    """arXiv 1804.04235, algorithm 4: with decay 0 at step 1 the estimate is r c / sum(r)."""
    grad, param = np.asarray(_array(0, 130, 140)), np.asarray(_array(1, 130, 140)) * 0.1
    square = grad.astype(np.float64) ** 2
    estimate = np.outer(square.sum(1), square.sum(0)) / square.sum()
    update = grad / np.sqrt(estimate)
    update /= max(1.0, np.sqrt(np.mean(update**2)))
    expected = -0.01 * np.sqrt(np.mean(param**2)) * update
    config = optimizer.Config(name="adafactor", learning_rate=0.01, **PLAIN)
    tx = optimizer.make(config, 100)
    params = {"wi": {"kernel": jnp.asarray(param)}}
    updates, _ = tx.update({"wi": {"kernel": jnp.asarray(grad)}}, tx.init(params), params)
    np.testing.assert_allclose(updates["wi"]["kernel"], expected, rtol=1e-4, atol=1e-9)


def test_adamw_rms_is_adamw_times_the_rms_of_each_matrix():
    rates = {"learning_rate": 0.01, **PLAIN, "weight_decay": 0.1}
    config = optimizer.Config(name="adamw_rms", **rates)
    reference = optax.chain(
        optax.scale_by_adam(config.b1, config.b2, config.eps),
        optax.scale_by_param_block_rms(1e-3),
        optax.add_decayed_weights(0.1, lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
        optax.scale_by_learning_rate(0.01),
    )
    stacked = _run(optimizer.make(config, 100), _stacked(), lambda tree: tree)
    plain = _plain(_stacked())
    _assert_close(_plain(stacked), _run(reference, plain, _plain), plain)


@pytest.mark.parametrize("name", ["adafactor", "adamw_rms"])
def test_step_is_relative_to_the_matrix_with_a_floor(name):
    config = optimizer.Config(name=name, learning_rate=0.01, **PLAIN)
    tx = optimizer.make(config, 100)
    kernel = jnp.ones((4, 130, 130)) * jnp.array([0.0, 1e-4, 0.5, 20.0])[:, None, None]
    params = {"encoder": {"layers": {"mlp": {"wi": {"kernel": kernel}}}}}
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    size = -updates["encoder"]["layers"]["mlp"]["wi"]["kernel"][:, 7, 9]
    np.testing.assert_allclose(size, 0.01 * np.array([1e-3, 1e-3, 0.5, 20.0]), rtol=1e-4)


def test_adafactor_keeps_no_moment_of_full_size():
    params = plugins.abstract_params(plugins.model("t5", {}))
    tx = optimizer.make(optimizer.Config(name="adafactor"), 100_000)
    state = jax.eval_shape(tx.init, params)
    count = sum(x.size for x in jax.tree.leaves(params))
    kept = sum(x.size for x in jax.tree.leaves(state))
    assert kept < count / 200, "rows and columns only"
    large = {x.shape for x in jax.tree.leaves(params) if x.size > 100_000}
    assert not large & {x.shape for x in jax.tree.leaves(state)}


def test_states_of_adafactor_are_whole_on_every_device():
    mesh = meshes.of(2, 2, 2)
    fields = {"num_layers": 2, "num_decoder_layers": 2}
    params = plugins.abstract_params(plugins.model("t5", fields))
    tx = optimizer.make(optimizer.Config(name="adafactor"), 100_000)
    state = jax.eval_shape(lambda p: step_lib.init_state(p, tx, jax.random.key(0)), params)
    places = sharding.state_shardings(mesh, state)
    assert all(place.is_fully_replicated for place in jax.tree.leaves(places.opt_state))
    assert not all(place.is_fully_replicated for place in jax.tree.leaves(places.params))


def test_schedule_of_t5():
    """arXiv 1910.10683, section 3.1.2: 1 / sqrt(max(step, 10,000))."""
    config = optimizer.Config(
        schedule="rsqrt", learning_rate=1e-2, start_rate=1e-2, warmup_steps=10_000
    )
    schedule = jax.vmap(optimizer.make_schedule(config, 2**19))
    steps = np.array([0, 1, 5_000, 9_999, 10_000, 10_001, 40_000, 250_000, 2**19])
    np.testing.assert_allclose(schedule(steps), np.maximum(steps, 10_000.0) ** -0.5, rtol=1e-5)
