"""The mean of models: that of NumPy, one model in memory at a time, and only of models that fit."""

import dataclasses
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertjax import __main__ as command_line
from bertjax import checkpoint, errors, workdir
from bertjax.artifact import artifact, averaging, huggingface, loading
from tests.helpers import tiny_model

TASK = {"name": "sst2", "kind": "classification", "config": {}, "labels": ["bad", "good"],
        "max_length": 40}  # fmt: skip


@pytest.fixture(scope="module")
def models():
    return [tiny_model.make(seed=seed) for seed in range(4)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, models):
    """A workdir with the first three models as the checkpoints 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("average") / "run"
    config = ConfigDict({"family": "bert", "objective": {"name": "mlm"}, "data": {"path": "d"},
                         "model": models[0].fields})  # fmt: skip
    tokenizer = tiny_model.tokenizer()
    workdir.claim(
        folder, workdir.identity(config, tokenizer.fingerprint, "data", {}), tokenizer.save
    )
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", keep_last=5, keep_best=0)
    for step, model in zip((10, 20, 30), models, strict=False):
        state = {"params": jax.tree.map(jnp.asarray, model.params)}
        checkpoints.save(step, state, {"step": step}, None)
    checkpoints.close()
    return folder


def means(models, weights=None):
    """Returns {path: mean in float64}."""
    flat = [artifact.flatten(model.params) for model in models]
    return {
        path: np.average([np.float64(f[path]) for f in flat], axis=0, weights=weights)
        for path in flat[0]
    }


def assert_close(model, expected):
    flat = artifact.flatten(model.params)
    assert flat.keys() == expected.keys()
    for path, array in flat.items():
        assert array.dtype == np.float32, path
        np.testing.assert_allclose(array, expected[path], rtol=1e-5, atol=1e-6, err_msg=path)


def test_checkpoints_by_command(run, models, tmp_path, capsys):
    inputs = [f"--input={run / 'checkpoints' / str(step)}" for step in (30, 10, 20)]
    assert command_line.main(["average", *inputs, f"--output={tmp_path / 'mean'}"]) == 0
    assert "mean of 3 models, up to step 30" in capsys.readouterr().out
    mean = loading.load(tmp_path / "mean")
    assert_close(mean, means(models[:3]))
    assert (mean.step, mean.origin, mean.fields) == (30, "artifact", models[0].fields)
    assert mean.config["data"]["path"] == "d"
    argv = [*inputs[:2], "--weights=3,1e0", f"--output={tmp_path / 'mean'}"]
    assert command_line.main(["average", *argv]) == 0
    assert_close(loading.load(tmp_path / "mean"), means([models[2], models[0]], [3, 1]))


def test_the_mean_of_equal_models_is_the_model_bit_for_bit(models, tmp_path):
    artifact.write(models[0], tmp_path / "a")
    huggingface.write(dataclasses.replace(models[0], objective=None), tmp_path / "hf")
    mean = averaging.average([tmp_path / "a"] * 3, [0.1, 0.7, 0.3])
    tiny_model.assert_same_params(mean.params, models[0].params)
    mean = averaging.average([tmp_path / "hf"] * 2)
    tiny_model.assert_same_params(mean.params, models[0].params)


def test_models_are_read_once_one_at_a_time(run, monkeypatch):
    load, arrays, counts = loading.load, [], []

    def counted(path, *, with_params=True):
        counts.append(sum(array() is not None for array in arrays))
        model = load(path, with_params=with_params)
        if with_params:
            arrays.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(model.params))
        return model

    monkeypatch.setattr(loading, "load", counted)
    averaging.average([run / "10", run / "20", run / "30"])
    assert len(counts) == 3 and set(counts) == {0} and arrays


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 3}, "its num_layers is 3, not 2"),
        ({"heads": ("pooler", "mlm")}, r"its heads is \('pooler', 'mlm'\), not"),
        ({"activation": "relu"}, "its activation is 'relu', not 'gelu'"),
        ({"objective": {"name": "causal_lm"}}, "its objective is 'causal_lm', not 'mlm'"),
        ({"task": TASK}, "its task's name is 'sst2', not None"),
    ],
)
def test_models_that_do_not_fit_are_refused(models, tmp_path, changes, message):
    artifact.write(models[0], tmp_path / "a")
    fields = {name: value for name, value in changes.items() if name in models[0].fields}
    others = {name: value for name, value in changes.items() if name not in fields}
    artifact.write(dataclasses.replace(tiny_model.make(**fields), **others), tmp_path / "b")
    with pytest.raises(errors.UserError, match=rf"b: does not fit .*a: {message}"):
        averaging.average([tmp_path / "a", tmp_path / "b"])


def test_labels_in_another_order_and_other_tokenizers_are_refused(models, tmp_path):
    for name, labels in {"a": TASK["labels"], "b": TASK["labels"][::-1]}.items():
        tuned = dataclasses.replace(models[0], task=TASK | {"labels": labels})
        artifact.write(tuned, tmp_path / name)
    with pytest.raises(errors.UserError, match=r"task's labels is \['good', 'bad'\], not \['bad'"):
        averaging.average([tmp_path / "a", tmp_path / "b"])
    other = dataclasses.replace(models[0], tokenizer=tiny_model.tokenizer("unigram"))
    artifact.write(models[0], tmp_path / "c")
    artifact.write(other, tmp_path / "d")
    with pytest.raises(errors.UserError, match="its tokenizer is '"):
        averaging.average([tmp_path / "c", tmp_path / "d"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input={run}/10"], "--input: gives 1 model; repeat it for two or more"),
        (["--input={run}/10", "--input={run}/40"], "no checkpoint of step 40; the steps are: 10"),
        (["--input={run}/10", "--input={run}/20", "--weights=1"], "has 1 weights, but there are 2"),
        (["--input={run}/10", "--input={run}/20", "--weights=1,0"], "--weights: 0 must be a num"),
        (["--input={run}/10", "--input={run}/20", "--weights=1,nan"], "--weights: nan must be"),
        (["--input={run}/10", "--input={run}/20", "--weights=1,a"], "--weights=1,a: give numbers"),
        (["--input={run}/10", "--input={run}/ema"], "has no moving average of the parameters"),
    ],
)
def test_bad_flags_are_refused_in_one_line(run, tmp_path, capsys, flags, message):
    argv = ["average", *(flag.format(run=run) for flag in flags), f"--output={tmp_path / 'out'}"]
    assert command_line.main(argv) == errors.EXIT_BAD_INPUT
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error" in x]
    assert message in line and not (tmp_path / "out").exists()
