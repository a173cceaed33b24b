"""Measures accuracy by number of labels: from real weights, our own pretraining and from scratch.

    python -m benchmarks.transfer --data=shared/data/ --output=transfer/ \\
        --real=minilm/ --ours=run/ [--tasks=banking77,snips] [--counts=100,300,1000,3000,0] \\
        [--seeds=3] [--strategy=full]

--real and --ours are checkpoints; "scratch" is the model of --ours with fresh parameters and the
same tokenizer. COUNTS labelled examples of each task are used (0: all), with the same share of
every label, and the same examples for all three sources. A source's rate is the best of `RATES`
with 1,000 labels and one seed, on a part of the training file that is held out beforehand; the best
epoch is chosen there too. The reported accuracy is that on the task's dev file, scored once per
seed. The number of epochs gives at least `MIN_STEPS` steps and is at least 3, so that few labels
are repeated more often.

Each (task, source, count) is a folder of OUTPUT that `bertjax finetune` resumes, so an interrupted
benchmark can be continued. Writes transfer.png and table.md, and prints how many labels from
scratch are worth 1,000 with pretraining: computed from medians, because a seed from scratch may
diverge, and interpolated in the logarithm of the number of labels.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import bertjax
from bertjax import plot, plugins
from bertjax.artifact import artifact, loading
from bertjax.runtime import backend

TASKS = {
    "banking77": ("classification/banking77", 64),
    "snips": ("classification/snips_intent", 64),
    "movie_reviews": ("classification/movie_reviews", 256),
}
SOURCES = ("real", "ours", "scratch")
COLOURS = {"real": plot.TRAIN, "ours": plot.HELDOUT, "scratch": plot.GREY}
RATES = (1e-4, 3e-4, 1e-3)
MIN_STEPS = 500
DEV_FRACTION = 0.02  # of the training file
BATCH_SIZE = 32
REFERENCE = 1000  # labels


def scratch(ours: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns an artifact of the model of `ours` with fresh parameters; writes it if missing."""
    if not folder.exists():
        source = loading.load(ours)
        params = plugins.init_params(plugins.model(source.family, source.fields), jax.random.key(0))
        fresh = dataclasses.replace(source, params=jax.device_get(params), step=None)
        artifact.write(fresh, folder)
    return folder


def epochs(count: int) -> int:
    """Returns how many epochs on `count` examples give MIN_STEPS steps; at least 3."""
    return max(3, math.ceil(MIN_STEPS / math.ceil(count / BATCH_SIZE)))


def swept(rates: Sequence[float], seeds: int, **fields: Any) -> dict[str, Any]:
    """Fine-tunes all seeds at the rate that is best for the first seed; returns the report."""
    if len(rates) > 1:
        first = bertjax.finetune(learning_rates=rates, seeds=1, **fields).report
        rates = (first["best"]["learning_rate"],)
    return bertjax.finetune(learning_rates=rates, seeds=seeds, **fields).report


def run(
    task: str, source: str, model: str, count: int, rates: Sequence[float],
    flags: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Fine-tunes on `count` labels (0: all); returns the report."""
    name, max_length = TASKS[task]
    folder = pathlib.Path(flags.data) / name
    return swept(
        rates,
        flags.seeds,
        model=model,
        task="classification",
        train=folder / "train.tsv",
        test=folder / "dev.tsv",
        output=pathlib.Path(flags.output) / task / f"{source}-{count or 'all'}",
        strategy=flags.strategy,
        num_epochs=flags.num_epochs or epochs(count or labels(folder / "train.tsv")),
        max_length=max_length,
        batch_size=BATCH_SIZE,
        dtype=flags.dtype,
        overrides={"data.max_train": count, "data.dev_fraction": DEV_FRACTION},
    )


def accuracies(
    task: str, source: str, model: str, counts: Sequence[int], flags: argparse.Namespace
) -> list[list[float]]:
    """Returns the accuracies of all seeds for each number of labels."""
    tried = run(task, source, model, REFERENCE, RATES, flags)
    rates = (tried["best"]["learning_rate"],)
    reports = [run(task, source, model, count, rates, flags) for count in counts]
    return [report["splits"]["test"]["accuracy"]["values"] for report in reports]


def labels(file: pathlib.Path) -> int:
    """Returns the number of examples in a TSV file with a header."""
    return len(file.read_text(encoding="utf-8").splitlines()) - 1


def worth(counts: list[int], scores: list[float], score: float) -> float | None:
    """Returns the number of labels at which the curve reaches `score`; None if it never does."""
    best = np.maximum.accumulate(scores)
    if score > best[-1]:
        return None
    return float(np.exp(np.interp(score, best, np.log(counts))))


def conclusions(counts: list[int], scores: dict[str, list[float]]) -> list[str]:
    """Returns lines: how many labels from scratch are worth REFERENCE with each pretraining."""
    lines = []
    for source in scores.keys() - {"scratch"}:
        if REFERENCE not in counts or "scratch" not in scores:
            continue
        score = scores[source][counts.index(REFERENCE)]
        found = worth(counts, scores["scratch"], score)
        many = f"about {found:,.0f}" if found else f"more than all {counts[-1]:,}"
        lines.append(f"{REFERENCE:,} labels from {source}: {score:.1f}; from scratch: {many}")
    return sorted(lines)


def draw(results: dict[str, dict[str, Any]], file: pathlib.Path) -> None:
    """Plots one panel per task, one line per source: the median of the seeds, and every seed."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(plot.STYLE):
        figure = Figure(figsize=(4.8 * len(results), 4), dpi=130, layout="constrained")
        for axes, (task, found) in zip(
            np.ravel(figure.subplots(1, len(results))), results.items(), strict=True
        ):
            for source, scores in found["scores"].items():
                colour = COLOURS[source]
                middle = [np.median(each) for each in scores]
                axes.plot(found["counts"], middle, "o-", color=colour, label=source)
                for count, each in zip(found["counts"], scores, strict=True):
                    axes.plot([count] * len(each), each, ".", color=colour, alpha=0.4)
            axes.set_xscale("log")
            axes.set_xticks(found["counts"], [f"{count:,}" for count in found["counts"]])
            axes.minorticks_off()
            axes.set_title(task)
            axes.set_xlabel("labelled examples")
            axes.set_ylabel("accuracy")
        figure.axes[0].legend(loc="lower right")
        figure.savefig(file)


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns mean and standard deviation of every cell in Markdown, and the conclusions."""
    lines = []
    for task, found in results.items():
        counts = found["counts"]
        lines += [f"| {task} | {' | '.join(f'{count:,}' for count in counts)} |"]
        lines += ["|---" * (len(counts) + 1) + "|"]
        for source, scores in found["scores"].items():
            cells = [
                f"{np.mean(s):.1f} +- {np.std(s, ddof=min(1, len(s) - 1)):.1f}" for s in scores
            ]
            lines.append(f"| {source} | {' | '.join(cells)} |")
        middle = {s: [float(np.median(each)) for each in v] for s, v in found["scores"].items()}
        lines += ["", *conclusions(counts, middle), ""]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs what is missing; prints the table and draws the plot after every task."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder with the files of TASKS")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--real", help="folder of a published model; default: no such row")
    parser.add_argument("--ours", required=True, help="workdir or artifact")
    parser.add_argument("--tasks", default="banking77,snips")
    parser.add_argument("--counts", default="100,300,1000,3000,0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--strategy", default="full")
    parser.add_argument("--num_epochs", type=int, default=0,
                        help="number of epochs; 0: from MIN_STEPS")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args()
    backend.configure(flags.dtype)
    output = pathlib.Path(flags.output)
    output.mkdir(parents=True, exist_ok=True)
    models = {"real": flags.real, "ours": flags.ours}
    models["scratch"] = str(scratch(flags.ours, output / "scratch"))
    wanted = [int(count) for count in flags.counts.split(",")]
    results: dict[str, dict[str, Any]] = {}
    for task in flags.tasks.split(","):
        scores = {
            source: accuracies(task, source, models[source], wanted, flags)
            for source in SOURCES
            if models[source]
        }
        everything = labels(pathlib.Path(flags.data) / TASKS[task][0] / "train.tsv")
        results[task] = {"counts": [count or everything for count in wanted], "scores": scores}
        print(table(results), flush=True)
        (output / "table.md").write_text(table(results))
        draw(results, output / "transfer.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
