"""Checks the message and the exit code of `bertjax finetune` for many kinds of wrong data.

    python -m benchmarks.bad_input --model=minilm/ [--only='10,000 words']

Every case writes its files to a folder of its own and runs the command line on them. Exit code 2
means bad input, with an error of one line that names file and line. Exit code 0 with a warning
means that the data can be trained on nevertheless. Prints a table; exits with 1 if a case ends
differently than expected, or with a traceback.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
GOOD = "".join(
    f"{text}\t{label}\n"
    for _ in range(4)
    for text, label in (("a fine film", "good"), ("a dull film", "bad"))
)
TRAIN = "sentence\tlabel\n" + GOOD
ONE_CLASS = "sentence\tlabel\n" + "".join(f"film number {n}\t1\n" for n in range(8))
BOTH = "sentence\tlabel\na good film\t1\na bad film\t0\n"
LONG = " ".join(["word"] * 10_000)
ENTITIES = "Ada\tB-PER\nwrote\tO\n\nBonn\tB-LOC\n\n" * 4


def squad(context: str, answer: str, start: int) -> str:
    """Returns a SQuAD file with one question."""
    question = {"id": "q1", "question": "Who wrote it?",
                "answers": [{"text": answer, "answer_start": start}]}  # fmt: skip
    paragraph = {"context": context, "qas": [question]}
    return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})


@dataclasses.dataclass(frozen=True)
class Case:
    """Files by name, the task, and the expected end of the command.

    says: a part of the expected error or warning.
    """

    task: str
    files: dict[str, str]
    code: int
    says: str


def lines(name: str, train: str, dev: str, code: int, says: str, task: str = "classification"):
    """Returns (name, case) for train and dev files with one row per line."""
    suffix = "conll" if task == "ner" else "tsv"
    return name, Case(task, {f"train.{suffix}": train, f"dev.{suffix}": dev}, code, says)


QA = {"train.json": squad("Ada wrote it in 1843.", "Ada", 0)}
CASES = dict(
    [
        lines("missing column", TRAIN.replace("sentence", "text_of_it"), TRAIN, 2, "sentence"),
        lines("ragged row", TRAIN + "one column\n", TRAIN, 2, "train.tsv:10"),
        lines("unknown label at dev", TRAIN, TRAIN + "odd\tugly\n", 2, "ugly"),
        lines("label that never occurs in train", ONE_CLASS, BOTH, 0, "never occur", "sst2"),
        lines("empty text", TRAIN + "\tgood\n", TRAIN, 2, "train.tsv:10"),
        lines("no label", TRAIN + "a film\t\n", TRAIN, 2, "train.tsv:10"),
        lines("no rows", "sentence\tlabel\n", TRAIN, 2, "train.tsv"),
        lines("not text", TRAIN + "a \0 film\tgood\n", TRAIN, 2, "train.tsv:10"),
        lines("10,000 words", TRAIN + f"{LONG}\tgood\n" * 3, TRAIN, 0, "are cut after"),
        lines("dev text in train", TRAIN, TRAIN, 0, "are in train too"),
        lines("dev with one label", TRAIN, "sentence\tlabel\na film\tgood\n", 0, "no other label"),
        lines("BIO error", ENTITIES + "Rome\tI-LOC\n", ENTITIES, 2, "train.conll:21", "ner"),
        lines("no entity's tag", ENTITIES + "Rome\tX-LOC\n", ENTITIES, 2, "train.conll:21", "ner"),
        lines("tag missing", ENTITIES + "Rome\n", ENTITIES, 2, "train.conll:21", "ner"),
        (
            "answer not in its context",
            Case("squad", QA | {"dev.json": squad("Ada wrote it.", "Grace", 0)}, 2, "q1"),
        ),
        (
            "context of 10,000 words",
            Case("squad", QA | {"dev.json": squad(f"{LONG} Ada.", "Ada", len(LONG) + 1)}, 0, ""),
        ),
    ]
)


def run(case: Case, model: str) -> tuple[int, list[str]]:
    """Returns (exit code, lines of stderr); only the warnings if the exit code is 0."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, content in case.files.items():
            (folder / file).write_text(content, encoding="utf-8")
        train, dev = (next(f for f in case.files if f.startswith(s)) for s in ("train", "dev"))
        keys = ("batch_size=4", "num_epochs=1", "learning_rates=(1e-5,)", "max_length=64")
        command = [
            sys.executable, "-m", "bertjax", "finetune", f"--model={model}", f"--task={case.task}",
            f"--train={folder / train}", f"--dev={folder / dev}", f"--output={folder / 'out'}",
            *(f"--config.{key}" for key in keys),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        told = done.stderr.replace(f"{folder}/", "").splitlines()
    if done.returncode == 0:
        told = [line for line in told if "warning" in line]
    return done.returncode, [line.removeprefix("bertjax: ") for line in told if line.strip()]


def main() -> int:
    """Runs the cases and prints the table; returns 1 if a case failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="folder of a small encoder")
    parser.add_argument("--only", action="append", choices=tuple(CASES),
                        help="case to run; may be repeated")
    flags = parser.parse_args()
    wrong = 0
    print("| case | exit code | message |\n|---|---|---|", flush=True)
    for name in flags.only or CASES:
        case = CASES[name]
        code, told = run(case, str(pathlib.Path(flags.model).resolve()))
        traceback = any(line.startswith("Traceback") for line in told)
        told = told if code == 0 else told[-1:]
        message = "; ".join(told).replace("|", "\\|")
        as_it_should = code == case.code and not traceback and case.says in message
        wrong += not as_it_should
        print(f"| {name} | {code} | {message} |{'' if as_it_should else ' WRONG'}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
