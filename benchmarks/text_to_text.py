"""Compares fine-tuning T5 from pretraining with fine-tuning it from fresh parameters: BLEU.

    python -m benchmarks.text_to_text --model=t5-run/ --data=shared/data/ --output=text_to_text/ \\
        [--tasks=wikisplit,tatoeba_en_es] [--seeds=3] [--max_train=5000] [--num_epochs=4]

--model is a pretrained T5 (configs/mini.py:t5, say). Both starts have the same batches, epochs and
rate, so they differ only in what was learned from raw text. Text is generated greedily. The epoch
is chosen on the first 200 examples of the dev file, and BLEU (sacrebleu's) is that of the next
1,000. The table also has the BLEU of copying the source, which in WikiSplit has almost the same
content as the target.

Each (task, start) is a folder of OUTPUT and is resumed if it was interrupted. Writes table.md with
some of the texts. Exits with 1 if pretraining did not help.
"""

import argparse
import json
import pathlib
import sys
from typing import Any

import bertjax
from benchmarks import transfer
from bertjax.finetuning import scores, tasks
from bertjax.runtime import backend

TASKS = {  # folder, tokens of a source, of a target, in front of every source
    "wikisplit": ("text2text/wikisplit", 96, 96, ""),
    "tatoeba_en_es": ("text2text/tatoeba_en_es", 48, 48, "translate English to Spanish: "),
}
RATE = 1e-3  # usual for T5; 3e-3 was worse on WikiSplit from either start
DEV, TEST = 200, 1_000  # examples of the dev file
STARTS = ("pretrained", "scratch")
SHOWN = 3  # texts of each task and start in table.md


def cut(task: str, flags: argparse.Namespace) -> dict[str, pathlib.Path]:
    """Splits the dev file into dev and test; returns the file of each split."""
    folder, output = pathlib.Path(flags.data) / TASKS[task][0], pathlib.Path(flags.output)
    lines = (folder / "dev.jsonl").read_text(encoding="utf-8").split("\n")
    parts = {"dev": lines[:DEV], "test": lines[DEV : DEV + TEST]}
    files = {split: output / f"{task}-{split}.jsonl" for split in parts}
    for split, file in files.items():
        file.write_text("\n".join(parts[split]) + "\n", encoding="utf-8")
    return {"train": folder / "train.jsonl", **files}


def run(task: str, start: str, model: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Fine-tunes from a start; returns the report."""
    _, length, target_length, prefix = TASKS[task]
    return bertjax.finetune(
        learning_rates=(RATE,),
        seeds=flags.seeds,
        model=model,
        task="translation",
        **cut(task, flags),
        output=pathlib.Path(flags.output) / task / start,
        num_epochs=flags.num_epochs,
        max_length=length,
        dtype=flags.dtype,
        overrides={
            "data.max_train": flags.max_train,
            "kind.prefix": prefix,
            "kind.max_target_length": target_length,
        },
    ).report


def copied(task: str, flags: argparse.Namespace) -> float:
    """Returns the BLEU of the sources as predictions."""
    sacrebleu = scores.library("sacrebleu")
    examples = tasks.read(tasks.find("translation"), str(cut(task, flags)["test"]), "test")
    most = max(len(example.targets) for example in examples)
    columns = [[(*e.targets, *[None] * most)[i] for e in examples] for i in range(most)]
    return sacrebleu.corpus_bleu([example.source for example in examples], columns).score


def texts(task: str, start: str, flags: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Returns (source, first target, prediction) of the first examples of test."""
    file = pathlib.Path(flags.output) / task / start / "predictions" / "test.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:SHOWN]]
    return [
        (line["example"]["source"], line["example"]["targets"][0], line["prediction"]["text"])
        for line in lines
    ]


def table(results: dict[str, dict[str, Any]], flags: argparse.Namespace) -> str:
    """Returns the BLEU table in Markdown, followed by some texts."""
    lines = ["| task | start | BLEU | seeds | source copied |", "|---|---|---|---|---|"]
    for task, found in results.items():
        for start, report in found["reports"].items():
            bleu = report["splits"]["test"]["bleu"]
            std = "" if bleu["std"] is None else f" +- {bleu['std']:.2f}"
            seeds = ", ".join(f"{value:.2f}" for value in bleu["values"])
            cells = [task, start, f"{bleu['mean']:.2f}{std}", seeds, f"{found['copied']:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    for task, found in results.items():
        for start in found["reports"]:
            lines += ["", f"{task}, {start}:", ""]
            for source, target, written in texts(task, start, flags):
                lines += [f"    source   {source}", f"    target   {target}"]
                lines += [f"    written  {written}", ""]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs what is missing and prints the table; returns 1 if pretraining did not help, else 0."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="workdir or artifact of a T5")
    parser.add_argument("--data", required=True, help="folder with the files of TASKS")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max_train", type=int, default=5_000, help="number of examples; 0: all")
    parser.add_argument("--num_epochs", type=int, default=4)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args()
    backend.configure(flags.dtype)
    output = pathlib.Path(flags.output)
    output.mkdir(parents=True, exist_ok=True)
    models = {"pretrained": flags.model}
    models["scratch"] = str(transfer.scratch(flags.model, output / "scratch"))
    results: dict[str, dict[str, Any]] = {}
    worse = False
    for task in flags.tasks.split(","):
        results[task] = {"copied": copied(task, flags), "reports": {}}
        for start in STARTS:
            results[task]["reports"][start] = run(task, start, models[start], flags)
            print(table(results, flags), flush=True)
            (output / "table.md").write_text(table(results, flags), encoding="utf-8")
        means = [results[task]["reports"][start]["splits"]["test"]["bleu"]["mean"]
                 for start in STARTS]  # fmt: skip
        worse |= means[0] <= means[1]
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
