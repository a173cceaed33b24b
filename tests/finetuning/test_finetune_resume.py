"""A fine-tuning that is stopped within a run, or runs in several processes, ends the same."""

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from bertjax import __main__ as command_line
from bertjax import errors, run_log, step_log
from bertjax.artifact import artifact
from bertjax.finetuning import run
from tests.helpers import children, toy_tasks
from tests.runtime import test_distributed

RUN = "lr0.01-seed0"
STEPS = 30  # 120 examples in batches of 8, two epochs


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("finetune"))


def _config(root, **values):
    given = {"dropout_rate": 0.1, "num_epochs": 2, "log_every": 4, "checkpoint_every": 5, **values}
    return toy_tasks.config("classification", root / "model", root, **given)


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    """The output folder of a run that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run.finetune(_config(root), out)
    return out


def _content(out):
    """What must be equal: the model's bytes, the run's scores and its curve, without times."""
    found = json.loads((out / "runs" / f"{RUN}.json").read_text())
    lines = run_log.read_metrics(out / "runs" / RUN / "metrics.jsonl")
    for each in (found, *lines):
        for name in ("seconds", "tokens_per_second", "data_wait", "checksum"):
            each.pop(name, None)
    return (out / "artifact" / "params.safetensors").read_bytes(), found, lines


def test_curves_are_written_and_checkpoints_do_not_stay(whole):
    lines = run_log.read_metrics(whole / "runs" / RUN / "metrics.jsonl")
    assert [line["step"] for line in lines if "train/loss" in line] == [*range(4, 29, 4), STEPS]
    assert [line["step"] for line in lines if "dev/accuracy" in line] == [15, 30]
    assert list((whole / "runs" / RUN / "tensorboard").iterdir())
    assert not (whole / "runs" / RUN / "checkpoints").exists()


@pytest.mark.proof
def test_killed_at_any_step_it_ends_bit_equal(root, whole, tmp_path, monkeypatch):
    steps = sorted(random.Random(os.environ.get("KILL_SEED", 0)).sample(range(1, STEPS + 1), 3))
    original, left = step_log.StepLog.step, list(steps)

    def crash(self, number, *args, **kwargs):
        if left and number == left[0]:
            del left[0]
            raise RuntimeError("power cut")
        original(self, number, *args, **kwargs)

    monkeypatch.setattr(step_log.StepLog, "step", crash)
    for _ in steps:
        with pytest.raises(RuntimeError, match="power cut"):
            run.finetune(_config(root), tmp_path / "out")
    told = []
    run.finetune(_config(root), tmp_path / "out", told.append)
    newest = (steps[-1] - 1) // 5 * 5
    goes_on = f"rate 0.01, seed 0: resumes from step {newest} of {STEPS}"
    assert (goes_on in told) == (newest > 0)
    assert _content(tmp_path / "out") == _content(whole)


def test_a_signal_saves_and_the_same_command_goes_on(root, whole, tmp_path, monkeypatch, capsys):
    original = step_log.StepLog.step

    def asked(self, number, *args, **kwargs):
        original(self, number, *args, **kwargs)
        if number == 17:
            os.kill(os.getpid(), signal.SIGTERM)

    config = _config(root, checkpoint_every=1000)
    monkeypatch.setattr(step_log.StepLog, "step", asked)
    with pytest.raises(errors.Preempted, match=r"rate 0\.01, seed 0 is saved at step 17 of 30"):
        run.finetune(config, tmp_path / "out")
    monkeypatch.undo()
    run.finetune(config, tmp_path / "out")
    assert _content(tmp_path / "out") == _content(whole)


def _job(root, out, mesh, dropout_rate):
    port = test_distributed.free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "bertjax", "finetune", f"--model={root / 'model'}",
             "--task=classification", f"--data={root}", f"--output={out}", "--lr=1e-2",
             f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={i}",
             "--config.max_length=40", "--config.batch_size=8", "--config.num_epochs=2",
             f"--config.dropout_rate={dropout_rate}", "--config.log_every=4",
             f"--config.mesh={mesh}"],
            env=children.environment(2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [(*said[i], started[i].returncode) for i in range(2)]


def _of_equal_length(root, folder):
    """A copy of the data whose texts are one word, so that padded rows are as good as packed."""
    toy_tasks.model(folder)
    for path in root.glob("*.tsv"):
        header, *lines = path.read_text().splitlines()
        labels = [line.split("\t")[1] for line in lines]  # an animal, which the text has too
        lines = [f"{label}\t{label}" for label in labels]
        (folder / path.name).write_text("\n".join([header, *lines]) + "\n")
    return folder


@pytest.mark.proof
@pytest.mark.parametrize(("equal", "dropout_rate"), [(True, 0.1), (False, 0.0)])
def test_two_processes_end_where_one_does(root, tmp_path, equal, dropout_rate):
    """With dropout if the rows are padded: the masks of packed ones depend on the devices."""
    root = _of_equal_length(root, tmp_path) if equal else root
    whole = tmp_path / "whole"
    run.finetune(_config(root, dropout_rate=dropout_rate), whole)
    ends = _job(root, tmp_path / "out", "fsdp:4", dropout_rate)
    for _, err, code in ends:
        assert code == 0, err
    assert "best seed 0" in ends[0][0] and "best seed" not in ends[1][0], "process 0 reports"
    assert "step 4/30" in ends[0][1] and "step 4/30" not in ends[1][1]
    theirs = artifact.flatten(artifact.read(tmp_path / "out" / "artifact").params)
    ours = artifact.flatten(artifact.read(whole / "artifact").params)
    assert theirs.keys() == ours.keys()
    for name, leaf in ours.items():
        # A softmax cancels the biases of the keys: their gradient is rounding alone.
        limit = 5e-5 if name.endswith("key/bias") else 1e-5
        np.testing.assert_allclose(theirs[name], leaf, atol=limit, err_msg=name)
    assert _content(tmp_path / "out")[1]["best"] == _content(whole)[1]["best"]


def test_a_key_of_earlier_versions_is_accepted(root, tmp_path, capsys):
    words = ["finetune", f"--model={root / 'model'}", "--task=classification", f"--data={root}"]
    words += [f"--output={tmp_path / 'out'}", "--config.num_epochs=-1"]
    assert command_line.main([*words, "--config.seeds_at_once=2"]) == 2
    err = capsys.readouterr().err
    assert "config.seeds_at_once no longer has an effect: seeds are trained one after" in err
    assert "config.num_epochs = -1" in err
