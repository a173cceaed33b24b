"""Trackers get what metrics.jsonl gets, go on with the same run, and never stop one."""

import json
import pathlib
import sys

import jax
import pytest

from bertjax import __main__ as command_line
from bertjax import config as config_lib
from bertjax import errors, run_log, step_log, trackers, train
from bertjax.finetuning import run as finetuning
from tests.helpers import corpora, toy_tasks
from tests.test_train import SMOKE

# A package of a tracker that writes down how it is called; both are called alike.
FAKE = """
import json, os, sys

def record(*call):
    with open(os.environ["TRACKER_CALLS"], "a") as file:
        file.write(json.dumps([__name__, *call]) + "\\n")

class Run:
    step = int(os.environ.get("TRACKER_HAS_STEPS", "0"))  # that an earlier process has sent
    def log(self, values, step):
        if step in map(int, os.environ.get("TRACKER_FAILS_AT", "").split()):
            raise ConnectionError("the network is gone")
        record("log", step, sorted(values))
    def finish(self):
        record("finish")

def init(**values):
    print("* created", values["name"])
    record("init", values)
    return Run()

finish = Run().finish
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Installs the fake packages; returns a function that returns the calls so far."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in trackers.TRACKERS:
        (packages / f"{name}.py").write_text(FAKE)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("TRACKER_CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield lambda: list(map(json.loads, (tmp_path / "calls").read_text().splitlines()))
    for name in trackers.TRACKERS:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus"), 60)


def _config(data, **overrides):
    keys = {"data.path": str(data / "prepared"), "model.vocab_size": "150", "num_steps": "12"}
    keys |= {"optimizer.warmup_steps": "2", "checkpoint.every": "4", "eval.every": "6"}
    keys |= {"phase2.num_steps": "0", "log_every": "2", "optimizer.decay_steps": "0"}
    return config_lib.load(SMOKE, keys | overrides)


def _logged(calls, tracker):
    return [call[2:] for call in calls if call[:2] == [tracker, "log"]]


def _written(workdir):
    lines = run_log.read_metrics(workdir / "metrics.jsonl")
    return [[line["step"], sorted(line.keys() - {"step"})] for line in lines]


def test_pretraining_is_tracked_and_a_resume_continues_the_same_run(
    data, tmp_path, calls, monkeypatch, capsys
):
    workdir, config = tmp_path / "first try", _config(data, log_to="wandb,trackio")
    original = step_log.StepLog.step

    def crash(self, number, *args, **kwargs):
        original(self, number, *args, **kwargs)
        if number == 7:  # step 6, with an evaluation, is saved and logged
            raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(step_log.StepLog, "step", crash)
        patch.setattr(train.checkpoint.Checkpoints, "save", _only_step_4(train))
        with pytest.raises(RuntimeError, match="power cut"):
            train.train_and_evaluate(config, workdir)
    sent = _written(workdir)
    assert sent[-1][0] == 6
    train.train_and_evaluate(config, workdir)
    sent += [line for line in _written(workdir) if line[0] > 4]
    starts = [call[2] for call in calls() if call[:2] == ["wandb", "init"]]
    assert [start["id"] for start in starts] == [starts[0]["id"]] * 2
    assert starts[0]["resume"] == "allow" and starts[0]["dir"] == str(workdir)
    assert (starts[0]["project"], starts[0]["name"]) == ("bertjax", "first try")
    assert starts[0]["config"] == json.loads(json.dumps(config.to_dict()))
    names = {call[2]["name"] for call in calls() if call[:2] == ["trackio", "init"]}
    assert len(names) == 1 and names.pop().startswith("first try ")
    for tracker in trackers.TRACKERS:
        assert _logged(calls(), tracker) == sent
        assert [call[1] for call in calls() if call[0] == tracker].count("finish") == 2
    shown = capsys.readouterr()
    assert "* created" in shown.err and "* created" not in shown.out


def _only_step_4(module):
    save = module.checkpoint.Checkpoints.save
    return lambda self, step, *args: save(self, step, *args) if step == 4 else None


def test_a_workdir_that_starts_again_at_step_0_gets_another_run(tmp_path, calls):
    tracking = trackers.Tracking("wandb", "run")
    for step in (0, 0, 3):
        with run_log.Writers(tmp_path, start_step=step, num_steps=9, tracking=tracking) as writers:
            writers.write(step + 1, {"train/loss": 2.0})
    first, again, resumed = [call[2]["id"] for call in calls() if call[1] == "init"]
    assert first != again == resumed


def test_steps_that_wandb_has_are_not_sent_again(tmp_path, calls, monkeypatch):
    monkeypatch.setenv("TRACKER_HAS_STEPS", "3")
    tracking = trackers.Tracking("wandb", "run")
    with run_log.Writers(tmp_path, start_step=1, num_steps=4, tracking=tracking) as writers:
        for step in (2, 3, 4):
            writers.write(step, {"train/loss": 2.0})
    assert [step for step, _ in _logged(calls(), "wandb")] == [3, 4]


def test_fine_tuning_is_tracked_run_by_run(tmp_path, calls, capsys):
    root = toy_tasks.toys(tmp_path, train=40)
    code = command_line.main(
        ["finetune", f"--model={root / 'model'}", "--task=classification", f"--data={root}",
         f"--output={tmp_path / 'out'}", "--lr=1e-2", "--seeds=2", "--log_to=wandb",
         "--config.num_epochs=1", "--config.batch_size=8", "--config.log_every=2"]
    )  # fmt: skip
    assert code == 0
    starts = [call[2] for call in calls() if call[1] == "init"]
    assert [start["name"] for start in starts] == ["out/lr0.01-seed0", "out/lr0.01-seed1"]
    assert [start["config"]["seed"] for start in starts] == [0, 1]
    assert starts[0]["config"]["learning_rate"] == 0.01 and starts[0]["id"] != starts[1]["id"]
    runs = [tmp_path / "out" / "runs" / start["name"].split("/")[1] for start in starts]
    assert _logged(calls(), "wandb") == [line for run in runs for line in _written(run)]
    assert "dev/accuracy" in _logged(calls(), "wandb")[-1][1]


def test_a_tracker_that_fails_warns_once_and_stops_nothing(tmp_path, calls, monkeypatch, capsys):
    monkeypatch.setenv("TRACKER_FAILS_AT", "2 3")
    tracking = trackers.Tracking("wandb", "run")
    with run_log.Writers(tmp_path, start_step=0, num_steps=4, tracking=tracking) as writers:
        for step in range(1, 5):
            writers.write(step, {"train/loss": 2.0})
    assert _logged(calls(), "wandb") == [[1, ["train/loss"]]]
    assert [step for step, _ in _written(tmp_path)] == [1, 2, 3, 4]
    told = capsys.readouterr().err
    assert told.count("warning") == 1
    assert "wandb failed" in told and "ConnectionError: the network is gone" in told


def test_a_tracker_that_cannot_start_stops_nothing(tmp_path, calls, monkeypatch, capsys):
    monkeypatch.delenv("TRACKER_CALLS")
    tracking = trackers.Tracking("trackio", "run")
    with run_log.Writers(tmp_path, start_step=0, num_steps=1, tracking=tracking) as writers:
        writers.write(1, {"train/loss": 2.0})
    assert "trackio failed" in capsys.readouterr().err and _written(tmp_path)


def test_only_process_0_has_trackers(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    trackers.check_installed("wandb")  # need not be installed elsewhere
    tracking = trackers.Tracking("wandb", "run")
    with run_log.Writers(tmp_path / "run", start_step=0, num_steps=1, tracking=tracking) as writers:
        writers.write(1, {"train/loss": 2.0})
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(data, tmp_path):
    expected = "config.log_to = 'wandb,wnadb': unknown tracker 'wnadb'; did you mean wandb?"
    with pytest.raises(errors.UserError, match=expected.replace("?", "[?]")):
        _config(data, log_to="wandb,wnadb")
    root = toy_tasks.toys(tmp_path, train=40)
    config = toy_tasks.config("classification", root / "model", root, log_to="wandb,wnadb")
    with pytest.raises(errors.UserError, match=expected.replace("?", "[?]")):
        finetuning.finetune(config, tmp_path / "out")


def test_a_missing_package_is_refused_before_anything_is_read(data, tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()  # the folder that wandb makes is not the package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *(p for p in sys.path if not _has_wandb(p))])
    expected = "package wandb is not installed: pip install 'bertjax.wandb.'"
    config = _config(data, log_to="wandb")
    with pytest.raises(errors.UserError, match=expected):
        train.train_and_evaluate(config, tmp_path / "run")
    toy_tasks.sentences(tmp_path, train=8)
    config = toy_tasks.config("classification", tmp_path / "none", tmp_path, log_to="wandb")
    with pytest.raises(errors.UserError, match=expected):
        finetuning.finetune(config, tmp_path / "out")
    assert not (tmp_path / "run").exists() and not (tmp_path / "out").exists()


def _has_wandb(path):
    """Returns whether the package itself is installed at `path`."""
    return (pathlib.Path(path) / "wandb" / "__init__.py").exists()


def test_a_damaged_file_of_ids_is_refused(tmp_path, calls):
    (tmp_path / trackers.FILE).write_text("{")
    tracking = trackers.Tracking("wandb", "run")
    with pytest.raises(errors.UserError, match=r"trackers\.json.*remove it"):
        run_log.Writers(tmp_path, start_step=4, num_steps=9, tracking=tracking)
