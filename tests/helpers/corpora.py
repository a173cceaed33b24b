"""A tiny corpus, its tokenizer and its prepared data, which many tests share."""

import json
import pathlib

import numpy as np

from bertjax.data.prepared import prepare
from bertjax.data.tokenizers import tokenizer as tokenizer_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]

SUBJECTS = ("the cat", "a dog", "my horse", "the old sailor", "her brother", "the teacher")
VERBS = ("saw", "found", "carried", "painted", "sold", "wanted")
OBJECTS = ("a red boat", "the small house", "two apples", "an old letter", "the blue lamp")
ENDS = ("yesterday", "in the morning", "by the river", "without a word", "twice", "at last")


def documents(count: int, seed: int = 0) -> list[str]:
    """Returns `count` random documents of 5 to 39 sentences; in practice no two are alike."""
    rng = np.random.default_rng(seed)

    def sentence() -> str:
        words = [rng.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDS)]
        return " ".join(words).capitalize() + "."

    return [" ".join(sentence() for _ in range(rng.integers(5, 40))) for _ in range(count)]


def write_jsonl(path: pathlib.Path, texts: list[str]) -> pathlib.Path:
    """Writes one {"text"} per line; returns `path`."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def make(folder: pathlib.Path, count: int = 200) -> pathlib.Path:
    """Writes corpus.jsonl, tokenizer/ and prepared/ under `folder` and returns it."""
    texts = documents(count)
    write_jsonl(folder / "corpus.jsonl", texts)
    tokenizer_lib.train("wordpiece", texts, 150).save(folder / "tokenizer")
    prepare.prepare(
        [str(folder / "corpus.jsonl")],
        str(folder / "tokenizer"),
        str(folder / "prepared"),
        workers=1,
        heldout_fraction=0.1,
    )
    return folder
