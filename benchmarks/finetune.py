"""Fine-tunes the same weights with bertjax and with transformers on PyTorch: scores, wall time.

    python -m benchmarks.finetune --model=minilm/ --data=shared/data/ --output=finetune/ \\
        [--tasks=banking77,snips] [--seeds=3] [--dtype=bfloat16] \\
        [--max_train=0] [--num_epochs=3] [--max_length=512] [--learning_rate=1e-4] \\
        [--at_once] [--jax_python=PYTHON] [--torch_python=PYTHON]

Both use the recipe of `TASKS`: AdamW with weight decay 0.01 except on biases and norms, warm-up
over a tenth of the steps and linear decay, gradients clipped at norm 1, the checkpoint's dropout,
and batches of rows of similar length. Dev is scored after every epoch and the best epoch counts.
The rate is fixed; there is no sweep. WNUT-17, UNER and WikiGold are scored on the dev split. Both
train on the same examples: as many as `TASKS` has, sampled with the same share of every label.
Flags of the recipe apply to all tasks of the call; max_train=0 stands for all examples.

All seeds of a contender on a task run in one process, and the two contenders take turns, task by
task. --at_once (Linux) is for machines whose speed varies: it runs both at the same time, each on
half of the cores. Existing results (OUTPUT/TASK-CONTENDER.json) are read instead; with --at_once
only if both exist. "s" is the time of training and evaluation of all seeds, including compilation
but not loading weights or reading text. Both have the memory options of `bertjax finetune`.

Writes OUTPUT/table.md: mean and standard deviation over seeds of the main score of each, the score
of every seed, the wall time of both and its ratio. Exits with 1 if our mean is more than one
standard deviation (the larger one) below theirs.
"""

import argparse
import dataclasses
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from bertjax import files, schema
from bertjax.artifact import weight_files
from bertjax.runtime import backend

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CONTENDERS = ("bertjax", "torch")


@dataclasses.dataclass(frozen=True)
class Case:
    """A task of `bertjax.finetune`, its files, and the recipe that both contenders use."""

    task: str
    folder: str
    train: str
    dev: str
    max_train: int  # examples, so that all fits into a day of two CPU cores; 0: all
    num_epochs: int
    learning_rate: float = 1e-4  # MiniLM is small: 22M parameters
    max_length: int = 128
    batch_size: int = 32


TASKS = {
    "banking77": Case(
        "classification", "classification/banking77", "train.tsv", "dev.tsv", 0, 4, 2e-4
    ),
    "snips": Case("classification", "classification/snips_intent", "train.tsv", "dev.tsv", 0, 2),
    "movie_reviews": Case(
        "classification", "classification/movie_reviews", "train.tsv", "dev.tsv", 0, 4, 2e-4, 256
    ),
    "qnli_part": Case("pair", "pairs/qnli_part", "train.tsv", "dev.tsv", 1500, 3),
    "wnut17": Case("ner", "ner/wnut17", "train.conll", "dev.conll", 0, 3, 2e-4),
    "uner_ewt": Case("ner", "ner/uner_ewt", "train.conll", "dev.conll", 3000, 3, 2e-4),
    "wikigold": Case("ner", "ner/wikigold", "train.conll", "dev.conll", 0, 4, 2e-4),
    "squad11": Case("squad", "qa", "squad11_train.json", "squad11_dev.json", 3000, 2, 2e-4, 384),
    "squad20": Case("squad_v2", "qa", "squad20_train.json", "squad20_dev.json", 3000, 2, 2e-4, 384),
}
RECIPE = {"max_train": int, "num_epochs": int, "learning_rate": float, "max_length": int}
MAIN = {"classification": "accuracy", "pair": "accuracy", "ner": "f1", "squad": "f1",
        "squad_v2": "f1"}  # fmt: skip


def ours(case: Case, flags: argparse.Namespace) -> dict[str, Any]:
    """Trains all seeds with `bertjax.finetune`; returns {"runs", "steps", "library"}."""
    backend.configure(flags.dtype)
    import tempfile

    import jax

    import bertjax

    folder = pathlib.Path(flags.data) / case.folder
    with tempfile.TemporaryDirectory() as output:
        report = bertjax.finetune(
            model=flags.model,
            task=case.task,
            train=folder / case.train,
            dev=folder / case.dev,
            output=output,
            seeds=flags.seeds,
            num_epochs=case.num_epochs,
            learning_rates=(case.learning_rate,),
            max_length=case.max_length,
            batch_size=case.batch_size,
            dtype=flags.dtype,
            overrides={"data.max_train": case.max_train},
        ).report
    return {
        "runs": [
            {
                "scores": run["scores"]["dev"],
                "best_epoch": run["best_epoch"],
                "losses": [each["loss"] for each in run["evaluations"]],
                "seconds": run["seconds"],
            }
            for run in report["runs"]
        ],
        "steps": report["steps"],
        "library": f"jax {jax.__version__} on {jax.devices()[0].device_kind}",
    }


def theirs(case: Case, flags: argparse.Namespace) -> dict[str, Any]:
    """Trains all seeds with transformers on PyTorch; returns the same keys as `ours`."""
    from benchmarks import finetune_torch

    folder = pathlib.Path(flags.data) / case.folder
    return finetune_torch.finetune(
        flags.model,
        case.task,
        (str(folder / case.train), str(folder / case.dev)),
        seeds=flags.seeds,
        num_epochs=case.num_epochs,
        learning_rate=case.learning_rate,
        max_length=case.max_length,
        batch_size=case.batch_size,
        max_train=case.max_train,
        bfloat16=flags.dtype == "bfloat16",
    )


def chosen(name: str, flags: argparse.Namespace) -> Case:
    """Returns the task's case with the recipe changed by the flags."""
    return dataclasses.replace(TASKS[name], **_asked(flags))


def _asked(flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the keys of the recipe that the flags set."""
    return {key: getattr(flags, key) for key in RECIPE if getattr(flags, key) is not None}


def figures(
    name: str, contenders: list[str], flags: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns each contender's results: from its file, or else from a process that makes it."""
    found = {each: pathlib.Path(flags.output) / f"{name}-{each}.json" for each in contenders}
    missing = [each for each, file in found.items() if not file.exists()]
    if missing and flags.at_once:  # times measured at different moments are not comparable
        for file in found.values():
            file.unlink(missing_ok=True)
        cores = sorted(os.sched_getaffinity(0))
        _run(["taskset", "--cpu-list", ",".join(map(str, cores[i :: len(contenders)])),
              *_worker(name, each, flags)] for i, each in enumerate(contenders))  # fmt: skip
    else:
        for each in missing:
            _run([_worker(name, each, flags)])
    return {each: schema.read_object(file, weight_files.REMEDY) for each, file in found.items()}


def _run(commands: Iterable[list[str]]) -> None:
    """Runs the commands concurrently and waits for all. Raises SystemExit if one failed."""
    running = [subprocess.Popen(command, cwd=REPOSITORY) for command in commands]
    failed = [process.args for process in running if process.wait()]
    if failed:
        raise SystemExit(f"failed: {shlex.join(failed[0])}")


def _worker(name: str, contender: str, flags: argparse.Namespace) -> list[str]:
    python = flags.jax_python if contender == "bertjax" else flags.torch_python
    given = {key: getattr(flags, key) for key in ("model", "data", "output", "dtype", "seeds")}
    given |= {"worker": contender, "tasks": name, **_asked(flags)}
    return [python, "-m", "benchmarks.finetune", *(f"--{key}={given[key]}" for key in given)]


def work(flags: argparse.Namespace) -> None:
    """Runs a contender on a task in a worker process, and writes the result's file."""
    function = ours if flags.worker == "bertjax" else theirs
    content = function(chosen(flags.tasks, flags), flags)
    file = pathlib.Path(flags.output) / f"{flags.tasks}-{flags.worker}.json"
    files.write_json(file, content)


def compare(name: str, cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns a task's row of the table. cells: the results by contender."""
    main = MAIN[TASKS[name].task]
    row: dict[str, Any] = {"task": name, "score": main}
    for contender, found in cells.items():
        values = [run["scores"][main] for run in found["runs"]]
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        row[contender] = statistics.fmean(values), std, values
        row[f"{contender} seconds"] = sum(run["seconds"] for run in found["runs"])
    if len(cells) == 2:
        (mine, my_std, _), (other, other_std, _) = (row[each] for each in CONTENDERS)
        row["behind"] = (other - mine) / max(my_std, other_std, 1e-9)
        row["faster"] = row["torch seconds"] / row["bertjax seconds"]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows in Markdown."""
    lines = [
        "| task | score | ours | transformers | seeds, ours | seeds, theirs | ours, s | theirs, s "
        "| theirs / ours |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        scores, seeds, seconds = [], [], []
        for contender in CONTENDERS:
            mean, std, values = row[contender] if contender in row else (None, None, [])
            scores.append("" if mean is None else f"{mean:.2f} +- {std:.2f}")
            seeds.append(", ".join(f"{value:.2f}" for value in values))
            seconds.append(f"{row[f'{contender} seconds']:.0f}" if contender in row else "")
        ratio = f"{row['faster']:.2f}" if "faster" in row else ""
        cells = [row["task"], row["score"], *scores, *seeds, *seconds, ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs what is missing and prints the table after every task; returns the exit code."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder of an encoder")
    parser.add_argument("--data", required=True, help="folder with the files of TASKS")
    parser.add_argument("--output", required=True, help="folder for the figures")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    for key, type_ in RECIPE.items():
        parser.add_argument(f"--{key}", type=type_, help="value of the recipe, for all tasks")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--at_once", action="store_true",
                        help="run both at once, each on half the cores")
    parser.add_argument("--jax_python", default=sys.executable)
    parser.add_argument("--torch_python", default=sys.executable)
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        work(flags)
        return 0
    for key in ("model", "data", "output"):
        setattr(flags, key, str(pathlib.Path(getattr(flags, key)).resolve()))
    pathlib.Path(flags.output).mkdir(parents=True, exist_ok=True)
    rows = []
    for name in flags.tasks.split(","):
        rows.append(compare(name, figures(name, flags.contenders.split(","), flags)))
        print(table(rows), flush=True)
        (pathlib.Path(flags.output) / "table.md").write_text(table(rows))
    return int(any("behind" in row and row["behind"] > 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
