"""A run through the front door: it learns, it goes on bit for bit, it stops when it is told to."""

import contextlib
import json
import math
import pathlib
import random
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax import __main__ as command_line
from bertjax import checkpoint, config, errors, experiment, run_log, sharding, step_log, train
from tests.helpers import children, corpora, proofs

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE = str(ROOT / "configs" / "bert_tiny.py") + ":smoke"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus"))


def _config(data, **overrides):
    keys = {"data.path": str(data / "prepared"), "model.vocab_size": "150", "num_steps": "12"}
    keys |= {"optimizer.warmup_steps": "2", "checkpoint.every": "4", "eval.every": "6"}
    keys |= {"phase2.num_steps": "0", "log_every": "2", "optimizer.decay_steps": "0"}
    return config.load(SMOKE, keys | {k.replace("__", "."): str(v) for k, v in overrides.items()})


NOTHING_BETWEEN = {"checkpoint__every": 1000, "eval__every": 1000}  # neither takes time


def _params(workdir, conf):
    built = experiment.Experiment(conf)
    abstract = built.abstract_state(sharding.make_mesh(conf.mesh))
    checkpoints = checkpoint.Reader(workdir / "checkpoints")
    state = checkpoints.restore(abstract)[0]
    return {
        sharding.path_name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path((state.params, state.opt_state))
    }


def _assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    conf = _config(data)
    heldout = train.train_and_evaluate(conf, workdir)
    return workdir, conf, heldout


def test_writes_metrics_checkpoints_and_identity(uninterrupted):
    workdir, _, heldout = uninterrupted
    lines = run_log.read_metrics(workdir / "metrics.jsonl")
    steps = [line["step"] for line in lines if "train/mlm_loss" in line]
    assert steps == [2, 4, 6, 8, 10, 12]
    held = [line for line in lines if "eval/mlm_loss" in line]
    assert [line["step"] for line in held] == [6, 12]
    assert held[-1]["eval/mlm_loss"] == pytest.approx(heldout["mlm_loss"], rel=1e-6)
    assert {"tokens_per_second", "data_wait", "learning_rate", "grad_norm"} <= set(lines[-2])
    for line in lines:  # a piece of this vocabulary has about four bytes with the space before it
        name = "eval" if "eval/mlm_loss" in line else "train"
        num_bytes = line[f"{name}/mlm_loss"] / math.log(2) / line[f"{name}/bits_per_byte"]
        assert 2 < num_bytes < 8
    assert (workdir / "tokenizer").is_dir() and list((workdir / "tensorboard").iterdir())


@pytest.mark.proof
def test_learns(data, tmp_path):
    conf = _config(data, num_steps=60, optimizer__learning_rate=6e-3, log_every=30,
                   **NOTHING_BETWEEN)  # fmt: skip
    heldout = train.train_and_evaluate(conf, tmp_path / "run")
    assert heldout["mlm_loss"] < np.log(150) - 1.0, "60 steps on a made-up grammar"


@pytest.mark.proof
def test_stopped_at_any_step_and_resumed_ends_bit_equal(data, uninterrupted, tmp_path, monkeypatch):
    workdir, conf, _ = uninterrupted
    crash_at = iter([3, 5, 9])
    upcoming = next(crash_at)
    original = step_log.StepLog.step

    def crash(self, number, *args, **kwargs):
        nonlocal upcoming
        if number == upcoming:
            upcoming = next(crash_at, None)
            raise RuntimeError("power cut")
        original(self, number, *args, **kwargs)

    monkeypatch.setattr(step_log.StepLog, "step", crash)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="power cut"):
            train.train_and_evaluate(conf, tmp_path / "run")
    train.train_and_evaluate(conf, tmp_path / "run")
    _assert_equal(_params(workdir, conf), _params(tmp_path / "run", conf))
    whole = run_log.read_metrics(workdir / "metrics.jsonl")
    resumed = run_log.read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in resumed] == [line["step"] for line in whole]
    for a, b in zip(whole, resumed, strict=True):
        assert a.get("train/loss") == b.get("train/loss")


@pytest.mark.proof
def test_goes_on_with_other_devices_and_micro_batches(data, uninterrupted, tmp_path):
    workdir, _, heldout = uninterrupted
    half = _config(data, mesh="tensor:2")
    monkey = pytest.MonkeyPatch()
    monkey.setattr(train.signals.StopSignals, "reached", lambda self, step: step == 9)
    with monkey.context(), pytest.raises(errors.Preempted, match="saved step 9"):
        train.train_and_evaluate(half, tmp_path / "run")
    monkey.undo()
    assert checkpoint.Reader(tmp_path / "run/checkpoints").latest_step() == 9
    rest = _config(data, mesh="slice:2,fsdp:4", micro_batch_size=8)
    got = train.train_and_evaluate(rest, tmp_path / "run")
    assert got["mlm_loss"] == pytest.approx(heldout["mlm_loss"], abs=0.02)  # other dropout masks
    saved = [checkpoint.Reader(run / "checkpoints").steps() for run in (workdir, tmp_path / "run")]
    assert saved[0] == saved[1] == [6, 8, 12], "step 9 was saved for the interruption only"


@pytest.mark.proof
def test_two_phases_change_length_and_batch_size(data, tmp_path):
    conf = _config(data, num_steps=6, phase2__num_steps=2, phase2__length=48, phase2__batch_size=8,
                   **NOTHING_BETWEEN)  # fmt: skip
    shapes = []
    original = train.sharding.global_batch

    def spy(mesh, size, local):
        shapes.append(local["input_ids"].shape)
        return original(mesh, size, local)

    monkey = pytest.MonkeyPatch()
    monkey.setattr(train.sharding, "global_batch", spy)
    with monkey.context():
        train.train_and_evaluate(conf, tmp_path / "run")
    monkey.undo()
    training = [s for i, s in enumerate(shapes) if i == 0 or s != shapes[i - 1]]
    assert training[0] == (16, 32) and training[-1] == (8, 48)


def test_a_step_sends_only_its_batch_to_devices(uninterrupted, tmp_path, monkeypatch):
    _, conf, heldout = uninterrupted
    monkeypatch.setattr(
        train.profiler.StepTrace, "step", lambda self, number: jax.transfer_guard("disallow")
    )
    assert train.train_and_evaluate(conf, tmp_path / "run") == heldout
    monkeypatch.setattr(train.sharding, "global_batch", lambda mesh, size, rows: rows)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
        train.train_and_evaluate(conf, tmp_path / "host")


def test_workdir_of_another_run_is_refused(data, uninterrupted, tmp_path):
    workdir, _, _ = uninterrupted
    with pytest.raises(errors.UserError, match=r"another config: optimizer.learning_rate = 0.5"):
        train.train_and_evaluate(_config(data, optimizer__learning_rate=0.5), workdir)
    other = corpora.make(tmp_path, count=60)
    with pytest.raises(errors.UserError, match=r"a tokenizer other than|different data"):
        train.train_and_evaluate(_config(other), workdir)


def test_vocabulary_larger_than_embedding_is_refused(data, tmp_path):
    conf = _config(data, model__vocab_size=100)
    with pytest.raises(errors.UserError, match=r"pieces, more than config.model.vocab_size = 100"):
        train.train_and_evaluate(conf, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_next_sentences_of_a_single_document_are_refused(data):
    conf = _config(data)
    train_data, _ = train.open_data(conf)
    experiment.check_data(conf, train_data)
    train_data.num_documents = 1
    with pytest.raises(errors.UserError, match=r"pair = 'nsp' .* has one training document"):
        experiment.check_data(conf, train_data)
    conf.objective.pair = "none"
    experiment.check_data(conf, train_data)


def test_warnings_name_rows_that_are_never_trained_and_small_held_out_data(data):
    conf = _config(data, model__vocab_size=30522)
    _, heldout = train.open_data(conf)
    vocabulary = heldout.load_tokenizer().vocabulary()
    heldout.num_documents, heldout.num_tokens = 2, 800
    rows, small = experiment.data_warnings(conf, vocabulary, heldout)
    assert f"--config.model.vocab_size={vocabulary.size}" in rows and "never trained" in rows
    assert small.startswith("held-out data: 2 documents with 800 tokens in total are too few")
    heldout.num_documents, heldout.num_tokens = 30, 20_000
    conf.model.vocab_size = vocabulary.size + 60  # padding to a round number
    assert experiment.data_warnings(conf, vocabulary, heldout) == []


def test_batch_that_does_not_divide_over_the_mesh_is_refused(data, tmp_path):
    conf = _config(data, batch_size=12)
    with pytest.raises(errors.UserError, match=r"config.batch_size = 12: must be a multiple"):
        train.train_and_evaluate(conf, tmp_path / "run")


def test_continued_further_ends_bit_equal(data, tmp_path):
    keys = {"optimizer__schedule": "wsd", "optimizer__decay_steps": 3, "log_every": 3}
    keys |= {"optimizer__decay_shape": "one_minus_sqrt", "optimizer__name": "muon"}
    keys |= NOTHING_BETWEEN
    longer = _config(data, num_steps=14, **keys)
    train.train_and_evaluate(longer, tmp_path / "whole")
    shorter = _config(data, num_steps=11, **keys)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(train.signals.StopSignals, "reached", lambda self, step: step == 7)
    with monkey.context(), pytest.raises(errors.Preempted):
        train.train_and_evaluate(shorter, tmp_path / "run")
    monkey.undo()
    train.train_and_evaluate(longer, tmp_path / "run")
    _assert_equal(_params(tmp_path / "whole", longer), _params(tmp_path / "run", longer))
    whole, found = (
        {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
        for lines in (
            run_log.read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "run")
        )
    )
    assert whole == found and sorted(whole) == [3, 6, 9, 12, 14]


def test_what_would_change_the_past_is_refused(data, uninterrupted):
    workdir, _, _ = uninterrupted
    with pytest.raises(
        errors.UserError, match=r"in the workdir: 12\): would change.* 'linear' .*init_from="
    ):
        train.train_and_evaluate(_config(data, num_steps=20), workdir)
    with pytest.raises(errors.UserError, match="must be 12 or more, because step 12 is"):
        train.train_and_evaluate(_config(data, num_steps=8), workdir)


def test_a_second_phase_that_has_not_begun_may_begin_later(data, tmp_path):
    phase2 = {"phase2__num_steps": 4, "phase2__length": 48, "phase2__batch_size": 8}
    keys = {**phase2, **NOTHING_BETWEEN, "optimizer__schedule": "constant"}
    shorter, longer = (_config(data, num_steps=n, **keys) for n in (10, 12))  # it begins at 6 or 8
    train.train_and_evaluate(longer, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as monkey, pytest.raises(errors.Preempted):
        monkey.setattr(train.signals.StopSignals, "reached", lambda self, step: step == 5)
        train.train_and_evaluate(shorter, tmp_path / "run")
    train.train_and_evaluate(longer, tmp_path / "run")
    _assert_equal(_params(tmp_path / "whole", longer), _params(tmp_path / "run", longer))
    with pytest.raises(errors.UserError, match=r"in the workdir: 12\): would delay the second"):
        train.train_and_evaluate(_config(data, num_steps=14, **keys), tmp_path / "run")


def test_evaluate_says_of_how_many_samples_its_numbers_are(data, uninterrupted, capsys):
    workdir, _, heldout = uninterrupted
    words = ["evaluate", f"--model={workdir}", f"--data={data / 'prepared'}"]
    held = int(heldout["samples"])  # config.eval.max_samples, less than there are
    for given, samples in (([], 209), ([f"--max_samples={held}"], held), (["--max_samples=3"], 3)):
        assert command_line.main([*words, *given]) == 0
        out, err = capsys.readouterr()
        assert f", on {samples:,} samples of the heldout split of " in out
        same = f"{'mlm_loss':<16}{heldout['mlm_loss']:>10.4f}" in out
        assert same == (samples == held)
        assert "reading " in err and "computing the unigram" in err and "scoring batches" in err


def test_a_line_holds_the_mean_since_the_last_one(data, uninterrupted, tmp_path, capsys):
    workdir, _, _ = uninterrupted
    every = _config(data, log_every=1)
    train.train_and_evaluate(every, tmp_path / "run")
    ones = {line["step"]: line for line in run_log.read_metrics(tmp_path / "run/metrics.jsonl")
            if "train/nsp_loss" in line}  # fmt: skip
    for line in run_log.read_metrics(workdir / "metrics.jsonl"):
        if "train/nsp_loss" in line:  # every step has the same number of pairs
            steps = [ones[line["step"] - 1], ones[line["step"]]]
            mean = np.mean([step["train/nsp_loss"] for step in steps])
            assert line["train/nsp_loss"] == pytest.approx(mean, rel=1e-6)
    shown = capsys.readouterr().err
    assert shown.count("held-out loss") == 2 and " samples" in shown
    for word in ("model ", "devices ", "data ", " epochs", "writes to ", "compiling the train"):
        assert word in shown
    table = [line for line in shown.splitlines() if not line.startswith("bertjax: warning: ")]
    assert max(map(len, table)) <= 200


# --- the command line, in processes of its own ---------------------------------------------------


def _command(data, workdir, *extra):
    overrides = [
        f"--config.data.path={data / 'prepared'}", "--config.model.vocab_size=150",
        "--config.phase2.num_steps=0", "--config.checkpoint.every=5", "--config.log_every=1",
    ]  # fmt: skip
    return [sys.executable, "-m", "bertjax", "pretrain", f"--config={SMOKE}",
            f"--workdir={workdir}", *overrides, *extra]  # fmt: skip


def _start(command, devices=1):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=children.environment(devices), **pipes)


def _wait_for_step(process, metrics, step):
    """Polls the metrics, a line a step, of a run that must still be going on then."""
    while not metrics.exists() or all(x["step"] < step for x in run_log.read_metrics(metrics)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.02)
            raise AssertionError(f"the run ended before step {step}: {process.communicate()[1]}")


@pytest.mark.parametrize(
    ("number", "code"),
    proofs.all_but([(signal.SIGTERM, 75), (signal.SIGINT, 130)], (signal.SIGTERM, 75)),
)
def test_signal_saves_and_says_restart_me(data, tmp_path, number, code):
    never = ("--config.num_steps=40000", "--config.checkpoint.every=100000")
    process = _start(_command(data, tmp_path / "run", *never))
    _wait_for_step(process, tmp_path / "run" / "metrics.jsonl", 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert "run the same command again" in err
    saved = checkpoint.Reader(tmp_path / "run" / "checkpoints").steps()
    assert len(saved) == 1 and saved[0] >= 1


def test_killed_at_a_random_moment_and_resumed_ends_bit_equal(data, tmp_path, pytestconfig):
    longer = ("--config.num_steps=30", "--config.eval.every=10")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = _start(_command(data, killed, *longer), jax.device_count())
    step = pytestconfig.getoption("--kill-step") or random.randint(1, 25)
    print(f"killed at step {step}: again with --kill-step={step}")
    _wait_for_step(process, killed / "metrics.jsonl", step)
    process.kill()
    process.communicate()
    process = _start(_command(data, killed, *longer), jax.device_count())
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    stored = json.loads((killed / "config.json").read_text())["config"]
    conf = config.from_dict(stored)
    train.train_and_evaluate(conf, whole)
    _assert_equal(_params(whole, conf), _params(killed, conf))


def test_evaluation_and_saving_do_not_count_as_training_time(data, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(step_log.time, "perf_counter", lambda: now[0])
    original = step_log.StepLog.step

    def second_a_step(self, *args, **kwargs):
        now[0] += 1.0
        original(self, *args, **kwargs)

    def slow(*args):
        now[0] += 1000.0
        return {"loss": 1.0, "mlm_loss": 1.0}

    monkeypatch.setattr(step_log.StepLog, "step", second_a_step)
    monkeypatch.setattr(train.evaluate, "evaluate", slow)
    train.train_and_evaluate(_config(data), tmp_path / "run")
    lines = run_log.read_metrics(tmp_path / "run" / "metrics.jsonl")
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    assert rates == [16 * 32] * len(rates) and len(rates) == 6
