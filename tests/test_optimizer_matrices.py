"""StableAdamW and Muon beside reference implementations, layer by layer, on one device and 8."""

import functools
import math
import re

import jax
import numpy as np
import optax
import pytest

from bertjax import errors, optimizer, plugins, sharding
from bertjax import step as step_lib
from bertjax.finetuning import strategies
from bertjax.planning import cost
from tests.helpers import meshes, strategy_runs, tiny_runs

PLAIN = {"schedule": "constant", "warmup_steps": 0, "clip_norm": 0.0}
NAMES = ("stable_adamw", "muon")
LAYERS, WIDTH, HEADS, INNER = 3, 16, (4, 4), 48
STEPS = 8


def _array(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _params():
    """Three stacked layers with heads, an embedding, a head and norms."""
    attention = {
        "query": {"kernel": _array(0, LAYERS, WIDTH, *HEADS), "bias": _array(1, LAYERS, *HEADS)},
        "out": {"kernel": _array(2, LAYERS, *HEADS, WIDTH), "bias": _array(3, LAYERS, WIDTH)},
    }
    layers = {
        "attention": attention,
        "mlp": {"wi": {"kernel": _array(4, LAYERS, WIDTH, INNER)},
                "wo": {"kernel": _array(5, LAYERS, INNER, WIDTH)}},
        "mlp_norm": {"scale": 1 + _array(6, LAYERS, WIDTH)},
    }  # fmt: skip
    return {
        "embeddings": {"word": {"embedding": _array(7, 32, WIDTH)}},
        "encoder": {"layers": layers},
        "mlm_head": {"transform": {"kernel": _array(8, WIDTH, WIDTH)}, "bias": _array(9, 32)},
    }


def _grads(step):
    """Returns gradients whose size jumps at step 4, by another factor in each layer."""
    factors = np.array([1.0, 20.0, 300.0] if step == 4 else [1.0, 1.0, 1.0], np.float32)

    def grad(path, param):
        own = 0.1 * np.cos(3.0 * param + step + len(sharding.path_name(path)))
        stacked = "/layers/" in sharding.path_name(path)
        return own * factors.reshape(-1, *(1,) * (param.ndim - 1)) if stacked else own

    return jax.tree_util.tree_map_with_path(grad, _params())


def _unstacked(tree):
    """Returns {path or path[layer]: array} with kernels as matrices [in, out]."""
    flat = {}
    for path, leaf in strategy_runs.named(tree).items():
        for name, x in (
            [(f"{path}[{i}]", x) for i, x in enumerate(leaf)] if "/layers/" in path else
            [(path, leaf)]
        ):  # fmt: skip
            if path.endswith("kernel"):
                x = x.reshape(-1, WIDTH) if "/out/" in path else x.reshape(x.shape[0], -1)
            flat[name] = x
    return flat


def _run(config, mesh=None, steps=STEPS, dtype="float32"):
    """Returns the parameters after some steps, computed on one device or on a mesh."""
    tx = optimizer.make(config, 100, dtype=dtype)

    @jax.jit
    def update(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params, state = _params(), tx.init(_params())
    if mesh is None:
        for step in range(steps):
            params, state = update(params, state, _grads(step))
        return params
    places = sharding.state_shardings(mesh, {"params": params, "opt_state": state})
    with jax.set_mesh(mesh):
        params = jax.device_put(params, places["params"])
        state = jax.device_put(state, places["opt_state"])
        for step in range(steps):
            grads = jax.device_put(_grads(step), places["params"])
            params, state = update(params, state, grads)
    return params


@functools.cache
def _on_one_device(name):
    return jax.device_get(_run(optimizer.Config(name=name, learning_rate=0.05, **PLAIN)))


def _assert_close(found, expected, rtol):
    """Compares the changes of each array in relation to the norm of its expected change."""
    start, found = _unstacked(_params()), _unstacked(found)
    assert found.keys() == expected.keys() == start.keys()
    for name, value in expected.items():
        change = np.linalg.norm(value - start[name])
        assert change > 0, name
        # The last term is the rounding of float32 parameters.
        limit = rtol * change + 1e-6 * np.linalg.norm(value)
        assert np.linalg.norm(found[name] - value) <= limit, name


def _stable_adamw(config):
    """Arxiv 2304.13013, algorithm 2, in float64: (parameters, RMS of every tensor and step)."""
    params = {name: x.astype(np.float64) for name, x in _unstacked(_params()).items()}
    v = {name: np.zeros_like(x) for name, x in params.items()}
    u = {name: np.zeros_like(x) for name, x in params.items()}
    ratios = {name: [] for name in params}
    for t in range(1, STEPS + 1):
        beta1, beta2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (config.b1, config.b2))
        for name, g in _unstacked(_grads(t - 1)).items():
            g = g.astype(np.float64)
            v[name] = beta1 * v[name] + (1 - beta1) * g
            u[name] = beta2 * u[name] + (1 - beta2) * g**2
            ratios[name].append(np.sqrt(np.mean(g**2 / np.maximum(u[name], config.eps**2))))
            rate = config.learning_rate / max(1.0, ratios[name][-1])
            decays = re.search(r"(kernel|embedding)(\[\d\])?$", name)
            decay = rate * config.weight_decay * params[name] if decays else 0.0
            params[name] = params[name] - decay - rate * v[name] / (np.sqrt(u[name]) + config.eps)
    return params, ratios


def test_stable_adamw_is_the_algorithm_of_the_paper_for_each_layer():
    config = optimizer.Config(name="stable_adamw", learning_rate=0.05, weight_decay=0.5, **PLAIN)
    expected, ratios = _stable_adamw(config)
    wi = [ratios[f"encoder/layers/mlp/wi/kernel[{layer}]"] for layer in range(LAYERS)]
    assert wi[0][4] < 1.3 < 2 < wi[1][4] < wi[2][4], "clipped in two layers"
    _assert_close(_run(config), expected, 1e-5)


def test_stable_adamw_is_adamw_while_gradients_do_not_grow():
    params, grads = _params(), _grads(0)
    updates = []
    for name in ("stable_adamw", "adamw"):
        tx = optimizer.make(optimizer.Config(name=name, weight_decay=0.1, **PLAIN), 100)
        state, update = tx.init(params), jax.jit(tx.update)
        for scale in (1.0, 0.5, 0.1):
            scaled = jax.tree.map(lambda x, s=scale: x * s, grads)
            change, state = update(scaled, state, params)
        updates.append(change)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *updates)


def _torch_muon(config, dtype, monkeypatch):
    """The parameters after training with torch.optim.Muon, in `dtype`, and torch.optim.AdamW."""
    torch = pytest.importorskip("torch")
    if dtype == "float32":
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    params = {n: torch.nn.Parameter(torch.tensor(x)) for n, x in _unstacked(_params()).items()}
    matrices = [p for n, p in params.items() if "/layers/" in n and "kernel" in n]
    decayed = [params[n] for n in ("embeddings/word/embedding", "mlm_head/transform/kernel")]
    others = [p for p in params.values() if not any(p is q for q in (*matrices, *decayed))]
    rate, decay = config.learning_rate, config.weight_decay
    groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimizers = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=rate, betas=(config.b1, config.b2), eps=config.eps),
    ]
    for step in range(STEPS):
        for name, grad in _unstacked(_grads(step)).items():
            params[name].grad = torch.tensor(grad)
        for one in optimizers:
            one.step()
    return {name: param.detach().numpy() for name, param in params.items()}


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-4), ("bfloat16", 0.02)])
def test_muon_is_torch_muon_for_each_matrix_of_layers_and_adamw_for_the_rest(
    dtype, rtol, monkeypatch
):
    config = optimizer.Config(name="muon", learning_rate=0.05, weight_decay=0.5, **PLAIN)
    expected = _torch_muon(config, dtype, monkeypatch)
    _assert_close(_run(config, dtype=dtype), expected, rtol)


@pytest.mark.parametrize(("dtype", "lowest"), [("float32", 0.6), ("bfloat16", 0.5)])
def test_updates_of_muon_are_nearly_orthogonal_with_the_rms_of_adamw(dtype, lowest):
    config = optimizer.Config(name="muon", learning_rate=1.0, weight_decay=0.0, **PLAIN)
    start, end = _unstacked(_params()), _unstacked(_run(config, steps=1, dtype=dtype))
    for name in (n for n in start if "/layers/" in n and "kernel" in n):
        update = start[name].astype(np.float64) - end[name]
        values = np.linalg.svd(update / (0.2 * max(update.shape) ** 0.5), compute_uv=False)
        assert (lowest < values).all() and (values < 1.25).all(), name
        assert np.sqrt(np.mean(update**2)) == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(8,), (2, 2, 2), (1, 4, 1, 2)], ids=str)
def test_a_mesh_takes_the_steps_of_one_device(name, shape):
    config = optimizer.Config(name=name, learning_rate=0.05, **PLAIN)
    _assert_close(_run(config, meshes.of(*shape)), _unstacked(_on_one_device(name)), 2e-5)


def test_a_mesh_takes_the_steps_of_muon_in_bfloat16():
    config = optimizer.Config(name="muon", learning_rate=0.05, **PLAIN)
    one = _unstacked(_run(config, dtype="bfloat16"))
    _assert_close(_run(config, meshes.of(2, 2, 2), dtype="bfloat16"), one, 0.02)


@pytest.mark.parametrize("name", NAMES)
def test_decay_alone_shrinks_kernels_and_tables(name):
    config = optimizer.Config(name=name, learning_rate=0.1, weight_decay=0.5, **PLAIN)
    params = _params()
    tx = optimizer.make(config, 100)
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = jax.jit(tx.update)(zeros, tx.init(params), params)
    mask = optimizer.decay_mask(params)
    expected = jax.tree.map(lambda x, decays: x * (-0.05 if decays else 0.0), params, mask)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), updates, expected)


@pytest.mark.parametrize("name", NAMES)
def test_steps_follow_the_schedule(name):
    rates = {"learning_rate": 1.0, "warmup_steps": 2, "clip_norm": 0.0, "weight_decay": 0.0}
    shape = {"schedule": "wsd", "decay_steps": 2, "decay_shape": "one_minus_sqrt"}
    tx = optimizer.make(optimizer.Config(name=name, **rates, **shape), 6)
    params, grads = _params(), _grads(0)
    state, sizes = tx.init(params), []
    update = jax.jit(tx.update)
    for _ in range(6):
        updates, state = update(grads, state, params)
        sizes.append(float(optax.tree.norm(updates)))
    # The gradient is constant, so all directions are the same.
    expected = np.array([0, 0.5, 1, 1, 1, 1 - 0.5**0.5])
    np.testing.assert_allclose(np.array(sizes), expected * max(sizes), rtol=1e-4)


def test_muon_reads_gradients_clipped_together():
    tx = optimizer.make(optimizer.Config(name="muon", **PLAIN | {"clip_norm": 0.5}), 100)
    params, grads = _params(), _grads(0)
    _, state = jax.jit(tx.update)(grads, tx.init(params), params)
    moments = strategy_runs.named(state)
    factor = 0.5 / float(optax.tree.norm(grads))
    traced = next(x for n, x in moments.items() if re.search("/trace/.*/wi/kernel", n))
    expected = factor * grads["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    np.testing.assert_allclose(traced, expected, rtol=1e-5)


def test_every_array_of_the_state_of_muon_has_the_place_of_its_parameter():
    mesh = meshes.of(2, 2, 2)
    tx = optimizer.make(optimizer.Config(name="muon"), 100_000)
    fields = {"hidden_size": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 200}
    params = plugins.abstract_params(plugins.model("bert", fields))
    state = jax.eval_shape(lambda p: step_lib.init_state(p, tx, jax.random.key(0)), params)
    shapes, places = (
        {sharding.path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (state, sharding.state_shardings(mesh, state))
    )
    shapes = {path: leaf.shape for path, leaf in shapes.items()}
    moments = {}
    for path in (path for path in shapes if path.startswith("opt_state")):
        match = re.search("/(trace|mu|nu)/(.*)", path)
        if match:
            moments.setdefault(match[2], []).append(match[1])
            assert shapes[path] == shapes[f"params/{match[2]}"]
            assert places[path] == places[f"params/{match[2]}"], path
        else:
            assert shapes[path] == (), f"an array without a place: {path}"
    of_params = {path.removeprefix("params/") for path in shapes if path.startswith("params/")}
    assert moments.keys() == of_params
    of_layers = {path for path in of_params if re.search("/layers/.*kernel", path)}
    assert {path for path, kinds in moments.items() if kinds == ["trace"]} == of_layers
    assert all(kinds == ["mu", "nu"] for path, kinds in moments.items() if path not in of_layers)
    sharded = places[next(p for p in places if re.search("trace/.*wi/kernel", p))]
    assert sharded.spec == jax.sharding.PartitionSpec(None, ("fsdp",), ("tensor",))


WITHOUT_MATRICES = ("features", "prompts", "bitfit")


@pytest.mark.parametrize("name", strategies.names())
def test_strategies_train_matrices_of_layers_with_muon_or_refuse(name):
    trained, _, method = strategy_runs.abstract("bert", name, strategy_runs.fields("bert"))
    tx = method.optimizer(optimizer.Config(name="muon", **PLAIN), 100, 10)
    if name in WITHOUT_MATRICES:
        with pytest.raises(errors.UserError, match=r"optimizer.name = 'muon': must be another"):
            jax.eval_shape(tx.init, trained)
        return
    state = jax.eval_shape(tx.init, trained)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    assert any("/trace/" in sharding.path_name(path) for path, _ in leaves)
    updates, _ = jax.eval_shape(tx.update, trained, state, trained)
    assert jax.tree.map(lambda x: x.shape, updates) == jax.tree.map(lambda x: x.shape, trained)


def test_muon_trains_the_factors_of_lora():
    method = strategy_runs.make("lora")
    _, params = strategy_runs.model_of(method)
    trained, _ = method.split(params, jax.random.key(1))
    tx = method.optimizer(optimizer.Config(name="muon", learning_rate=1.0, **PLAIN), 100, 10)
    grads = jax.tree.map(lambda x: np.cos(3.0 * np.arange(x.size)).reshape(x.shape), trained)
    updates, _ = jax.jit(tx.update)(grads, tx.init(trained), trained)
    factors = {p: x for p, x in strategy_runs.named(updates).items() if "lora_" in p}
    assert len(factors) == 4
    for path, update in factors.items():
        values = np.linalg.svd(update / (0.2 * max(update.shape[1:]) ** 0.5), compute_uv=False)
        assert (values[:, 0] < 1.3).all() and (values[:, 0] > 0.6).all(), path


def test_flops_of_muon_are_those_of_its_products():
    config, params = optimizer.Config(name="muon", **PLAIN), _params()
    tx = optimizer.make(config, 100)
    jaxpr = jax.make_jaxpr(tx.update)(params, tx.init(params), params)
    shapes = optimizer.muon_shapes(config, params)
    assert sorted(shapes) == [(3, 16, 16), (3, 16, 16), (3, 16, 48), (3, 48, 16)]
    counted = tiny_runs.matmul_flops(jaxpr.jaxpr)
    assert sum(optimizer.muon_flops(shape, 1) for shape in shapes) == counted
    assert sum(optimizer.muon_flops(shape, 2) for shape in shapes) == 2 * counted // LAYERS
    assert sum(optimizer.muon_flops(shape, 8) for shape in shapes) == counted // LAYERS
    assert optimizer.muon_shapes(optimizer.Config(), params) == []


@pytest.mark.proof
@pytest.mark.parametrize(("shape", "inside"), [((2, 2, 2), 8), ((1, 2, 2, 1, 2), 4)])
def test_on_a_mesh_muon_computes_and_sends_what_plans_count(shape, inside):
    mesh, config, params = meshes.of(*shape), optimizer.Config(name="muon", **PLAIN), _params()
    tx = optimizer.make(config, 100)
    state = tx.init(params)
    places = sharding.state_shardings(mesh, {"params": params, "opt_state": state})
    arguments = places["params"], places["opt_state"], places["params"]
    with jax.set_mesh(mesh):
        update = jax.jit(tx.update, in_shardings=arguments, out_shardings=arguments[:2])
        compiled = update.lower(params, state, params).compile().as_text()
    found = cost.of_text(compiled, dict(mesh.shape))
    shapes = optimizer.muon_shapes(config, params)
    size = 4 * sum(math.prod(shape) for shape in shapes)
    assert found.flops == sum(optimizer.muon_flops(shape, inside) for shape in shapes)
    sent = {kind: 0 for kind in cost.COLLECTIVES}
    for collective in found.collectives():
        sent[collective.kind] += collective.sent_bytes
        assert not collective.is_between_slices, "each slice computes all layers"
    assert sent.pop("all-gather") == 3 / 4 * size, "over fsdp and tensor"
    assert sent.pop("all-reduce") == 2 * (inside - 1) / inside * size
    assert not any(sent.values())
