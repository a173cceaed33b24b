"""Bad input through the front door: exit code 2, one line on stderr that names what is wrong.

What one module finds wrong in its own input is tested with that module; here the command runs.
"""

import io
import json
import shutil
import sys

import pytest

from bertjax import __main__ as cli
from bertjax import errors
from bertjax.data.prepared import prepare, store
from tests.helpers import corpora

CONFIG = "configs/bert_tiny.py:smoke"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("made"), count=60)


@pytest.fixture
def fails(capsys, monkeypatch):
    """Runs a command that must fail; returns its one line."""
    monkeypatch.chdir(corpora.ROOT)
    monkeypatch.delenv("BERTJAX_TRACEBACK", raising=False)

    def run(*argv: str) -> str:
        assert cli.main([str(word) for word in argv]) == errors.EXIT_BAD_INPUT
        lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert len(lines) == 1, lines
        assert lines[0].startswith("bertjax: error: ")
        return lines[0]

    return run


def _pretrain(made, tmp_path, *overrides):
    return ("pretrain", f"--config={CONFIG}", f"--workdir={tmp_path / 'run'}",
            f"--config.data.path={made / 'prepared'}", *overrides)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("missing.jsonl", None, "missing.jsonl"),
        ("empty.jsonl", b"", "empty.jsonl"),
        ("bad.jsonl", b'{"text": "One good line."}\n{"text": oops}\n', "line 2"),
        ("field.jsonl", b'{"body": "No text here."}\n', "text"),
        ("latin.txt", "caf\u00e9".encode("latin-1"), "UTF-8"),
    ],
)
def test_corpus(made, tmp_path, fails, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    line = fails("prepare", f"--input={tmp_path / name}", f"--tokenizer={made / 'tokenizer'}",
                 f"--output={tmp_path / 'out'}", "--workers=1")  # fmt: skip
    assert name in line and expected in line
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("--config.optimizer.learning_rat=1", "did you mean optimizer.learning_rate"),
        ("--config.batch_size=many", "config.batch_size = 'many': must be of type int"),
        ("--config.model.num_heads=3", "num_heads = 3: must be a divisor of"),
        ("--config.data.length=100", "config.data.length = 100: must be between"),
        ("--config.batch_size=12", "config.batch_size = 12: must be a multiple"),
        ("--config.mesh=data:3", "the product of its sizes must be"),
        ("--config.model.vocab_size=50", "more than config.model.vocab_size = 50"),
        ("--config.objective.pair=maybe", "one of nsp, sop, none"),
        ("--config.objective.mask_rate=2", "mask_rate"),
        ("--config.num_steps=9000000000000000000", "config.num_steps = 9000000000000000000: must"),
        ("--config.batch_size=100000000000", "config.batch_size = 100000000000: must be 16,777"),
        ("--config.model.num_layers=1000000", "num_layers = 1000000: must be 4,096 or less"),
        ("--config.data.path=", "config.data.path is not set"),
        ("--config.data.path=/nowhere", "/nowhere"),
        ("--config.init_from=/nowhere", "/nowhere"),
    ],
)
def test_config(made, tmp_path, fails, override, expected):
    assert expected in fails(*_pretrain(made, tmp_path, override))


@pytest.mark.parametrize("change", ["del config.batch_size", "config.num_steps = None"])
def test_config_file_without_a_value(tmp_path, fails, change):
    file = tmp_path / "own.py"
    file.write_text(
        "from bertjax import config as config_lib\n\n\ndef get_config(arg=''):\n"
        f"    config = config_lib.default('bert', 'tiny')\n    with config.unlocked():\n"
        f"        {change}\n    return config\n"
    )
    line = fails("pretrain", f"--config={file}", f"--workdir={tmp_path / 'run'}")
    assert change.split("config.")[1].split()[0] in line and "must be" in line


def test_an_empty_output_is_refused(fails):
    assert "--workdir= is empty" in fails("pretrain", f"--config={CONFIG}", "--workdir=")
    assert "--output= is empty" in fails("export", "--model=run", "--output=", "--format=hf")


def test_config_file(tmp_path, fails):
    line = fails("pretrain", "--config=nothing.py", "--workdir=w")
    assert "the file nothing.py does not exist" in line
    assert "smoke" in fails("pretrain", "--config=configs/bert_tiny.py:big", "--workdir=w")


def test_corrupt_shard(made, tmp_path, fails):
    shutil.copytree(made / "prepared", tmp_path / "prepared")
    shard = next((tmp_path / "prepared").glob("train-*"))
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    line = fails("pretrain", f"--config={CONFIG}", f"--workdir={tmp_path / 'run'}",
                 f"--config.data.path={tmp_path / 'prepared'}")  # fmt: skip
    assert shard.name in line


def test_another_tokenizer_in_prepared_data(made, tmp_path, fails):
    shutil.copytree(made / "prepared", tmp_path / "prepared")
    for file in (tmp_path / "prepared" / "tokenizer").iterdir():
        if file.name in ("vocab.txt", "tokenizer.json"):
            text = file.read_text()
            file.write_text(text.replace("the", "thy"))
    line = fails(*_pretrain(tmp_path, tmp_path))
    assert "not the tokenizer that the data was prepared with" in line


def test_nothing_held_out(made, tmp_path, fails):
    whole = tmp_path / "whole"
    prepare.prepare([str(made / "corpus.jsonl")], str(made / "tokenizer"), str(whole),
                    workers=1, heldout_fraction=0)  # fmt: skip
    line = fails("pretrain", f"--config={CONFIG}", f"--workdir={tmp_path / 'run'}",
                 f"--config.data.path={whole}")  # fmt: skip
    assert "has no held-out documents" in line and "config.data.heldout_path" in line
    assert store.open_heldout(whole).split == "train"


def test_model_that_is_none(made, tmp_path, fails):
    assert "not found" in fails("predict", f"--model={tmp_path / 'no'}", "--text=a [MASK]")
    assert "contains no model" in fails("export", f"--model={made}", f"--output={tmp_path / 'o'}")


def test_unfinished_preparation(made, tmp_path, fails):
    shutil.copytree(made / "prepared", tmp_path / "prepared")
    (tmp_path / "prepared" / "manifest.json").unlink()
    line = fails(*_pretrain(tmp_path, tmp_path))
    assert "manifest.json" in line and "prepare" in line


def test_damaged_workdir_config(made, tmp_path, fails):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"format": "other"}))
    assert "its format must be bertjax-workdir" in fails(*_pretrain(made, tmp_path))


def test_unknown_verb_and_flag(capsys):
    assert cli.main(["trian"]) == 2
    assert "unknown command 'trian'" in capsys.readouterr().err
    assert cli.main(["prepare", "--inputs=x", "--input=a", "--tokenizer=b", "--output=c"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertjax: error: unknown flag --inputs=x; did you mean --input?")
    assert cli.main(["fine-tune"]) == 2
    assert "unknown command 'fine-tune'; did you mean finetune?" in capsys.readouterr().err


def test_what_is_printed_is_utf_8_and_json_whatever_the_texts(monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "argv", ["bertjax", "--help"])
    assert cli.main() == 0
    print(json.dumps("caf\u00e9 \ud83d", ensure_ascii=False), flush=True)  # half of a character
    said = shown.buffer.getvalue().decode().splitlines()[-1]
    assert said == '"caf\u00e9 \\ud83d"' and json.loads(said) == "caf\u00e9 \ud83d"
    monkeypatch.setattr(sys, "stdout", None)  # closed
    assert cli.main() == 0
