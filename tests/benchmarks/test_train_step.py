"""benchmarks/train_step: its cases, its comparisons, and the front door at toy size."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import train_step, train_step_cases, train_step_flax
from bertjax import errors, experiment
from tests.helpers import children, corpora


@pytest.mark.parametrize("name", train_step_cases.SIZES)
def test_batches_have_the_features_of_the_objective(name):
    case = train_step_cases.parse(f"{name}:2x40", smoke=True)
    batch = train_step_cases.batch(case)
    run = experiment.Experiment(train_step_cases.config(case, "float32"), platform="cpu")
    features, flops = train_step_cases.parts(run)
    found = {key: (array.shape[1:], array.dtype) for key, array in batch.items()}
    assert found == {key: (shape, np.dtype(dtype)) for key, (shape, dtype) in features.items()}
    if not train_step_cases.can_predict_everywhere(case):
        return
    every = train_step_cases.at_every_position(batch)
    config = train_step_cases.config(case, "float32", every_position=True)
    features, more_flops = train_step_cases.parts(experiment.Experiment(config, platform="cpu"))
    assert {key: array.shape[1:] for key, array in every.items()} == {
        key: shape for key, (shape, _) in features.items()
    }
    assert more_flops > flops
    rows, positions = np.nonzero(every["masked_weights"])
    np.testing.assert_array_equal(positions.reshape(2, -1), batch["masked_positions"])
    np.testing.assert_array_equal(
        every["masked_ids"][rows, positions].reshape(2, -1), batch["masked_ids"]
    )


@pytest.mark.parametrize("text", ["roberta_base:2x8", "bert_none:2x8", "bert_tiny", "bert_tiny:2"])
def test_what_is_no_case_is_refused(text):
    with pytest.raises(errors.UserError):
        train_step_cases.parse(text)


def row(contender, seconds, matmul, **values):
    return {
        "case": "bert_mini:2x8", "dtype": "float32", "contender": contender, "less_work": False,
        "tokens_per_second": 16.0, "flops": 8e9, "seconds": seconds, "cpu_seconds": seconds,
        "memory": 2e6, "library": "x", "matmul": matmul, "compile_seconds": 1.0, **values,
    }  # fmt: skip


def test_ratios_are_of_turns_and_to_the_faster_pytorch_and_to_flax():
    rows = [
        row("ours", [1.0, 2.0, 4.0], 10e9), row("eager", [2.0, 6.0, 4.0], 16e9),
        row("compiled", [3.0, 9.0, 9.0], 5e9), row("ours", [1.0], 10e9, dtype="bfloat16"),
        row("flax", [3.0, 5.0, 12.0], 5e9),
    ]  # fmt: skip
    train_step.add_comparisons(rows)
    assert rows[0]["ratio"] == 2.0  # the median of 2, 3 and 1
    assert rows[0]["peak"] == 16e9 and rows[0]["of_peak"] == 0.25
    assert rows[0]["flax_ratio"] == 3.0  # the median of 3, 2.5 and 3
    assert not {"ratio", "flax_ratio"} & {*rows[1], *rows[3], *rows[4]}
    text = train_step.table(rows, "a machine")
    assert "peak 16 GFLOP/s in float32, 10 GFLOP/s in bfloat16" in text
    assert "| bert_mini:2x8 | float32 | ours | equal | 16 | 75% | 2.00 | 2.00 | 3.00 | 8 |" in text


@pytest.mark.parametrize("name", ["bert_mini", "t5_small", "gpt2_small"])
def test_the_flax_class_gets_the_same_tokens_to_predict(name):
    batch = train_step_cases.batch(train_step_cases.parse(f"{name}:2x40", smoke=True))
    inputs, labels, weights = train_step_flax.targets(batch)
    assert inputs.keys() <= batch.keys() and weights.shape == labels.shape
    if name == "bert_mini":
        np.testing.assert_array_equal(labels[weights > 0], batch["masked_ids"].ravel())
    else:
        assert labels is batch["targets"] and weights is batch["loss_weights"]


@pytest.mark.parametrize("name", train_step_cases.SIZES)
def test_transformers_has_the_same_model(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks import train_step_torch

    case = train_step_cases.parse(f"{name}:2x40", smoke=True)
    model = train_step_torch.build(train_step_cases.transformers_configs(case))
    inputs = train_step_torch.arguments(train_step_cases.batch(case), model)
    torch.manual_seed(0)
    outputs = model(**inputs)
    loss = outputs if isinstance(model, train_step_torch.Pair) else outputs.loss
    loss.backward()
    # The gradients show that all parts take part in the loss.
    without = {n for n, p in model.named_parameters() if p.grad is None}
    assert all("pooler" in n or "token_type" in n for n in without), without
    assert torch.isfinite(loss)


@pytest.mark.proof  # starts three processes, which compile for 20 s
def test_a_row_at_toy_size(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    file, table = tmp_path / "figures.json", tmp_path / "table.md"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.train_step", "--smoke", "--models=bert_mini:2x16",
         "--dtypes=float32", "--contenders=ours,every,eager", "--rounds=2", "--seconds=0.01",
         f"--json={file}", f"--table={table}"],
        check=True, cwd=corpora.ROOT, env=children.environment(), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    rows = json.loads(file.read_text())["rows"]
    assert [each["contender"] for each in rows] == ["ours", "every", "eager"]
    assert [each["less_work"] for each in rows] == [True, False, False]
    assert rows[0]["flops"] < rows[1]["flops"] == rows[2]["flops"]
    # All have random weights, so their losses are those of a guess: log 30522 + log 2.
    assert all(abs(each["loss"] - 11.0) < 0.3 for each in rows)
    assert abs(rows[0]["loss"] - rows[1]["loss"]) < 0.01, "the same predictions"
    assert rows[0]["ratio"] > 0 and rows[0]["memory"] > 1e8
    assert table.read_text().count("| bert_mini:2x16 | float32 |") == 3
