"""Compares averages of the parameters with a decay of the learning rate, at equal steps.

    python -m benchmarks.averages --config=configs/demo.py --data=prepared/ --output=averages/ \\
        [--num_steps=2000] [--seeds=2]

A run with a constant rate keeps a moving average of its parameters, and a checkpoint every 1/20 of
its steps. A second run branches off after 4/5 of the steps and decays its rate linearly to 0.
Prints for each seed the held-out MLM loss of both runs' last parameters, of their moving averages,
and of the mean of the last five checkpoints (four after the branch), in nats. Exits with 1 if an
average of the run with a constant rate is not better than its last parameters.
"""

import argparse
import json
import pathlib
import sys

from ml_collections import ConfigDict

from bertjax import __main__ as cli
from bertjax import config as config_lib
from bertjax import train, workdir
from bertjax.artifact import artifact, averaging
from bertjax.runtime import backend

COLUMNS = ("last", "moving average", "mean of checkpoints")


def make_config(flags: argparse.Namespace, seed: int) -> ConfigDict:
    """Returns the config of the run with a constant rate; its average covers 1/10 of the steps."""
    every = str(flags.num_steps // 20)
    return config_lib.load(flags.config, {
        "data.path": flags.data, "seed": str(seed), "num_steps": str(flags.num_steps),
        "optimizer.schedule": "constant", "ema_decay": str(1 - 10 / flags.num_steps),
        "checkpoint.every": every, "checkpoint.keep_every": every, "eval.max_samples": "2000",
        "eval.every": str(flags.num_steps),
    })  # fmt: skip


def mean_loss(steps: list[int], run: pathlib.Path, config: ConfigDict) -> float:
    """Returns the held-out loss of the mean of the run's checkpoints at these steps."""
    mean = averaging.average([run / workdir.CHECKPOINTS / str(step) for step in steps])
    folder, scores = run.with_name(f"{run.name}-mean"), run.with_name(f"{run.name}-mean.json")
    artifact.write(mean, folder)
    argv = ["evaluate", f"--model={folder}", f"--data={config.data.path}", f"--json={scores}",
            f"--max_samples={config.eval.max_samples}"]  # fmt: skip
    if cli.main(argv):
        raise RuntimeError(" ".join(argv))
    return json.loads(scores.read_text())["mlm_loss"]


def main() -> int:
    """Trains the runs and prints their losses; 1 if an average did not help, else 0."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, help="config file of a run with the loss mlm")
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--num_steps", type=int, default=2_000, help="a multiple of 100")
    parser.add_argument("--seeds", type=int, default=2)
    flags = parser.parse_args()
    every, branch = flags.num_steps // 20, flags.num_steps * 4 // 5
    steps = list(range(branch, flags.num_steps + 1, every))
    rows, ok = [], True
    for seed in range(flags.seeds):
        config, folder = make_config(flags, seed), pathlib.Path(flags.output)
        backend.configure(config.dtype)
        stable, decay = folder / f"stable{seed}", folder / f"decay{seed}"
        scores = train.train_and_evaluate(config, stable)
        losses = scores["mlm_loss"], scores["ema/mlm_loss"], mean_loss(steps, stable, config)
        ok = ok and max(losses[1:]) < losses[0]
        rows.append((f"constant rate, seed {seed}", *losses))
        config.phases = {"num_steps": branch}, {
            "num_steps": flags.num_steps - branch, "optimizer.schedule": "linear"
        }  # fmt: skip
        checkpoint = stable / workdir.CHECKPOINTS / str(branch)
        scores = train.train_and_evaluate(config, decay, branch_from=checkpoint)
        losses = scores["mlm_loss"], scores["ema/mlm_loss"], mean_loss(steps[1:], decay, config)
        rows.append((f"decay of the last fifth, seed {seed}", *losses))
    print(f"held-out MLM loss, nats{'':<17}" + "".join(f"{name:>22}" for name in COLUMNS))
    for name, *losses in rows:
        print(f"{name:<40}" + "".join(f"{loss:>22.4f}" for loss in losses))
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
