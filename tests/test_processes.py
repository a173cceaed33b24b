"""`bertjax pretrain` as a job of two processes: one run, one voice, one step to stop at.

The file is the test and, as a script, what each process runs: `STEP ARGV...` is `bertjax ARGV` that
sends itself SIGTERM when it has made STEP.
"""

import os
import re
import signal
import subprocess
import sys

import pytest

from bertjax import __main__, checkpoint, config, errors, run_log, step_log, train
from tests.helpers import children, corpora
from tests.runtime import test_distributed

NUM_STEPS = 40  # enough for both processes to agree on a step at which they stop
OVERRIDES = {
    "model.vocab_size": "150", "num_steps": str(NUM_STEPS), "optimizer.warmup_steps": "2",
    "log_every": "1",
    "checkpoint.every": "100", "eval.every": "100", "phase2.num_steps": "0",
    "optimizer.decay_steps": "0",
}  # fmt: skip
SMOKE = f"{children.ROOT}/configs/bert_tiny.py:smoke"
ASKED = 5


def preempted(step: int, argv: list[str]) -> int:
    original = step_log.StepLog.step

    def watched(self, number, *args, **kwargs):
        original(self, number, *args, **kwargs)
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)

    step_log.StepLog.step = watched
    return __main__.main(argv)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus")) / "prepared"


def _config(data, **overrides):
    return config.load(SMOKE, OVERRIDES | {"data.path": str(data)} | overrides)


def _losses(workdir):
    lines = run_log.read_metrics(workdir / "metrics.jsonl")
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def _job(data, workdir, mesh, steps=(0, 0), extra=((), ())):
    """Two processes of two devices: what each wrote to stdout and stderr, and its exit code."""
    port = test_distributed.free_port()
    overrides = OVERRIDES | {"data.path": str(data), "mesh": mesh}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(steps[i]), "pretrain", f"--config={SMOKE}",
             f"--workdir={workdir}", f"--coordinator=127.0.0.1:{port}", "--num_processes=2",
             f"--process_id={i}", *(f"--config.{k}={v}" for k, v in overrides.items()), *extra[i]],
            env=children.environment(2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=180) for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [(*said[i], started[i].returncode) for i in range(2)]


def test_a_signal_to_one_stops_both_and_another_mesh_goes_on(data, tmp_path, capsys):
    ends = _job(data, tmp_path / "run", "slice:2,fsdp:2", steps=(0, ASKED))
    for i, (_, err, code) in enumerate(ends):
        assert code == errors.EXIT_RESTART, err
        assert f"bertjax: process {i}: stopped on request: saved step " in err
    (saved,) = {int(re.search(r"saved step (\d+)", err)[1]) for _, err, _ in ends}
    assert saved > ASKED and checkpoint.Reader(tmp_path / "run" / "checkpoints").steps() == [saved]
    first = f"step 1/{NUM_STEPS}"
    assert first in ends[0][1] and first not in ends[1][1], "one voice"

    train.train_and_evaluate(_config(data, mesh="tensor:2"), tmp_path / "run")
    assert f"resuming from step {saved} (saved " in capsys.readouterr().err
    train.train_and_evaluate(_config(data, mesh="data:8"), tmp_path / "whole")
    whole = _losses(tmp_path / "whole")
    assert sorted(whole) == list(range(1, NUM_STEPS + 1))
    assert _losses(tmp_path / "run") == pytest.approx(whole, rel=1e-4)


@pytest.mark.proof
def test_a_process_with_other_data_stops_both(data, tmp_path):
    other = corpora.make(tmp_path, count=60) / "prepared"
    extra = ((), (f"--config.data.path={other}",))
    ends = _job(data, tmp_path / "run", "data:-1", extra=extra)
    for i, (_, err, code) in enumerate(ends):
        assert code == errors.EXIT_BAD_INPUT, err
        assert re.search(rf"bertjax: (error: )?process {i}: .*process 1 and .* differ", err), err
    assert not (tmp_path / "run").exists()


if __name__ == "__main__":
    sys.exit(preempted(int(sys.argv[1]), sys.argv[2:]))
