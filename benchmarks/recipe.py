"""Fine-tunes on few and on many labels: today's and former defaults, transformers', baselines.

    python -m benchmarks.recipe --model=minilm/ --data=shared/data/ --output=recipe/ \\
        [--tasks=snips_intent,wikigold] [--sizes=50,100,300] [--seeds=2] [--columns=new]

Each cell is what a user gets from one file of SIZE labelled examples: the software holds out a part
of it as dev, trains at its rates and selects one. The score is that of at most TEST examples of the
task's own dev or test file, which no run sees. Another seed draws other examples, and begins with
another head. If a draw lacks a label, the test examples with that label are left out. The simple
baseline is the bag of words, or for entities the most frequent tag of each word.

The column transformers is a plain PyTorch loop (finetune_torch.py) with the defaults of its
TrainingArguments: 3 epochs over the whole file, batches of 8, a rate of 5e-5 that falls linearly
from the first step on, no weight decay. It selects nothing and is scored after the last epoch.

A finished cell leaves OUTPUT/TASK-SIZE-SEED-COLUMN.json and is not run again. Prints the table, and
writes it to OUTPUT/table.md.
"""

import argparse
import pathlib
import random
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertjax import files, schema
from bertjax.artifact import weight_files
from bertjax.runtime import backend

TEST = 500  # test examples
# {column: the keys that differ from today's defaults}
COLUMNS: dict[str, dict[str, Any]] = {
    "former": {"num_epochs": 3, "batch_size": 32, "learning_rates": (2e-5, 3e-5, 5e-5)},
    "new": {},
}
PEER = "transformers"
PEER_DEFAULTS = {"num_epochs": 3, "batch_size": 8, "learning_rate": 5e-5, "warmup": 0.0,
                 "weight_decay": 0.0}  # fmt: skip


class Case(NamedTuple):
    """A task of the table.

    test: its file of test examples. max_length: tokens per row. smallest: the fewest labels that
    can be split into train and dev with every class in both.
    """

    task: str
    folder: str
    train: str
    test: str
    max_length: int
    main: str
    smallest: int = 0


TASKS = {
    "banking77": Case("classification", "classification/banking77", "train.tsv", "dev.tsv", 64,
                      "accuracy", 300),
    "snips_intent": Case("classification", "classification/snips_intent", "train.tsv", "dev.tsv",
                         32, "accuracy"),
    "movie_reviews": Case("classification", "classification/movie_reviews", "train.tsv", "dev.tsv",
                          128, "accuracy"),
    "qnli": Case("pair", "pairs/qnli_part", "train.tsv", "dev.tsv", 96, "accuracy"),
    "wikigold": Case("ner", "ner/wikigold", "train.conll", "test.conll", 64, "f1"),
    "uner_ewt": Case("ner", "ner/uner_ewt", "train.conll", "test.conll", 64, "f1"),
}  # fmt: skip


def draw(case: Case, data: pathlib.Path, size: int, seed: int, folder: pathlib.Path) -> None:
    """Writes a train file of `size` examples (0: all), and a test file, to `folder`.

    One example of each label is drawn first, as long as there is room.
    """
    source = data / case.folder
    header, blocks = _blocks(source / case.train)
    order = random.Random(seed).sample(range(len(blocks)), len(blocks))
    if size:
        firsts: dict[str, int] = {}
        for index in order:
            for label in _labels(case, blocks[index]):
                firsts.setdefault(label, index)
        first = list(dict.fromkeys(firsts.values()))
        rest = [index for index in order if index not in set(first)]
        order = [*first, *rest][:size]
    train = [blocks[index] for index in order]
    known = {label for block in train for label in _labels(case, block)}
    test = [b for b in _blocks(source / case.test)[1] if set(_labels(case, b)) <= known]
    test = random.Random(0).sample(test, min(TEST, len(test)))
    folder.mkdir(parents=True, exist_ok=True)
    glue = "\n\n" if case.train.endswith(".conll") else "\n"
    for name, part in (("train", train), ("test", test)):
        suffix = pathlib.Path(case.train).suffix
        (folder / f"{name}{suffix}").write_text(header + glue.join(part) + "\n", encoding="utf-8")


def _blocks(file: pathlib.Path) -> tuple[str, list[str]]:
    """Returns (the header, the examples as text) of a file."""
    text = file.read_text(encoding="utf-8").strip("\n")
    if file.suffix == ".conll":
        return "", [block for block in text.split("\n\n") if block.strip()]
    header, *lines = text.split("\n")
    return f"{header}\n", lines


def _labels(case: Case, block: str) -> list[str]:
    """Returns the label of an example, or the tags of its words."""
    return [line.split("\t")[-1] for line in block.split("\n")]


def work(
    name: str, size: int, seed: int, values: dict[str, Any], flags: argparse.Namespace,
    folder: pathlib.Path,
) -> dict[str, Any]:  # fmt: skip
    """Fine-tunes one cell; returns its figures."""
    import bertjax

    case = TASKS[name]
    draw(case, pathlib.Path(flags.data), size, seed, folder / "data")
    suffix = pathlib.Path(case.train).suffix
    start = time.perf_counter()
    report = bertjax.finetune(
        model=flags.model,
        task=case.task,
        train=folder / "data" / f"train{suffix}",
        test=folder / "data" / f"test{suffix}",
        output=folder / "out",
        overrides={"max_length": case.max_length, "seed": seed, "dtype": flags.dtype, **values},
    ).report
    figures = {
        "main": case.main,
        "dev": report["splits"]["dev"][case.main]["mean"],
        "test": report["splits"]["test"][case.main]["mean"],
        "examples": report["examples"],
        "steps": report["steps"],
        "rates": {str(run["learning_rate"]): run["scores"]["dev"][case.main]
                  for run in report["runs"]},
        "rate": report["best"]["learning_rate"],
        "baseline": _baseline(report, case.main),
        "seconds": time.perf_counter() - start,
    }  # fmt: skip
    shutil.rmtree(folder)
    return figures


def peer(
    name: str, size: int, seed: int, flags: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
    """Trains one cell with the defaults of transformers' Trainer; returns its figures."""
    from benchmarks import finetune_torch  # imports torch

    case = TASKS[name]
    draw(case, pathlib.Path(flags.data), size, seed, folder / "data")
    suffix = pathlib.Path(case.train).suffix
    start = time.perf_counter()
    result = finetune_torch.finetune(
        flags.model,
        case.task,
        (str(folder / "data" / f"train{suffix}"), str(folder / "data" / f"test{suffix}")),
        seeds=1,
        first_seed=seed,
        max_length=case.max_length,
        max_train=0,
        bfloat16=flags.dtype == "bfloat16",
        **PEER_DEFAULTS,
    )
    figures = {
        "main": case.main,
        "test": result["runs"][0]["last_scores"][case.main],
        "steps": result["steps"],
        "baseline": None,
        "seconds": time.perf_counter() - start,
    }
    shutil.rmtree(folder)
    return figures


def _baseline(report: dict[str, Any], main: str) -> float | None:
    """Returns the test score of the last baseline, the best one; None if there is none."""
    scores = [by_split["test"][main] for by_split in report["baselines"].values()]
    return scores[-1] if scores else None


def cell(name: str, size: int, seed: int, column: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of a cell: from its file, or else of a run that makes it."""
    output = pathlib.Path(flags.output)
    file = output / f"{name}-{size or 'all'}-{seed}-{column}.json"
    if not file.exists():
        folder = output / file.stem
        shutil.rmtree(folder, ignore_errors=True)
        if column == PEER:
            figures = peer(name, size, seed, flags, folder)
        else:
            figures = work(name, size, seed, COLUMNS[column], flags, folder)
        files.write_json(file, figures)
    return schema.read_object(file, weight_files.REMEDY)


def table(cells: Mapping[tuple[str, int], Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    """Returns the table in Markdown. cells: {(task, size): {column: figures of the seeds}}."""
    columns = list(dict.fromkeys(name for found in cells.values() for name in found))
    heads = " | ".join(f"{name} | steps" for name in columns)
    lines = [
        f"| task | labels | seeds | {heads} | simple baseline |",
        "|---|---:|---:|" + "---:|---:|" * len(columns) + "---:|",
    ]
    for (name, size), by_column in cells.items():
        texts, baseline, seeds = [], "", 0
        for column in columns:
            figures = by_column.get(column, [])
            if not figures:
                texts += ["", ""]
                continue
            seeds = len(figures)
            scores = [figure["test"] for figure in figures]
            spread = f" +- {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
            texts += [f"{statistics.fmean(scores):.1f}{spread}", f"{figures[0]['steps']:,}"]
            simple = [figure["baseline"] for figure in figures if figure["baseline"] is not None]
            baseline = f"{statistics.fmean(simple):.1f}" if simple else baseline
        cells_text = " | ".join(texts)
        lines.append(f"| {name} | {size or 'all'} | {seeds} | {cells_text} | {baseline} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the cells that are missing, small sizes first; prints the table after each size."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="folder with the files of the tasks")
    parser.add_argument("--output", required=True, help="folder for the figures")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--sizes", default="50,100,300,1000,0", help="numbers of labels; 0: all")
    parser.add_argument("--columns", default=",".join((PEER, *COLUMNS)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args()
    backend.configure(flags.dtype)
    output = pathlib.Path(flags.output)
    output.mkdir(parents=True, exist_ok=True)
    cells: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for size in map(int, flags.sizes.split(",")):
        for name in flags.tasks.split(","):
            if 0 < size < TASKS[name].smallest:
                continue
            for column in flags.columns.split(","):
                figures = [cell(name, size, seed, column, flags) for seed in range(flags.seeds)]
                cells.setdefault((name, size), {})[column] = figures
        by_task = dict(sorted(cells.items(), key=lambda item: list(TASKS).index(item[0][0])))
        print(table(by_task), flush=True)
        files.write_text(output / "table.md", table(by_task))
    return 0


if __name__ == "__main__":
    sys.exit(main())
