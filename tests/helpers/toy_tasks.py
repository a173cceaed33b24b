"""Toy tasks that a tiny BERT learns in seconds, for tests of fine-tuning."""

import dataclasses
import json
import pathlib
import random

import jax
import numpy as np
import optax

from bertjax import plugins
from bertjax.artifact import artifact
from bertjax.finetuning import job as job_lib
from bertjax.finetuning import recipe
from tests.helpers import tiny_model

WORDS = "on the mat ran home and saw letters make many words".split()
QUICK = {
    "max_length": 40,
    "batch_size": 8,
    "num_epochs": 4,
    "learning_rates": "1e-2",
    "dropout_rate": 0.0,
}


def model(folder: pathlib.Path) -> pathlib.Path:
    """Writes a fresh BERT of one layer as an artifact; returns its folder."""
    source = tiny_model.make(init_std=0.1, num_layers=1)
    fresh = plugins.init_params(plugins.model("bert", source.fields), jax.random.key(0))
    whole = dataclasses.replace(
        source, params=jax.device_get(fresh), objective=None, config=None, step=None
    )
    artifact.write(whole, folder / "model")
    return folder / "model"


def first_step(made: job_lib.Job, batch: dict[str, jax.Array]) -> tuple[float, np.ndarray]:
    """Returns (loss, first moments of all parameters in one array) after one step on a batch."""
    state, report = made.train_step(made.first_state(0), batch, made.frozen, 1e-3)
    moments = jax.device_get(optax.tree_utils.tree_get(state.opt_state, "mu"))
    return float(report["loss"]), np.concatenate([np.ravel(x) for x in jax.tree.leaves(moments)])


def _sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns (text, label): the label is an animal, repeated between other words of the text."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        animal = draw.choice(["cat", "dog"])
        others = draw.choices(WORDS, k=draw.choice([1, 2, 3, 9]))
        found.append((" ".join([animal, *(f"{word} {animal}" for word in others)]), animal))
    return found


def sentences(folder: pathlib.Path, train: int = 120, others: int = 24) -> pathlib.Path:
    """Writes train.tsv, dev.tsv and test.tsv; returns `folder`."""
    for seed, (split, count) in enumerate((("train", train), ("dev", others), ("test", others))):
        lines = ["sentence\tlabel", *("\t".join(each) for each in _sentences(count, seed))]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def toys(folder: pathlib.Path, **counts: int) -> pathlib.Path:
    """Writes model/ and the files of `sentences`; returns `folder`."""
    model(folder)
    return sentences(folder, **counts)


def entities(folder: pathlib.Path, count: int = 60) -> pathlib.Path:
    """Writes train.conll and dev.conll, in which animals are the entities; returns `folder`."""
    for seed, split in enumerate(("train", "dev")):
        blocks = [
            "\n".join(
                f"{word}\t{'B-ANIMAL' if word in ('cat', 'dog') else 'O'}" for word in text.split()
            )
            for text, _ in _sentences(count, seed)
        ]
        (folder / f"{split}.conll").write_text("\n\n".join(blocks) + "\n")
    return folder


def questions(folder: pathlib.Path, count: int = 16) -> pathlib.Path:
    """Writes train.json and dev.json in SQuAD 2.0's format; returns `folder`.

    The answer is the animal; every third question is marked as unanswerable.
    """
    for seed, split in enumerate(("train", "dev")):
        asked = []
        for number, (text, animal) in enumerate(_sentences(count, seed)):
            answers = [{"text": animal, "answer_start": 0}] if number % 3 else []
            question = {
                "id": f"{split}{number}",
                "question": "who ran home",
                "answers": answers,
                "is_impossible": not answers,
            }
            asked.append({"context": f"{text}.", "qas": [question]})
        content = {"version": "v2.0", "data": [{"title": "animals", "paragraphs": asked}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
    return folder


def choices(folder: pathlib.Path, count: int = 48) -> pathlib.Path:
    """Writes train.jsonl and dev.jsonl: which of two endings has the context's animal."""
    for seed, split in enumerate(("train", "dev")):
        draw, lines = random.Random(seed), []
        for _ in range(count):
            animals = draw.sample(["cat", "dog"], 2)
            text, label = f"{draw.choice(animals)} ran home", draw.randrange(2)
            right = animals.index(text[:3])
            ends = [f"the {animals[right if n == label else 1 - right]} ran" for n in range(2)]
            lines.append(json.dumps({"context": text, "choices": ends, "label": label}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def collection(folder: pathlib.Path) -> pathlib.Path:
    """Writes a collection in BEIR's layout, of documents about an animal each; returns its folder.

    q0 and q2 ask for cats, q1 and q3 for dogs.
    """
    root = folder / "beir"
    (root / "qrels").mkdir(parents=True)
    texts = _sentences(12, 7)
    documents = [
        {"_id": f"d{n}", "title": animal * (n % 2), "text": text}
        for n, (text, animal) in enumerate(texts)
    ]
    asked = [
        {"_id": f"q{n}", "text": f"{('cat', 'dog')[n % 2]} {WORDS[n]}", "metadata": {}}
        for n in range(4)
    ]
    qrels = [
        f"q{n}\td{m}\t1"
        for n in range(4)
        for m, (_, animal) in enumerate(texts)
        if animal == ("cat", "dog")[n % 2]
    ]
    for name, lines in (("corpus", documents), ("queries", asked)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    header = "query-id\tcorpus-id\tscore"
    for split in ("dev", "test"):
        (root / "qrels" / f"{split}.tsv").write_text("\n".join([header, *qrels]) + "\n")
    return root


def candidates(
    folder: pathlib.Path, count: int = 96, asked: tuple[str, ...] = ("cat", "dog")
) -> pathlib.Path:
    """Writes train.tsv and dev.tsv: a query, a document with its animal, and one with the other.

    asked: the animals of the queries. With one, a reranker only has to look at the document.
    """
    for seed, split in enumerate(("train", "dev")):
        draw, lines = random.Random(seed), ["query\tpositive\tnegative"]
        for number in range(count if split == "train" else count // 3):
            animals = [draw.choice(asked)]
            animals += {"cat", "dog"} - {*animals}
            texts = [f"{' '.join(draw.choices(WORDS, k=2))} {animal}" for animal in animals]
            lines.append("\t".join([f"{animals[0]} {WORDS[number % 9]}", *texts]))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def config(task: str, model: pathlib.Path, data: pathlib.Path, **values: object):
    """Returns a recipe of a quick run. values: its keys, with "__" in place of dots."""
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return recipe.make(task, data, {}, {"model": str(model), **QUICK, **dotted})
