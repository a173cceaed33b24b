"""Mixtures of tasks: the file, the shares, the order of the rows, and one model of all tasks."""

import collections
import json

import numpy as np
import pytest

import bertjax
from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning import mixtures, recipe, run, suite
from bertjax.finetuning.task_types import mixture
from tests.helpers import encoders, toy_tasks

ANIMALS = {"task": "classification", "name": "animals", "data": "."}
PAIRS = {"task": "text_to_text", "name": "pairs", "data": "pairs", "prefix": "say: "}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = toy_tasks.sentences(tmp_path_factory.mktemp("mixture"), train=24, others=6)
    (folder / "pairs").mkdir()
    for split, count in (("train", 8), ("dev", 4)):
        lines = ["source\ttarget", *(f"cat {i % 3}\tdog {i % 3}" for i in range(count))]
        (folder / "pairs" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    write(folder / "tasks.json", ANIMALS, PAIRS)
    source = encoders.make_artifact("t5", "unigram", num_decoder_layers=1, head_dim=8)
    artifact.write(source, folder / "model")
    return folder


def write(path, *tasks):
    path.write_text(json.dumps({"tasks": tasks}))
    return str(path)


# The file


def test_the_splits_and_the_examples_are_those_of_all_tasks(root):
    path = str(root / "tasks.json")
    assert mixtures.splits(path) == {s: f"{path}:{s}" for s in ("train", "dev", "test")}
    dev = mixtures.read(path, "dev")
    assert collections.Counter(example.task for example in dev) == {"animals": 6, "pairs": 4}
    assert {example.where.split(":")[0] for example in dev} == {
        str(root / "dev.tsv"), str(root / "pairs" / "dev.tsv")
    }  # fmt: skip
    assert [example.task for example in mixtures.read(path, "test")] == ["animals"] * 6


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((), "has no tasks"),
        ((ANIMALS, ANIMALS), "two tasks are called 'animals'"),
        ((ANIMALS | {"rate": 2}, PAIRS), "animals has a rate and pairs has none"),
        ((ANIMALS, {"task": "regression"}), "regression: has neither data nor train"),
        ((ANIMALS, {"task": "multi_label", "data": "."}), "multi_label has no text-to-text form"),
        ((ANIMALS, {"task": "nothing", "data": "."}), "nothing: --task=nothing"),
        ((ANIMALS, PAIRS | {"data": "absent"}), "pairs: .*absent: no such folder"),
        ((ANIMALS | {"weight": 1},), r"tasks\[0\].weight = 1: must be absent"),
        ((ANIMALS | {"data": "", "train": "train.tsv"}, PAIRS), "pairs has a dev split and anim"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(root, tasks, message):
    path = write(root / "bad.json", *tasks)
    with pytest.raises(errors.UserError, match=message) as caught:
        mixtures.splits(path)
    assert "bad.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_suite_may_have_a_mixture(root):
    item = suite.Item("mixture", data="tasks.json", name="both")
    configs, absent = suite._configs(suite.Suite("Mine", [item]), str(root), {"model": "t5"})
    path = str(root / "tasks.json")
    assert not absent and configs["both"].data.train == f"{path}:train"


# Shares and order


@pytest.mark.parametrize(
    ("limit", "temperature", "rates", "expected"),
    [
        (0, 1.0, (0, 0, 0), (1000, 100, 10)),
        (50, 1.0, (0, 0, 0), (50, 50, 10)),
        (0, 2.0, (0, 0, 0), (784, 248, 78)),  # of 1110, by the square roots
        (0, 1e9, (0, 0, 0), (370, 370, 370)),
        (0, 1.0, (1, 1, 2), (278, 277, 555)),
    ],
)
def test_shares(limit, temperature, rates, expected):
    counts = dict(zip("abc", (1000, 100, 10), strict=True))
    rates = dict(zip("abc", rates, strict=True))
    assert tuple(mixtures.sizes(counts, rates, limit, temperature).values()) == expected


def test_a_task_is_read_whole_before_it_begins_again():
    tasks = [np.arange(7), np.arange(7, 10)]
    order = mixtures.Order(tasks, sizes=[3, 5])
    epochs = [order(0, epoch) for epoch in range(21)]
    assert order.num_rows == 8 == len(epochs[0])
    for rows, size in zip(tasks, (3, 5), strict=True):
        read = np.concatenate([epoch[np.isin(epoch, rows)] for epoch in epochs])
        assert len(read) == 21 * size
        assert set(np.bincount(read)[rows]) == {21 * size // len(rows)}
    first = np.concatenate([epoch[epoch < 7] for epoch in epochs[:2]])
    assert len(set(first)) == 6, "no row of the first pass twice"
    assert not np.array_equal(epochs[0], order(1, 0)) and np.array_equal(epochs[5], order(0, 5))


def test_options_that_a_mixture_does_not_have():
    for option in ({"answer": "choose"}, {"task": "cola"}, {"limit": -1}, {"temperature": 0.5}):
        (name,) = option
        with pytest.raises(errors.UserError, match=f"kind.{name}"):
            mixture.Config(**option)


# One model


def test_one_model_learns_all_tasks(root, tmp_path):
    keys = {"model": root / "model", "num_epochs": 1, "batch_size": 8, "learning_rates": 1e-3}
    keys |= {"kind.max_target_length": 8, "kind.temperature": 1e9}
    config = recipe.make("mixture", root / "tasks.json", {}, {k: str(v) for k, v in keys.items()})
    told = []
    done = run.finetune(config, tmp_path / "out", told.append)
    header = " ".join(" ".join(told).split())
    assert "animals 50% (0.67 passes an epoch), pairs 50% (2 passes an epoch)" in header
    scores = done.report["splits"]["dev"]
    parts = [scores[f"average/{name}"]["mean"] for name in ("animals accuracy", "pairs bleu")]
    assert scores["average"]["mean"] == pytest.approx(np.mean(parts))
    assert "| dev | average/pairs bleu |" in (tmp_path / "out" / "report.md").read_text()

    lines = (tmp_path / "out" / "predictions" / "dev.jsonl").read_text().splitlines()
    stored = [json.loads(line) for line in lines]
    assert [line["example"]["task"] for line in stored] == ["animals"] * 6 + ["pairs"] * 4
    model = bertjax.load(tmp_path / "out")
    assert model.task_type.labels == ("animals/cat", "animals/dog")
    assert model.evaluate(f"{root}/tasks.json:dev") == pytest.approx(
        {name: summary["mean"] for name, summary in scores.items()}
    )
    text = stored[0]["example"]["example"]["texts"][0]
    sources = [f"animals sentence: {text}", "say: cat 0"]
    predicted = [prediction["text"] for prediction in model.predict(sources)]
    assert predicted == [stored[0]["prediction"]["text"], stored[6]["prediction"]["text"]]
    with pytest.raises(errors.UserError, match=r"tasks.json: is the list of a mixture"):
        model.evaluate(root / "tasks.json")
