"""Scores of rankings: values by hand, ties, and queries without results."""

import math

import pytest

from bertjax.finetuning import ranking_scores

pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier is not installed")


def test_scores_are_those_of_the_formulas():
    qrels = {"q": {"a": 2, "b": 1, "c": 0, "z": 1}}
    run = {"q": {"c": 0.9, "a": 0.8, "x": 0.7, "b": 0.6}}
    found = ranking_scores.scores(qrels, run)
    gain = 2 / math.log2(3) + 1 / math.log2(5)
    best = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert found["ndcg_at_10"] == pytest.approx(100 * gain / best)
    assert found["mrr_at_10"] == pytest.approx(50)
    assert found["map_at_100"] == pytest.approx(100 * (1 / 2 + 2 / 4) / 3)
    assert found["recall_at_10"] == found["recall_at_100"] == pytest.approx(200 / 3)


def test_the_reciprocal_rank_stops_after_ten():
    run = {"q": {f"d{n:02d}": -n for n in range(20)}}
    at = [ranking_scores.scores({"q": {f"d{n:02d}": 1}}, run)["mrr_at_10"] for n in (9, 10)]
    assert at == [pytest.approx(10), 0]


def test_of_equal_scores_the_last_name_comes_first():
    """A score that differs only beyond float32 is equal."""
    for score in (1.0, 1.0 + 1e-9):
        run = {"q": {"a": score, "b": 1.0}}
        assert ranking_scores.scores({"q": {"a": 1}}, run)["mrr_at_10"] == 50
        assert ranking_scores.scores({"q": {"b": 1}}, run)["mrr_at_10"] == 100


def test_a_query_without_results_counts_as_zero():
    qrels = {"q": {"a": 1}, "r": {"a": 1}, "s": {"a": 1}, "t": {"a": 1}}
    run = {"q": {"a": 1.0}, "r": {}, "t": {"a": math.nan, "b": -5.0}, "other": {"a": 1.0}}
    assert ranking_scores.scores(qrels, run)["mrr_at_10"] == pytest.approx((100 + 50) / 4)
