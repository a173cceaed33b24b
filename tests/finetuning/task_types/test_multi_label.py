"""Any number of labels for a text: files, rows, losses, thresholds, scores, and the front door."""

import dataclasses
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.artifact import huggingface
from bertjax.finetuning import data_warnings, initial_model, rows, run, tasks
from bertjax.finetuning.examples import splits
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import multi_label
from tests.helpers import task_types, tiny_model, toy_tasks
from tests.helpers.task_types import bind

CONFIG = multi_label.Config()
LABELS = ["cat", "dog", "rare"]


def sentence(text, *labels):
    return examples_lib.Sentence((text,), labels, where="train.tsv:2")


def typed(labels=LABELS, **options):
    return bind(
        multi_label, multi_label.Config(**options), labels,
        tokenizer=tiny_model.tokenizer(), lengths=rows.Lengths(24),
    )  # fmt: skip


# Files


@pytest.mark.parametrize(
    ("name", "lines", "labels"),
    [
        ("a.jsonl", ['{"text": "x", "labels": ["b, c", "a", "a"]}', '{"text": "y", "labels": []}'],
         [("b, c", "a"), ()]),
        ("a.jsonl", ['{"text": "x", "label": ["a"]}', '{"text": "y", "label": 3}'],
         [("a",), ("3",)]),
        ("a.jsonl", ['{"text": "x"}', '{"text": "y", "labels": null}'], [None, None]),
        ("a.tsv", ["text\tlabels", "x\tb, a", "y\t"], [("b", "a"), ()]),
        ("a.tsv", ["sentence1\tsentence2\tlabel", "x\tz\ta", "y\tz\t "], [("a",), ()]),
        ("a.tsv", ["text\tother", "x\ta", "y\tb"], [None, None]),
    ],
)  # fmt: skip
def test_files_hold_several_labels_or_none(tmp_path, name, lines, labels):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    found = tasks.read(tasks.find("multi_label"), str(tmp_path / name), "test")
    assert [example.label for example in found] == labels
    labelled = [label is not None for label in labels]
    assert [example.is_labelled() for example in found] == labelled


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["text\tlabels", "x\ta,,b"], "a.tsv:2: an empty label in 'a,,b'; commas"),
        (["text\tother", "x\ta"], "a.tsv:2: has no 'labels'; its columns are 'text', 'other'; "),
        (['{"text": "x", "labels": [1.5]}'], "a.jsonl:1: label 1.5 is neither a name nor"),
        (['{"text": "x", "labels": {"a": 1}}'], "a.jsonl:1: label .* is neither a name nor"),
    ],
)
def test_bad_files_are_named(tmp_path, lines, says):
    name = "a.jsonl" if lines[0].startswith("{") else "a.tsv"
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    with pytest.raises(errors.UserError, match=says):
        tasks.read(tasks.find("multi_label"), str(tmp_path / name), "train")


def test_it_has_no_text_form():
    with pytest.raises(errors.UserError, match="multi_label has no text-to-text form"):
        tasks.find("multi_label:text_to_text")


# Splits and warnings


def _many():
    found = [sentence(f"text {i}", "often", *["also"] * (i % 2)) for i in range(60)]
    found += [sentence("rare text", "often", "also", "once"), sentence("bare")]
    return found


def test_a_held_out_part_leaves_every_label_in_train():
    train, dev = splits.held_out(_many(), 0.5)
    assert {name for e in train for name in e.class_names()} == {"often", "also", "once"}
    assert len(dev) > 20


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_a_sample_has_every_label_if_it_can(count):
    chosen = splits.sample(_many(), count)
    assert len(chosen) == count
    names = {name for e in chosen for name in e.class_names()}
    assert names == {"often", "also", "once"}


def test_a_sample_has_labels_that_are_never_the_rarest():
    """Each example with "b" also has a rarer label, and other examples have those too."""
    examples = [sentence(f"{i} {x}", x) for i in range(2) for x in ("p", "q")]
    examples += [sentence("p b", "p", "b")] * 3 + [sentence("q b", "q", "b")] * 6
    for shift in range(len(examples)):
        turned = examples[shift:] + examples[:shift]
        names = {name for e in splits.sample(turned, 3) for name in e.class_names()}
        assert names == {"p", "q", "b"}


def test_labels_that_train_lacks_are_named():
    (found,) = data_warnings.labels(_many()[:60], ["often", "also", "never"])
    assert "1 of 3 labels" in found and "'never'" in found
    (same,) = data_warnings.results({}, 1.0, [{"labels": []}, {"labels": []}])
    assert "every prediction on dev is '[]'" in same


# Rows and losses


def test_labels_are_in_order_and_in_rows():
    examples = [sentence("the cat", "10", "2"), sentence("a dog"), sentence("x", "b")]
    examples.append(examples_lib.Sentence(("a mat",)))
    labels = bind(multi_label, CONFIG).label_names(examples)
    assert labels == ["2", "10", "b"]
    encoded = typed(labels).encode(examples)
    targets = [row["label"].tolist() for row in encoded.rows]
    assert targets == [[1, 1, 0], [0] * 3, [0, 0, 1], [0] * 3]
    assert [row["label_weight"].item() for row in encoded.rows] == [1, 1, 1, 0]


def test_bad_examples_are_named():
    says = "train.tsv:2: label 'cow' is not one of the labels of the training data .cat, dog, rare"
    with pytest.raises(errors.UserError, match=says):
        typed().encode([sentence("a", "cat", "cow")])
    with pytest.raises(errors.UserError, match="task: the training data has no label"):
        typed([]).encode([sentence("a")])
    with pytest.raises(errors.UserError, match=r"thresholds = .* or 3 numbers, one for each"):
        typed(thresholds=(0.5,)).encode([sentence("a")])
    with pytest.raises(errors.UserError, match=r"config\.kind\.threshold = 2"):
        multi_label.Config(threshold=2)


def test_the_loss_is_the_mean_binary_cross_entropy_in_float32():
    logits = np.array([[2.0, -1.0], [0.5, 30.0], [9.0, 9.0]], np.float32)
    targets = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    batch = {"label": targets, "label_weight": [1.0, 1, 1], "example_weights": [1.0, 1, 0]}
    batch = {name: jnp.array(value, jnp.float32) for name, value in batch.items()}
    for dtype in (jnp.float32, jnp.bfloat16):

        def apply(dtype=dtype, **inputs):
            return {"class_logits": jnp.array(logits, dtype)}

        found = typed(["a", "b"]).loss(apply, batch)
        p = 1 / (1 + np.exp(-logits.astype(float)))
        expected = -np.log(np.where(targets == 1, p, 1 - p))[:2].mean(axis=1).sum()
        total, weight = found["label_loss"]
        assert total.dtype == jnp.float32 and float(total) == pytest.approx(expected, rel=1e-5)
        assert float(weight) == 2.0 == float(typed().normalizers(batch)["label_loss"])
        scores = typed(["a", "b"]).outputs(apply, batch)["scores"]
        assert scores.dtype == jnp.float32
        np.testing.assert_allclose(scores, p, rtol=1e-5)


def test_a_new_head_starts_at_the_share_of_one_label():
    task_type = typed([f"l{i}" for i in range(39)])
    found = initial_model.model(
        tiny_model.make(), ("classifier",), {"num_labels": 39}, jax.random.key(0),
        output_bias=task_type.output_bias(),
    )[2]  # fmt: skip
    bias = found["classifier"]["logits"]["bias"]
    np.testing.assert_allclose(1 / (1 + np.exp(-bias)), np.full(39, 1 / 39), rtol=1e-5)
    assert typed(["a"]).output_bias() == 0.0


@pytest.mark.proof
def test_a_model_learns_labels():
    words = ("cat", "dog")
    examples = [
        sentence(f"{a} mat {b}", *(word for word in words if word in (a, b)))
        for a in ("the", *words) for b in ("home", *words)
    ]  # fmt: skip
    encoded = typed(words).encode(examples)
    batch = task_types.batch_of(multi_label, CONFIG, encoded)
    model, params = task_types.make(multi_label, CONFIG, words)
    fitted, losses = task_types.fit(multi_label, CONFIG, model, params, batch)
    assert losses[0] > 0.4 and losses[-1] < 0.1
    outputs = task_types.outputs_of(multi_label, CONFIG, model, fitted, batch)
    predictions = typed(words).decode(examples, encoded, outputs)
    assert typed(words).scores(examples, predictions)["subset_accuracy"] == 100.0
    assert typed(words).scores(examples, [{"labels": []}] * 9)["micro_f1"] == 0.0


# Thresholds, predictions and scores


def _best_by_trial(scores, targets):
    """Returns the best F1 of all thresholds between the scores, by counting."""
    ends = np.unique([0.0, *scores, 1.0])
    found = []
    for threshold in (ends[:-1] + ends[1:]) / 2:
        above = scores > threshold
        found.append(2 * (above & targets).sum() / (above.sum() + targets.sum()))
    return max(found)


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_has_the_best_f1(seed):
    draw = np.random.default_rng(seed)
    targets = draw.random(30) < draw.random()
    targets[0] = True
    scores = np.round(np.clip(0.3 * targets + 0.7 * draw.random(30), 0, 1), 1).astype(np.float32)
    threshold = multi_label.best_threshold(scores, targets, 0.5)
    above = scores > threshold
    f1 = 2 * (above & targets).sum() / (above.sum() + targets.sum())
    assert f1 == pytest.approx(_best_by_trial(scores, targets))


def test_of_equal_thresholds_the_nearest_to_the_usual_one_is_taken():
    scores = np.array([0.9, 0.8, 0.2, 0.1], np.float32)
    targets = np.array([True, True, False, False])
    assert multi_label.best_threshold(scores, targets, 0.5) == pytest.approx(0.5)
    assert multi_label.best_threshold(scores, ~targets, 0.5) == pytest.approx(0.05)
    assert multi_label.best_threshold(scores, targets[[0, 2, 1, 3]], 0.5) == pytest.approx(0.15)


def test_rare_labels_keep_the_usual_threshold():
    count = multi_label.RARE
    examples = [sentence("a", "cat", *["dog"] * (i > 0)) for i in range(count)]
    examples += [sentence("b"), examples_lib.Sentence(("c",))]
    scores = np.full((count + 2, 3), 0.2, np.float32)
    scores[count:] = 0.1
    task_type = typed()
    found = task_type.decode(examples, None, {"scores": scores})
    tuned = task_type.tuned(examples, found, {"scores": scores})
    assert tuned.config.thresholds == pytest.approx((0.15, 0.5, 0.5))  # 10, 9 and 0 examples
    assert tuned.decode(examples, None, {"scores": scores})[0]["labels"] == ["cat"]
    fixed = typed(tune_thresholds=False, threshold=0.15)
    assert fixed.tuned(examples, found, {"scores": scores}) == fixed
    assert fixed.decode(examples, None, {"scores": scores})[0]["labels"] == LABELS
    assert typed().report_notes() and not fixed.report_notes()


def test_predictions_are_best_first():
    labels = [f"l{i}" for i in range(12)]
    scores = np.linspace(0.0, 0.9, 12, dtype=np.float32)[None]
    (found,) = typed(labels).decode([sentence("a")], None, {"scores": scores})
    assert found["labels"] == ["l11", "l10", "l9", "l8", "l7"]
    assert list(found["probabilities"]) == labels[:1:-1]
    assert json.loads(json.dumps(found)) == found
    assert typed(labels).lines(found, 2) == ["l11, l10, l9, l8, l7", "l11 0.900   l10 0.818"]
    assert typed().lines({"labels": [], "probabilities": {}}, 2)[0] == "(no label)"


def test_scores_of_labels():
    examples = [sentence("a", "cat"), sentence("b", "cat", "dog"), sentence("c")]
    examples.append(examples_lib.Sentence(("d",)))
    predictions = [{"labels": x} for x in (["cat"], ["dog", "rare"], [], ["rare"])]
    found = typed().scores(examples, predictions)
    assert found == pytest.approx({
        "micro_f1": 200 / 3, "macro_f1": 100 * (2 / 3 + 1 + 0) / 3, "subset_accuracy": 200 / 3,
        "micro_precision": 200 / 3, "micro_recall": 200 / 3,
    })  # fmt: skip
    each = [typed().scores(examples[i : i + 1], predictions[i : i + 1]) for i in (0, 2, 3)]
    assert each.pop() == {} and [found["macro_f1"] for found in each] == [100, 0]
    examples = [sentence("a", "cat"), sentence("b"), sentence("c")]
    one = typed(["cat"]).scores(examples, [{"labels": x} for x in (["cat"], ["cat"], [])])
    assert one["micro_f1"] == one["macro_f1"] == pytest.approx(200 / 3)


# The front door


def _write(folder, train=160, dev=60):
    """Writes train.jsonl, dev.tsv and a test.tsv without labels: the animals in each text."""
    lines = {}
    for seed, (split, count) in enumerate((("train", train), ("dev", dev), ("test", 8))):
        draw, lines[split] = random.Random(seed), []
        for _ in range(count):
            animals = draw.sample(["cat", "dog"], draw.randrange(3))
            others = draw.choices(toy_tasks.WORDS, k=3)
            text = " ".join(word for other in others for word in (*animals, other))
            lines[split].append((text, animals))
    records = [json.dumps({"text": text, "labels": animals}) for text, animals in lines["train"]]
    (folder / "train.jsonl").write_text("\n".join(records) + "\n")
    table = ["text\tlabels", *(f"{text}\t{','.join(animals)}" for text, animals in lines["dev"])]
    (folder / "dev.tsv").write_text("\n".join(table) + "\n")
    (folder / "test.tsv").write_text("\n".join(["text", *(t for t, _ in lines["test"])]) + "\n")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = _write(tmp_path_factory.mktemp("multi_label"))
    config = toy_tasks.config("multi_label", toy_tasks.model(folder), folder)
    run.finetune(config, folder / "out")
    return folder


def test_files_become_a_model(root, capsys):
    report = json.loads((root / "out" / "report.json").read_text())
    assert report["labels"] == ["cat", "dog"] and report["metrics"][0] == "micro_f1"
    assert report["splits"]["dev"]["micro_f1"]["mean"] > 95.0
    assert "examples or more on dev is tuned there" in (root / "out" / "report.md").read_text()
    model = bertjax.load(root / "out")
    thresholds = model.source.task["config"]["thresholds"]
    assert len(thresholds) == 2 and model.task_type.config.thresholds == tuple(thresholds)
    assert set(model.predict("cat dog on cat dog mat")["labels"]) == {"cat", "dog"}
    found = model.evaluate(root / "dev.tsv")
    assert found["micro_f1"] == pytest.approx(report["splits"]["dev"]["micro_f1"]["mean"])
    stored = (root / "out" / "predictions" / "dev.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line)["example"]["label"], list) for line in stored)
    words = ["predict", f"--model={root / 'out'}", f"--data={root / 'test.tsv'}"]
    capsys.readouterr()
    assert command_line.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and all("labels" in json.loads(line)["prediction"] for line in lines)
    words = ["predict", f"--model={root / 'out'}", "--text=dog ran dog home dog mat"]
    assert command_line.main(words) == 0
    assert "  dog\n  dog 0." in capsys.readouterr().out


def test_a_finished_run_is_found_again(root, capsys):
    config = toy_tasks.config("multi_label", root / "model", root)
    run.finetune(config, root / "out")
    assert "stops at" not in capsys.readouterr().err


def test_unknown_labels_are_named_with_their_line(root, tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tlabels\nthe cat\tcat,cow\n")
    with pytest.raises(errors.UserError, match=r"dev\.tsv:2: label 'cow' is not one of the labels"):
        bertjax.load(root / "out").evaluate(tmp_path / "dev.tsv")


@pytest.mark.proof
@pytest.mark.parametrize("strategy", ["features", "lora"])
def test_strategies(root, tmp_path, strategy):
    values = {"strategy__name": strategy, "num_epochs": 2}
    config = toy_tasks.config("multi_label", root / "model", root, **values)
    done = run.finetune(config, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    found = done.model.evaluate(root / "dev.tsv")
    assert found["micro_f1"] == pytest.approx(stored["splits"]["dev"]["micro_f1"]["mean"])


# Folders of transformers


@pytest.fixture(scope="module")
def folder(root):
    words = ["export", f"--model={root / 'out'}", "--format=hf", f"--output={root / 'hf'}"]
    assert command_line.main(words) == 0
    return root / "hf"


def test_a_folder_comes_back_with_its_thresholds(root, folder):
    content = json.loads((folder / "config.json").read_text())
    assert content["problem_type"] == "multi_label_classification"
    assert content["id2label"] == {"0": "cat", "1": "dog"}
    assert huggingface.read(folder).task == bertjax.load(root / "out").source.task


def test_a_foreign_folder_has_the_usual_thresholds(root, folder):
    model = dataclasses.replace(bertjax.load(root / "out").source, objective=None)
    huggingface.write(model, root / "foreign")
    content = json.loads((root / "foreign" / "config.json").read_text())
    del content["bertjax"]
    content.pop("checksum", None)
    (root / "foreign" / "config.json").write_text(json.dumps(content))
    loaded = bertjax.load(root / "foreign")
    assert loaded.task.name == "multi_label" and loaded.task_type.config == multi_label.Config()
    ours = bertjax.load(root / "out").predict("the cat ran")["probabilities"]
    assert loaded.predict("the cat ran")["probabilities"] == pytest.approx(ours, abs=1e-6)


@pytest.mark.proof
def test_transformers_says_the_same(root, folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    model, texts = bertjax.load(root / "out"), ["the cat ran home", "a dog and a cat", "on the mat"]
    for text, prediction in zip(texts, model.predict(texts), strict=True):
        with torch.no_grad():
            logits = theirs(**tokenizer(text, return_tensors="pt")).logits[0].numpy()
        encoded = model.task_type.encode([model.example(text)])
        ((_, batch),) = model.task_type.batches(encoded, 1).in_order()
        ours = jax.device_get(model.model.apply(
            {"params": model.params}, deterministic=True,
            **{k: batch[k] for k in rows.INPUTS if k in batch},
        ))["class_logits"][0]  # fmt: skip
        np.testing.assert_allclose(logits, ours, atol=1e-4)
        pipeline = transformers.pipeline("text-classification", theirs, tokenizer=tokenizer)
        scores = {each["label"]: each["score"] for each in pipeline(text, top_k=None)}
        assert prediction["probabilities"] == pytest.approx(scores, abs=1e-5)
