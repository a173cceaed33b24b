"""Rows of ids as batches of like length: few shapes, and the same ones in a row for every seed.

A row belongs to the shortest bucket that holds it. An epoch shuffles the rows by seed and epoch;
what a bucket has left after its full batches goes up into the next one, so that only the last
batch of an epoch is not full, and an epoch has rows / batch_size steps, rounded up. Which bucket
comes when depends on the epoch alone: seeds can share one compiled step, side by side.

    batches = Batches(encoded.rows, kind.features(config), lengths, batch_size=32)
    for batch in batches.epoch(seeds=(0, 1), epoch=0):      # {"input_ids": int[2, 32, 64], ...}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data import rng
from bertjax.finetuning import kind

# Few, since each is compiled: at most half as long again as the one before, but the second.
_BUCKETS = (32, 64, 96, 128, 192, 256, 384, 512)
Row = Mapping[str, np.ndarray]


def bucket(length: int, longest: int) -> int:
    """The length of a batch for a row of `length` tokens, where the model takes `longest`."""
    scale = 1
    while length > _BUCKETS[-1] * scale:
        scale *= 2
    return min(next(size * scale for size in _BUCKETS if size * scale >= length), longest)


class Shape(NamedTuple):
    """Tokens of the rows of a batch."""

    length: int
    target_length: int


class Batches:
    """The rows of a split and how they come in batches.

    lengths: the most that the model takes, which no batch is longer than.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        features: Mapping[str, kind.Feature],
        lengths: kind.Lengths,
        batch_size: int,
    ):
        self._rows, self._features, self.batch_size = rows, features, batch_size
        self._lengths = row_lengths(rows, features, "length")
        self._buckets = np.array([bucket(n, lengths.length) for n in self._lengths], int)
        targets = row_lengths(rows, features, "target_length")
        # Rows go up only: the longest target so far is the longest that a bucket can meet.
        self._target_lengths = {
            size: bucket(int(targets[self._buckets <= size].max()), lengths.target_length)
            for size in np.unique(self._buckets)
        }
        self.steps_per_epoch = -(-len(rows) // batch_size)

    def epoch(self, seeds: Sequence[int], epoch: int) -> Iterator[dict[str, np.ndarray]]:
        """Every row once for each seed: arrays [seeds, batch_size, ...]."""
        plans = [self._plan(seed, epoch) for seed in seeds]
        # Of no seed: the buckets come in the same order for all of them.
        draws = rng.RowRandom(rng.row_keys(0, epoch, np.array([0])))
        for index in draws.permutation("finetune batches", self.steps_per_epoch)[0]:
            (shape,) = {plan[index][0] for plan in plans}
            parts = [self.batch(plan[index][1], shape) for plan in plans]
            yield {name: np.stack([part[name] for part in parts]) for name in parts[0]}

    def in_order(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """(numbers of the rows, batch), every row once, short ones first."""
        order = np.argsort(self._lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            yield numbers, self.batch(numbers, self._shape(self._buckets[numbers].max()))

    def batch(self, numbers: np.ndarray, shape: Shape) -> dict[str, np.ndarray]:
        """The rows, filled up to `batch_size` by rows of weight 0."""
        missing = self.batch_size - len(numbers)
        rows = [self._rows[i] for i in [*numbers, *[numbers[0]] * missing]]
        weights = np.ones(self.batch_size, np.float32)
        weights[len(numbers) :] = 0
        stacked = {name: _stack(rows, name, f, shape) for name, f in self._features.items()}
        return {**stacked, "example_weights": weights}

    def _shape(self, size: int) -> Shape:
        return Shape(int(size), self._target_lengths[size])

    def _plan(self, seed: int, epoch: int) -> list[tuple[Shape, np.ndarray]]:
        """Each batch of an epoch: its shape and the numbers of its rows."""
        draws = rng.RowRandom(rng.row_keys(seed, epoch, np.array([0])))
        order = draws.permutation("finetune rows", len(self._rows))[0]
        plan, left = [], np.zeros(0, int)
        for size in np.unique(self._buckets):
            left = np.concatenate([left, order[self._buckets[order] == size]])
            full = len(left) // self.batch_size * self.batch_size
            plan += [(self._shape(size), part) for part in left[:full].reshape(-1, self.batch_size)]
            left = left[full:]
        return [*plan, (self._shape(self._buckets.max()), left)] if len(left) else plan


def row_lengths(
    rows: Sequence[Row], features: Mapping[str, kind.Feature], which: str
) -> np.ndarray:
    """int[rows]: the longest array of each row among those with the length `which`; 0 for none."""
    named = [name for name, feature in features.items() if feature.length == which]
    return np.array([max((row[n].shape[-1] for n in named), default=0) for row in rows], int)


def _stack(rows: Sequence[Row], name: str, feature: kind.Feature, shape: Shape) -> np.ndarray:
    if not feature.length:
        return np.stack([np.asarray(row[name], feature.dtype) for row in rows])
    first = rows[0][name]
    whole = (len(rows), *first.shape[:-1], getattr(shape, feature.length))
    stacked = np.full(whole, feature.fill, feature.dtype)
    for i, row in enumerate(rows):
        stacked[i, ..., : row[name].shape[-1]] = row[name]
    return stacked
