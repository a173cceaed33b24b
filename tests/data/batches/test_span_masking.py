"""Runs of whole words: their lengths, where they may lie, and what stands around them."""

import collections

import numpy as np
import pytest

from bertjax.data.batches import masking, rng, span_masking
from bertjax.objectives import mlm, span_boundary
from tests.helpers import synthetic

VOCABULARY = synthetic.make_vocabulary()
SPECIALS = synthetic.SPECIALS
GEOMETRIC = span_masking.geometric(0.2, 10)


def row_random(rows: int, epoch: int = 0) -> rng.RowRandom:
    return rng.RowRandom(rng.row_keys(0, epoch, np.arange(rows)))


def made_up(rows: int, length: int, continuing: float = 0.2):
    """Candidates with a gap in each row, and which of them go on with a word."""
    random = np.random.default_rng(0)
    candidates = np.ones((rows, length), bool)
    candidates[:, [0, -1]] = False
    candidates[np.arange(rows), random.integers(1, length, rows)] = False
    return candidates, random.random((rows, length)) < continuing


def spans_of(positions, weights):
    """(start, end) of each maximal run of chosen positions of a row, the ends excluded."""
    chosen = positions[weights > 0]
    breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(chosen, breaks) if len(run)]


def make_batch(config, length, rows=256, objective=mlm):
    sampling = objective.sampling(config, length, VOCABULARY)
    window = sampling.window(synthetic.records(200))
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(0, 0, np.array([0]))))
    return sampling.assemble(window, table[:rows])


# Lengths


def test_chances_are_those_of_the_papers():
    np.testing.assert_allclose(span_masking.harmonic(3), [6 / 11, 3 / 11, 2 / 11])
    words = np.arange(1, 11)
    expected = 0.2 * 0.8 ** (words - 1)
    np.testing.assert_allclose(GEOMETRIC, expected / expected.sum())
    assert abs(GEOMETRIC @ words - 3.8) < 0.01
    assert span_masking.geometric(1.0, 10).tolist() == [1.0] + [0.0] * 9


@pytest.mark.parametrize("chances", [GEOMETRIC, span_masking.harmonic(3)])
def test_lengths_are_drawn_with_their_chances(chances):
    drawn = span_masking.draw_lengths(chances, 50, row_random(2000))
    words = np.arange(1, len(chances) + 1)
    n, mean = drawn.size, chances @ words
    assert abs(drawn.mean() - mean) < 4 * np.sqrt(chances @ words**2 - mean**2) / np.sqrt(n)
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == words.tolist()
    error = 4 * np.sqrt(chances * (1 - chances) / n)
    assert (abs(counts / n - chances) < error).all()


def test_the_lengths_drawn_are_the_lengths_placed():
    """Neither what is in the way nor the ends of the text favour short runs: the mean stays 3.8."""
    rows, length, limit = 400, 512, 77
    candidates, continues = made_up(rows, length, continuing=0.0)
    lengths = span_masking.draw_lengths(GEOMETRIC, limit, row_random(rows))
    counts = np.full(rows, limit)
    positions, weights = span_masking.choose_spans(
        candidates, continues, counts, limit, lengths, row_random(rows), gap=1
    )
    assert weights.all()
    spans = []
    for drawn, row, used in zip(lengths, positions, weights, strict=True):
        whole = drawn[: np.searchsorted(np.cumsum(drawn), limit, side="right")]
        sizes = collections.Counter(end - start for start, end in spans_of(row, used))
        assert sizes >= collections.Counter(whole.tolist())
        rest = sizes - collections.Counter(whole.tolist())  # of the one that the count cut
        assert rest.total() <= 1 and whole.sum() + sum(n * k for n, k in rest.items()) == limit
        spans += sizes.elements()
    assert 3.6 < np.mean(spans) < 3.8  # the cut ones included


# Places


@pytest.mark.parametrize("gap", [0, 1])
def test_runs_are_whole_words_within_the_count_and_clear_of_each_other(gap):
    rows, length, limit = 300, 96, 30
    candidates, continues = made_up(rows, length, continuing=0.3)
    counts = np.random.default_rng(1).integers(1, limit + 1, rows)
    lengths = span_masking.draw_lengths(GEOMETRIC, limit, row_random(rows))
    positions, weights = span_masking.choose_spans(
        candidates, continues, counts, limit, lengths, row_random(rows), gap=gap
    )
    chosen = np.zeros((rows, length), bool)
    for i in range(rows):
        used = positions[i][weights[i] > 0]
        assert (np.diff(used) > 0).all() and not positions[i][weights[i] == 0].any()
        chosen[i, used] = True
    assert not (chosen & ~candidates).any()
    sizes = chosen.sum(axis=1)
    assert (sizes <= counts).all() and (sizes == counts).mean() > 0.95
    first, _ = masking.words(candidates, continues)
    inside = candidates & ~first  # goes on with the word before it
    np.testing.assert_array_equal(chosen[inside], np.roll(chosen, 1, axis=1)[inside])


def test_every_word_is_a_start_alike():
    rows, length = 20_000, 12
    candidates = np.ones((rows, length), bool)
    candidates[:, 0] = candidates[:, -1] = False
    none = np.zeros_like(candidates)
    two = np.full((rows, 2), 2)
    positions, weights = span_masking.choose_spans(
        candidates, none, np.full(rows, 2), 2, two, row_random(rows), gap=1
    )
    assert weights.all() and (positions[:, 1] == positions[:, 0] + 1).all()
    found, counts = np.unique(positions[:, 0], return_counts=True)
    assert found.tolist() == list(range(1, 10))  # no run leaves the text
    np.testing.assert_allclose(counts, rows / 9, rtol=0.1)


def test_what_the_count_holds_cuts_a_run_to_whole_words():
    candidates = np.array([[False, True, True, True, True, True, False]])
    continues = np.array([[False, False, True, True, False, False, False]])  # sizes 3, 1, 1
    lengths = np.full((1, 4), 3)
    for epoch in range(20):
        positions, weights = span_masking.choose_spans(
            candidates, continues, np.array([2]), 4, lengths, row_random(1, epoch), gap=1
        )
        used = positions[0][weights[0] > 0].tolist()
        assert used in ([4, 5], [5])  # the long word fits nowhere


def test_nothing_to_choose_is_harmless():
    nothing = np.zeros((2, 8), bool)
    positions, weights = span_masking.choose_spans(
        nothing, nothing, np.full(2, 3), 4, np.full((2, 4), 2), row_random(2), gap=1
    )
    assert positions.shape == weights.shape == (2, 4)
    assert not positions.any() and not weights.any()
    assert not span_masking.boundaries(positions, weights).any()


def test_runs_do_not_cross_rows():
    everything = np.ones((50, 6), bool)
    positions, weights = span_masking.choose_spans(
        everything,
        np.zeros_like(everything),
        np.full(50, 4),
        4,
        np.full((50, 4), 4),
        row_random(50),
        gap=1,
    )
    assert weights.all()
    assert (np.diff(positions, axis=1) == 1).all() and positions.max() == 5


# What stands around them


def test_runs_and_boundaries():
    positions = np.array([[3, 4, 5, 9, 11, 12, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]], np.int32)
    weights = np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]], np.float32)
    first, last = span_masking.runs(positions, weights)
    assert first.tolist() == [[0, 0, 0, 3, 4, 4, 6, 7], [0, 0, 2, 3, 4, 5, 6, 7]]
    assert last.tolist() == [[2, 2, 2, 3, 5, 5, 6, 7], [1, 1, 2, 3, 4, 5, 6, 7]]
    around = span_masking.boundaries(positions, weights)
    assert around.dtype == np.int32
    assert around[0].tolist() == [[2, 6]] * 3 + [[8, 10]] + [[10, 13]] * 2 + [[0, 0]] * 2


def test_a_full_row_of_neighbours_is_one_run():
    positions, weights = np.arange(2, 6)[None], np.ones((1, 4), np.float32)
    assert span_masking.boundaries(positions, weights).tolist() == [[[1, 6]] * 4]


def test_what_stands_around_a_span_is_seen_as_it_is():
    config, length = span_boundary.Config(), 128
    batch = make_batch(config, length, objective=span_boundary)
    rows = len(batch["input_ids"])
    out = span_boundary.transform(config, length, VOCABULARY, batch, row_random(rows))
    given = {name: (value.shape[1:], value.dtype.type) for name, value in out.items()}
    assert given == span_boundary.features(config, length)
    used = out["masked_weights"] > 0
    left, right = np.moveaxis(out["span_boundaries"], -1, 0)
    positions = out["masked_positions"]
    assert (left < positions)[used].all() and (positions < right)[used].all()
    for around in (left, right):
        before = np.take_along_axis(batch["input_ids"], around, axis=1)
        after = np.take_along_axis(out["input_ids"], around, axis=1)
        np.testing.assert_array_equal(before[used], after[used])
        assert not (around[:, :, None] == np.where(used, positions, -1)[:, None, :])[used].any()
    # All between the boundaries is hidden: as many slots have them as there are places.
    size = (right - left - 1)[used]
    assert size.max() > 8
    same = (left[:, :, None] == left[:, None, :]) & used[:, None, :]
    np.testing.assert_array_equal(same.sum(axis=2)[used], size)


def test_a_span_is_one_decision():
    config = mlm.Config(masking="span", pair="none")
    batch = make_batch(config, 128)
    rows = len(batch["input_ids"])
    kinds, spans = np.zeros(3), 0
    for epoch in range(8):
        out = mlm.transform(config, 128, VOCABULARY, batch, row_random(rows, epoch))
        for truth, seen, positions, weights in zip(
            batch["input_ids"], out["input_ids"], out["masked_positions"], out["masked_weights"],
            strict=True,
        ):  # fmt: skip
            for start, end in spans_of(positions, weights):
                hidden = seen[start:end] == SPECIALS.mask
                kept = seen[start:end] == truth[start:end]
                assert hidden.all() or not hidden.any()
                # A random piece is now and then the right one, but not often.
                kind = 0 if hidden.all() else (1 if kept.all() else 2)
                kinds[kind] += 1
                spans += 1
    shares = np.array([0.8, 0.1, 0.1])
    assert spans > 5000
    assert (abs(kinds / spans - shares) < 5 * np.sqrt(shares * (1 - shares) / spans)).all()


def test_ngrams_decide_token_by_token():
    config = mlm.Config(masking="ngram", pair="none")
    batch = make_batch(config, 128)
    out = mlm.transform(config, 128, VOCABULARY, batch, row_random(len(batch["input_ids"])))
    mixed = 0
    for seen, positions, weights in zip(
        out["input_ids"], out["masked_positions"], out["masked_weights"], strict=True
    ):
        for start, end in spans_of(positions, weights):
            hidden = seen[start:end] == SPECIALS.mask
            mixed += 0 < hidden.sum() < end - start
    assert mixed > 100


@pytest.mark.parametrize("rate", [0.15, 0.3])
@pytest.mark.parametrize("choice", ["ngram", "span"])
def test_share_of_hidden_tokens_is_the_rate(choice, rate):
    config = mlm.Config(masking=choice, mask_rate=rate)
    batch = make_batch(config, 128)
    out = mlm.transform(config, 128, VOCABULARY, batch, row_random(len(batch["input_ids"])))
    share = out["masked_weights"].sum() / batch["attention_mask"].sum()
    assert abs(share - rate) < 0.01
