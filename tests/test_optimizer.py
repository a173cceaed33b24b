"""Schedules at their decisive steps, decay of the right leaves, AdamW and LAMB beside optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax import errors, optimizer, plugins, sharding

PLAIN = {"schedule": "constant", "warmup_steps": 0, "clip_norm": 0.0}
RATES = {"learning_rate": 1.0, "start_rate": 0.1, "end_rate": 0.01, "warmup_steps": 10}


def _half_cosine(start, end, done):
    return end + (start - end) * (1 + np.cos(np.pi * done)) / 2


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("constant", {10: 1.0, 55: 1.0, 100: 1.0}),
        ("linear", {2: 0.28, 5: 0.55, 10: 1.0, 55: 0.505, 100: 0.01, 120: 0.01}),
        ("cosine", {5: 0.55, 10: 1.0, 28: _half_cosine(1, 0.01, 0.2), 55: 0.505, 100: 0.01}),
        ("rsqrt", {5: 0.55, 10: 1.0, 40: 0.5, 90: 1 / 3}),
        ("wsd", {5: 0.55, 10: 1.0, 55: 1.0, 80: 1.0, 90: 0.505, 100: 0.01, 120: 0.01}),
        (
            "one_cycle",
            {2: _half_cosine(0.1, 1, 0.2), 5: 0.55, 10: 1.0, 28: _half_cosine(1, 0.01, 0.2),
             55: 0.505, 100: 0.01, 120: 0.01},
        ),
    ],
)  # fmt: skip
def test_schedule_at_its_decisive_steps(name, values):
    config = optimizer.Config(schedule=name, decay_steps=20, **RATES)
    schedule = jax.vmap(optimizer.make_schedule(config, 100))
    steps = np.array([0, *values])
    expected = np.array([0.1, *values.values()])
    np.testing.assert_allclose(schedule(steps), expected, rtol=1e-5)
    every = np.asarray(schedule(np.arange(101)))
    assert (np.diff(every[:11]) > 0).all() and (np.diff(every[10:]) <= 1e-6).all()


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("linear", {80: 1.0, 85: 0.7525, 90: 0.505, 100: 0.01}),
        ("cosine", {80: 1.0, 84: _half_cosine(1, 0.01, 0.2), 90: 0.505, 100: 0.01}),
        # arXiv 2405.18392: 1 - sqrt((n - (N - N_decay)) / N_decay)
        ("one_minus_sqrt",
         {80: 1.0, 81: 1 - 0.99 * 0.05**0.5, 85: 0.505, 90: 1 - 0.99 * 0.5**0.5, 100: 0.01}),
    ],
)  # fmt: skip
def test_wsd_falls_in_each_shape(shape, values):
    config = optimizer.Config(schedule="wsd", decay_steps=20, decay_shape=shape, **RATES)
    schedule = jax.vmap(optimizer.make_schedule(config, 100))
    steps = np.array([5, 10, 79, *values, 130])
    expected = np.array([0.55, 1.0, 1.0, *values.values(), 0.01])
    np.testing.assert_allclose(schedule(steps), expected, rtol=1e-5)
    assert (np.diff(schedule(np.arange(80, 101))) < 0).all()


def test_shape_of_the_decay_is_one_of_three():
    for shape in optimizer.DECAY_SHAPES:
        config = optimizer.Config(schedule="wsd", decay_steps=20, decay_shape=shape, **RATES)
        optimizer.validate(config, 100)
    config = optimizer.Config(schedule="wsd", decay_steps=20, decay_shape="square", **RATES)
    with pytest.raises(errors.UserError, match="decay_shape = 'square': must be one of linear, "):
        optimizer.validate(config, 100)


@pytest.mark.parametrize("name", [n for n in optimizer.SCHEDULES if n != "rsqrt"])
def test_schedule_without_warm_up_starts_at_the_peak(name):
    config = optimizer.Config(schedule=name, **(RATES | {"warmup_steps": 0}))
    schedule = optimizer.make_schedule(config, 100)
    assert float(schedule(0)) == pytest.approx(1.0)
    end = 1.0 if name in ("constant", "wsd") else 0.01  # decay_steps = 0
    assert float(schedule(100)) == pytest.approx(end)


def test_every_schedule_is_tested():
    assert len(optimizer.SCHEDULES) == 6


def test_decay_mask_on_the_whole_bert():
    mask = optimizer.decay_mask(plugins.abstract_params(plugins.model("bert", {})))
    named = {sharding.path_name(p): v for p, v in jax.tree_util.tree_leaves_with_path(mask)}
    undecayed = {name for name, decays in named.items() if not decays}
    layer = "encoder/layers/"
    assert undecayed == {
        *(f"embeddings/norm/{leaf}" for leaf in ("scale", "bias")),
        *(f"{layer}{norm}/{leaf}" for norm in ("attention_norm", "mlp_norm")
          for leaf in ("scale", "bias")),
        *(f"{layer}attention/{dense}/bias" for dense in ("query", "key", "value", "out")),
        *(f"{layer}mlp/{dense}/bias" for dense in ("wi", "wo")),
        "pooler/dense/bias", "mlm_head/transform/bias", "mlm_head/norm/scale",
        "mlm_head/norm/bias", "mlm_head/bias", "nsp_head/bias",
    }  # fmt: skip
    decayed = {name.split("/")[-1] for name in named.keys() - undecayed}
    assert decayed == {"kernel", "embedding"} and len(named) - len(undecayed) == 12


def _stacked_params():
    """Three layers whose kernels have norms far apart, one of them zero."""
    rng = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    wi = array(3, 4, 5) * jnp.array([0.01, 10.0, 0.0])[:, None, None]
    query = array(3, 4, 2, 2) * jnp.array([1.0, 0.1, 5.0])[:, None, None, None]
    layers = {
        "attention": {"query": {"kernel": query, "bias": array(3, 2, 2)}},
        "mlp": {"wi": {"kernel": wi, "bias": array(3, 5)}},
        "mlp_norm": {"scale": array(3, 4), "bias": array(3, 4)},
    }
    return {
        "embeddings": {"word": {"embedding": array(7, 4)}, "norm": {"scale": array(4)}},
        "encoder": {"layers": layers},
    }


def _unstack(params):
    layers = params["encoder"]["layers"]
    apart = {str(i): jax.tree.map(lambda x, i=i: x[i], layers) for i in range(3)}
    return {"embeddings": params["embeddings"], "encoder": apart}


def _run(tx, params, unstack, steps=3):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for step in range(steps):
        grads = jax.tree.map(lambda x, s=step: jnp.cos(x * 3.0 + s), _stacked_params())
        updates, state = update(unstack(grads), state, params)
        params = optax.apply_updates(params, updates)
    return params


def _assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7), a, b)


@pytest.mark.proof
def test_lamb_on_stacked_layers_is_optax_layer_by_layer():
    config = optimizer.Config(name="lamb", learning_rate=0.1, weight_decay=0.02, **PLAIN)
    reference = optax.chain(
        optax.scale_by_adam(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(config.weight_decay, optimizer.decay_mask),
        optax.masked(optax.scale_by_trust_ratio(), optimizer.decay_mask),
        optax.scale_by_learning_rate(config.learning_rate),
    )
    params = _stacked_params()
    stacked = _run(optimizer.make(config, 100), params, lambda tree: tree)
    _assert_close(_unstack(stacked), _run(reference, _unstack(params), _unstack))


def test_adamw_is_optax_adamw_with_the_mask():
    config = optimizer.Config(learning_rate=0.1, weight_decay=0.05, b1=0.8, b2=0.95, eps=1e-3,
                              **PLAIN | {"schedule": "linear", "warmup_steps": 2})  # fmt: skip
    reference = optax.adamw(optimizer.make_schedule(config, 100), b1=0.8, b2=0.95, eps=1e-3,
                            weight_decay=0.05, mask=optimizer.decay_mask)  # fmt: skip
    params = _stacked_params()
    ours = _run(optimizer.make(config, 100), params, lambda tree: tree)
    _assert_close(ours, _run(reference, params, lambda tree: tree))


@pytest.mark.proof
def test_decay_alone_shrinks_kernels_and_nothing_else():
    config = optimizer.Config(learning_rate=0.1, weight_decay=0.5, **PLAIN)
    params = _stacked_params()
    tx = optimizer.make(config, 100)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    mask = optimizer.decay_mask(params)
    expected = jax.tree.map(lambda x, decays: x * (-0.05 if decays else 0.0), params, mask)
    _assert_close(updates, expected)


def test_toy_of_the_bert_repository_reaches_its_fixed_point():
    # google-research/bert, optimization_test.py
    config = optimizer.Config(learning_rate=0.2, weight_decay=0.0, **PLAIN)
    tx = optimizer.make(config, 100)
    target = jnp.array([0.4, 0.2, -0.5])
    params = {"kernel": jnp.array([0.1, -0.2, -0.1])}

    def step(carry, _):
        params, state = carry
        grads = jax.grad(lambda p: jnp.mean(jnp.square(target - p["kernel"])))(params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=100)
    np.testing.assert_allclose(params["kernel"], target, atol=1e-2)


# adafactor has no first moment; muon: test_optimizer_matrices.py
@pytest.mark.parametrize("name", ["adamw", "stable_adamw", "adamw_rms", "lamb"])
@pytest.mark.parametrize(("clip_norm", "norm"), [(1.0, 1.0), (5.0, 5.0), (20.0, 10.0), (0.0, 10.0)])
def test_clips_by_the_norm_of_all_gradients_together(name, clip_norm, norm):
    config = optimizer.Config(name=name, **PLAIN | {"clip_norm": clip_norm})
    tx = optimizer.make(config, 100)
    grads = {"a": {"kernel": jnp.array([6.0, 0.0])}, "b": {"bias": jnp.array([-8.0])}}
    _, state = tx.update(grads, tx.init(grads), grads)
    moments = optax.tree.get(state, "mu")
    seen = jax.tree.map(lambda mu: mu / (1 - config.b1), moments)
    assert float(optax.tree.norm(seen)) == pytest.approx(norm, rel=1e-5)
    assert float(seen["b"]["bias"][0]) == pytest.approx(-0.8 * norm, rel=1e-5)


def test_a_gradient_of_zero_stays_zero():
    tx = optimizer.make(optimizer.Config(**PLAIN | {"clip_norm": 1.0}), 100)
    grads = {"kernel": jnp.zeros((2, 2))}
    updates, _ = tx.update(grads, tx.init(grads), grads)
    assert not np.any(updates["kernel"])
