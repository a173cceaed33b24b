"""Scores against the figures of T5's own tests, and what they say where there is nothing to say."""

import importlib

import numpy as np
import pytest

from bertjax import errors
from bertjax.finetuning import scores


def names(numbers):
    return [str(number) for number in numbers]


def test_scores_of_labels_are_those_of_t5():
    """t5/evaluation/metrics_test.py at e081111."""
    y, p = names([0, 0, 2, 1]), names([0, 1, 2, 1])
    assert scores.accuracy(y, p) == 75
    assert scores.mcc(y, p) == pytest.approx(70)
    assert scores.macro_f1(names([0, 1, 1, 2]), names([0, 0, 2, 2]), names(range(3))) == (
        pytest.approx(44.444, abs=1e-3)
    )
    with_invalid = scores.f1(names([0, 1, 1, 0]), names([0, 1, 2, 2]), ["0", "1"])
    assert with_invalid == pytest.approx(50)


def test_correlations_are_those_of_t5():
    assert scores.correlations([0, 2], [0, 1])["pearson"] == pytest.approx(100)
    assert scores.correlations([0, 2, 1], [0, 1, 2])["spearman"] == pytest.approx(50)


def test_areas_are_those_of_t5():
    found = scores.auc([False, False, True, True], [0.1, 0.4, 0.35, 0.8])
    assert found == {
        "roc_auc": pytest.approx(75), "average_precision": pytest.approx(83.33, abs=1e-2)
    }  # fmt: skip
    assert scores.auc([True, True], [0.1, 0.2]) == {}


def test_labels_that_do_not_occur_do_not_lower_the_macro_f1():
    assert scores.macro_f1(["a", "b"], ["a", "b"], ["a", "b", "c"]) == 100
    assert scores.macro_f1(["a", "b"], ["a", "c"], ["a", "b", "c"]) == pytest.approx(100 / 3)


def test_text_that_is_no_label_is_wrong():
    y = ["no", "yes", "yes"]
    assert scores.macro_f1(y, ["no", "yes", "what"], ["no", "yes"]) == pytest.approx(250 / 3)
    assert scores.f1(["no", "no", "yes"], ["yes", "", ""], ["no", "yes"]) == 0


def test_nothing_is_nan():
    assert scores.correlations([1.0, 2.0], [3.0, 3.0]) == {"pearson": 0, "spearman": 0}
    assert scores.correlations([1.0], [3.0]) == {"pearson": 0, "spearman": 0}
    assert scores.correlations([1.0, 2.0], [3.0, np.nan]) == {"pearson": 0, "spearman": 0}
    assert scores.auc([True, False], [np.nan, 0.5]) == {}
    assert scores.mcc(["a", "b"], ["a", "a"]) == 0
    assert scores.f1(["no"], ["no"], ["no", "yes"]) == 0


def test_a_tie_of_ranks_counts_as_scipy_has_it():
    x, y = np.array([1.0, 2, 2, 3]), np.array([1.0, 3, 2, 4])
    assert scores.correlations(x, y)["spearman"] == pytest.approx(94.868, abs=1e-3)


def test_retrieval():
    found = scores.retrieval([1, 2, 4, 1])
    assert found == {"accuracy_at_1": 50, "mrr": pytest.approx(100 * (1 + 0.5 + 0.25 + 1) / 4)}


def test_a_package_that_is_absent_is_named(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(errors.UserError, match=r"sklearn is not.*pip install 'bertjax\[eval\]'"):
        scores.mcc(["a"], ["b"])
