"""Compares a student trained with a teacher to the same student trained alone, at equal steps.

    python -m benchmarks.distillation --teacher=run/ --data=prepared/ --output=distillation/ \\
        [--num_layers=2] [--num_steps=500]

The teacher is the run of a masked language model without pairs (configs/mini.py:roberta, say). The
student has its family and width, but fewer layers. Three runs use the same batches: from fresh
parameters with the MLM loss only; with the teacher's losses as well; and with these losses, but
starting from the teacher's layers, as DistilBERT is trained. Prints the held-out MLM loss of each
in nats. Exits with 1 if the third is not better than the first.
"""

import argparse
import pathlib
import sys

from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import run_log, train, workdir
from bertjax.runtime import backend

RUNS = ("alone", "taught", "taught_from_teachers_layers")


def make_config(name: str, flags: argparse.Namespace) -> ConfigDict:
    """Returns the config of a run: the teacher's with fewer layers; distillation unless alone."""
    of_teacher = config_lib.from_dict(workdir.read(flags.teacher).config)
    config = of_teacher
    if name != "alone":
        config = config_lib.default(of_teacher.family, "mini", "distillation")
        for key in ("model", "data", "optimizer", "eval", "checkpoint"):
            config[key].update(of_teacher[key])
        config.batch_size = of_teacher.batch_size
        config.objective.teacher = flags.teacher
        config.objective.start_from_teacher = name == RUNS[2]
    config.model.num_layers = flags.num_layers
    config.num_steps = flags.num_steps
    config.data.path = flags.data
    config.dtype = flags.dtype
    config.log_every = 50
    return config


def main() -> int:
    """Trains the three students and prints their losses; 1 if the teacher did not help, else 0."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--teacher", required=True, help="workdir of the teacher's run")
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--num_layers", type=int, default=2, help="layers of the student")
    parser.add_argument("--num_steps", type=int, default=500)
    parser.add_argument("--dtype", default="auto")
    flags = parser.parse_args()
    last = {}
    lines = []
    backend.configure(flags.dtype)
    for name in RUNS:
        config = make_config(name, flags)
        folder = pathlib.Path(flags.output) / name
        train.train_and_evaluate(config, folder)
        found = run_log.read_metrics(str(folder / workdir.METRICS))
        losses = [(x["step"], x["eval/mlm_loss"]) for x in found if "eval/mlm_loss" in x]
        last[name] = losses[-1][1]
        curve = ", ".join(f"{loss:.3f} at {step}" for step, loss in losses)
        lines.append(f"  {name:<30}{curve}")
    print(f"held-out MLM loss of a student of {flags.num_layers} layers, nats")
    print("\n".join(lines))
    return int(last[RUNS[2]] >= last[RUNS[0]])


if __name__ == "__main__":
    sys.exit(main())
