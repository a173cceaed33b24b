"""Mixtures of sources: the means of their held-out metrics."""

import math

import pytest

from bertjax import mixing

SHARES = {"web": 0.6, "books": 0.2, "late": 0.0}


def scores(loss, **others):
    return {"loss": loss, "perplexity": math.exp(loss), "samples": 10} | others


def test_means_are_weighted_by_the_shares():
    by_source = {"web": scores(2.0), "books": scores(4.0), "late": scores(9.0)}
    means = mixing.mean_scores(by_source, SHARES)
    assert means["loss"] == pytest.approx(2.5)
    assert means["perplexity"] == pytest.approx(math.exp(2.5))
    assert means["samples"] == 20
    assert means["late/loss"] == 9.0


@pytest.mark.parametrize("source", ["web", "books"])
def test_a_metric_that_a_source_lacks_has_no_mean(source):
    by_source = {name: scores(2.0, bits_per_byte=1.0) for name in SHARES}
    del by_source[source]["bits_per_byte"]
    means = mixing.mean_scores(by_source, SHARES)
    assert "bits_per_byte" not in means and f"{source}/bits_per_byte" not in means
    assert means["late/bits_per_byte"] == 1.0 and means["loss"] == pytest.approx(2.0)


def test_a_run_with_one_dataset_keeps_its_scores():
    assert mixing.mean_scores({"": scores(2.0)}, {"": 1.0}) == scores(2.0)
