"""A model from labelled files to Hugging Face, by the commands alone: the same answers there."""

import json

import pytest

from bertjax import __main__ as command_line
from bertjax.artifact import huggingface
from tests.helpers import downstream, encoders, toy_tasks

LONG = "the dog ran home and saw the cat on the mat and made many words"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = toy_tasks.toys(tmp_path_factory.mktemp("export"), train=40, others=16)
    words = ("finetune", "--task=classification", f"--model={root / 'model'}", f"--data={root}")
    keys = ("max_length=12", "batch_size=8", "num_epochs=1", "strategy.layers_per_epoch=1")
    flags = (f"--output={root / 'out'}", "--lr=1e-2", "--strategy=gradual")
    assert command_line.main([*words, *flags, *(f"--config.{key}" for key in keys)]) == 0
    words = ("export", f"--model={root / 'out'}", "--format=hf", f"--output={root / 'hf'}")
    assert command_line.main(list(words)) == 0
    return root


def test_the_report_tells_what_moves_and_what_never_does(root):
    report = json.loads((root / "out" / "report.json").read_text())
    assert any("the embeddings are never trained" in line for line in report["warnings"])
    counts = report["parameters"]
    said = f"Strategy gradual: {counts['trained']:,} of {counts['total']:,} parameters are trained"
    table = (root / "out" / "report.md").read_text()
    assert said in table and " MB. Examples: 40 train" in table


@pytest.mark.proof
def test_transformers_reads_as_much_of_a_text_and_says_the_same(root, capsys):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(root / "hf")
    inputs = tokenizer(LONG, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, 12)
    with torch.no_grad():
        found = model(**inputs).logits.softmax(-1)[0]
    theirs = {model.config.id2label[i]: float(p) for i, p in enumerate(found)}
    (root / "long.txt").write_text(LONG + "\n")
    for name in ("out", "hf"):
        capsys.readouterr()
        words = ["predict", f"--model={root / name}", f"--data={root / 'long.txt'}"]
        assert command_line.main(words) == 0
        captured = capsys.readouterr()
        assert "1 of 1 inputs are cut: " in captured.err and "at most 12 tokens" in captured.err
        ours = json.loads(captured.out)["prediction"]["probabilities"]
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.proof
def test_a_modernbert_with_the_mean_keeps_it_to_the_end(tmp_path, capsys):
    """From a folder of Hugging Face that says so, through fine-tuning, to another one."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source = downstream.soft(
        encoders.make_artifact("modernbert", "bpe", classifier_pooling="mean", num_layers=2)
    )
    huggingface.write(source, tmp_path / "base")
    toy_tasks.sentences(tmp_path, train=16, others=8)
    words = ["finetune", "--task=classification", f"--model={tmp_path / 'base'}", "--lr=1e-2",
             f"--data={tmp_path}", f"--output={tmp_path / 'out'}", "--config.num_epochs=1",
             "--config.batch_size=8"]  # fmt: skip
    assert command_line.main(words) == 0
    words = ["export", f"--model={tmp_path / 'out'}", f"--output={tmp_path / 'hf'}"]
    assert command_line.main(words) == 0
    assert json.loads((tmp_path / "hf/config.json").read_text())["classifier_pooling"] == "mean"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        found = model(**tokenizer("the dog ran home", return_tensors="pt")).logits.softmax(-1)[0]
    theirs = {model.config.id2label[i]: float(p) for i, p in enumerate(found)}
    (tmp_path / "text.txt").write_text("the dog ran home\n")
    for name in ("out", "hf"):
        capsys.readouterr()
        words = ["predict", f"--model={tmp_path / name}", f"--data={tmp_path / 'text.txt'}"]
        assert command_line.main(words) == 0
        ours = json.loads(capsys.readouterr().out)["prediction"]["probabilities"]
        assert ours == pytest.approx(theirs, abs=1e-5)
