"""Exact search in blocks: the same hits as sorting all inner products."""

import numpy as np
import pytest

from bertjax.inference import search


def _vectors(count, seed):
    return np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)


def _sorted(queries, corpus, k):
    scores = queries @ corpus.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


@pytest.mark.parametrize("block", [7, search.BLOCK])
def test_hits_are_those_of_a_sort_whatever_the_block(block, monkeypatch):
    monkeypatch.setattr(search, "_QUERIES", 2)
    queries, corpus = _vectors(5, 0), _vectors(50, 1)
    hits = search.top_k(queries, corpus, 10, block=block)
    scores, order = _sorted(queries, corpus, 10)
    np.testing.assert_array_equal(hits.indices_QK, order)
    np.testing.assert_allclose(hits.scores_QK, scores, atol=1e-5)


def test_of_equal_scores_the_lower_index_comes_first():
    corpus = np.ones((20, 8), np.float32)
    hits = search.top_k(np.ones((2, 8), np.float32), corpus, 6, block=4)
    np.testing.assert_array_equal(hits.indices_QK, [list(range(6))] * 2)


def test_a_small_corpus_and_negative_scores_leave_no_padding():
    hits = search.top_k(np.ones((1, 8), np.float32), -np.ones((3, 8), np.float32), 10, block=2)
    np.testing.assert_array_equal(hits.indices_QK, [[0, 1, 2]])
    np.testing.assert_array_equal(hits.scores_QK, np.full((1, 3), -8.0))


def test_a_corpus_in_a_file_is_read_block_by_block(tmp_path):
    queries, corpus = _vectors(3, 0), _vectors(40, 1).astype(np.float16)
    np.save(tmp_path / "corpus.npy", corpus)
    mapped, progress = np.load(tmp_path / "corpus.npy", mmap_mode="r"), []
    hits = search.top_k(queries, mapped, 4, block=16, on_progress=lambda *n: progress.append(n))
    np.testing.assert_array_equal(hits.indices_QK, _sorted(queries, corpus.astype("f4"), 4)[1])
    assert progress == [(16, 40), (32, 40), (40, 40)]


def test_bad_vectors_are_refused():
    bad = _vectors(40, 1)
    bad[33, 2] = np.nan
    with pytest.raises(ValueError, match="corpus: vector 33 has values that are not finite"):
        search.top_k(_vectors(2, 0), bad, 3, block=16)
    with pytest.raises(ValueError, match="differ in width"):
        search.top_k(_vectors(2, 0)[:, :4], _vectors(9, 1), 3)
    with pytest.raises(ValueError, match="k = 0"):
        search.top_k(_vectors(2, 0), _vectors(9, 1), 0)
