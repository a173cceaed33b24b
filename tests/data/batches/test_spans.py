"""T5's noise against the exact vectors of its unit tests and the properties they check."""

import json

import numpy as np
import pytest

from bertjax.data.batches import rng, spans

SENTINELS = np.arange(999, 899, -1)


def random(rows: int, epoch: int = 0) -> rng.RowRandom:
    return rng.RowRandom(rng.row_keys(0, epoch, np.arange(rows)))


def noise_mask(sizes, noise, number, random) -> np.ndarray:
    """The mask of the noise tokens of all pieces. Checks that noise and text are complementary."""
    noise_runs, text_runs = spans.noise_runs(sizes, noise, number, random)
    mask = np.zeros(sizes.sum(), bool)
    for start, size in zip(*noise_runs[:2], strict=True):
        mask[start : start + size] = True
    for start, size in zip(*text_runs[:2], strict=True):
        assert not mask[start : start + size].any()
    assert mask.sum() + text_runs.size.sum() == len(mask)
    return mask


def runs_of(mask: np.ndarray, sizes) -> spans.Runs:
    """The runs of True in the mask of each piece."""
    pieces, starts = np.split(mask, np.cumsum(sizes)[:-1]), np.cumsum(sizes) - sizes
    start, size, per_piece = [], [], []
    for piece, first in zip(pieces, starts, strict=True):
        edges = np.flatnonzero(np.diff(piece.astype(int), prepend=0, append=0)).reshape(-1, 2)
        start += (edges[:, 0] + first).tolist()
        size += (edges[:, 1] - edges[:, 0]).tolist()
        per_piece.append(len(edges))
    return spans.Runs(*(np.array(values, np.int64) for values in (start, size, per_piece)))


def inputs_of(tokens, mask, sizes, sentinels):
    return spans.replace(tokens, runs_of(mask, sizes), sizes, sentinels)


def targets_of(tokens, mask, sizes, sentinels):
    return spans.replace(tokens, runs_of(~mask, sizes), sizes, sentinels)


def masks(sizes, noise: spans.Noise, epoch: int = 0) -> list[np.ndarray]:
    """The mask of each piece of rows of one piece."""
    rows = np.array(sizes)[:, None]
    mask = noise_mask(rows, *noise.counts(rows), random(len(rows), epoch))
    return np.split(mask, np.cumsum(sizes)[:-1])


def runs(mask: np.ndarray) -> list[int]:
    """Sizes of the runs of equal values."""
    edges = np.flatnonzero(np.diff(mask.astype(int)))
    return np.diff([-1, *edges, len(mask) - 1]).tolist()


# Lengths


def test_lengths_of_the_reference():
    assert spans.random_spans_lengths(64, 0.2, 2.0) == (70, 22)
    assert spans.random_spans_lengths(64, 0.2, 1.0) == (63, 27)
    assert spans.random_spans_lengths(512, 0.15, 3.0) == (568, 114)


def test_all_lengths_of_the_reference(shared_data):
    file = shared_data / "oracle" / "t5_span_corruption_lengths.json"
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) >= 36
    for row in rows:
        found = spans.random_spans_lengths(
            row["inputs_length"], row["noise_density"], row["mean_noise_span_length"]
        )
        assert found == (row["tokens_length"], row["targets_length"]), row


@pytest.mark.parametrize("noise", [(0.15, 3.0), (0.5, 3.0), (0.15, 64.0), (0.25, float("inf"))])
@pytest.mark.parametrize("max_spans", [5, 100])
def test_lengths_are_those_of_corrupted_pieces(noise, max_spans):
    noise, sizes = spans.Noise(*noise), np.arange(1, 200)
    tokens, number = noise.counts(sizes[:, None], max_spans)
    assert number.max() <= max_spans
    mask = noise_mask(sizes[:, None], tokens, number, random(len(sizes)))
    inputs, targets = noise.lengths(sizes, max_spans)
    text = np.zeros(len(mask), np.int32)
    hidden, hidden_sizes = inputs_of(text, mask, sizes, SENTINELS)
    kept, kept_sizes = targets_of(text, mask, sizes, SENTINELS)
    assert inputs.tolist() == (hidden_sizes + 1).tolist() and len(hidden) == hidden_sizes.sum()
    assert targets.tolist() == (kept_sizes + 1).tolist() and len(kept) == kept_sizes.sum()


def test_longest_piece_is_the_longest_that_fits():
    noise = spans.Noise(0.5, 3.0)
    for limits in ((64, 64, 100), (64, 20, 100), (64, 64, 4)):
        longest = noise.longest_piece(*limits)
        inputs, targets = noise.lengths(np.array([longest, longest + 1]), limits[2])
        assert inputs[0] <= limits[0] and targets[0] <= limits[1]
        assert inputs[1] > limits[0] or targets[1] > limits[1]


# Masks


def test_noise_mask_of_32_tokens():
    # The numbers of the reference test: 8 noise tokens in 4 spans.
    for mask in masks([32] * 50, spans.Noise(0.25, 2.0)):
        assert mask.sum() == 8
        assert len(runs(mask)) == 8
        assert not mask[0] and mask[-1]


@pytest.mark.parametrize("kind", ["random", "equal", "high"])
def test_spans_start_at_the_lowest_scores(kind, monkeypatch):
    # Equal and high scores are improbable, so that fewer tokens than expected are below a limit.
    sizes = np.array([[60, 3, 41], [100, 1, 0], [2, 0, 0], [25, 75, 4]])
    noise = np.array([[30, 1, 6], [90, 0, 0], [1, 0, 0], [5, 30, 2]])
    number = np.array([[9, 1, 2], [10, 1, 0], [1, 0, 0], [4, 30, 2]])
    scores = random(4).bits("spans/score", 104)
    if kind == "equal":
        scores = np.full_like(scores, 2**32 - 1)
    if kind == "high":
        scores |= np.uint32(0xFFFFFF00)

    def bits(rows, stream, n):
        assert stream == "spans/score"
        return np.stack([scores[random(4).keys.tolist().index(key), :n] for key in rows.keys])

    monkeypatch.setattr(rng.RowRandom, "bits", bits)
    found = noise_mask(sizes, noise, number, random(4)).tolist()
    for row in range(4):
        column = 0
        for size, hidden, spans_of_piece in zip(sizes[row], noise[row], number[row], strict=True):
            lengths = []
            for tokens in (hidden, size - hidden):
                later = range(column + 1, column + tokens)
                chosen = sorted(later, key=lambda place: (scores[row, place], place))
                starts = sorted([column, *chosen[: spans_of_piece - 1]])
                lengths.append(np.diff([*starts, column + tokens]))
                column += tokens
            expected = []
            for noise_length, text_length in zip(*lengths, strict=True):
                expected += [False] * text_length + [True] * noise_length
            piece, found = found[:size], found[size:]
            assert piece == expected


def test_average_density():
    for epoch in range(3):
        found = masks([16, 17, 18] * 200, spans.Noise(0.15, 3.0), epoch)
        assert abs(np.mean([mask.mean() for mask in found]) - 0.15) < 0.02


def test_all_ways_of_cutting_are_alike():
    # 4 noise tokens in 2 spans of 10: noise is cut in 3 ways, text in 5.
    size, rows = 10, 6000
    noise = np.full((rows, 1), 4)
    mask = noise_mask(np.full((rows, 1), size), noise, np.full((rows, 1), 2), random(rows))
    ways, counts = np.unique(mask.reshape(rows, size), axis=0, return_counts=True)
    assert len(ways) == 15
    np.testing.assert_allclose(counts, rows / 15, rtol=0.2)


def test_rows_and_pieces_do_not_know_each_other():
    noise = spans.Noise(0.3, 2.0)
    sizes = np.array([[30, 20, 7], [1, 50, 0], [2, 0, 0], [3, 40, 9]])
    counts = noise.counts(sizes)
    whole = noise_mask(sizes, *counts, random(4))
    per_row = np.split(whole, np.cumsum(sizes.sum(axis=1))[:-1])
    for row in range(4):
        one = [array[row : row + 1] for array in (sizes, *counts)]
        alone = noise_mask(*one, rng.RowRandom(random(4).keys[row : row + 1]))
        assert alone.tolist() == per_row[row].tolist()
        pieces = np.split(alone, np.cumsum(sizes[row])[:-1])
        for piece, tokens, number in zip(pieces, counts[0][row], counts[1][row], strict=True):
            assert piece.sum() == tokens
            if tokens:
                assert len(runs(piece)) == 2 * number and not piece[0] and piece[-1]


def test_one_span_is_the_end():
    mask = masks([40], spans.Noise(0.25, float("inf")))[0]
    assert mask.tolist() == [False] * 30 + [True] * 10


# Sentinels


def test_sentinels_of_the_reference():
    tokens, mask = np.arange(10, 16), np.array([1, 1, 0, 0, 1, 0], bool)
    for size in ([6], [2, 4]):  # a border of pieces behind the first span changes its number only
        found, sizes = inputs_of(tokens, mask, np.array(size), SENTINELS)
        second = 998 if size == [6] else 999
        assert found.tolist() == [999, 12, 13, second, 15]
        assert sizes.tolist() == ([5] if size == [6] else [1, 4])


def test_denoise_of_the_reference():
    # The quick brown fox. With 26 pieces the sentinels count down from 25.
    tokens = np.array([3, 2, 20, 4, 3, 2, 8, 13, 2, 3, 2, 23, 7, 19, 22, 3, 2, 7, 2])
    mask = np.zeros(19, bool)
    mask[[8, 14, 15, 16, 17, 18]] = True
    text = tokens, mask, np.array([19]), np.arange(25, 0, -1)
    inputs, _ = inputs_of(*text)
    targets, _ = targets_of(*text)
    assert inputs.tolist() == [3, 2, 20, 4, 3, 2, 8, 13, 25, 3, 2, 23, 7, 19, 24]
    assert targets.tolist() == [25, 2, 24, 22, 3, 2, 7, 2]


def test_ids_around_the_pieces():
    tokens, mask = np.arange(10, 19), np.array([0, 0, 1, 1, 0, 1, 1, 0, 0], bool)
    sizes = np.array([4, 2, 3])
    for runs_found in (runs_of(mask, sizes), runs_of(~mask, sizes)):
        plain, plain_sizes = spans.replace(tokens, runs_found, sizes, SENTINELS)
        pieces = np.split(plain, np.cumsum(plain_sizes)[:-1])
        for starts, end in ((np.array([5, 6, 7]), None), (None, 1), (np.array([5, 6, 7]), 1)):
            found, found_sizes = spans.replace(
                tokens, runs_found, sizes, SENTINELS, starts_P=starts, end=end
            )
            fronts = [[]] * 3 if starts is None else [[start] for start in starts]
            back = [] if end is None else [end]
            expected = [[*a, *piece, *back] for a, piece in zip(fronts, pieces, strict=True)]
            assert found.tolist() == np.concatenate(expected).tolist()
            assert found_sizes.tolist() == [len(piece) for piece in expected]


def test_denoise_without_noise():
    text = np.array([3, 2, 20]), np.zeros(3, bool), np.array([3]), np.array([25, 24])
    assert inputs_of(*text)[0].tolist() == [3, 2, 20]
    assert targets_of(*text)[0].tolist() == [25]
