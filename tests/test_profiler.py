"""`bertjax pretrain --profile`: which steps are in the trace, and which ranges are refused."""

import jax
import pytest

from bertjax import __main__ as command_line
from bertjax import errors, profiler
from tests.helpers import corpora


@pytest.fixture(scope="module")
def pretrain(tmp_path_factory):
    """Runs the command for a workdir with more flags; returns its exit code."""
    data = corpora.make(tmp_path_factory.mktemp("data"), count=60) / "prepared"

    def run(workdir, *flags):
        return command_line.main(
            ["pretrain", f"--config={corpora.ROOT}/configs/bert_tiny.py:smoke",
             f"--workdir={workdir}", f"--config.data.path={data}", "--config.model.vocab_size=150",
             "--config.phase2.num_steps=0", "--config.optimizer.warmup_steps=1",
             "--config.optimizer.schedule=constant", *flags]
        )  # fmt: skip

    return run


def _steps(folder):
    """The numbers of the steps in the only trace of a folder; [] if there is none."""
    traces = list(folder.rglob("*.xplane.pb"))
    assert len(traces) <= 1
    planes = [jax.profiler.ProfileData.from_file(str(trace)).planes for trace in traces]
    events = [e for plane in planes for p in plane for line in p.lines for e in line.events]
    return [dict(e.stats)["step_num"] for e in events if e.name == profiler.NAME]


def test_the_trace_has_the_steps_that_are_run(pretrain, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert pretrain(workdir, "--config.num_steps=4", "--profile=2:3") == 0
    assert _steps(workdir / "profile") == [2, 3]
    assert f"the trace is in {workdir / 'profile'}" in capsys.readouterr().err
    (workdir / "profile").rename(tmp_path / "first")
    # Of a resumed run, those that are still to come; steps 2 to 4 are saved.
    assert pretrain(workdir, "--config.num_steps=6", "--profile=3:5") == 0
    assert _steps(workdir / "profile") == [5]
    (workdir / "profile").rename(tmp_path / "second")
    assert pretrain(workdir, "--config.num_steps=6", "--profile=3:5") == 0
    assert not (workdir / "profile").exists()


@pytest.mark.parametrize("steps", ["0:3", "5:3", "3", "3:", "2:5", "-1:2", "1:2:3", "a:b"])
def test_a_range_that_is_none_is_refused(pretrain, tmp_path, capsys, steps):
    code = pretrain(tmp_path / "run", "--config.num_steps=4", f"--profile={steps}")
    assert code == errors.EXIT_BAD_INPUT and not (tmp_path / "run").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--profile={steps}: give FIRST:LAST" in line and "config.num_steps = 4" in line


@pytest.mark.proof
def test_the_trace_of_a_run_that_fails_is_written(tmp_path):
    with pytest.raises(RuntimeError), profiler.StepTrace(range(2, 9), tmp_path) as trace:
        for step in (1, 2, 3):
            with trace.step(step):
                if step == 3:
                    raise RuntimeError
            trace.end(step, None)
    assert _steps(tmp_path) == [2, 3]
    with jax.profiler.trace(str(tmp_path / "next")):  # the profiler is free again
        pass


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with profiler.StepTrace(range(1, 3), tmp_path) as trace:
        with trace.step(1):
            pass
        trace.end(2, None)
    assert not list(tmp_path.iterdir())
