"""Scores of SQuAD: exact match and F1 of answers, 0 to 100, as its official scorers compute them.

    scores([["big moose", "a hippo"], []], ["The big moose!", ""])      # exact_match 100, f1 100

Rajpurkar et al. 2016 (arXiv 1606.05250), section 6.1: case, ASCII punctuation, articles and
extra white space are ignored. F1 compares bags of words. If a question has several references, the
best score counts. Rajpurkar et al. 2018 (arXiv 1806.03822), section 5: a question without an answer
has the reference "".

The two scorers differ if an answer is empty after normalization, such as "The" or "$":

    evaluate-v1.1.py    every reference counts; two empty answers match exactly and have an F1 of 0
    evaluate-v2.0.py    empty references are dropped unless all are empty; two empty answers have
                        an F1 of 1
"""

import collections
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Returns a text without case, ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(reference: str, prediction: str) -> float:
    """Returns 1 if the two are equal after normalization, else 0."""
    return float(normalized(reference) == normalized(prediction))


def f1(reference: str, prediction: str, *, impossible: bool = False) -> float:
    """Returns the F1 between the words of the two texts, 0 to 1.

    impossible: use the rules of SQuAD 2.0.
    """
    reference_words, words = normalized(reference).split(), normalized(prediction).split()
    if impossible and not (reference_words and words):
        return float(reference_words == words)
    common = (collections.Counter(reference_words) & collections.Counter(words)).total()
    return 2 * common / (len(reference_words) + len(words)) if common else 0.0


def of_answers(
    references: Sequence[Sequence[str]], predictions: Sequence[str], *, impossible: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (exact matches, F1), float64[questions], 0 to 1.

    references: the accepted answers to each question; the one with the best score counts.
    impossible: use the rules of SQuAD 2.0.
    """
    rows = []
    for answers, prediction in zip(references, predictions, strict=True):
        candidates = [answer for answer in answers if normalized(answer) or not impossible] or [""]
        exact = max(exact_match(answer, prediction) for answer in candidates)
        rows.append([exact, max(f1(a, prediction, impossible=impossible) for a in candidates)])
    exact_Q, f1_Q = np.array(rows, np.float64).reshape(-1, 2).T
    return exact_Q, f1_Q


def scores(
    references: Sequence[Sequence[str]], predictions: Sequence[str], *, impossible: bool = False
) -> dict[str, float]:
    """Returns exact_match and f1 over all questions, 0 to 100.

    references: the accepted answers to each question. impossible: use the rules of SQuAD 2.0, and
    also return has_answer_exact_match and has_answer_f1 over the questions that have an answer, and
    no_answer_accuracy over the others. Scores over no questions are omitted.
    """
    exact_Q, f1_Q = of_answers(references, predictions, impossible=impossible)
    result = {"exact_match": _percent(exact_Q), "f1": _percent(f1_Q)}
    if impossible:
        answered_Q = has_answer(references)
        if answered_Q.any():
            result["has_answer_exact_match"] = _percent(exact_Q[answered_Q])
            result["has_answer_f1"] = _percent(f1_Q[answered_Q])
        if not answered_Q.all():
            result["no_answer_accuracy"] = _percent(exact_Q[~answered_Q])
    return result


def has_answer(references: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns bool[questions]: whether a question has an answer, even if it normalizes to ""."""
    return np.array([any(answers) for answers in references], bool)


class Threshold(NamedTuple):
    """The best score, 0 to 100, and the threshold that gives it."""

    score: float
    threshold: float


def best_threshold(
    scores_Q: np.ndarray, answered_Q: np.ndarray, null_odds_Q: np.ndarray
) -> Threshold:
    """Returns the best threshold for null odds; above it, the prediction is "no answer".

    scores_Q: float[questions], 0 to 1: the score of each question's best non-empty answer.
    answered_Q: bool[questions], whether the question has an answer. null_odds_Q: float[questions],
    the model's score of "no answer" minus its score of the best answer.

    Questions with equal null odds are on the same side of the threshold. If several thresholds give
    the same score, the lowest is returned. The threshold is the midpoint between the null odds on
    its two sides, so that it does not depend on rounding. If all null odds are on the same side, it
    is 1 above or below them.
    """
    order = np.argsort(null_odds_Q, kind="stable")
    odds_Q = null_odds_Q[order]
    gains_Q = np.where(answered_Q, scores_Q, -1.0)[order]  # what answering adds to the score
    totals = np.count_nonzero(~answered_Q) + np.concatenate([[0.0], np.cumsum(gains_Q)])
    real = np.concatenate([[True], odds_Q[1:] > odds_Q[:-1], [True]])  # only between unequal odds
    best = int(np.argmax(np.where(real, totals, -np.inf)))
    ends = np.concatenate([odds_Q[:1] - 2.0, odds_Q, odds_Q[-1:] + 2.0])
    threshold = (ends[best] + ends[best + 1]) / 2
    return Threshold(100.0 * float(totals[best]) / len(odds_Q), float(threshold))


def _percent(scores_Q: np.ndarray) -> float:
    return 100.0 * float(scores_Q.mean())
