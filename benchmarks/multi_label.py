"""Compares multi-label classification by a pretrained encoder with TF-IDF and logistic regression.

    python -m benchmarks.multi_label --data=shared/data/ --output=multi_label/ --model=minilm/ \\
        [--names=uner_ewt,snips_slots] [--max_train=2000] [--num_epochs=3] [--seeds=1]

The texts are the sentences of data for named entities (DATA/ner/NAME); the labels of a text are the
types of its entities, if any. Both sides train on the same `max_train` sentences of train.conll,
tune on a quarter as many others of it, and are scored on dev.conll.

The baseline is scikit-learn's OneVsRestClassifier(LogisticRegression) on TF-IDF of words and pairs
of words, with the C of `STRENGTHS` that has the best micro F1 on the others. Both sides have
thresholds of the same kind: one for each label, tuned for its F1 on the others. Rows with "0.5"
have 0.5 for all labels instead. Prints one table per NAME and writes them to table.md.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import bertjax
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import splits
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import multi_label
from bertjax.runtime import backend

RATE, HEAD_RATE_FACTOR = 3e-4, 10.0
STRENGTHS = (1.0, 10.0, 100.0)
DEV_FRACTION = 0.1
MAX_LENGTH = 64
SCORES = ("micro_f1", "macro_f1", "subset_accuracy")

Splits = dict[str, list[examples_lib.Sentence]]


def sentences(file: pathlib.Path) -> list[examples_lib.Sentence]:
    """Returns the sentences of a CoNLL file with the types of their entities."""
    found = []
    for example in examples_lib.Words.of_conll(str(file), entities=True):
        types = sorted({tag[2:] for tag in example.tags or () if tag != "O"})
        found.append(examples_lib.Sentence((" ".join(example.words),), tuple(types)))
    return found


def read(folder: pathlib.Path, max_train: int) -> Splits:
    """Returns train, dev (held out of train.conll) and test (dev.conll)."""
    train, dev = splits.held_out(sentences(folder / "train.conll"), DEV_FRACTION)
    train, dev = splits.sample(train, max_train), splits.sample(dev, max_train // 4)
    known = {name for example in train for name in example.class_names()}
    found = {"train": train, "dev": dev, "test": sentences(folder / "dev.conll")}
    return {
        split: [example for example in own if known.issuperset(example.class_names())]
        for split, own in found.items()
    }


def write(found: Splits, folder: pathlib.Path) -> None:
    """Writes one file of JSON lines per split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in found.items():
        lines = [json.dumps({"text": e.texts[0], "labels": e.label}) + "\n" for e in examples]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def scored(probabilities: dict[str, np.ndarray], found: Splits) -> dict[str, dict[str, float]]:
    """Returns the scores of probabilities [N, C] on test: {"tuned": ..., "0.5": ...}."""
    config = multi_label.Config()
    labels = tuple(multi_label.TaskType("multi_label", config).label_names(found["train"]))
    usual = multi_label.TaskType("multi_label", config, labels)
    tuned = usual.tuned(found["dev"], [], {"scores": probabilities["dev"]})
    test = found["test"]
    return {
        name: one.scores(test, one.decode(test, None, {"scores": probabilities["test"]}))
        for name, one in (("tuned", tuned), ("0.5", usual))
    }


def baseline(found: Splits) -> dict[str, dict[str, float]]:
    """Returns the scores of TF-IDF with logistic regression, see `scored`."""
    text = scores_lib.library("sklearn.feature_extraction.text")
    linear = scores_lib.library("sklearn.linear_model")
    multiclass = scores_lib.library("sklearn.multiclass")
    preprocessing = scores_lib.library("sklearn.preprocessing")
    vectorizer = text.TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    vectors = {"train": vectorizer.fit_transform(e.texts[0] for e in found["train"])}
    for split in ("dev", "test"):
        vectors[split] = vectorizer.transform(e.texts[0] for e in found[split])
    names = multi_label.TaskType("multi_label", multi_label.Config()).label_names(found["train"])
    targets = preprocessing.MultiLabelBinarizer(classes=names)
    targets_NC = targets.fit_transform([e.label for e in found["train"]])
    best: tuple[float, dict[str, np.ndarray]] = (-1.0, {})
    for strength in STRENGTHS:
        logistic = linear.LogisticRegression(C=strength, solver="liblinear")
        model = multiclass.OneVsRestClassifier(logistic).fit(vectors["train"], targets_NC)
        found_here = {s: model.predict_proba(vectors[s]) for s in ("dev", "test")}
        on_dev = scored({**found_here, "test": found_here["dev"]}, {**found, "test": found["dev"]})
        if on_dev["tuned"]["micro_f1"] > best[0]:
            best = on_dev["tuned"]["micro_f1"], found_here
    return scored(best[1], found)


def trained(folder: pathlib.Path, flags: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the scores of the fine-tuned model: with tuned thresholds over all seeds, with 0.5.

    The row with 0.5 is that of the seed which is best on dev.
    """
    done = bertjax.finetune(
        model=flags.model,
        task="multi_label",
        data=folder,
        output=folder / "out",
        learning_rates=(RATE,),
        num_epochs=flags.num_epochs,
        seeds=flags.seeds,
        head_rate_factor=HEAD_RATE_FACTOR,
        max_length=MAX_LENGTH,
        dtype=flags.dtype,
    )
    tuned = {s: done.report["splits"]["test"][s] for s in SCORES}
    model = done.model
    usual = dataclasses.replace(model.task_type.config, thresholds=())
    model.task_type = dataclasses.replace(model.task_type, config=usual)
    return {"tuned": tuned, "0.5": model.evaluate(folder / "test.jsonl")}


def table(rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Returns the rows in Markdown; a score is a number or a summary over seeds."""
    lines = [f"| model | thresholds | {' | '.join(SCORES)} |", "|---|---|" + "---|" * len(SCORES)]
    for name, both in rows.items():
        for thresholds, found in both.items():
            means = [found[s]["mean"] if isinstance(found[s], dict) else found[s] for s in SCORES]
            cells = " | ".join(f"{mean:.2f}" for mean in means)
            lines.append(f"| {name} | {thresholds} | {cells} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Scores both sides. Returns 1 if the encoder has the lower micro F1 for a NAME, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder with ner/NAME/train.conll, dev.conll")
    parser.add_argument("--output", required=True)
    parser.add_argument("--model", required=True, help="Hugging Face folder of a published model")
    parser.add_argument("--names", default="uner_ewt")
    parser.add_argument("--max_train", type=int, default=2000, help="number of sentences; 0: all")
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args(argv)
    backend.configure(flags.dtype)
    tables, worse = "", False
    for name in flags.names.split(","):
        folder = pathlib.Path(flags.output) / name
        found = read(pathlib.Path(flags.data) / "ner" / name, flags.max_train)
        write(found, folder)
        rows = {"TF-IDF, logistic regression": baseline(found)}
        rows["fine-tuned"] = trained(folder, flags)
        labels = {label for example in found["train"] for label in example.class_names()}
        sizes = ", ".join(f"{len(own):,} {split}" for split, own in found.items())
        tables += f"{name}: {len(labels)} labels; {sizes}\n\n{table(rows)}\n"
        print(tables, flush=True)
        (pathlib.Path(flags.output) / "table.md").write_text(tables)
        both = [rows[row]["tuned"]["micro_f1"] for row in rows]
        worse |= both[1]["mean"] < both[0]
    return int(worse)


if __name__ == "__main__":
    backend.start_with_kept_memory()
    sys.exit(main())
