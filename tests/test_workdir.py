"""A workdir belongs to one run: keys added since it was made, and steps that were already done."""

import dataclasses
import json

import pytest

from bertjax import config, errors, schema, workdir

WSD = {"optimizer.schedule": "wsd", "optimizer.decay_steps": "4", "num_steps": "12"}


def _identity(**overrides):
    keys = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    made = config.overridden(config.smoke(config.default()), WSD | keys)
    return workdir.identity(made, "tokenizer", "data", {})


def _claim(path, identity, saved=0):
    workdir.claim(path, identity, lambda folder: None)
    if saved:
        (path / workdir.CHECKPOINTS / str(saved)).mkdir(parents=True)


def test_a_workdir_of_before_the_decay_had_a_shape_is_that_of_the_linear_one(tmp_path):
    _claim(tmp_path, _identity(), saved=4)
    file = tmp_path / workdir.CONFIG
    content = json.loads(file.read_text())
    del content[schema.CHECKSUM], content["config"]["optimizer"]["decay_shape"]
    file.write_text(json.dumps(content))
    assert config.from_dict(content["config"]).optimizer.decay_shape == "linear"
    _claim(tmp_path, _identity())
    with pytest.raises(errors.UserError, match=r"decay_shape = 'cosine' \(in the workdir: 'linea"):
        _claim(tmp_path, _identity(optimizer__decay_shape="cosine"))
    _claim(tmp_path, _identity(num_steps=20))  # its stable phase may still become longer
    assert workdir.read(tmp_path).config["num_steps"] == 20


@pytest.mark.parametrize("shape", ["linear", "cosine", "one_minus_sqrt"])
def test_the_stable_phase_may_become_longer_until_the_decay(tmp_path, shape):
    first, longer = (_identity(num_steps=n, optimizer__decay_shape=shape) for n in (12, 20))
    _claim(tmp_path / "stable", first, saved=8)
    _claim(tmp_path / "stable", longer)
    _claim(tmp_path / "decay", first, saved=11)
    with pytest.raises(errors.UserError, match="would change the learning rate of step 9"):
        _claim(tmp_path / "decay", longer)


def _of_sources(weights, text="text"):
    made = config.overridden(config.smoke(config.default()), WSD)
    made.data.sources = {n: {"path": f"{n}/", "weight": w} for n, w in weights.items()}
    fingerprint = ",".join(f"{name}={text} of {name}" for name in weights)
    return workdir.identity(made, "tokenizer", fingerprint, {})


def test_a_source_that_no_saved_step_has_read_may_be_added(tmp_path):
    _claim(tmp_path, _of_sources({"web": 0.7, "books": 0.3}), saved=4)
    more = _of_sources({"web": 0.7, "books": 0.3, "late": 0.0})
    _claim(tmp_path, more)
    stored = workdir.read(tmp_path)
    assert stored.config == more.config and stored.data_fingerprint == more.data_fingerprint
    for weights, text, message in (
        ({"web": 0.7, "books": 0.3, "late": 0.1}, "text", r"late.weight = 0.1 \(it was None\)"),
        ({"web": 0.6, "books": 0.3}, "text", r"step 4 is saved, .*web.weight = 0.6 \(it was 0.7"),
        ({"web": 0.7, "books": 0.3}, "other", "the text of data.sources.books = 'other of books'"),
        ({"web": 0.7}, "text", r"books.weight = None \(it was 0.3\)"),
    ):
        with pytest.raises(errors.UserError, match=message):
            _claim(tmp_path, _of_sources(weights, text))
    with pytest.raises(errors.UserError, match=r"decay_shape = 'cosine' \(in the workdir: 'linea"):
        other = _of_sources({"web": 0.7, "books": 0.3})
        other.config["optimizer"]["decay_shape"] = "cosine"
        _claim(tmp_path, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__hidden_size": 32}, r"in phase 1, .*hidden_size = 32 \(it was 64\); restore the "
         "old value, or branch off another checkpoint"),
        ({"optimizer__learning_rate": 0.5}, "would change the learning rate of step"),
        ({"num_steps": 3, "optimizer__decay_steps": 1, "optimizer__warmup_steps": 1},
         "is past the last step of the new run"),
        ({"tokenizer": "other"}, "with another tokenizer than that of config.data.path = prepared"),
        ({"teacher": "other"}, "with another config.objective.teacher$"),
    ],
)  # fmt: skip
def test_a_branch_from_another_model_is_refused(tmp_path, changes, message):
    def run(tokenizer="tokenizer", teacher="teacher", **overrides):
        made = _identity(data__path="prepared", **overrides)
        return dataclasses.replace(
            made, tokenizer_fingerprint=tokenizer, frozen_fingerprints={"teacher": teacher}
        )

    _claim(tmp_path, run(), saved=4)
    checkpoint = tmp_path / workdir.CHECKPOINTS / "4"
    assert workdir.branch(checkpoint, run(num_steps=20))[1] == 4
    with pytest.raises(errors.UserError, match=message):
        workdir.branch(checkpoint, run(**changes))
