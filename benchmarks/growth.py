"""Trains a model from a smaller trained one and from scratch, on the same batches: held-out loss.

    bertjax pretrain --config=configs/mini.py:modernbert --workdir=small/ \\
        --config.data.path=prepared/ --config.model.num_layers=3 --config.model.hidden_size=192 \\
        --config.model.num_heads=3 --config.model.intermediate_size=288
    python -m benchmarks.growth --small=small/ --data=prepared/ --output=growth/ \\
        [--family=modernbert] [--config.num_steps=150]

The larger model is that of configs/mini.py. Its sizes are to those of small/ as ModernBERT-large's
are to ModernBERT-base's. Flags of the form --config.KEY=VALUE are passed to every run. The loss at
step 0 is that of a run of one step whose rate is almost 0. An unfinished run in the output folder
is resumed, and a finished one is only read. Writes table.md to the output folder.
"""

import argparse
import pathlib
import subprocess
import sys

from bertjax import run_log

STILL = ("--config.num_steps=1", "--config.optimizer.warmup_steps=0",
         "--config.optimizer.learning_rate=1e-12", "--config.eval.every=1")  # fmt: skip


def run(name: str, flags: argparse.Namespace, *words: str) -> dict[int, float]:
    """Trains a model, or resumes its run. Returns {step: held-out loss}."""
    workdir = pathlib.Path(flags.output) / name
    command = ["pretrain", f"--config=configs/mini.py:{flags.family}", f"--workdir={workdir}",
               f"--config.data.path={flags.data}", *words]  # fmt: skip
    subprocess.run([sys.executable, "-m", "bertjax", *command], check=True)
    lines = run_log.read_metrics(str(workdir / "metrics.jsonl"))
    return {line["step"]: line["eval/loss"] for line in lines if "eval/loss" in line}


def curve(name: str, flags: argparse.Namespace, *words: str) -> dict[int, float]:
    """Returns {step: held-out loss} with the loss before the first step as step 0."""
    (first,) = run(f"{name}_start", flags, *words, *STILL).values()
    return {0: first} | run(name, flags, *words)


def table(curves: dict[str, dict[int, float]]) -> str:
    """Returns the curves in Markdown, one in a row."""
    steps = sorted(set.intersection(*map(set, curves.values())))
    head = ["initial parameters", *(f"step {step:,}" for step in steps)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, losses in curves.items():
        lines.append("| " + " | ".join([name, *(f"{losses[step]:.3f}" for step in steps)]) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs both; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", required=True, help="the smaller model, trained")
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--family", default="modernbert", help="argument of configs/mini.py")
    flags, overrides = parser.parse_known_args()
    extended = (f"--config.init_from={flags.small}", "--config.init_model=extended")
    curves = {
        "random": curve("random", flags, *overrides),
        "of the smaller model": curve("extended", flags, *overrides, *extended),
    }
    text = table(curves)
    print(text)
    (pathlib.Path(flags.output) / "table.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
