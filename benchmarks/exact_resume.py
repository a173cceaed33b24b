"""Kills a run at random moments and compares its final state with that of an undisturbed run.

    python benchmarks/exact_resume.py --data=prepared/ [--kills=10] [--steps=200]
    python benchmarks/exact_resume.py --model=run/ --task=sst2 --data=glue/SST-2/ [--kills=10]

With --model it is a fine-tuning. Each kill is SIGKILL to the whole process group at a random moment
after the start, while the run imports, compiles, trains or saves; with --sigterm every second one
is SIGTERM. The parameters, the optimizer's moments and the metrics must be equal bit for bit; of a
fine-tuning, the model, its scores and its curve. Exits with 1 if they are not.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from bertjax import checkpoint, experiment, run_log, sharding
from bertjax import config as config_lib
from bertjax.artifact import artifact

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _command(flags: argparse.Namespace, workdir: pathlib.Path) -> list[str]:
    if flags.model:
        return [
            sys.executable, "-m", "bertjax", "finetune", f"--model={flags.model}",
            f"--task={flags.task}", f"--data={flags.data}", f"--output={workdir}", "--lr=1e-4",
            "--config.num_epochs=2", "--config.checkpoint_every=5", "--config.log_every=1",
            f"--config.data.max_train={16 * flags.steps}", "--config.max_length=32",
        ]  # fmt: skip
    return [
        sys.executable, "-m", "bertjax", "pretrain", f"--config={ROOT}/configs/bert_tiny.py:smoke",
        f"--workdir={workdir}", f"--config.data.path={flags.data}", "--config.phase2.num_steps=0",
        f"--config.num_steps={flags.steps}", "--config.checkpoint.every=10",
        "--config.eval.every=50", "--config.log_every=1",
    ]  # fmt: skip


def state(workdir: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns every array of the last checkpoint by its path: parameters and optimizer state."""
    config = config_lib.from_dict(json.loads((workdir / "config.json").read_text())["config"])
    abstract = experiment.Experiment(config).abstract_state(sharding.make_mesh())
    found, _ = checkpoint.Reader(workdir / "checkpoints").restore(abstract)
    leaves = jax.tree_util.tree_leaves_with_path((found.params, found.opt_state))
    return {sharding.path_name(path): np.asarray(leaf) for path, leaf in leaves}


def _end(workdir: pathlib.Path) -> dict[str, object]:
    """Returns every array that must be equal, and the metrics."""
    if (workdir / "artifact").exists():
        return _end_of_finetuning(workdir)
    return {**state(workdir), "metrics": run_log.read_metrics(workdir / "metrics.jsonl")[-1]}


def _end_of_finetuning(output: pathlib.Path) -> dict[str, object]:
    """Returns the arrays of the model, and the scores and curve of the run, without times."""
    (run,) = (output / "runs").glob("*.json")
    lines = run_log.read_metrics(run.with_suffix("") / "metrics.jsonl")
    found = [json.loads(run.read_text()), *lines]
    for each in found:
        for name in ("seconds", "checksum", "tokens_per_second", "data_wait"):
            each.pop(name, None)
    return {**artifact.flatten(artifact.read(output / "artifact").params), "run": found}


def _different(a: dict[str, object], b: dict[str, object]) -> list[str]:
    return [name for name in a if not np.array_equal(a[name], b[name])]


def main() -> int:
    """Runs and kills, prints the comparison; returns 0 if everything is equal, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", help="of a fine-tuning")
    parser.add_argument("--task", default="classification", help="of a fine-tuning")
    parser.add_argument("--sigterm", action="store_true", help="every second kill is SIGTERM")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the times of the kills")
    flags = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began = time.perf_counter()
    subprocess.run(_command(flags, folder / "whole"), check=True, **quiet)
    seconds = time.perf_counter() - began
    print(f"undisturbed: {flags.steps} steps in {seconds:.1f} s")

    whole = _end(folder / "whole")
    rng = random.Random(flags.seed)
    killed, ends, unequal = 0, 0, 0
    while killed < flags.kills or (folder / "killed").exists():
        command = _command(flags, folder / "killed")
        process = subprocess.Popen(command, start_new_session=True, **quiet)
        # Early kills hit imports and compiling, late ones steps and saves.
        wait = rng.uniform(0.1, 0.8) * seconds if killed < flags.kills else None
        try:
            if process.wait(timeout=wait):
                print(f"  a start failed with exit code {process.returncode}")
                return 1
            ends += 1
            different = _different(whole, _end(folder / "killed"))
            unequal += bool(different)
            print(f"  end {ends}: {different or 'all equal'}", flush=True)
            shutil.rmtree(folder / "killed")
        except subprocess.TimeoutExpired:
            sent = signal.SIGTERM if flags.sigterm and killed % 2 else signal.SIGKILL
            os.killpg(process.pid, sent)
            process.wait()
            killed += 1
            saved = (folder / "killed").glob("**/checkpoints/*")
            steps = sorted(int(p.name) for p in saved if p.name.isdigit())
            print(
                f"  {sent.name} {killed} after {wait:.1f} s, exit code {process.returncode}, "
                f"checkpoints {steps[-3:]}",
                flush=True,
            )
    print(f"{killed} kills, {ends} ends, {len(whole)} arrays and the last metrics compared bit for "
          f"bit at each: {unequal} differ")  # fmt: skip
    shutil.rmtree(folder)
    return int(unequal > 0)


if __name__ == "__main__":
    sys.exit(main())
