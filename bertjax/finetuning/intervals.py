"""Bootstrap intervals of scores on few examples (Efron and Tibshirani 1993, section 13.3).

    intervals.of(task_type, examples, predictions, "accuracy")     # (76.7, 96.7)

A score of 30 examples is uncertain by more than most differences between models. The interval shows
what other draws of as many examples would have given; it does not know what another training run
would have given.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.finetuning.task_types import base, classification, multiple_choice, tokens

MAX_EXAMPLES = 1000  # no interval for more examples
COVERAGE = 95  # percent
_DRAWS = 2000
_ONE_LABEL = (classification.TaskType, multiple_choice.TaskType)
SUPPORTED = (*_ONE_LABEL, tokens.TaskType)  # the task types whose scores have intervals


def of(
    task_type: base.TaskType, examples: Sequence[Any], predictions: Sequence[Any], name: str
) -> tuple[float, float] | None:
    """Returns the interval of the score `name`; None for many examples, and for other scores.

    Supports accuracy and F1 of labels, choices, tags and entities. `examples` have labels.
    """
    if not 1 < len(examples) <= MAX_EXAMPLES:
        return None
    counts_E2 = _counts(task_type, examples, predictions, name)
    if counts_E2 is None:
        return None
    draws = np.random.default_rng(0).multinomial(
        len(examples), np.full(len(examples), 1 / len(examples)), size=_DRAWS
    )
    numerators, denominators = (draws @ counts_E2).T
    scores = 100.0 * numerators / np.maximum(denominators, 1e-9)
    outside = (100 - COVERAGE) / 2
    low, high = np.percentile(scores, [outside, 100 - outside])
    if low == high:  # all examples are alike, so every draw is; the interval is that of a share
        rare = 100.0 * (outside / 100) ** (1 / len(examples))  # Clopper and Pearson 1934
        return (rare, 100.0) if high else (0.0, 100.0 - rare)
    return float(low), float(high)


def _counts(
    task_type: base.TaskType, examples: Sequence[Any], predictions: Sequence[Any], name: str
) -> np.ndarray | None:
    """Returns float[examples, 2]: the score is the quotient of the sums of both columns."""
    pairs = list(zip(examples, predictions, strict=True))
    if isinstance(task_type, tokens.TaskType):
        counts = {"accuracy": _right_tags, "f1": _entities}
        if name not in counts:
            return None
        return np.array([counts[name](e.tags, p["tags"]) for e, p in pairs], float)
    if name == "accuracy" and isinstance(task_type, _ONE_LABEL):
        return np.array([(e.label == p["label"], 1) for e, p in pairs], float)
    if name == "f1" and isinstance(task_type, classification.TaskType):
        positive = task_type.labels[1]
        marks = [(e.label == positive, p["label"] == positive) for e, p in pairs]
        return np.array([(2 * (a and b), a + b) for a, b in marks], float)
    return None


def _right_tags(targets: Sequence[str], tags: Sequence[str]) -> tuple[int, int]:
    return sum(a == b for a, b in zip(targets, tags, strict=True)), len(targets)


def _entities(targets: Sequence[str], tags: Sequence[str]) -> tuple[int, int]:
    """Returns numerator and denominator of F1: 2 TP, and 2 TP + FP + FN."""
    ours, theirs = set(tokens.spans(tags)), set(tokens.spans(targets))
    return 2 * len(ours & theirs), len(ours) + len(theirs)
