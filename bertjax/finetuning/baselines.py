"""Simple predictors on the same data, to compare a fine-tuned model with.

    table = baselines.scores(job.task_type, job.examples)
    table["majority"]["dev"]["accuracy"]

Labels of one or two texts: the most frequent label, and logistic regression on a bag of words.
Tags of words: the most frequent tag of each word in train. Other task types have no baselines.
"""

import collections
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.finetuning.examples import splits as splits_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base, classification, tokens

MAJORITY, BAG, TAGS = "majority", "bag of words", "most frequent tag of each word"
MAX_TRAIN = 10_000  # examples that logistic regression is fitted to
MAX_CHARACTERS = 5_000  # of a text
MAX_TERMS = 20_000  # words and pairs of words, and as many parts of words
MAX_WEIGHTS = 500_000  # terms times labels; bounds the memory and the time of many labels
_PENALTY = 10.0  # `C` of scikit-learn; few examples and many terms need little regularization

Examples = Mapping[str, Sequence[Any]]
Scores = dict[str, dict[str, dict[str, float]]]
_Predict = Callable[[Sequence[Any]], list[dict[str, Any]]]


def scores(task_type: base.TaskType, examples: Examples) -> tuple[Scores, list[str]]:
    """Returns ({baseline: {split: its scores}}, notes) for the labelled splits except train.

    notes: a line for each baseline that cannot be computed, or that reads only part of train.
    """
    predictors, notes = _predictors(task_type, examples["train"])
    if not predictors:
        return {}, notes
    labelled = {
        split: part
        for split, part in examples.items()
        if split != "train" and all(example.is_labelled() for example in part)
    }
    table = {
        name: {s: task_type.scores(part, predict(part)) for s, part in labelled.items()}
        for name, predict in predictors.items()
    }
    return {name: by_split for name, by_split in table.items() if by_split}, notes


def _predictors(
    task_type: base.TaskType, train: Sequence[Any]
) -> tuple[dict[str, _Predict], list[str]]:
    """Returns ({baseline: function from examples to predictions}, notes)."""
    if isinstance(task_type, tokens.TaskType):
        return {TAGS: _tags(train)}, []
    if not isinstance(task_type, classification.TaskType) or task_type.config.regression:
        return {}, []
    predictors = {MAJORITY: _majority(train, task_type.labels)}
    if importlib.util.find_spec("sklearn") is None:
        return predictors, [f"no {BAG} to compare with: pip install 'bertjax[eval]'"]
    notes: list[str] = []
    if len({example.label for example in train}) < 2 or not any(
        text.strip() for example in train for text in example.texts
    ):
        return predictors, notes  # nothing to learn
    if len(train) > MAX_TRAIN:
        notes.append(f"the {BAG} is fitted to {MAX_TRAIN:,} of the {len(train):,} examples")
    predict = _bag_of_words(splits_lib.sample(train, MAX_TRAIN), task_type.labels)
    return predictors | {BAG: predict}, notes


def _majority(train: Sequence[examples_lib.Sentence], labels: Sequence[str]) -> _Predict:
    counts = collections.Counter(example.label for example in train)
    shares = [counts[label] / len(train) for label in labels]
    return lambda examples: [_prediction(labels, shares)] * len(examples)


def _bag_of_words(train: Sequence[examples_lib.Sentence], labels: Sequence[str]) -> _Predict:
    """Fits logistic regression to TF-IDF vectors of words and of parts of words.

    The vector of a pair of texts consists of both vectors and of their product, which has the terms
    that the texts share.
    """
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    num_terms = min(MAX_TERMS, MAX_WEIGHTS // len(labels))
    vectorizers = [
        TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True,
                        max_features=num_terms, dtype=np.float32),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True,
                        max_features=num_terms, dtype=np.float32),
    ]  # fmt: skip
    for vectorizer in vectorizers:
        vectorizer.fit([_cut(text) for example in train for text in example.texts])

    def vectors(examples: Sequence[examples_lib.Sentence]) -> Any:
        columns = []
        for vectorizer in vectorizers:
            parts = [
                vectorizer.transform(map(_cut, texts))
                for texts in zip(*(example.texts for example in examples), strict=True)
            ]
            columns += parts if len(parts) == 1 else [*parts, parts[0].multiply(parts[1])]
        return sparse.hstack(columns, format="csr")

    model = LogisticRegression(C=_PENALTY, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not quite converged is good enough
        model.fit(vectors(train), [example.label for example in train])
    places = [labels.index(name) for name in model.classes_]

    def predict(examples: Sequence[examples_lib.Sentence]) -> list[dict[str, Any]]:
        probabilities = np.zeros((len(examples), len(labels)))
        probabilities[:, places] = model.predict_proba(vectors(examples))
        return [_prediction(labels, row) for row in probabilities]

    return predict


def _tags(train: Sequence[examples_lib.Words]) -> _Predict:
    """Returns the predictor of each word's most frequent tag; that of all words for a new word."""
    by_word: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for example in train:
        for word, tag in zip(example.words, example.tags, strict=True):
            by_word[word][tag] += 1
    total = sum(by_word.values(), collections.Counter[str]())
    best = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    usual = total.most_common(1)[0][0]
    return lambda examples: [{"tags": [best.get(w, usual) for w in e.words]} for e in examples]


def _prediction(labels: Sequence[str], shares: Sequence[float]) -> dict[str, Any]:
    """Returns a prediction as `classification.TaskType.decode` does, with all probabilities."""
    probabilities = {label: float(share) for label, share in zip(labels, shares, strict=True)}
    return {"label": max(probabilities, key=probabilities.__getitem__),
            "probabilities": probabilities}  # fmt: skip


def _cut(text: str) -> str:
    return text[:MAX_CHARACTERS]


def verdict(
    table: Scores, splits: Mapping[str, Mapping[str, Mapping[str, Any]]], main: str
) -> list[str]:
    """Returns a warning for each baseline that the model does not beat.

    It compares mean scores on test, or on dev if there is no labelled test. splits: {split: {score:
    its `report.summary`}}. main: the score to compare.
    """
    split = "test" if "test" in splits else next(iter(splits))
    lines = []
    for name, by_split in table.items():
        if split in by_split and main in by_split[split] and main in splits[split]:
            ours, theirs = splits[split][main]["mean"], by_split[split][main]
            if not ours > theirs:
                lines.append(
                    f"the model does not beat the baseline {name!r}: {main} on {split} is "
                    f"{ours:.2f}, and {theirs:.2f} for the baseline"
                )
    return lines
