"""Checks jobs of several processes: the same batches and losses as one process, and how they end.

    python -m benchmarks.processes --data=prepared/ [--steps=30] [--family=bert] [--parts=1234]
    python -m benchmarks.processes --source=web=0.7=prepared/web --source=books=0.3=prepared/books

Runs the command line in real processes on this machine, with four CPU devices in all:
1. 2 and 4 processes: compares checksums of every batch, and losses, with those of one process.
2. 4 processes, one of which is killed: measures the seconds until all others have exited. Then 2
   processes on another mesh resume: compares their batches and losses with the undisturbed run's.
3. 4 processes, SIGTERM to one: checks that all save the same step. Then one process resumes from
   it and must lose nothing.
4. 1 process, killed: the same command again must go on with the undisturbed run's batches.
Exits with 1 if a check fails.
"""

import argparse
import functools
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

from bertjax import __main__, experiment, run_log, training_data
from bertjax import phases as phases_lib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEVICES = 4
CURVE = 1e-4  # tolerance: relative difference of a loss from the undisturbed run's


def watched_batches(
    run: experiment.Experiment,
    data: training_data.TrainingData,
    start: int,
    rows: experiment.Rows,
    *,
    log: str | os.PathLike,
    fate: str = "SIGTERM",
    step: int = -1,
) -> experiment.Batches:
    """Yields what `Experiment.train_batches` yields; logs checksums of every batch's rows.

    Sends this process the signal `fate` before it yields the batch of `step`.
    """
    with open(log, "a") as file:
        for number, batch in enumerate(_train_batches(run, data, start, rows), start):
            phase = next(p for p in phases_lib.of(run.config) if number < p.stop)
            mine = np.arange(phase.batch_size)[rows(phase.batch_size)]
            digests = {
                int(row): hashlib.sha256(
                    b"".join(batch[name][i].tobytes() for name in sorted(batch))
                ).hexdigest()
                for i, row in enumerate(mine)
            }
            print(json.dumps([number, digests]), file=file, flush=True)
            if number == step:
                os.kill(os.getpid(), getattr(signal, fate))
            yield batch


_train_batches = experiment.Experiment.train_batches


def worker(log: str, fate: str, step: int, argv: list[str]) -> int:
    """Runs `bertjax ARGV` with `watched_batches`; returns the exit code."""
    experiment.Experiment.train_batches = functools.partialmethod(
        watched_batches, log=log, fate=fate, step=step
    )
    return __main__.main(argv)


def joined(logs: list[pathlib.Path]) -> dict[int, str]:
    """Returns {step: checksum of its whole batch}, from the rows that all processes have logged."""
    steps: dict[int, dict[int, str]] = {}
    for log in logs:
        for line in log.read_text().splitlines():
            step, rows = json.loads(line)
            for row, digest in rows.items():
                other = steps.setdefault(step, {}).setdefault(int(row), digest)
                assert other == digest, f"two processes hold another row {row} of step {step}"
    return {
        step: hashlib.sha256("".join(rows[row] for row in sorted(rows)).encode()).hexdigest()
        for step, rows in steps.items()
    }


class Job:
    """The processes of one run. fates: process -> (signal that it sends itself, at which step)."""

    def __init__(self, flags, workdir, processes, mesh, fates=None, devices=DEVICES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.workdir, self.processes = workdir, processes
        # Speed does not matter here, so compile with few optimisations and cache the result.
        each = f"--xla_force_host_platform_device_count={devices // processes}"
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{each} --xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": str(workdir.with_name("compiled")),
        }
        self.logs = [workdir.with_name(f"{workdir.name}.{processes}.{i}") for i in range(processes)]
        self.began = time.perf_counter()
        self.started = []
        for i in range(processes):
            fate, step = (fates or {}).get(i, ("SIGTERM", -1))
            place = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}",
                     f"--process_id={i}"]  # fmt: skip
            command = [
                sys.executable, __file__, "--worker", str(self.logs[i]), fate, str(step),
                "pretrain", f"--config={ROOT}/configs/mini.py:{flags.family}",
                f"--workdir={workdir}", *_overrides(flags), f"--config.mesh={mesh}",
                *(place if processes > 1 else []),
            ]  # fmt: skip
            self.started.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True,
                                 stdout=subprocess.DEVNULL)
            )  # fmt: skip

    def wait(self) -> list[str]:
        """Waits until all have exited; returns the "bertjax:" lines that each printed to stderr.

        Kills them and raises TimeoutExpired if a process runs for more than ten minutes.
        """
        try:
            said = [process.communicate(timeout=600)[1] for process in self.started]
        finally:
            for process in self.started:
                process.kill()
        self.seconds = time.perf_counter() - self.began
        return [
            " | ".join(line for line in text.splitlines() if line.startswith("bertjax:"))
            for text in said
        ]

    def codes(self) -> list[int]:
        return [process.returncode for process in self.started]

    def batches(self) -> dict[int, str]:
        """Returns step -> checksum of its whole batch."""
        return joined(self.logs)

    def losses(self) -> dict[int, float]:
        lines = run_log.read_metrics(self.workdir / "metrics.jsonl")
        return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}


def _overrides(flags: argparse.Namespace) -> list[str]:
    sources = {
        name: {"path": path, "weight": float(weight)}
        for name, weight, path in (source.split("=", 2) for source in flags.source or ())
    }
    data = f"data.sources={sources}" if sources else f"data.path={flags.data}"
    return [
        f"--config.{data}",
        f"--config.num_steps={flags.steps}", f"--config.checkpoint.every={flags.steps // 3}",
        "--config.log_every=1", f"--config.eval.every={flags.steps}", "--config.batch_size=16",
        "--config.optimizer.warmup_steps=4", "--config.eval.max_samples=64",
        "--config.model.num_layers=2", "--config.model.hidden_size=64",
        "--config.model.num_heads=4", "--config.model.intermediate_size=128",
        "--config.dtype=float32",
    ]  # fmt: skip


def _curve(losses: dict[int, float], whole: dict[int, float]) -> float:
    return max(abs(losses[step] - whole[step]) / abs(whole[step]) for step in losses)


class Report:
    """Prints one line per claim; `good` is whether all of them hold."""

    def __init__(self) -> None:
        self.good = True

    def claim(self, holds: bool, text: str) -> None:
        self.good = self.good and holds
        print(f"  {'ok  ' if holds else 'FAIL'} {text}", flush=True)


def _one(flags, folder: pathlib.Path) -> Job:
    job = Job(flags, folder / "one", 1, "fsdp:2")
    said = job.wait()
    if job.codes() != [0]:
        raise SystemExit(f"one process failed: {said}")
    print(f"one process: {flags.steps} steps, {job.seconds:.1f} s with start and compiling")
    return job


def _same_as_one(flags, folder: pathlib.Path, report: Report, one: Job) -> None:
    print("1. as many processes as you like")
    for processes in (2, 4):
        job = Job(flags, folder / f"of{processes}", processes, "fsdp:2")
        job.wait()
        same = job.batches() == one.batches() and len(job.batches()) == flags.steps
        far = _curve(job.losses(), one.losses())
        report.claim(
            same and far <= CURVE and job.codes() == [0] * processes,
            f"{processes} processes: {len(job.batches())} batches, checksums "
            f"{'equal' if same else 'differ'}; losses differ by {far:.1e} at most; "
            f"{job.seconds:.1f} s",
        )


def _dead_member(flags, folder: pathlib.Path, report: Report, one: Job, dead: int) -> None:
    print(f"2. process {dead} of 4 killed (SIGKILL) at step {flags.steps // 2}")
    job = Job(flags, folder / f"dead{dead}", 4, "fsdp:2", {dead: ("SIGKILL", flags.steps // 2)})
    job.started[dead].wait(600)
    died = time.perf_counter()
    others = [i for i in range(4) if i != dead]
    for i in others:
        job.started[i].wait(600)
    seconds = time.perf_counter() - died
    said = job.wait()
    codes = [job.codes()[i] for i in others]
    report.claim(codes == [75] * 3, f"the others exited after {seconds:.2f} s, codes {codes}")
    for i in others:
        print(f"       {said[i]}")
    if dead == 0:
        return
    rest = Job(flags, job.workdir, 2, "tensor:2", devices=2)
    said = rest.wait()
    print(f"       {said[0]}")
    whole = one.batches()
    same = all(whole[step] == digest for step, digest in rest.batches().items())
    far = _curve(rest.losses(), one.losses())
    report.claim(
        same and far <= CURVE and rest.codes() == [0, 0] and len(rest.losses()) == flags.steps,
        f"2 processes, mesh tensor:2, went on with step {min(rest.batches())}: checksums "
        f"{'equal' if same else 'differ'}; the whole curve differs by {far:.1e} at most",
    )


def _preempted(flags, folder: pathlib.Path, report: Report, one: Job) -> None:
    asked = flags.steps // 2 + 2
    print(f"3. SIGTERM to process 3 of 4 at step {asked}")
    job = Job(flags, folder / "preempted", 4, "fsdp:2", {3: ("SIGTERM", asked)})
    said = job.wait()
    for line in said:
        print(f"       {line}")
    saved = sorted(int(p.name) for p in (job.workdir / "checkpoints").iterdir())
    done = max(job.losses())
    one_step = len({line.partition("saved step ")[2].split()[0] for line in said}) == 1
    report.claim(
        job.codes() == [75] * 4 and one_step and saved[-1] == done,
        f"codes {job.codes()}; all say the same step; last step made {done}, saved {saved[-1]}, "
        f"{saved[-1] - asked} after the signal",
    )
    rest = Job(flags, job.workdir, 1, "fsdp:2")
    said = rest.wait()
    far = _curve(rest.losses(), one.losses())
    print(f"       {said[0]}")
    report.claim(
        min(rest.batches()) == saved[-1] and far <= CURVE and rest.codes() == [0],
        f"1 process went on with step {min(rest.batches())}: nothing lost; the whole curve "
        f"differs by {far:.1e} at most",
    )


def _killed_alone(flags, folder: pathlib.Path, report: Report, one: Job) -> None:
    print(f"4. 1 process killed (SIGKILL) at step {flags.steps // 2}")
    killed = {0: ("SIGKILL", flags.steps // 2)}
    job = Job(flags, folder / "alone", 1, "fsdp:2", killed)
    job.wait()
    made = len(job.batches())
    rest = Job(flags, job.workdir, 1, "fsdp:2")
    said = rest.wait()
    print(f"       {said[0]}")
    whole = one.batches()
    same = rest.batches() == whole  # the log has the batches of both runs
    far = _curve(rest.losses(), one.losses())
    report.claim(
        same and far <= CURVE and job.codes() == [-signal.SIGKILL] and rest.codes() == [0],
        f"killed after {made} of {len(whole)} batches; the same command again: checksums "
        f"{'equal' if same else 'differ'}; the whole curve differs by {far:.1e} at most",
    )


def main(argv: list[str] | None = None) -> int:
    """Runs the chosen parts; returns 0 if all claims hold, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="prepared data")
    parser.add_argument("--source", action="append", metavar="NAME=WEIGHT=FOLDER",
                        help="prepared data to mix, instead of --data; may be repeated")
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--family", default="bert", help="family of configs/mini.py")
    parser.add_argument("--parts", default="1234", help="parts to run; default: %(default)s")
    flags = parser.parse_args(argv)
    if bool(flags.data) == bool(flags.source):
        parser.error("give either --data or --source")
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        one = _one(flags, folder)
        if "1" in flags.parts:
            _same_as_one(flags, folder, report, one)
        if "2" in flags.parts:
            _dead_member(flags, folder, report, one, dead=2)
            _dead_member(flags, folder, report, one, dead=0)
        if "3" in flags.parts:
            _preempted(flags, folder, report, one)
        if "4" in flags.parts:
            _killed_alone(flags, folder, report, one)
    print("all held" if report.good else "NOT all held")
    return int(not report.good)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        sys.exit(worker(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]))
    sys.exit(main())
