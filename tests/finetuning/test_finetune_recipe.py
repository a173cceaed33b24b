"""The recipe by size, baselines, intervals and cross-validation."""

import json
import types

import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.finetuning import (
    baselines,
    by_size,
    data_warnings,
    folds,
    intervals,
    recipe,
    run,
    training,
)
from bertjax.finetuning.examples import splits
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import classification, tokens
from tests.helpers import toy_tasks

Sentence, Words = examples_lib.Sentence, examples_lib.Words


class _Source:
    def __init__(self, width, family="bert"):
        self.family, self.fields = family, {"hidden_size": width}


def _completed(num_rows, width=384, **values):
    config = recipe.default("classification")
    config.update_from_flattened_dict(values)
    return by_size.completed(config, _Source(width), num_rows)


# By size


@pytest.mark.parametrize(
    ("num_rows", "epochs"), [(1, 300), (45, 150), (270, 34), (3200, 3), (10**6, 3)]
)
def test_few_rows_have_many_epochs(num_rows, epochs):
    config = _completed(num_rows)
    assert config.num_epochs == epochs
    steps_per_epoch = -(-num_rows // 32)
    assert epochs * steps_per_epoch >= 300
    evaluations = by_size.evaluation_steps(config, steps_per_epoch)
    assert len(evaluations) == min(epochs, 10) and evaluations[-1] == epochs * steps_per_epoch
    assert all(step % steps_per_epoch == 0 for step in evaluations)
    assert _completed(num_rows, num_epochs=7).num_epochs == 7
    assert not by_size.guard_rails(config, _Source(384), num_rows)  # agrees with itself


def test_evaluations_of_a_config():
    config = _completed(64, num_epochs=3, evals_per_epoch=2)
    assert by_size.evaluation_steps(config, 3) == [2, 3, 5, 6, 8, 9]
    config = _completed(64, num_epochs=25)
    assert by_size.evaluation_steps(config, 2) == [6, 10, 16, 20, 26, 30, 36, 40, 46, 50]


def test_the_layers_of_a_short_run_are_compiled_as_a_loop():
    fields = {"hidden_size": 384, "intermediate_size": 1536}

    def is_unrolled(num_rows, lengths=(16, 32), tasks=1, **values):
        tokens = {length: num_rows // len(lengths) * length for length in lengths}
        train = types.SimpleNamespace(tokens_per_length=lambda: tokens)
        config = _completed(num_rows, **{"num_epochs": 3, **values})
        return by_size.compute(config, fields, train, tasks).unroll_layers

    assert not is_unrolled(1_000) and is_unrolled(5_000)
    assert is_unrolled(1_000, num_epochs=30)
    assert not is_unrolled(5_000, lengths=range(4, 64, 4))  # many programs
    assert is_unrolled(4_000) and not is_unrolled(4_000, tasks=3) and is_unrolled(5_000, tasks=3)
    # Runs that are added later compute the same as those that have finished.
    assert is_unrolled(1_000, seeds=50) == is_unrolled(1_000)


def test_small_models_have_higher_rates_and_the_warnings_know():
    rates = {width: max(_completed(100, width).learning_rates) for width in (384, 768, 1024)}
    assert rates[384] > rates[768] > rates[1024]
    given = {"learning_rates": (3e-4,)}
    assert not by_size.guard_rails(_completed(100, 384, **given), _Source(384), 100)
    (warning,) = by_size.guard_rails(_completed(100, 768, **given), _Source(768), 100)
    assert "rates above 0.0001 often destroy" in warning and "of width 768" in warning
    (short,) = by_size.guard_rails(_completed(270, num_epochs=3), _Source(384), 270)
    assert "only 27 steps; without --config.num_epochs, its value by size is 34" in short
    (long,) = by_size.guard_rails(_completed(10**5, num_epochs=20), _Source(384), 10**5)
    assert "overfit" in long and "its value by size is 3" in long


def test_no_advice_goes_above_the_limit():
    means = {1e-4: 50.0, 3e-4: 60.0}
    (line,) = data_warnings.results(means, 3e-4, [], 1e-3)
    assert "try higher rates up to 0.001" in line
    assert not data_warnings.results(means, 3e-4, [], 3e-4)
    same = [{"label": "a"}] * 2
    assert "higher" not in data_warnings.results({3e-4: 50.0}, 3e-4, same, 3e-4)[0]


# Baselines


def _labels(*labels):
    return classification.TaskType("classification", classification.Config(), labels)


def test_a_bag_of_words_learns_and_the_majority_does_not():
    animals = ("cat", "dog", "cat")
    texts = [(f"the {animal} {word}", animal) for word in toy_tasks.WORDS for animal in animals]
    examples = [Sentence((text,), animal) for text, animal in texts]
    pairs = [Sentence((t, t if i % 2 else "bird"), "ny"[i % 2]) for i, (t, _) in enumerate(texts)]
    for labels, part in ((("cat", "dog"), examples), (("n", "y"), pairs)):
        table, notes = baselines.scores(_labels(*labels), {"train": part, "dev": part[:12]})
        assert not notes and table["bag of words"]["dev"]["accuracy"] == 100.0
        assert table["majority"]["dev"]["accuracy"] < 70.0
    means = {"test": {"accuracy": {"mean": 80.0}}}
    table = {"bag of words": {"test": {"accuracy": 85.0}}, "majority": {"test": {"accuracy": 1.0}}}
    (line,) = baselines.verdict(table, means, "accuracy")
    assert "does not beat the baseline 'bag of words': accuracy on test is 80.00, and 85.00" in line


def test_without_scikit_learn_a_line_says_so(monkeypatch):
    monkeypatch.setattr(baselines.importlib.util, "find_spec", lambda name: None)
    examples = [Sentence(("a",), "x"), Sentence(("b",), "y")]
    predictors, (note,) = baselines._predictors(_labels("x", "y"), examples)
    assert list(predictors) == ["majority"] and "pip install 'bertjax[eval]'" in note


def test_tags_of_words():
    task_type = tokens.TaskType("ner", tokens.Config(), ("O", "B-A", "I-A"))
    train = [Words(("Rome", "is", "old"), ("B-A", "O", "O"))]
    dev = [Words(("old", "Rome"), ("O", "B-A")), Words(("New", "York"), ("B-A", "I-A"))]
    table, _ = baselines.scores(task_type, {"train": train, "dev": dev})
    (scores,) = table.values()
    assert scores["dev"]["f1"] == pytest.approx(100 * 2 / 3)


# Intervals


def test_an_interval_is_that_of_a_share():
    examples = [Sentence(("",), "a")] * 100
    predictions = [{"label": "a"}] * 80 + [{"label": "b"}] * 20
    low, high = intervals.of(_labels("a", "b"), examples, predictions, "accuracy")
    assert (low, high) == pytest.approx((80 - 1.96 * 4, 80 + 1.96 * 4), abs=1.5)
    assert intervals.of(_labels("a", "b"), examples * 11, predictions * 11, "accuracy") is None
    assert intervals.of(_labels("a", "b"), examples, predictions, "mcc") is None
    low, high = intervals.of(_labels("a", "b"), examples, predictions[:1] * 100, "accuracy")
    assert low == pytest.approx(96.38, abs=0.01) and high == 100.0


def test_an_interval_of_entities_is_around_their_f1():
    task_type = tokens.TaskType("ner", tokens.Config(), ("O", "B-A", "I-A"))
    draw = np.random.default_rng(1)
    examples = [Words(("w",) * 4, tuple(draw.choice(["O", "B-A"], 4))) for _ in range(60)]
    predictions = [{"tags": list(draw.permutation(e.tags))} for e in examples]
    f1 = task_type.scores(examples, predictions)["f1"]
    low, high = intervals.of(task_type, examples, predictions, "f1")
    assert low < f1 < high < low + 30


# Cross-validation


def test_parts_of_a_fold_are_dev_once_and_keep_labels_apart():
    examples = [Sentence((str(i),), "rare" if i == 7 else "ab"[i % 2]) for i in range(23)]
    parts = [splits.fold(examples, 4, number) for number in (1, 2, 3, 4)]
    held_out = [example for _, dev in parts for example in dev]
    assert sorted(held_out) == sorted(e for e in examples if e.label != "rare")
    for train, dev in parts:
        assert not set(train) & set(dev) and len(train) + len(dev) == 23
        assert {"a", "b"} == {e.label for e in dev} and "rare" in {e.label for e in train}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("recipe"), train=40, others=12)


def _words(root, output, *more):
    return ("finetune", f"--model={root / 'model'}", "--task=classification",
            f"--train={root / 'train.tsv'}", f"--output={output}", "--config.batch_size=8",
            "--config.max_length=16", "--config.dropout_rate=0", *more)  # fmt: skip


@pytest.mark.proof
def test_folds_score_every_label_and_the_model_has_seen_all(root, capsys, monkeypatch):
    words = _words(root, root / "folds", "--folds=2", "--lr=1e-2,1e-6", "--config.num_epochs=6",
                   f"--test={root / 'test.tsv'}")  # fmt: skip
    assert command_line.main(words) == 0
    printed = capsys.readouterr().out
    report = json.loads((root / "folds" / "report.json").read_text())
    assert report["examples"] == {"train": 40, "test": 12}
    assert list(report["splits"]) == ["folds", "test"] and report["best"]["learning_rate"] == 1e-2
    accuracy = report["splits"]["folds"]["accuracy"]
    inner = [
        json.loads((root / "folds" / "folds" / str(n) / "report.json").read_text()) for n in (1, 2)
    ]
    assert sum(content["examples"]["dev"] for content in inner) == 40
    assert all(content["splits"].keys() == {"dev"} for content in inner)
    assert accuracy["values"] == [c["runs"][0]["evaluations"][-1]["dev"]["accuracy"] for c in inner]
    assert accuracy["mean"] > 60.0 and "mean of 2 folds" in printed
    assert "baseline: bag of words" in printed and "% interval of" in printed
    table = (root / "folds" / "report.md").read_text()
    assert "all of train" in table and "| bag of words | accuracy |" in table
    model = bertjax.load(root / "folds")
    assert model.predict("dog ran home")["label"] == "dog"
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    assert command_line.main(words) == 0


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        ("classification", {"data.dev": "dev.tsv"}, "there is a dev file, dev.tsv: remove --folds"),
        ("classification", {"early_stopping": 2}, "config.early_stopping = 2"),
        ("classification", {"data.dev_fraction": 0.2}, "one of 5 parts of train: remove one"),
        ("multi_label", {}, "the task multi_label chooses a threshold on dev"),
        ("squad_v2", {}, "the task squad_v2 chooses a threshold on dev"),
        ("classification", {"data.folds": 1}, "config.data.folds = 1: must be 2 or more"),
    ],
)
def test_folds_refuse_what_they_cannot_do(task, values, message):
    config = recipe.default(task)
    config.update_from_flattened_dict({"data.folds": 5, **values})
    with pytest.raises(errors.UserError, match=message):
        recipe.validate(config)
        folds.check(config)


# Folders of earlier versions


@pytest.mark.proof
def test_a_folder_of_former_defaults_is_refused_or_resumed(root, tmp_path, monkeypatch):
    config = recipe.make(
        "classification", None, {"train": root / "train.tsv"},
        {**toy_tasks.QUICK, "max_length": 16, "model": str(root / "model"), "num_epochs": 3},
    )  # fmt: skip
    run.finetune(config, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "config.json").read_text())["config"]
    assert stored["num_epochs"] == 3 and stored["evals_per_epoch"] == 1  # as they were stored
    assert not any(key.startswith("data.fold") for key in stored)
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    run.finetune(config, tmp_path / "out")
    config.num_epochs = 0
    with pytest.raises(errors.UserError, match=r"num_epochs = 60 \(there 3\).*another --output"):
        run.finetune(config, tmp_path / "out")

