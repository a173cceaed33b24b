"""The moving average of the parameters: NumPy recomputes it from the parameters of every step."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax import __main__ as command_line
from bertjax import checkpoint, config, errors, experiment, run_log, sharding, train, workdir
from bertjax import step as step_lib
from bertjax.artifact import artifact, loading
from tests.helpers import corpora

SMOKE = str(corpora.ROOT / "configs" / "bert_tiny.py") + ":smoke"
DECAY = 0.7


def weighted_mean(params, decay):
    """Returns the mean of the parameters after each update, in float64."""
    weights = decay ** np.arange(len(params))[::-1]
    return np.tensordot(weights / weights.sum(), np.stack(params).astype(np.float64), 1)


# --- the step ------------------------------------------------------------------------------------


class _Line:
    """A model with two parameters, whose gradients are the mean of its inputs."""

    def apply(self, variables, x, **_):
        return x * variables["params"]["kernel"].sum()


@pytest.mark.parametrize("platform", ["cpu", "default"])
@pytest.mark.parametrize(("decay", "micro_batches"), [(0.7, 1), (0.9999, 2)])
def test_the_average_is_that_of_the_finite_updates(monkeypatch, platform, decay, micro_batches):
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *old, **ways: ways[platform](*old))
    tx = optax.sgd(0.5)
    step = step_lib.make_train_step(
        _Line(), lambda apply, batch: {"loss": (apply(batch["x"]).sum(), jnp.float32(4))},
        lambda batch: {"loss": jnp.float32(4)}, {"loss": 1.0}, tx, lambda step: 0.5, micro_batches,
        ema_decay=decay,
    )  # fmt: skip
    step = jax.jit(step, donate_argnums=0)
    kernel = jnp.array([3.0, -2.0])
    state = step_lib.init_state({"kernel": kernel}, tx, jax.random.key(0), with_ema=True)
    params = []
    for x in (np.nan, 1.0, -3.0, np.nan, np.nan, 2.0, 0.5):
        before = np.array(state.ema["kernel"])
        state, _ = step(state, {"x": jnp.full(4, x)})
        if np.isnan(x):
            np.testing.assert_array_equal(state.ema["kernel"], before)
        else:
            params.append(np.array(state.params["kernel"]))
            expected = weighted_mean(params, decay)
            np.testing.assert_allclose(state.ema["kernel"], expected, rtol=1e-5)
    assert int(state.skipped) == 3 and int(state.step) == 7


def test_without_a_decay_the_state_is_what_it_was():
    def names(**keys):
        conf = config.overridden(config.smoke(config.default("bert", "tiny")), keys)
        shapes = jax.eval_shape(experiment.Experiment(conf).init_state, jax.random.key(0))
        leaves = jax.tree_util.tree_leaves_with_path(shapes)
        return [sharding.path_name(path) for path, _ in leaves]

    without, with_ema = names(), names(ema_decay="0.9")
    assert {name.split("/")[0] for name in without} == {
        "step", "params", "opt_state", "rng", "skipped", "skipped_in_row"
    }  # fmt: skip
    averaged = [name.removeprefix("ema/") for name in with_ema if name.startswith("ema/")]
    assert without == [name for name in with_ema if not name.startswith("ema/")]
    assert averaged == [name.removeprefix("params/") for name in without if "params/" in name[:7]]


# --- a run ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus"))


def make_config(data, **overrides):
    """Returns the config of four steps on a mesh that keeps every checkpoint."""
    keys = {"data.path": str(data / "prepared"), "model.vocab_size": "150", "num_steps": "4",
            "phase2.num_steps": "0", "optimizer.decay_steps": "0", "optimizer.warmup_steps": "0",
            "optimizer.schedule": "constant", "checkpoint.every": "1", "checkpoint.keep_every": "1",
            "checkpoint.keep_last": "1", "eval.every": "4", "eval.max_samples": "16",
            "mesh": "fsdp:8", "ema_decay": str(DECAY)}  # fmt: skip
    keys |= {key.replace("__", "."): str(value) for key, value in overrides.items()}
    return config.load(SMOKE, keys)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Returns (workdir, config) of an uninterrupted run."""
    folder, conf = tmp_path_factory.mktemp("whole") / "run", make_config(data)
    train.train_and_evaluate(conf, folder)
    return folder, conf


def flat(path):
    return artifact.flatten(loading.load(path).params)


def states(folder, conf):
    abstract = experiment.Experiment(conf).abstract_state(sharding.make_mesh(conf.mesh))
    state, _ = checkpoint.Reader(folder / "checkpoints").restore(abstract)
    return jax.device_get((state.params, state.opt_state, state.ema))


def assert_averages(runs, steps):
    """Asserts that `ema` of each step is the mean of the steps before. runs: {step: its run}."""
    params = {step: flat(run / "checkpoints" / str(step)) for step, run in runs.items()}
    for step in steps:
        ema = flat(runs[step] / "checkpoints" / str(step) / "ema")
        assert ema.keys() == params[step].keys()
        for name, array in ema.items():
            expected = weighted_mean([params[i][name] for i in range(1, step + 1)], DECAY)
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.proof
def test_the_average_of_a_run_on_a_mesh(whole):
    folder, conf = whole
    assert_averages(dict.fromkeys(range(1, 5), folder), (1, 3, 4))
    state = experiment.Experiment(conf).abstract_state(sharding.make_mesh(conf.mesh))
    places = [jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (state.params, state.ema)]
    assert places[0] == places[1]
    assert not all(place.is_fully_replicated for place in jax.tree.leaves(places[1]))


@pytest.mark.proof
def test_killed_and_resumed_ends_bit_equal(whole, tmp_path):
    folder, conf = whole
    shutil.copytree(folder, tmp_path / "run")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / str(step))
    train.train_and_evaluate(conf, tmp_path / "run")
    assert checkpoint.Reader(tmp_path / "run" / "checkpoints").steps() == [1, 2, 3, 4]
    found = states(tmp_path / "run", conf)
    jax.tree.map(np.testing.assert_array_equal, states(folder, conf), found)


@pytest.mark.proof
def test_a_branch_with_another_phase_goes_on_with_the_average(data, whole, tmp_path):
    folder, _ = whole
    other = make_config(data)
    other.phases = {"num_steps": 2}, {"num_steps": 2, "data.length": 24, "micro_batch_size": 8}
    train.train_and_evaluate(other, tmp_path / "run", branch_from=folder / "checkpoints" / "2")
    runs = dict.fromkeys((1, 2), folder) | dict.fromkeys((3, 4), tmp_path / "run")
    assert_averages(runs, (3, 4))
    without = make_config(data, ema_decay=0.0)
    with pytest.raises(errors.UserError, match=r"in phase 1, .* ema_decay = 0.0 \(it was 0.7\)"):
        train.train_and_evaluate(without, tmp_path / "new", branch_from=folder / "checkpoints/2")


def test_both_are_evaluated_and_the_average_is_loaded_by_choice(data, whole, tmp_path, capsys):
    folder, _ = whole
    (line,) = [x for x in run_log.read_metrics(folder / "metrics.jsonl") if "eval/loss" in x]
    assert line["eval/ema/mlm_loss"] != line["eval/mlm_loss"]
    scores = tmp_path / "scores.json"
    argv = ["evaluate", f"--model={folder}/ema", f"--data={data / 'prepared'}", "--length=32",
            "--max_samples=16", "--batch_size=16", f"--json={scores}"]  # fmt: skip
    assert command_line.main(argv) == 0
    found = json.loads(scores.read_text())["mlm_loss"]
    assert found == pytest.approx(line["eval/ema/mlm_loss"], rel=1e-5)
    argv = ["export", f"--model={folder}/checkpoints/3/ema", f"--output={tmp_path / 'hf'}"]
    assert command_line.main(argv) == 0
    exported, ema = flat(tmp_path / "hf"), flat(folder / "3" / "ema")
    assert {"mlm_head/bias", "embeddings/word/embedding"} < exported.keys()
    for name in exported:
        np.testing.assert_array_equal(exported[name], ema[name], err_msg=name)


@pytest.mark.proof
def test_a_run_that_starts_from_a_model_has_its_average(data, whole, tmp_path):
    folder, _ = whole
    conf = make_config(data, init_from=f"{folder}/ema", model__heads="('pooler', 'mlm', 'nsp')")
    mesh = sharding.make_mesh(conf.mesh)
    train_data, _ = train.open_data(conf)
    with jax.set_mesh(mesh):
        checkpoints = train.open_checkpoints(conf, tmp_path)
        run, source = experiment.Experiment(conf), loading.load(conf.init_from)
        state, _ = train.first_state(run, mesh, checkpoints, train_data, {}, source)
        checkpoints.close()
    ema = flat(f"{folder}/ema")
    for tree in (state.params, state.ema):
        found = artifact.flatten(jax.device_get(tree))
        for name in ema:
            np.testing.assert_array_equal(found[name], ema[name], err_msg=name)
    jax.jit(lambda state: jax.tree.map(lambda x: x, state), donate_argnums=0)(state)


# --- what does not fit ---------------------------------------------------------------------------


def identity(phases=(), **keys):
    conf = config.overridden(config.smoke(config.default()), keys)
    conf.phases = phases
    return workdir.identity(conf, "tokenizer", "data", {})


@pytest.mark.parametrize("phases", [(), ({"num_steps": 20},)])
def test_a_run_without_an_average_goes_on_without_one(tmp_path, phases):
    workdir.claim(tmp_path, identity(phases), lambda folder: None)
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    with pytest.raises(errors.UserError, match=r"ema_decay = 0.9 \(i.* 0.0\).*restore the old val"):
        workdir.claim(tmp_path, identity(phases, ema_decay="0.9"), lambda folder: None)
    file = tmp_path / workdir.CONFIG
    content = json.loads(file.read_text())
    del content["checksum"], content["config"]["ema_decay"]  # of an earlier version
    del content["config"]["checkpoint"]["keep_every"]
    file.write_text(json.dumps(content))
    workdir.claim(tmp_path, identity(phases), lambda folder: None)
    with pytest.raises(errors.UserError, match=r"ema_decay = 0\.9 \("):
        workdir.claim(tmp_path, identity(phases, ema_decay="0.9"), lambda folder: None)


def test_paths_without_an_average_are_refused(data, tmp_path):
    workdir.claim(tmp_path, identity(), lambda folder: None)
    with pytest.raises(errors.UserError, match=r"no moving average .*_decay was 0; leave out"):
        loading.load(tmp_path / "ema")
    with pytest.raises(errors.UserError, match="not found; give a workdir"):
        loading.load(tmp_path / "nothing" / "ema")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ema_decay": "1.0"}, r"config.ema_decay = 1.0: must be in \[0, 1\)"),
        ({"ema_decay": "-0.1"}, "config.ema_decay = -0.1: must be"),
        ({"checkpoint.keep_every": "15"}, "keep_every = 15: must be 0 or a multiple of config.che"),
        ({"checkpoint.keep_every": "-10"}, "keep_every = -10: must be 0 or more"),
    ],
)
def test_impossible_values_are_refused(keys, message):
    with pytest.raises(errors.UserError, match=message):
        config.overridden(config.smoke(config.default()), keys)


def test_no_source_has_the_name_of_the_average():
    conf = config.smoke(config.default())
    conf.data.sources = {"ema": {"path": "prepared/", "weight": 1.0}}
    config.validate(conf)
    conf.ema_decay = 0.9
    with pytest.raises(errors.UserError, match=r"sources = 'ema': must be named otherwise"):
        config.validate(conf)
