"""benchmarks/gpu: its CPU form through the front door, at toy size."""

import json
import subprocess
import sys

import pytest

from benchmarks import gpu, train_step_cases
from bertjax import config as config_lib
from bertjax import errors
from tests.helpers import children, corpora

CPU = ("--device=cpu", "--smoke", "--models=bert_large:2x16")


def test_a_case_at_toy_size_is_run_once(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    args = [f"--output={tmp_path}", *CPU]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *args, "--rounds=2", "--seconds=0.01"],
        check=True, cwd=corpora.ROOT, env=children.environment(), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    rows = json.loads((tmp_path / "bert_large-2x16.json").read_text())["rows"]
    assert [row["contender"] for row in rows] == ["ours", "eager"]
    assert all(row["less_work"] == (row["contender"] == "ours") for row in rows)
    assert rows[0]["ratio"] > 0 and 0 < rows[0]["of_peak"] < 1
    text = (tmp_path / "table.md").read_text()
    assert text.count("| bert_large:2x16 |") == 2 and "float32" in text

    (tmp_path / "table.md").unlink()
    assert gpu.main(args) == 0
    assert (tmp_path / "table.md").read_text() == text, "finished cases only"
    assert capsys.readouterr().err == ""


def test_no_case_begins_without_time(tmp_path, capsys):
    assert gpu.main([f"--output={tmp_path}", *CPU, "--minutes=0"]) == 0
    assert "run the same command again" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["table.md"]


def test_a_cpu_has_no_kernel(tmp_path):
    with pytest.raises(errors.UserError, match="contenders = 'kernel': must be one of ours, eager"):
        gpu.main([f"--output={tmp_path}", *CPU, "--contenders=kernel"])


@pytest.mark.parametrize("name", gpu.MODELS)
def test_the_kernel_computes_all_cases_without_a_bias(name):
    case = train_step_cases.parse(name, attention_dropout=False)
    config = train_step_cases.config(case, "bfloat16")
    config.attention = "cudnn"
    if train_step_cases.has_kernel(case):
        config_lib.validate(config)
    else:
        with pytest.raises(errors.UserError, match=r"config\.attention = 'cudnn'"):
            config_lib.validate(config)
