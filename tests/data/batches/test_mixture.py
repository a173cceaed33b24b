"""Mixtures of sources: their shares, the same bytes for any split of the rows, and their epochs."""

import math

import numpy as np
import pytest

from bertjax.data.batches import loader, mixture
from bertjax.data.batches.rng import RowRandom
from tests.data.batches.test_loader import assert_same, parts
from tests.helpers import synthetic

WEIGHTS = {"web": 0.6, "books": 0.3, "wiki": 0.1}


def make(weights=WEIGHTS, batch_size=16, number=0, first=None, records=(40, 20, 6)):
    streams = {
        name: loader.Stream(
            synthetic.Dataset(synthetic.records(count)), parts()[0], seed=seed
        )
        for seed, (name, count) in enumerate(zip(WEIGHTS, records, strict=True))
    }
    order = mixture.Order(weights, seed=0, number=number)
    return mixture.Mixture(streams, order, parts()[1], batch_size=batch_size, first=first or {})


@pytest.mark.parametrize("start", [0, 60_000, mixture.BLOCK * 1000 + 7])
def test_counts_of_ten_thousand_samples_are_within_binomial_error(start):
    order = mixture.Order(WEIGHTS, seed=3)
    indices, _ = order.places(np.arange(start, start + 10_000))
    for index, (name, weight) in enumerate(zip(order.counts, WEIGHTS.values(), strict=True)):
        assert name == list(WEIGHTS)[index]
        error = 4 * math.sqrt(10_000 * weight * (1 - weight))
        assert abs((indices == index).sum() - 10_000 * weight) < error


def test_positions_count_the_samples_of_each_source():
    order = mixture.Order(WEIGHTS, seed=3)
    indices, positions = order.places(np.arange(3 * mixture.BLOCK))
    for index, name in enumerate(order.counts):
        np.testing.assert_array_equal(positions[indices == index], np.arange(sum(indices == index)))
        for stop in (0, 1, 999, mixture.BLOCK, mixture.BLOCK + 77):
            assert order.drawn(stop)[name] == (indices[:stop] == index).sum()


def test_every_source_gets_samples_and_shares_are_exact_in_a_block():
    counts = mixture.Order({"a": 1e-9, "b": 1.0, "c": 2.0, "d": 0.0}, seed=0).counts
    assert counts == {"a": 1, "b": 21845, "c": 43690} and sum(counts.values()) == mixture.BLOCK
    thirds = mixture.Order(dict.fromkeys("abc", 0.1), seed=0).counts
    assert sorted(thirds.values()) == [21845, 21845, 21846]


def test_one_source_gives_the_batches_of_its_stream():
    dataset, (sampling, transform) = synthetic.Dataset(synthetic.records(40)), parts()
    stream = loader.Stream(dataset, sampling, seed=5)
    alone = synthetic.batches_of(dataset, sampling, transform, batch_size=16, seed=5)
    for step in (0, 3, 100):
        samples, keys = stream.samples(np.arange(16 * step, 16 * step + 16))
        assert_same(alone.batch(step), transform(samples, RowRandom(keys)))


@pytest.mark.parametrize("processes", [2, 4])
def test_the_rows_of_all_processes_are_the_batch_of_one(processes):
    rows = 16 // processes
    for step in (0, 9, 5000):
        whole = make().batch(step)
        pieces = [
            make().batch(step, rows=slice(i * rows, (i + 1) * rows)) for i in range(processes)
        ]
        assert_same(
            {name: np.concatenate([piece[name] for piece in pieces]) for name in whole}, whole
        )


def test_a_source_that_is_passed_five_times_shows_every_sample_each_time():
    mixed = make()
    small = mixed._streams[2]
    steps = 5 * small.samples_per_epoch * 10 // 16 + 16
    drawn = mixed._order.drawn(steps * 16)["wiki"]
    assert drawn / small.samples_per_epoch >= 5
    for epoch in range(5):
        positions = epoch * small.samples_per_epoch + np.arange(small.samples_per_epoch)
        samples, keys = small.samples(positions)
        rows = {row.tobytes() for row in samples["input_ids"]}
        assert len(rows) > small.samples_per_epoch * 0.8 and len(set(keys)) == len(keys)


def test_phases_have_orders_of_their_own_and_start_where_they_are_told():
    assert not np.array_equal(
        mixture.Order(WEIGHTS, 0, 0).places(np.arange(500))[0],
        mixture.Order(WEIGHTS, 0, 1).places(np.arange(500))[0],
    )
    later = make(weights={"wiki": 1.0}, first={"wiki": 16})
    assert_same(later.batch(0), make(weights={"wiki": 1.0}).batch(1))
