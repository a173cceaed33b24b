"""The step: the split of a batch does not matter, and what is not finite changes nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax import config as config_lib
from bertjax import device_groups, experiment, metrics, plugins, sharding
from bertjax import phases as phases_lib
from bertjax import step as step_lib
from bertjax.models.common import layers
from bertjax.objectives import mlm
from bertjax.planning import cost
from tests.helpers import meshes, proofs

FIELDS = {
    "vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 8,
    "intermediate_size": 32, "max_length": 16,
}  # fmt: skip
B, L, P = 8, 8, 3
OBJECTIVE = mlm.Config()
LOSS = functools.partial(mlm.loss, OBJECTIVE)
NORMALIZERS = functools.partial(mlm.normalizers, OBJECTIVE)
SCALES = mlm.scales(mlm.Config())
TOKEN_BYTES = np.arange(100, dtype=np.float32) % 7
# Keeps the gradients where a test finds them: as its state.
GRADIENTS = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params), lambda grads, state, params: (grads, grads)
)


def _batch(seed=0, rows=B):
    """Rows of 3 to 8 tokens with 0 to 3 predictions; rows 0, 4 have none, and rows 1, 5 one."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, L + 1, rows)
    used = np.arange(P) < (np.arange(rows) % (P + 1))[:, None]
    return {
        "input_ids": rng.integers(5, 100, (rows, L)).astype(np.int32),
        "attention_mask": (np.arange(L) < lengths[:, None]).astype(np.int32),
        "token_type_ids": (np.arange(L) > 3).astype(np.int32) * np.ones((rows, 1), np.int32),
        "masked_positions": np.where(used, rng.integers(0, 3, (rows, P)), 0).astype(np.int32),
        "masked_ids": np.where(used, rng.integers(5, 100, (rows, P)), 0).astype(np.int32),
        "masked_weights": used.astype(np.float32),
        "next_sentence_label": rng.integers(0, 2, rows).astype(np.int32),
    }


def _params(model):
    """Of NumPy's old generator, whose stream is frozen; zero in the padded vocabulary."""
    rng = np.random.RandomState(0)

    def one(path, leaf):
        value = 0.1 * rng.standard_normal(leaf.shape).astype(np.float32)
        if sharding.path_name(path) in ("embeddings/word/embedding", "mlm_head/bias"):
            value[model.config.vocab_size :] = 0
        return value + (getattr(path[-1], "key", "") == "scale")

    return jax.tree_util.tree_map_with_path(one, plugins.abstract_params(model))


@functools.cache
def _compiled(mesh_shape=(1, 1, 1), micro=1, dropout=0.0, **compute):
    """Returns run(batch, step=0) -> (report, gradients), compiled once; `run.text` is its HLO."""
    fields = {**FIELDS, "dropout_rate": dropout, "attention_dropout_rate": dropout}
    model = plugins.model("bert", fields, layers.Compute(**compute))
    mesh = meshes.of(*mesh_shape)
    schedule = optax.constant_schedule(0.5)
    function = step_lib.make_train_step(
        model, LOSS, NORMALIZERS, SCALES, GRADIENTS, schedule, micro
    )
    function = jax.jit(function)
    made = _params(model)

    def run(batch, step=0):
        state = step_lib.init_state(made, GRADIENTS, jax.random.key(3))
        state = state.replace(step=jnp.int32(step))
        state = jax.device_put(state, sharding.state_shardings(mesh, state))
        with jax.set_mesh(mesh):
            placed = sharding.global_batch(mesh, len(batch["input_ids"]), batch)
            args = state, placed, None, sharding.replicate(mesh, TOKEN_BYTES)
            if not run.text:
                run.program = function.lower(*args).compile()
                run.text = run.program.as_text()
            new, report = run.program(*args)
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(new.opt_state))
        report = {name: float(value) for name, value in report.items() if name != "terms"}
        return report, {sharding.path_name(path): leaf for path, leaf in leaves}

    run.text = ""
    return run


def _assert_equal(got, expected, rtol=1e-5, atol=1e-6):
    for a, b in zip(got, expected, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol, atol, err_msg=name)


# --- the split does not matter -------------------------------------------------------------------


@pytest.mark.parametrize(("mesh_shape", "micro"), [((1, 1, 1), 4), ((2, 2, 1), 2)])
def test_micro_batches_give_the_loss_and_gradients_of_the_whole(mesh_shape, micro):
    _assert_equal(_compiled(mesh_shape, micro)(_batch()), _compiled()(_batch()))


def test_a_mean_of_means_would_be_another_number():
    # Else the test above could not fail: the micro-batches have different numbers of predictions.
    weights = _batch()["masked_weights"].reshape(B // 4, 4, P).sum(axis=(0, 2))
    assert len(set(weights)) == 4 and weights[0] == 0


def test_a_mesh_gives_the_loss_and_gradients_of_one_device():
    # With dropout: the masks are those of one device too.
    got = _compiled((2, 2, 2), dropout=0.2)(_batch())
    expected = _compiled(dropout=0.2)(_batch())
    _assert_equal(got, expected)
    assert abs(expected[0]["loss"] - _compiled()(_batch())[0]["loss"]) > 1e-3, "dropout was on"


# data, fsdp, tensor, sequence, slice
GROUPS = [(8,), (4, 2), (2, 2, 2), (4, 1, 1, 1, 2)]


@pytest.mark.parametrize(
    ("mesh_shape", "dropout"),
    proofs.all_but(
        [(shape, rate) for shape in GROUPS for rate in (0.0, 0.2)], ((8,), 0.2), ((2, 2, 2), 0.2)
    ),
)
def test_micro_batches_have_their_dropout_on_any_mesh(mesh_shape, dropout):
    batch = _batch(rows=32)
    got = _compiled(mesh_shape, 2, dropout)(batch)
    _assert_equal(got, _compiled((1, 1, 1), 2, dropout)(batch))
    if not dropout:
        _assert_equal(got, _compiled((1, 1, 1))(batch))


@pytest.mark.parametrize(
    "mesh_shape", proofs.all_but([(shape,) for shape in GROUPS], ((8,),), ((2, 2, 2),))
)
def test_gradients_of_micro_batches_are_summed_over_groups_of_devices_once(mesh_shape):
    run, mesh = _compiled(mesh_shape, 2, 0.2), meshes.of(*mesh_shape)
    _, gradients = run(_batch(rows=32))
    sums = cost.of_text(run.text, dict(mesh.shape)).exchanges
    groups = {axis for axis in device_groups.AXES if mesh.shape[axis] > 1}
    in_loops = [one for key, one in sums.items() if "/" in key and groups & set(one.axes)]
    assert in_loops == []
    split = mesh.shape["fsdp"] * mesh.shape["tensor"]
    size = sum(leaf.nbytes for leaf in gradients.values())
    once = sum(one.bytes for key, one in sums.items() if groups <= set(one.axes))
    assert size / split < once < 1.5 * size, "all gradients"
    assert any("/" in key for key in sums) == (split > 1), "there is a loop, and the keys show it"


def test_dropout_is_a_function_of_the_step():
    run = _compiled(dropout=0.2)
    first, again, next_step = run(_batch()), run(_batch()), run(_batch(), step=1)
    _assert_equal(first, again, rtol=0, atol=0)
    assert abs(first[0]["loss"] - next_step[0]["loss"]) > 1e-3


@pytest.mark.parametrize("compute", [{"remat": "full"}, {"remat": "dots"}, {"unroll_layers": True}])
def test_how_it_is_computed_does_not_change_what(compute):
    got = _compiled(dropout=0.2, **compute)(_batch())
    _assert_equal(got, _compiled(dropout=0.2)(_batch()))


def test_bfloat16_is_close_and_keeps_parameters_in_float32():
    report, grads = _compiled(dtype="bfloat16")(_batch())
    wide, wide_grads = _compiled()(_batch())
    assert report["loss"] == pytest.approx(wide["loss"], rel=0.01) and report != wide
    for name, grad in grads.items():
        assert grad.dtype == np.float32, name
        error, size = np.linalg.norm(grad - wide_grads[name]), np.linalg.norm(wide_grads[name])
        assert error < 0.05 * size + 1e-3, name  # that of key/bias is 0 but for rounding
    model = plugins.model("bert", FIELDS, layers.Compute(dtype="bfloat16"))
    leaves = jax.tree.leaves(plugins.abstract_params(model))
    assert {leaf.dtype for leaf in leaves} == {np.dtype("float32")}
    ids = np.ones((2, 4), np.int32)
    output = jax.eval_shape(lambda p: model.apply({"params": p}, ids), _params(model))
    assert output["last_hidden_state"].dtype == jnp.bfloat16
    assert output["mlm_logits"].dtype == output["nsp_logits"].dtype == jnp.float32


# --- rows with nothing in them -------------------------------------------------------------------


def test_rows_without_predictions_or_without_tokens_are_harmless():
    batch = _batch()
    batch["attention_mask"][0] = 0
    report, grads = _compiled()(batch)
    assert np.isfinite(list(report.values())).all() and report["skipped"] == 0
    assert all(np.isfinite(grad).all() for grad in grads.values())


def test_a_batch_without_predictions_trains_the_pairs_alone():
    report, grads = _compiled()(_batch() | {"masked_weights": np.zeros((B, P), np.float32)})
    assert report["mlm_loss"] == 0 and report["loss"] == pytest.approx(report["nsp_loss"])
    assert report["skipped"] == 0 and (grads["mlm_head/bias"] == 0).all()
    assert abs(grads["nsp_head/bias"]).max() > 0


def test_the_report_is_the_objective_on_the_batch():
    report, _ = _compiled()(_batch())
    assert report["loss"] == pytest.approx(report["mlm_loss"] + report["nsp_loss"], rel=1e-6)
    model = plugins.model("bert", FIELDS)
    terms = jax.jit(step_lib.make_eval_step(model, LOSS))(_params(model), _batch())
    means = metrics.means(terms)
    assert means == pytest.approx({name: report[name] for name in means}, rel=1e-5)
    assert float(terms["mlm_loss"][1]) == _batch()["masked_weights"].sum() == 12
    num_bytes = (TOKEN_BYTES[_batch()["masked_ids"]] * _batch()["masked_weights"]).sum()
    bits_per_byte = report["mlm_loss"] * 12 / np.log(2) / num_bytes
    assert report["bits_per_byte"] == pytest.approx(bits_per_byte, rel=1e-5)


# --- the whole step of a run ---------------------------------------------------------------------


class Run:
    """The step of a tiny config on eight devices, which counts how often it is traced."""

    def __init__(self):
        config = config_lib.smoke(config_lib.default("bert", "tiny"))
        config.model.update(FIELDS)
        config.model.hidden_size, config.model.num_heads = 32, 4
        config.data.length, config.batch_size = L, B
        config.mesh = "fsdp:4,tensor:2"
        config.optimizer.update(learning_rate=1e-2, warmup_steps=2)
        config_lib.validate(config)
        self.experiment = experiment.Experiment(config)
        self.mesh = sharding.make_mesh(config.mesh)
        self.traces = 0
        loss = self.experiment.loss

        def counted(apply, batch):
            self.traces += 1
            return loss(apply, batch)

        self.experiment.loss = counted
        self.function = self.experiment.train_step(phases_lib.of(config)[0], self.mesh)
        self.places = sharding.state_shardings(
            self.mesh, jax.eval_shape(self.experiment.init_state, jax.random.key(0))
        )

    def state(self):
        params = _params(self.experiment.model)
        state = step_lib.init_state(params, self.experiment.tx, jax.random.key(5))
        return jax.device_put(state, self.places)

    def step(self, state, batch):
        with jax.set_mesh(self.mesh):
            state, report = self.function(state, sharding.global_batch(self.mesh, B, batch))
        return state, {name: float(value) for name, value in report.items() if name != "terms"}


@pytest.fixture(scope="module")
def run():
    return Run()


def _host(tree):
    """Copies, by path, of what a donated state holds."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        sharding.path_name(path): np.array(leaf)
        for path, leaf in leaves
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


GOLDEN = [5.61081, 5.08146, 5.33000]


def test_golden_step(run):
    state, losses = run.state(), []
    for seed in range(3):
        state, report = run.step(state, _batch(seed))
        losses.append(report["loss"])
    assert losses == pytest.approx(GOLDEN, abs=1e-4), (
        f"the first three losses are {losses}. If you meant to change what a step computes (model, "
        "initial values, dropout bits, loss, optimizer), put them into GOLDEN and say so in the "
        "commit: runs started before it will not go on bit for bit. Else you found a bug."
    )


def test_state_is_donated_and_keeps_its_places(run):
    state = run.state()
    old = state.params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    new, _ = run.step(state, _batch())
    assert old.is_deleted()
    for place, leaf in zip(jax.tree.leaves(run.places), jax.tree.leaves(new), strict=True):
        assert leaf.sharding.is_equivalent_to(place, leaf.ndim)


def test_a_state_made_without_jit_can_be_donated():
    state = step_lib.init_state({"kernel": jnp.ones(3)}, optax.adam(1e-3), jax.random.key(0))
    jax.jit(lambda state: jax.tree.map(lambda x: x, state), donate_argnums=0)(state)


def test_traced_once(run):
    state = run.state()
    for seed in range(3):
        state, _ = run.step(state, _batch(seed))
    assert run.traces == 1


def test_padded_vocabulary_stays_zero(run):
    state, _ = run.step(run.state(), _batch())
    state, _ = run.step(state, _batch(1))
    params = _host(state.params)
    table = params["embeddings/word/embedding"]
    assert (table[100:] == 0).all() and (params["mlm_head/bias"][100:] == 0).all()
    before = _host(run.state().params)
    unmoved = [name for name in params if np.array_equal(params[name], before[name])]
    assert unmoved == [], "everything else learns"


def test_learning_rate_in_the_report_is_the_one_used(run):
    state, rates = run.state(), []
    bad = _batch() | {"masked_weights": np.full((B, P), np.nan, np.float32)}
    for batch in (_batch(), bad, _batch(), _batch()):
        state, report = run.step(state, batch)
        rates.append(report["learning_rate"])
    assert rates == pytest.approx([0.0, 0.005, 0.005, 0.01])


@pytest.mark.parametrize("where", ["batch", "params"])
def test_non_finite_step_changes_nothing_but_the_counts(run, where):
    state, _ = run.step(run.state(), _batch())
    batch = _batch(1)
    if where == "batch":
        batch["masked_weights"][7, 0] = np.nan
    else:
        bias = state.params["mlm_head"]["transform"]["bias"]
        broken = jax.tree.map(lambda x: x, state.params)
        broken["mlm_head"]["transform"]["bias"] = bias.at[0].set(jnp.inf)
        state = state.replace(params=jax.device_put(broken, run.places.params))
    before = _host(state)
    counts = []
    for _ in range(2):
        state, report = run.step(state, batch)
        counts.append((report["skipped"], report["skipped_in_row"]))
        assert not np.isfinite(report["loss"])
    after = _host(state)
    changed = {name for name in after if not np.array_equal(before[name], after[name])}
    assert changed == {"step", "skipped", "skipped_in_row"}
    assert counts == [(1, 1), (2, 2)] and after["step"] == before["step"] + 2
    if where == "batch":
        state, report = run.step(state, _batch(2))
        assert (report["skipped"], report["skipped_in_row"]) == (2, 0)
        bias = "params/mlm_head/bias"
        assert not np.array_equal(_host(state)[bias], before[bias])


class _Root:
    """A model whose loss at 0 is finite and whose gradient is not."""

    def apply(self, variables, x, **_):
        return jnp.sqrt(variables["params"]["kernel"] * x)


@pytest.mark.parametrize("platform", ["cpu", "default"])
def test_finite_loss_with_a_gradient_that_is_not_is_skipped_too(monkeypatch, platform):
    """On CPUs by a branch, elsewhere by a choice of every number."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *old, **ways: ways[platform](*old))

    def loss(apply, batch):
        return {"root_loss": (apply(batch["x"]).sum(), batch["x"].sum())}

    tx = optax.adam(0.1)
    function = jax.jit(
        step_lib.make_train_step(
            _Root(),
            loss,
            lambda batch: {"root_loss": batch["x"].sum()},
            {"root_loss": 1.0},
            tx,
            lambda step: 0.1,
        )
    )
    batch = {"x": jnp.ones(4)}
    for kernel, skipped in ((0.0, 1), (4.0, 0)):
        state = step_lib.init_state({"kernel": jnp.array(kernel)}, tx, jax.random.key(0))
        new, report = function(state, batch)
        assert float(report["loss"]) == kernel**0.5 and int(new.skipped) == skipped
        assert float(new.params["kernel"]) == pytest.approx(kernel - (0.0 if skipped else 0.1))
        assert int(optax.tree.get(new.opt_state, "count")) == 1 - skipped
