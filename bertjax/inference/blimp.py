"""Evaluates on BLiMP (Warstadt et al. 2020, arXiv 1912.00582): pairs of sentences.

One sentence of each pair is grammatical. The model is right on a pair if it gives this sentence the
higher score. Random scores give an accuracy of 0.5. Each line of a file is a pair, {"uid":
paradigm, "term": phenomenon, "good": sentence, "bad": sentence}. The keys of the original files are
accepted too: UID, linguistics_term, sentence_good and sentence_bad.

    pairs = read("blimp.jsonl", max_pairs=100)
    evaluate(bertjax.load("run/"), pairs).overall
"""

import collections
import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax import errors, paths, schema
from bertjax.data.corpus import corpus_files
from bertjax.inference import pretrained, scoring

_ORIGINAL_KEYS = {
    "uid": "UID",
    "term": "linguistics_term",
    "good": "sentence_good",
    "bad": "sentence_bad",
}


class Pair(NamedTuple):
    """Two minimally different sentences: `good` is grammatical, `bad` is not.

    uid: the paradigm. term: the linguistic phenomenon, which has several paradigms.
    """

    uid: str
    term: str
    good: str
    bad: str


class Accuracy(NamedTuple):
    """Accuracy by paradigm, by phenomenon and over all pairs, and the number of pairs."""

    by_uid: dict[str, float]
    by_term: dict[str, float]
    overall: float
    pairs: int


def read(file: str | os.PathLike, max_pairs: int | None = None) -> list[Pair]:
    """Returns the pairs of a file: the first `max_pairs` of each paradigm, or all if None.

    Raises UserError if the file is missing, contains no pairs or has a line that is not a pair.
    """
    if not paths.of(file).is_file():
        raise errors.UserError(f"{file}: not found; give a JSON lines file of BLiMP's pairs")
    pairs = []
    counts: collections.Counter[str] = collections.Counter()
    for number, line in corpus_files.text_lines(os.fspath(file)):
        if not line.strip():
            continue
        pair = _pair(line, file, number)
        counts[pair.uid] += 1
        if max_pairs is None or counts[pair.uid] <= max_pairs:
            pairs.append(pair)
    if not pairs:
        raise errors.UserError(f"{file}: contains no pairs")
    return pairs


def evaluate(
    model: pretrained.Pretrained, pairs: Sequence[Pair], *, within_word: bool = False
) -> Accuracy:
    """Returns the accuracy of `model` on `pairs`, by the scores of `scoring.log_likelihoods`.

    A pair with equal scores counts as wrong. within_word: see `scoring.log_likelihoods`.
    """
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    scores = scoring.log_likelihoods(model, texts, within_word=within_word).reshape(-1, 2)
    correct = scores[:, 0] > scores[:, 1]
    return Accuracy(
        by_uid=_accuracies([pair.uid for pair in pairs], correct),
        by_term=_accuracies([pair.term for pair in pairs], correct),
        overall=float(correct.mean()),
        pairs=len(pairs),
    )


def table(accuracy: Accuracy, pairs: Sequence[Pair]) -> str:
    """Formats the accuracies as lines: all pairs, then each phenomenon above its paradigms."""
    paradigms = sorted({(pair.term, pair.uid) for pair in pairs})
    lines = [f"{'all ' + format(accuracy.pairs, ',') + ' pairs':<60}{accuracy.overall:>7.4f}"]
    for term, members in itertools.groupby(paradigms, key=lambda paradigm: paradigm[0]):
        lines.append(f"  {term:<58}{accuracy.by_term[term]:>7.4f}")
        lines += [f"    {uid:<56}{accuracy.by_uid[uid]:>7.4f}" for _, uid in members]
    return "\n".join(lines)


def _pair(line: str, file: str | os.PathLike, number: int) -> Pair:
    record = schema.parse(line, file, "each line must be one pair of BLiMP", number=number)
    values = {}
    for name, original in _ORIGINAL_KEYS.items():
        value = record[original] if original in record else record.get(name)
        if not isinstance(value, str) or not value.strip():
            raise errors.UserError(
                f"{file}:{number}: has no text under {name!r} (or {original!r})"
            )
        values[name] = value
    return Pair(**values)


def _accuracies(names: Sequence[str], correct: np.ndarray) -> dict[str, float]:
    keys, group = np.unique(names, return_inverse=True)
    accuracies = np.bincount(group, correct) / np.bincount(group)
    return dict(zip(keys.tolist(), accuracies.tolist(), strict=True))
