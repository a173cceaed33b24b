"""A family and an objective of one's own package; a plug-in that cannot be loaded."""

import dataclasses
import importlib
import json
import pathlib
import re
import sys

import numpy as np
import pytest

import bertjax
from bertjax import config as config_lib
from bertjax import errors, objectives, plugins, sharding, train
from bertjax.artifact import huggingface
from bertjax.finetuning import rows, run, task_types, tasks
from tests.helpers import corpora, tiny_model, toy_tasks
from tests.helpers import task_types as task_type_helpers

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODULES = r"^my_package\b|^emotions$|\.several_numbers$"  # of the examples
EXAMPLES = ROOT / "docs" / "extending" / "examples"


@pytest.fixture
def examples(monkeypatch):
    """The folder of the examples in docs/extending, on Python's path while the test runs."""
    monkeypatch.setattr(sharding, "PARAM_AXES", [*sharding.PARAM_AXES])
    monkeypatch.syspath_prepend(EXAMPLES)
    yield EXAMPLES
    for name in [name for name in sys.modules if re.search(MODULES, name)]:
        del sys.modules[name]  # so that the next import adds its line to PARAM_AXES again


def test_a_family_and_an_objective_of_another_package_are_trained_and_loaded(examples, tmp_path):
    data = corpora.make(tmp_path)
    keys = {"data.path": str(data / "prepared"), "model.vocab_size": "150", "num_steps": "4"}
    keys |= {"optimizer.warmup_steps": "1", "optimizer.decay_steps": "0"}
    config = config_lib.load(str(examples / "my_config.py"), keys)
    assert config.objective.name == "my_package.my_objective"
    assert config.objective.mask_rate == 0.4 and config.model.max_wavelength == 10_000.0
    train.train_and_evaluate(config, tmp_path / "run")
    model = bertjax.load(tmp_path / "run")
    assert model.fill_mask("the [MASK]")
    assert model.source.params["embeddings"]["position_factor"] != config.model.init_std
    with pytest.raises(errors.UserError, match=r"my_package\.my_bert has no tables.*artifact"):
        huggingface.write(model.source, tmp_path / "hf")


def test_the_example_moves_each_chosen_token_to_the_next_place(examples):
    objective = plugins.objective("my_package.my_objective")
    ids = np.array([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])
    positions, weights = np.array([[1, 2, 3], [1, 0, 0]]), np.array([[1, 1, 1], [1, 0, 0]])
    moved = objective.exchanged(ids, positions, weights)
    assert moved.tolist() == [[1, 7, 5, 6, 2], [1, 8, 2, 0, 0]]


def test_an_objective_of_another_package_is_chosen_by_one_flag(examples):
    base = str(ROOT / "configs" / "bert_tiny.py")
    config = config_lib.load(base, {"objective.name": "my_package.my_objective"})
    assert config.objective.mask_rate == 0.15 and config.model.heads == ("mlm",)


@pytest.fixture
def emotions(examples, monkeypatch):
    """The task of the example in docs/extending, added to bertjax as the page describes."""
    folders = [*task_types.__path__, str(examples / "task_types")]
    monkeypatch.setattr(task_types, "__path__", folders)
    task = importlib.import_module("emotions").TASK
    monkeypatch.setitem(tasks.TASKS, task.name, task)
    return task


def _labelled(folder: pathlib.Path) -> pathlib.Path:
    """Writes train.jsonl and dev.jsonl, of two animals and three verbs; returns `folder`."""
    lines = [
        json.dumps({"sentence": f"the {animal} {verb}", "scores": [a, b]})
        for animal, a in (("cat", 0.0), ("dog", 1.0))
        for verb, b in (("sat", 0.0), ("ran", 1.0), ("saw home", 0.5))
    ]
    for split in ("train", "dev"):
        (folder / f"{split}.jsonl").write_text("\n".join(lines * 4) + "\n")
    return folder


def test_the_example_of_a_task_type_learns(emotions, tmp_path):
    examples = tasks.read(emotions, str(_labelled(tmp_path) / "train.jsonl"), "train")[:6]
    module = importlib.import_module("bertjax.finetuning.task_types.several_numbers")
    config = module.Config()
    unbound = task_type_helpers.bind(module, config)
    bound = dataclasses.replace(unbound, tokenizer=tiny_model.tokenizer(), lengths=rows.Lengths(24))
    encoded = bound.encode(examples)
    model, params = task_type_helpers.make(module, config)
    batch = task_type_helpers.batch_of(module, config, encoded, model)
    params, losses = task_type_helpers.fit(module, config, model, params, batch, steps=40)
    assert losses[-1] < losses[0] / 4
    outputs = task_type_helpers.outputs_of(module, config, model, params, batch)
    predictions = bound.decode(examples, encoded, outputs)
    assert bound.scores(examples, predictions)["pearson"] > 80.0
    assert bound.lines(predictions[0], 1)[0].count(".") == 2
    (tmp_path / "bad.jsonl").write_text('{"sentence": "the cat", "scores": [1, 2, 3]}\n')
    bad = tasks.read(emotions, str(tmp_path / "bad.jsonl"), "train")
    with pytest.raises(errors.UserError, match=r"bad.jsonl:1: label .* is not 2 numbers"):
        bound.encode(bad)


@pytest.mark.proof
def test_the_example_of_a_task_type_is_fine_tuned_and_loaded(emotions, tmp_path):
    source = toy_tasks.model(tmp_path)
    config = toy_tasks.config("emotions", source, _labelled(tmp_path), num_epochs=1, seeds=1)
    done = run.finetune(config, tmp_path / "out")
    assert set(done.report["splits"]["dev"]) == {"pearson", "spearman"}
    assert len(bertjax.load(tmp_path / "out").predict("the dog ran")["numbers"]) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_package.absent", "No module named 'my_package.absent'; .*PYTHONPATH"),
        ("absent_package.own", "No module named 'absent_package'; .*PYTHONPATH"),
        ("my_package.", "cannot import the module my_package."),
        ("my_package.my_bert", "my_bert.py must define KINDS, sampling"),
    ],
)
def test_a_module_that_is_no_objective_is_named(examples, name, message):
    with pytest.raises(errors.UserError, match=f"config.objective.name = {name!r}: .*{message}"):
        config_lib.default("bert", "tiny", name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def get(:", "SyntaxError"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("1 / 0", "ZeroDivisionError"),
        ('KINDS = ("encoder",)', r"unfinished.py must define Config, sampling, .*loss"),
    ],
)
def test_an_unfinished_file_fails_only_who_names_it(tmp_path, monkeypatch, code, message):
    (tmp_path / "unfinished.py").write_text(code)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    assert "unfinished" not in plugins.objectives_of("encoder")
    config_lib.load(str(ROOT / "configs" / "bert_tiny.py"))
    with pytest.raises(errors.UserError, match=f"'unfinished': .*{message}"):
        config_lib.load(str(ROOT / "configs" / "bert_tiny.py"), {"objective.name": "unfinished"})


def test_a_line_for_an_own_parameter_name(monkeypatch):
    monkeypatch.setattr(sharding, "PARAM_AXES", [*sharding.PARAM_AXES])
    sharding.PARAM_AXES.insert(0, (r"own_table/values$", ("vocab", None)))
    assert sharding.param_axes("decoder/own_table/values") == ("vocab", None)


@pytest.mark.parametrize("title", ["family", "objective"])
def test_the_documentation_names_every_part_of_a_plug_in(title):
    text = (ROOT / "docs" / "how" / "reading_the_code.md").read_text()
    start = text.index(f"**A{'n' * (title == 'objective')} {title}**")
    paragraph = text[start : text.index("\n\n", start)]
    for part in getattr(plugins, title.upper()):
        assert f"`{part}`" in paragraph or f"`{part}(" in paragraph, part
