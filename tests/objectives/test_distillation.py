"""A student starts as layers of its teacher, learns from it, and never changes it."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax import config as config_lib
from bertjax import errors, metrics, plugins, sharding, train, workdir
from bertjax import step as step_lib
from bertjax.artifact import artifact, loading
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.models import bert
from bertjax.objectives import distillation
from bertjax.objectives.common import hooks
from tests.helpers import corpora, meshes, tiny_model

B, L, P = 8, 8, 3
CONFIG = distillation.Config(teacher="somewhere")
STUDENT = {name: value for name, value in tiny_model.FIELDS.items() if name != "type_vocab_size"}
STUDENT |= {"heads": ("mlm",), "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
STUDENT.pop("layer_norm_eps")


def _batch(seed=0):
    """Rows of 4 to 8 tokens with 0 to 3 predictions."""
    rng = np.random.default_rng(seed)
    used = np.arange(P) < (np.arange(B) % (P + 1))[:, None]
    lengths = rng.integers(4, L + 1, B)
    return {
        "input_ids": rng.integers(5, 60, (B, L)).astype(np.int32),
        "attention_mask": (np.arange(L) < lengths[:, None]).astype(np.int32),
        "masked_positions": np.where(used, [1, 2, 3], 0).astype(np.int32),
        "masked_ids": np.where(used, rng.integers(5, 60, (B, P)), 0).astype(np.int32),
        "masked_weights": used.astype(np.float32),
    }


def _student(family="distilbert", **fields):
    model = plugins.model(family, {**STUDENT, "vocab_size": tiny_model.tokenizer().size, **fields})
    return model, plugins.init_params(model, jax.random.key(1))


def _first_params(params, student, teacher):
    frozen = {"teacher": hooks.Frozen(teacher.fields, artifact.flatten(teacher.params))}
    return distillation.first_params(CONFIG, artifact.flatten(params), vars(student.config), frozen)


# --- the start -----------------------------------------------------------------------------------


def test_layers_are_spread_as_distilbert_does():
    assert distillation.spread_layers(12, 6).tolist() == [0, 2, 4, 7, 9, 11]
    assert distillation.spread_layers(4, 2).tolist() == [0, 3]
    assert distillation.spread_layers(3, 3).tolist() == [0, 1, 2]
    assert distillation.spread_layers(3, 1).tolist() == [0]
    assert distillation.spread_layers(2, 4).tolist() == [0, 0, 1, 1], "a student may be deeper"


@pytest.mark.parametrize("family", ["distilbert", "bert"])
def test_student_starts_as_layers_of_its_teacher(family):
    teacher = tiny_model.make(num_layers=5, heads=("mlm",))
    fields = {"type_vocab_size": 2, "heads": ("pooler", "mlm")} if family == "bert" else {}
    student, params = _student(family, num_layers=2, **fields)
    started = _first_params(params, student, teacher)
    fresh, found = artifact.flatten(params), artifact.flatten(teacher.params)
    assert started.keys() == fresh.keys()
    missing = {path for path in started if path not in found}
    assert missing == ({"pooler/dense/kernel", "pooler/dense/bias"} if family == "bert" else set())
    for path, leaf in started.items():
        if path in missing:
            expected = fresh[path]
        elif "/layers/" in path:
            expected = found[path][[0, 4]]
        else:
            expected = found[path]
        np.testing.assert_array_equal(leaf, expected, err_msg=path)


def test_a_student_of_another_width_cannot_start_as_its_teacher():
    student, params = _student(hidden_size=32)
    message = (
        r"has .* of shape .*set config.model.hidden_size to 16; or .*start_from_teacher to False"
    )
    with pytest.raises(errors.UserError, match=message):
        _first_params(params, student, tiny_model.make())


def test_a_student_with_fewer_positions_is_told_to_have_those_of_its_teacher():
    student, params = _student(max_length=16)
    with pytest.raises(errors.UserError, match=r"set config.model.max_length to 40$"):
        _first_params(params, student, tiny_model.make())


def _load_teacher(path, dataset, vocab_size):
    check = functools.partial(distillation.check_frozen, CONFIG, "teacher", vocab_size, 8)
    return loading.load_frozen(path, dataset, "teacher", check)


@pytest.mark.parametrize(
    ("fields", "data", "message"),
    [
        ({}, tiny_model.tokenizer().fingerprint, None),
        ({}, "another", "prepared with a tokenizer other than that of config.objective.teacher"),
        ({"heads": ("pooler",)}, tiny_model.tokenizer().fingerprint, "no masked language model he"),
        ({"vocab_size": 77}, tiny_model.tokenizer().fingerprint, "has a vocabulary of 77 pieces"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(tmp_path, fields, data, message):
    teacher = tiny_model.make(**fields)
    artifact.write(teacher, tmp_path / "teacher")
    dataset = types.SimpleNamespace(path="prepared", tokenizer_fingerprint=data)
    vocab_size = tiny_model.tokenizer().size
    if message is None:
        found = _load_teacher(tmp_path / "teacher", dataset, vocab_size)
        tiny_model.assert_same_params(found.params, teacher.params)
        return
    with pytest.raises(errors.UserError, match=message):
        _load_teacher(tmp_path / "teacher", dataset, vocab_size)


def test_a_teacher_must_be_given():
    with pytest.raises(errors.UserError, match=r"config.objective.teacher is not set"):
        _load_teacher("", None, 60)


# --- the losses ----------------------------------------------------------------------------------


def _outputs(seed, vocab_size=20, width=6):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((B, P, vocab_size)).astype(np.float32)
    logits[..., -4:] = -1e9  # as the rows that pad the vocabulary
    states = rng.standard_normal((B, L, width)).astype(np.float32)
    return {"mlm_logits": jnp.asarray(logits), "last_hidden_state": jnp.asarray(states)}


def _loss(config, student, teacher, batch):
    found = distillation.loss(config, lambda **_: student, batch, lambda **_: teacher)
    return {name: (float(total), float(weight)) for name, (total, weight) in found.items()}


def test_losses_are_those_of_a_plain_computation():
    batch, student, teacher = _batch(), _outputs(1), _outputs(2)
    batch["masked_ids"] %= 16
    config = distillation.Config(temperature=3.0)
    soft = mlm = cosine = 0.0
    for row in range(B):
        for slot in np.flatnonzero(batch["masked_weights"][row]):
            s, t = (np.float64(x["mlm_logits"][row, slot, :16]) for x in (student, teacher))
            p, q = (np.exp(x / 3.0) / np.exp(x / 3.0).sum() for x in (t, s))
            soft += 9.0 * (p * np.log(p / q)).sum()
            mlm -= np.log(np.exp(s) / np.exp(s).sum())[batch["masked_ids"][row, slot]]
        for place in np.flatnonzero(batch["attention_mask"][row]):
            a, b = (np.float64(x["last_hidden_state"][row, place]) for x in (student, teacher))
            cosine += 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    found = _loss(config, student, teacher, batch)
    slots, tokens = batch["masked_weights"].sum(), batch["attention_mask"].sum()
    assert found["soft_loss"] == pytest.approx((soft, slots), rel=1e-5)
    assert found["mlm_loss"] == pytest.approx((mlm, slots), rel=1e-5)
    assert found["cosine_loss"] == pytest.approx((cosine, tokens), rel=1e-5)
    weights = distillation.normalizers(config, batch)
    assert {n: float(w) for n, w in weights.items()} == {n: found[n][1] for n in weights}
    means = {name: total / weight for name, (total, weight) in found.items()}
    total = metrics.total_loss(means, distillation.scales(config))
    assert total == pytest.approx(5 * soft / slots + 2 * mlm / slots + cosine / tokens, rel=1e-5)


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it():
    batch, outputs = _batch(), _outputs(1)
    found = _loss(CONFIG, outputs, outputs, batch)
    assert abs(found["soft_loss"][0]) < 1e-4 and abs(found["cosine_loss"][0]) < 1e-4

    def soft(logits):
        student = outputs | {"mlm_logits": logits}
        return distillation.loss(CONFIG, lambda **_: student, batch, lambda **_: outputs)[
            "soft_loss"
        ][0]

    np.testing.assert_allclose(jax.grad(soft)(outputs["mlm_logits"]), 0, atol=1e-5)
    zero = outputs | {"last_hidden_state": jnp.zeros((B, L, 6))}
    assert np.isfinite(_loss(CONFIG, zero, zero, batch)["cosine_loss"][0])


def test_another_width_goes_without_the_cosine_only():
    student, teacher = _outputs(1, width=4), _outputs(2)
    with pytest.raises(errors.UserError, match=r"hidden size .* is 6, .* 4: set .*cosine_weight"):
        _loss(CONFIG, student, teacher, _batch())
    config = distillation.Config(cosine_weight=0.0)
    found = _loss(config, student, teacher, _batch())
    assert (
        set(distillation.scales(config))
        == {"mlm_loss", "soft_loss"}
        == set(distillation.normalizers(config, _batch()))
    )
    assert "cosine_loss" not in found


@pytest.mark.parametrize(
    "wrong", [{"pair": "nsp"}, {"temperature": 0.0}, {"soft_weight": -1.0}, {"mask_rate": 2.0}]
)
def test_configs_that_are_refused(wrong):
    with pytest.raises(errors.UserError, match=f"config.objective.{next(iter(wrong))}"):
        distillation.Config(**wrong)


# --- the step ------------------------------------------------------------------------------------


@functools.cache
def _trained(mesh_shape=(1, 1, 1), micro=1, steps=2, seed=3):
    """(state, reports, teacher's parameters after it) of a few steps of a small student."""
    teacher = tiny_model.make(num_layers=3, hidden_size=16, dropout_rate=0.5)
    mesh = meshes.of(*mesh_shape)
    model, params = _student(num_layers=1)
    params = artifact.unflatten(_first_params(params, model, teacher))
    tx = optax.sgd(0.01)
    function = step_lib.make_train_step(
        model,
        functools.partial(distillation.loss, CONFIG),
        functools.partial(distillation.normalizers, CONFIG),
        distillation.scales(CONFIG),
        tx,
        optax.constant_schedule(0.01),
        micro,
        {"teacher": plugins.model(teacher.family, teacher.fields)},
    )
    function = jax.jit(function, donate_argnums=0)
    state = step_lib.init_state(params, tx, jax.random.key(seed))
    state = jax.device_put(state, sharding.state_shardings(mesh, state))
    tree = {"teacher": {"params": teacher.params}}
    frozen = {
        "teacher": jax.device_put(tree, sharding.state_shardings(mesh, tree))["teacher"]["params"]
    }
    reports = []
    with jax.set_mesh(mesh):
        for number in range(steps):
            batch = sharding.global_batch(mesh, B, _batch(number))
            state, report = function(state, batch, frozen)
            reports.append(
                {name: float(value) for name, value in report.items() if name != "terms"}
            )
    return state, reports, frozen["teacher"]


def test_teacher_stays_as_it_is_and_outside_the_state():
    state, reports, after = _trained()
    teacher = tiny_model.make(num_layers=3, hidden_size=16, dropout_rate=0.5)
    tiny_model.assert_same_params(after, teacher.params)
    student, fresh = _student(num_layers=1)
    params = artifact.flatten(state.params)
    assert params.keys() == artifact.flatten(fresh).keys(), "nothing of the teacher's is trained"
    start = _first_params(fresh, student, teacher)
    moved = [path for path in params if not np.array_equal(params[path], start[path])]
    assert len(moved) > 15
    assert all(np.isfinite(report["loss"]) for report in reports)


@pytest.mark.proof
def test_teacher_has_no_dropout():
    _, first, _ = _trained(steps=1)
    _, second, _ = _trained(steps=1, seed=4)
    assert first == second, "the student has none here: the key of the state changes nothing"


@pytest.mark.proof
@pytest.mark.parametrize(("mesh_shape", "micro"), [((1, 1, 1), 2), ((2, 2, 2), 1)])
def test_neither_mesh_nor_micro_batches_change_the_run(mesh_shape, micro):
    _, reports, _ = _trained(mesh_shape, micro)
    for got, expected in zip(reports, _trained()[1], strict=True):
        assert got == pytest.approx(expected, rel=2e-4)


# --- through the front door ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = corpora.make(tmp_path_factory.mktemp("corpus"), count=60)
    fields = dataclasses.asdict(bert.Config(**bert.SMOKE, vocab_size=150, dropout_rate=0.5))
    fields = {n: v for n, v in fields.items() if n not in ("dtype", "remat", "unroll_layers")}
    fields |= {"num_layers": 3, "heads": ("pooler", "mlm", "nsp")}
    params = plugins.init_params(plugins.model("bert", fields), jax.random.key(5))
    tokenizer = tokenizer_lib.load(folder / "tokenizer")
    artifact.write(artifact.Artifact("bert", fields, params, tokenizer), folder / "teacher")
    return folder


def _config(data, **overrides):
    config = config_lib.smoke(config_lib.default("distilbert", "base", "distillation"))
    keys = {"data.path": data / "prepared", "model.vocab_size": 150, "num_steps": 2}
    keys |= {"objective.teacher": data / "teacher", "optimizer.warmup_steps": 0,
             "optimizer.decay_steps": 0}  # fmt: skip
    for key, value in (keys | {k.replace("__", "."): v for k, v in overrides.items()}).items():
        config_lib.override(config, key, str(value))
    return config


def test_a_run_starts_from_the_teacher_and_keeps_the_student_only(data, tmp_path):
    config = _config(data, optimizer__learning_rate=1e-9)
    heldout = train.train_and_evaluate(config, tmp_path / "run")
    assert {"mlm_loss", "soft_loss", "cosine_loss", "loss"} <= heldout.keys()
    student, teacher = loading.load(tmp_path / "run"), loading.load(data / "teacher")
    assert student.fields["num_layers"] == 2
    found, expected = artifact.flatten(student.params), artifact.flatten(teacher.params)
    for path, leaf in found.items():
        whole = expected[path]
        start = whole[[0, 2]] if "/layers/" in path else whole
        np.testing.assert_allclose(leaf, start, atol=1e-7, err_msg=path)


def test_the_path_of_the_teacher_may_change_but_not_the_teacher(tmp_path):
    def claim(path, fingerprint):
        conf = config_lib.default("distilbert", "base", "distillation")
        conf.objective.teacher = path
        mine = workdir.identity(conf, "tokenizer", "data", {"teacher": fingerprint})
        assert path not in str(workdir.without_paths(mine))
        workdir.claim(tmp_path / "run", mine, lambda folder: None)

    claim("here", "one")
    (tmp_path / "run" / workdir.CHECKPOINTS / "1").mkdir(parents=True)
    claim("there", "one")
    with pytest.raises(errors.UserError, match=r"with another config\.objective\.teacher"):
        claim("there", "another")


@pytest.mark.proof
def test_a_run_from_scratch_or_without_a_teacher(data, tmp_path):
    config = _config(data, objective__start_from_teacher=False, model__hidden_size=32, num_steps=1)
    with pytest.raises(errors.UserError, match="cosine_weight"):
        train.train_and_evaluate(config, tmp_path / "a")
    config = _config(data, objective__teacher="")
    with pytest.raises(errors.UserError, match="teacher is not set"):
        train.train_and_evaluate(config, tmp_path / "b")
