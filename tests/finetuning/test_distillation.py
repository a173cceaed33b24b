"""A student learns from a fine-tuned teacher, also on texts without labels."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.artifact import loading
from bertjax.finetuning import initial_model, output_folder, recipe
from bertjax.finetuning.task_types import classification, multi_label
from tests.helpers import task_types, tiny_model, toy_tasks

QUICK = (
    "--lr=1e-2", "--config.max_length=40", "--config.batch_size=8", "--config.num_epochs=4",
    "--config.dropout_rate=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """model/, teacher/ fine-tuned on train.tsv, wrong.tsv with the labels exchanged, texts.txt."""
    root = toy_tasks.toys(tmp_path_factory.mktemp("distillation"))
    words = ["finetune", f"--model={root / 'model'}", "--task=classification", f"--data={root}"]
    assert command_line.main([*words, f"--output={root / 'teacher'}", *QUICK]) == 0
    lines = [line.split("\t") for line in (root / "train.tsv").read_text().splitlines()[1:]]
    texts = [text for text, _ in lines]
    (root / "texts.txt").write_text("\n".join(texts) + "\n")
    other = {"cat": "dog", "dog": "cat"}
    wrong = [f"{text}\t{other[label]}" for text, label in lines[:8]]
    (root / "wrong.tsv").write_text("\n".join(["sentence\tlabel", *wrong]) + "\n")
    return root


def test_a_student_follows_its_teacher_on_texts_without_labels(root, capsys):
    """The few labels that it has are wrong, and weigh nothing."""
    words = (
        "finetune", f"--model={root / 'model'}", "--task=classification",
        f"--train={root / 'wrong.tsv'}", f"--dev={root / 'dev.tsv'}",
        f"--config.teacher={root / 'teacher'}", "--config.teacher_weight=1",
        f"--config.data.unlabelled={root / 'texts.txt'}", f"--output={root / 'student'}", *QUICK,
        "--config.measure_speed=True",
    )  # fmt: skip
    assert command_line.main(words) == 0
    report = json.loads((root / "student" / "report.json").read_text())
    assert report["examples"] == {"train": 8, "dev": 24, "unlabelled": 120}
    assert report["steps"] == 4 * (128 // 8)
    assert report["splits"]["dev"]["accuracy"]["mean"] > 90
    assert not (root / "student" / "predictions" / "unlabelled.jsonl").exists()
    printed = capsys.readouterr()
    assert "unlabelled 120" in printed.err and " ms for a text of " in printed.out
    assert report["speed"]["bytes"] >= 4 * report["speed"]["parameters"] > 0
    assert report["speed"]["latency_ms"] > 0 and report["speed"]["texts_per_second"] > 0


def test_what_cannot_teach_is_refused_in_a_line(root, tmp_path, capsys):
    lines = [f"fish {i}\tfish\ncat {i}\tcat\n" for i in range(20)]
    (tmp_path / "fish.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    tags = [f"cat\tB-ANIMAL\nran{i}\tO\n\n" for i in range(20)]
    (tmp_path / "tags.conll").write_text("".join(tags))
    teacher = f"--config.teacher={root / 'teacher'}"
    files = {"fish": tmp_path / "fish.tsv", "train": root / "train.tsv",
             "ner": tmp_path / "tags.conll"}  # fmt: skip
    for task, train, flag, message in (
        ("classification", "fish", teacher, "does not know 'fish', labels of"),
        ("ner", "ner", teacher, "config.teacher cannot be used with --task=ner"),
        ("classification", "train", f"--config.teacher={root / 'model'}", "is not fine-tuned"),
        ("classification", "train", f"--config.data.unlabelled={root / 'texts.txt'}",
         "empty without config.teacher"),
        ("classification", "train", "--config.num_layers=2",
         "config.num_layers = 2: must be at most 1"),
    ):  # fmt: skip
        words = ["finetune", f"--model={root / 'model'}", f"--task={task}",
                 f"--train={files[train]}", f"--output={tmp_path / 'out'}", flag]  # fmt: skip
        assert command_line.main(words) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_of_an_earlier_version_is_resumed(root, tmp_path):
    """Its config lacks the keys that came later."""
    shutil.copytree(root / "teacher", tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    content = json.loads(file.read_text())
    for key in recipe.ADDED_KEYS:
        del content["config"][key]
    content.pop("checksum", None)
    file.write_text(json.dumps(content))
    source = loading.load(root / "model")
    values = {"evals_per_epoch": 1}
    config = toy_tasks.config("classification", root / "model", root, **values)
    config.learning_rates = (1e-2,)
    folder = output_folder.Folder(tmp_path / "out", config, source, {})
    assert folder.run(1e-2, 0) is not None
    config.num_layers = 1
    with pytest.raises(errors.UserError, match=r"num_layers = 1 \(there 0\)"):
        output_folder.Folder(tmp_path / "out", config, source, {})


def test_the_kept_layers_are_spread():
    source = tiny_model.make(num_layers=5)
    found = initial_model.shallower(source, 3)
    assert found.fields["num_layers"] == 3
    kernel = source.params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    np.testing.assert_array_equal(
        found.params["encoder"]["layers"]["mlp"]["wi"]["kernel"], kernel[[0, 2, 4]]
    )
    assert initial_model.shallower(source, 0) is source


def test_teacher_losses_are_divergences():
    labels, number = classification.Config(), classification.Config(regression=True)
    bind = task_types.bind
    teacher = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]], np.float32)
    student = np.array([[1.0, 1.0, 0.0], [0.5, 0.5, 0.5]], np.float32)
    outputs = {"class_logits": jnp.asarray(student)}
    found = bind(classification, labels, "abc").teacher_loss(outputs, teacher, 2.0)
    p, q = (np.exp(x / 2) / np.exp(x / 2).sum(-1, keepdims=True) for x in (teacher, student))
    np.testing.assert_allclose(found, 4 * (p * np.log(p / q)).sum(-1), atol=1e-6)
    assert found[1] == pytest.approx(0, abs=1e-6) and found[0] > 0.1
    found = bind(multi_label, multi_label.Config(), "abc").teacher_loss(outputs, teacher, 1.0)
    p, q = (1 / (1 + np.exp(-x.astype(np.float64))) for x in (teacher, student))
    expected = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean(-1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    found = bind(classification, number).teacher_loss(outputs, teacher[:, :1], 1.0)
    np.testing.assert_allclose(found, [1.0, 0.0])


def test_soft_targets_are_logits_again():
    """A softmax or a sigmoid of them gives the teacher's probabilities."""
    scores = np.array([[0.7, 0.2, 0.1]], np.float32)
    found = task_types.bind(classification, classification.Config(), "abc").soft_targets(
        {"scores": scores}
    )
    np.testing.assert_allclose(np.exp(found) / np.exp(found).sum(), scores, rtol=1e-5)
    found = task_types.bind(multi_label, multi_label.Config(), "abc").soft_targets(
        {"scores": np.array([[0.25, 1.0, 0.0]], np.float32)}
    )
    assert np.isfinite(found).all()
    np.testing.assert_allclose(1 / (1 + np.exp(-found[0, 0])), 0.25, rtol=1e-6)


