"""Runs every fine-tuning strategy on the same tasks: score, trained parameters, memory, time.

    python -m benchmarks.strategies_table --model=minilm/ --data=shared/data/ \\
        --output=strategies/ [--tasks=banking77,uner_ewt] [--only=lora] [--seeds=3] \\
        [--max_train=1500] [--num_epochs=10]

Each strategy has its own two rates (`ROWS`), because the best rate depends on what is trained. The
rate that is better for the first seed is used, and the table has the score of all seeds on dev.
Batches, epochs and data are those of `benchmarks/finetune.py`. Every strategy runs in a process of
its own. "peak" is the peak memory of that process, including the interpreter, libraries and
examples (on an accelerator: of its arrays). "state" is the computed size of parameters, gradients
and moments. "s" is the time of one run of one seed (the median), including evaluations and
compilation.

A finished process leaves OUTPUT/TASK-STRATEGY.json and is not run again. Writes OUTPUT/table.md.
"""

import argparse
import pathlib
import resource
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import finetune
from bertjax import files, schema
from bertjax.artifact import weight_files
from bertjax.runtime import backend

# name: (strategy, its fields, rates)
ROWS: dict[str, tuple[str, dict[str, Any], tuple[float, float]]] = {
    "full": ("full", {}, (1e-4, 3e-4)),
    "features": ("features", {}, (3e-3, 1e-2)),
    "freeze 2": ("partial", {"frozen_layers": 2}, (1e-4, 3e-4)),
    "freeze 4": ("partial", {"frozen_layers": 4}, (1e-4, 3e-4)),
    "layer-wise decay": ("layerwise", {"decay": 0.9}, (1e-4, 3e-4)),
    "gradual": ("gradual", {"layers_per_epoch": 2}, (1e-4, 3e-4)),
    "adapters": ("adapters", {"adapter_size": 64}, (3e-4, 1e-3)),
    "lora": ("lora", {"rank": 8, "alpha": 16.0}, (5e-4, 2e-3)),
    "prompts": ("prompts", {"length": 20}, (3e-3, 1e-2)),
    "bitfit": ("bitfit", {}, (1e-3, 3e-3)),
}
KEYS = ("model", "data", "output", "seeds", "max_train", "num_epochs", "dtype")


def work(task: str, name: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Runs one strategy on one task in this process; returns its figures."""
    backend.configure(flags.dtype)
    import jax

    from benchmarks import transfer

    case = finetune.TASKS[task]
    strategy, fields, rates = ROWS[name]
    folder = pathlib.Path(flags.data) / case.folder
    report = transfer.swept(
        rates,
        flags.seeds,
        model=flags.model,
        task=case.task,
        train=folder / case.train,
        dev=folder / case.dev,
        output=pathlib.Path(flags.output) / f"{task}-{slug(name)}",
        strategy=strategy,
        num_epochs=flags.num_epochs or case.num_epochs,
        max_length=case.max_length,
        batch_size=case.batch_size,
        dtype=flags.dtype,
        overrides={"data.max_train": flags.max_train}
        | {f"strategy.{key}": value for key, value in fields.items()},
    )
    stats = jax.devices()[0].memory_stats() or {}
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    main = finetune.MAIN[case.task]
    return {
        "score": report["splits"]["dev"][main],
        "metric": main,
        "rate": report["best"]["learning_rate"],
        "trained": report["parameters"]["trained"],
        "total": report["parameters"]["total"],
        "state": sum(report["memory"].values()),
        "peak": stats["peak_bytes_in_use"] if stats else 1024 * kibibytes,
        "seconds": statistics.median(run["seconds"] for run in report["runs"]),
    }


def slug(name: str) -> str:
    """Returns the name as used in file names."""
    return name.replace(" ", "_")


def cell(task: str, name: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of a strategy: from its file, or else from a process that makes it."""
    file = pathlib.Path(flags.output) / f"{task}-{slug(name)}.json"
    if not file.exists():
        shared = [f"--{key}={getattr(flags, key)}" for key in KEYS]
        worker = ["--worker", f"--tasks={task}", f"--only={name}"]
        command = [sys.executable, "-m", "benchmarks.strategies_table", *shared, *worker]
        subprocess.run(command, check=True, cwd=finetune.REPOSITORY)
    return schema.read_object(file, weight_files.REMEDY)


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Returns one table per task, in Markdown."""
    lines = []
    for task, found in results.items():
        lines += [
            f"| {task} | score | trained parameters | share | state, MB | peak, MB | s | rate |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, row in found.items():
            std = "" if row["score"]["std"] is None else f" +- {row['score']['std']:.2f}"
            cells = [
                name,
                f"{row['score']['mean']:.2f}{std}",
                f"{row['trained']:,}",
                f"{row['trained'] / row['total']:.2%}",
                f"{row['state'] / 1e6:.0f}",
                f"{row['peak'] / 1e6:,.0f}",
                f"{row['seconds']:.0f}",
                f"{row['rate']:g}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs what is missing and prints the table after every strategy."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="folder with the files of the tasks")
    parser.add_argument("--output", required=True, help="folder for the figures")
    parser.add_argument("--tasks", default="banking77,uner_ewt")
    parser.add_argument("--only", action="append", choices=tuple(ROWS),
                        help="strategy to run; may be repeated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max_train", type=int, default=0, help="number of examples; 0: all")
    parser.add_argument("--num_epochs", type=int, default=0,
                        help="number of epochs; 0: the task's default")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        (name,) = flags.only
        content = work(flags.tasks, name, flags)
        files.write_json(pathlib.Path(flags.output) / f"{flags.tasks}-{slug(name)}.json", content)
        return 0
    for key in ("model", "data", "output"):
        setattr(flags, key, str(pathlib.Path(getattr(flags, key)).resolve()))
    output = pathlib.Path(flags.output)
    output.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for task in flags.tasks.split(","):
        results[task] = {}
        for name in flags.only or ROWS:
            results[task][name] = cell(task, name, flags)
            print(table(results), flush=True)
            (output / "table.md").write_text(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
