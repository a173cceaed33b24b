"""Batches of sequences of many lengths: every token once, in few shapes."""

import numpy as np
import pytest

from bertjax.inference import batching

RNG = np.random.default_rng(0)
SEQUENCES = [RNG.integers(1, 99, size).astype(np.int32) for size in [5, 1, 33, 7, 64, 64, 2, 100]]


def test_rounding():
    assert [batching.round_up(n) for n in (0, 1, 32, 33)] == [0, 32, 32, 64]
    assert [batching.power_of_two(n) for n in (1, 2, 3, 9)] == [1, 2, 4, 16]
    assert [batching.power_of_two_within(n) for n in (1, 2, 3, 9)] == [1, 2, 2, 8]


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_where_it_is_said_to_be(left):
    ids, real = batching.padded(SEQUENCES, (9, 128), pad=7, left=left)
    assert ids.dtype == np.int32 and ids.shape == real.shape == (9, 128)
    for row, sequence in zip(range(9), [*SEQUENCES, np.zeros(0)], strict=True):
        assert ids[row][real[row]].tolist() == sequence.tolist()
        assert (ids[row][~real[row]] == 7).all()
        side = real[row][::-1] if left else real[row]
        assert side.tolist() == [True] * len(sequence) + [False] * (128 - len(sequence))


def test_the_longest_come_first_and_the_batch_size_may_depend_on_them():
    seen = []

    def size(longest):
        seen.append(longest)
        return 1 if longest > 50 else 4

    found = list(batching.longest_first(SEQUENCES, size))
    assert found == [[7], [4], [5], [2, 3, 0, 6], [1]]
    assert seen == [100, 64, 64, 33, 1]


def test_buckets_hold_every_row_once_with_little_padding():
    rows = []
    for chosen, (ids,), (real,) in batching.buckets([SEQUENCES], limit=100, pad=0):
        rows += chosen.tolist()
        assert ids.shape[1] <= 100
        for row, own, is_real in zip(chosen, ids, real, strict=True):
            assert own[is_real].tolist() == SEQUENCES[row].tolist()
            assert ids.shape[1] <= max(len(SEQUENCES[row]) + 3, len(SEQUENCES[row]) * 1.25)
    assert sorted(rows) == list(range(len(SEQUENCES)))
