"""Scores of labels, numbers and rankings, by scikit-learn and scipy, as percentages.

    accuracy(["yes", "no"], ["yes", "yes"])     # 50.0

Labels are names. A prediction that is not a label, such as generated text, counts as wrong.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from bertjax import errors


def library(name: str) -> ModuleType:
    """Imports and returns a module that scores need. Raises UserError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise errors.UserError(
            f"{name.partition('.')[0]} is not installed and is needed to compute the scores: "
            "pip install 'bertjax[eval]'"
        ) from error


def accuracy(targets: Sequence, predictions: Sequence) -> float:
    """Returns the percentage of predictions that equal their target."""
    pairs = zip(targets, predictions, strict=True)
    return 100.0 * sum(a == b for a, b in pairs) / max(1, len(targets))


def f1(targets: Sequence[str], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """Returns the F1 of the second of two labels, 0 to 100.

    A prediction that is not a label counts as the wrong label, as in T5's metrics.
    """
    first, second = labels
    other = {first: second, second: first}
    valid = [p if p in other else other[t] for t, p in zip(targets, predictions, strict=True)]
    return _f1(targets, valid, average="binary", pos_label=second, labels=[first, second])


def macro_f1(targets: Sequence[str], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """Returns the mean F1 of the labels that occur in targets or predictions, 0 to 100."""
    return _f1(targets, predictions, average="macro", labels=list(labels), zero_division=np.nan)


def mcc(targets: Sequence[str], predictions: Sequence[str]) -> float:
    """Returns 100 times Matthews' correlation coefficient; 0 if one sequence is constant."""
    metrics = library("sklearn.metrics")
    return 100.0 * float(metrics.matthews_corrcoef(list(targets), list(predictions)))


def auc(targets: Sequence[bool], values: Sequence[float]) -> dict[str, float]:
    """Returns {"roc_auc", "average_precision"}, 0 to 100.

    Returns {} if all targets are equal. Also returns {} if a value is not finite, because values
    are ranked.
    """
    if len(set(targets)) < 2 or not np.isfinite(values).all():
        return {}
    metrics = library("sklearn.metrics")
    return {
        "roc_auc": 100.0 * float(metrics.roc_auc_score(targets, values)),
        "average_precision": 100.0 * float(metrics.average_precision_score(targets, values)),
    }


def correlations(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Returns {"pearson", "spearman"}, times 100.

    They are 0 if targets or predictions are constant or not finite, and for a single pair.
    """
    stats = library("scipy.stats")
    spreads = np.ptp(targets), np.ptp(predictions)
    if len(targets) < 2 or not np.isfinite(spreads).all() or 0 in spreads:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": 100.0 * float(stats.pearsonr(targets, predictions).statistic),
        "spearman": 100.0 * float(stats.spearmanr(targets, predictions).statistic),
    }


def retrieval(ranks: Sequence[int]) -> dict[str, float]:
    """Returns {"accuracy_at_1", "mrr"}, 0 to 100.

    ranks: for each query, the rank of the right answer, from 1.
    """
    return {
        "accuracy_at_1": 100.0 * float(np.mean([rank == 1 for rank in ranks])),
        "mrr": 100.0 * float(np.mean([1.0 / rank for rank in ranks])),
    }


def _f1(
    targets: Sequence[str], predictions: Sequence[str], *, zero_division: float = 0.0, **options
) -> float:
    compute = library("sklearn.metrics").f1_score
    value = compute(list(targets), list(predictions), zero_division=zero_division, **options)
    return 100.0 * float(value)
