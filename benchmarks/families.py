"""Trains every family on the same tokens: loss against a unigram model, BLiMP, tokens per second.

    python -m benchmarks.families --data=prepared/ --output=families/ \\
        --blimp=blimp.jsonl [--only=t5] [--max_pairs=100] [--config.num_steps=2000]

Runs `bertjax pretrain --config=configs/mini.py:FAMILY`, one family after the other, then `bertjax
evaluate`. An unfinished run in the output folder is resumed, and a finished one is only read. Flags
of the form --config.KEY=VALUE are passed to every run. Writes table.md and losses.png to the output
folder.

The loss is in nats per predicted token of the family's main objective. Objectives differ in
difficulty: a masked token is predicted from both sides of 85% of the text, a language model sees
only the preceding tokens, and the tokens of a span corrupted by T5 have no neighbours. Therefore
compare a loss with the unigram loss of the same predictions, not with the loss of another
objective. BLiMP is the share of pairs whose grammatical sentence scores higher.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from bertjax import run_log

FAMILIES = ("bert", "roberta", "albert", "spanbert", "electra", "modernbert", "t5", "gpt2")
MAIN_LOSSES = ("mlm_loss", "lm_loss")
COLUMNS = ("family", "objective", "parameters", "first", "last", "unigram", "BLiMP", "tokens/s")


def bertjax(*arguments: str) -> None:
    """Runs the command line; its output is printed. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "bertjax", *arguments], check=True)


def train(family: str, flags: argparse.Namespace, overrides: list[str]) -> pathlib.Path:
    """Trains a family, or resumes its run; returns the workdir."""
    workdir = pathlib.Path(flags.output) / family
    bertjax(
        "pretrain",
        f"--config=configs/mini.py:{family}",
        f"--workdir={workdir}",
        f"--config.data.path={flags.data}",
        *overrides,
    )
    return workdir


def blimp(workdir: pathlib.Path, flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the result of `bertjax evaluate --task=blimp` on a run, cached in its workdir."""
    file = workdir / "blimp.json"
    if not file.exists():
        task = f"--task=blimp:{flags.blimp}"
        pairs = [f"--max_pairs={flags.max_pairs}"] if flags.max_pairs else []
        bertjax("evaluate", f"--model={workdir}", task, f"--json={file}", *pairs)
    return json.loads(file.read_text())


def row(family: str, workdir: pathlib.Path, accuracy: float | None) -> dict[str, Any]:
    """Returns the cells of a family's row, and its learning curve."""
    lines = run_log.read_metrics(os.fspath(workdir / "metrics.jsonl"))
    heldout = [line for line in lines if "eval/loss" in line]
    loss = next(f"eval/{name}" for name in MAIN_LOSSES if f"eval/{name}" in heldout[-1])
    config = json.loads((workdir / "config.json").read_text())["config"]
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return {
        "family": family,
        "objective": config["objective"]["name"],
        "parameters": parameters(workdir),
        "first": heldout[0][loss],
        "last": heldout[-1][loss],
        "unigram": heldout[-1]["eval/unigram_loss"],
        "BLiMP": accuracy,
        "tokens/s": statistics.median(speeds),
        "curve": [(line["step"], line[loss] - line["eval/unigram_loss"]) for line in heldout],
    }


def parameters(workdir: pathlib.Path) -> int:
    """Returns the number of parameters of a run's model."""
    from bertjax.artifact import artifact, loading

    model = loading.load(workdir, with_params=False)
    return artifact.num_params(model.params, model.fields["vocab_size"])


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for cells in rows:
        score = "" if cells["BLiMP"] is None else f"{cells['BLiMP']:.1%}"
        lines.append(
            f"| {cells['family']} | {cells['objective']} | {cells['parameters'] / 1e6:.1f}M "
            f"| {cells['first']:.2f} | {cells['last']:.2f} | {cells['unigram']:.2f} "
            f"| {score} | {cells['tokens/s']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], file: pathlib.Path) -> None:
    """Plots every family's held-out loss minus its unigram loss, in nats, over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for cells in rows:
        steps, gains = zip(*cells["curve"], strict=True)
        axes.plot(steps, gains, marker="o", markersize=3, label=cells["family"])
    axes.axhline(0, color="#5a5a5a", linestyle=(0, (5, 3)), linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss less that of the unigram model, nats")
    axes.set_title("The same tokens, another objective", loc="left", weight="bold")
    figure.legend(loc="outside right center", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main() -> int:
    """Trains and evaluates every family; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--blimp", help="BLiMP as JSONL; default: an empty column")
    parser.add_argument("--max_pairs", type=int, help="number of pairs per paradigm of BLiMP")
    parser.add_argument("--only", action="append", choices=FAMILIES,
                        help="family to run; may be repeated")
    flags, overrides = parser.parse_known_args()
    rows = []
    for family in flags.only or FAMILIES:
        workdir = train(family, flags, overrides)
        score = blimp(workdir, flags)["overall"] if flags.blimp else None
        rows.append(row(family, workdir, score))
        print(table(rows), flush=True)
    output = pathlib.Path(flags.output)
    (output / "table.md").write_text(table(rows))
    draw(rows, output / "losses.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
