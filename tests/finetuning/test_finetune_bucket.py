"""Fine-tuning, export and import to gs://: the same files as in a local folder."""

import json
import os

import pytest
from etils import epath
from orbax.checkpoint._src.path import gcs_utils

from bertjax import __main__ as command_line
from bertjax import errors, files
from bertjax.artifact import artifact, loading
from tests.helpers import buckets, tiny_model, toy_tasks


@pytest.fixture
def root(tmp_path, monkeypatch):
    buckets.install(monkeypatch)
    # Orbax asks Google's own client, which knows only real buckets.
    monkeypatch.setattr(gcs_utils, "is_hierarchical_namespace_enabled", lambda path: False)
    return toy_tasks.toys(tmp_path, train=16, others=8)


def finetune(root, output):
    words = ["finetune", "--task=classification", f"--model={root / 'model'}", f"--data={root}"]
    keys = ("max_length=12", "batch_size=8", "num_epochs=1")
    flags = [f"--output={output}", "--lr=1e-2", "--strategy=lora"]
    return command_line.main([*words, *flags, *(f"--config.{key}" for key in keys)])


def names(folder):
    """Returns the paths of all files below a folder, without those of TensorBoard."""
    folder, found = epath.Path(folder), set()
    for path in folder.iterdir():
        if path.is_dir():
            found |= {f"{path.name}/{name}" for name in names(path)}
        elif "tfevents" not in path.name:
            found.add(path.name)
    return found


@pytest.mark.proof
def test_a_fine_tuning_writes_to_a_bucket_and_is_used_from_there(root, capsys):
    assert finetune(root, "gs://bucket/out") == 0
    tokenizer = ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
    assert names("gs://bucket/out") == {
        "config.json", "report.html", "report.json", "report.md", "scores.png",
        "predictions/dev.jsonl", "predictions/test.jsonl", "runs/lr0.01-seed0.json",
        "runs/lr0.01-seed0/metrics.jsonl",
        "artifact/config.json", "artifact/params.safetensors", "artifact/lora.safetensors",
        *(f"artifact/tokenizer/{name}" for name in tokenizer),
    }  # fmt: skip
    model = loading.load("gs://bucket/out")
    assert model.source == os.fspath(root / "model") and model.lora.rank == 8
    capsys.readouterr()
    assert finetune(root, "gs://bucket/out") == 0  # nothing is left to do
    captured = capsys.readouterr()
    assert "all are finished" in captured.err and "all results: gs://bucket/out" in captured.out
    words = ["export", "--model=gs://bucket/out", "--output=gs://bucket/adapter", "--format=peft"]
    assert command_line.main(words) == 0
    config = json.loads(epath.Path("gs://bucket/adapter/adapter_config.json").read_text())
    assert config["r"] == 8 and config["modules_to_save"] == ["classifier", "pooler"]
    card = epath.Path("gs://bucket/adapter/README.md").read_text()
    assert "| dev | accuracy |" in card and "| test | macro_f1 |" in card


def test_export_and_import_write_to_a_bucket(root, capsys):
    words = ["export", f"--model={root / 'model'}", "--output=gs://bucket/hf"]
    assert command_line.main(words) == 0
    assert command_line.main(words) == 0  # replaces the earlier export
    words = ["import", "--input=gs://bucket/hf", "--output=gs://bucket/artifact"]
    assert command_line.main(words) == 0
    first = loading.load(root / "model")
    tiny_model.assert_same_params(loading.load("gs://bucket/artifact").params, first.params)
    epath.Path("gs://bucket/artifact/notes.txt").write_text("mine")
    assert command_line.main(words) == errors.EXIT_BAD_INPUT
    assert "gs://bucket/artifact: contains notes.txt" in capsys.readouterr().err
    assert epath.Path("gs://bucket/artifact/notes.txt").read_text() == "mine"


def test_a_copy_that_dies_leaves_no_config(root, monkeypatch):
    model = tiny_model.make()
    artifact.write(model, "gs://bucket/artifact")
    whole = files.copy_up

    def dies(source, target):
        if source.suffix == ".safetensors":
            raise OSError("the network is gone")
        whole(source, target)

    monkeypatch.setattr(files, "copy_up", dies)
    with pytest.raises(OSError, match="the network is gone"):
        artifact.write(model, "gs://bucket/artifact")
    with pytest.raises(errors.UserError, match="contains no model"):
        loading.load("gs://bucket/artifact")
