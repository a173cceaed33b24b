"""Rows of ids as batches of like length: few shapes, and the same ones in a row for every seed.

A row belongs to the shortest bucket that holds it. An epoch shuffles the rows by seed and epoch;
what a bucket has left after its full batches goes up into the next one. An epoch has rows /
batch_size steps, rounded up: one batch at most is not full, and that is of the shortest rows, since
what fills it up is computed too. Which bucket comes when depends on the epoch alone: seeds can
share one compiled step, side by side.

Every bucket is compiled, and every token that fills one up is computed. Rows that are read again
and again have the buckets that cost the least together (`fitted`), on a CPU others than on an
accelerator; the rest have common ones.

    batches = Batches(encoded.rows, kind.features(config), lengths, batch_size=32, passes=3)
    for batch in batches.epoch(seeds=(0, 1), epoch=0):      # {"input_ids": int[2, 32, 64], ...}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from bertjax.data.batches import rng
from bertjax.finetuning import kind

# Each at most half as long again as the one before, but the second.
_COMMON = (32, 64, 96, 128, 192, 256, 384, 512)
_SHARE = 0.01  # of all tokens, that a bucket has to save
_MOST = 10  # buckets
# On a CPU a pass of more tokens than these keeps two cores as busy as one of many more. What it
# holds for the backward pass (of MiniLM 0.27 MB a token) is allocated and cleared in every step.
_CPU_TOKENS = 768
_TOKENS = ("input_ids", "decoder_input_ids")
Row = Mapping[str, np.ndarray]


class Price(NamedTuple):
    """What `fitted` weighs.

    compilation: a compilation takes as long as so many tokens. step: lengths are multiples of it.
    """

    compilation: int
    step: int


# Of a small model: on two CPU cores, and with ten seconds on one accelerator.
_CPU, _ACCELERATOR = Price(8_000, 4), Price(2_000_000, 32)


def common(length: int, longest: int) -> int:
    """The common bucket of a row of `length` tokens, where the model takes `longest`."""
    scale = 1
    while length > _COMMON[-1] * scale:
        scale *= 2
    return min(next(size * scale for size in _COMMON if size * scale >= length), longest)


def fitted(lengths: np.ndarray, longest: int, passes: int, price: Price = _CPU) -> np.ndarray:
    """The buckets, ascending, that cost rows of these lengths the least.

    The cost is that of all tokens, those that fill up included, in so many passes over the rows,
    and of a compilation for each bucket: the best of each number of buckets by dynamic programming.
    """
    step = price.step * max(1, -(-longest // 1024))
    sizes = np.unique(np.minimum(np.maximum(-(-lengths // step), 1) * step, longest))
    rows = np.searchsorted(np.sort(lengths), sizes, side="right")  # how many each size holds
    # tokens[i, j]: of the rows that go into bucket j where i is the one below it
    tokens = np.where(np.tri(len(sizes), k=-1).T > 0, (rows - rows[:, None]) * sizes, np.inf)
    bucket = max(price.compilation / passes, _SHARE * lengths.sum())
    cost = rows * sizes + bucket  # of the best buckets of which j is the last
    below = [np.full(len(sizes), -1)]
    best, chosen = cost[-1], 0
    for count in range(1, min(_MOST, len(sizes))):
        options = cost[:, None] + tokens + bucket
        below.append(options.argmin(axis=0))
        cost = options.min(axis=0)
        if cost[-1] < best:
            best, chosen = cost[-1], count
    last, found = len(sizes) - 1, []
    for choices in reversed(below[: chosen + 1]):
        found.append(sizes[last])
        last = choices[last]
    return np.array(found[::-1])


class Shape(NamedTuple):
    """Tokens of the rows of a batch."""

    length: int
    target_length: int


class Batches:
    """The rows of a split and how they come in batches.

    lengths: the most that the model takes, which no batch is longer than. passes: how often the
    rows will be read, for buckets that fit them; 0 for common ones.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        features: Mapping[str, kind.Feature],
        lengths: kind.Lengths,
        batch_size: int,
        passes: int = 0,
    ):
        self._rows, self._features, self.batch_size = rows, features, batch_size
        self.num_rows = len(rows)
        self._lengths = row_lengths(rows, features, "length")
        if passes:
            price = _CPU if jax.default_backend() == "cpu" else _ACCELERATOR
            sizes = fitted(self._lengths, lengths.length, passes, price)
            self._buckets = sizes[np.searchsorted(sizes, self._lengths)]
        else:
            self._buckets = np.array([common(n, lengths.length) for n in self._lengths], int)
        targets = row_lengths(rows, features, "target_length")
        # Rows go up only: the longest target so far is the longest that a bucket can meet.
        self._target_lengths = {
            size: common(int(targets[self._buckets <= size].max()), lengths.target_length)
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
        for shape, numbers in self._ordered():
            yield numbers, self.batch(numbers, shape)

    def one_of_each_shape(self, in_order: bool) -> list[dict[str, np.ndarray]]:
        """A batch of every shape that `in_order`, or else every epoch, has."""
        batches = self._ordered() if in_order else self._plan(0, 0)
        return [self.batch(numbers, shape) for shape, numbers in dict(batches).items()]

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

    def _ordered(self) -> Iterator[tuple[Shape, np.ndarray]]:
        order = np.argsort(self._lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            yield self._shape(self._buckets[numbers].max()), numbers

    def _plan(self, seed: int, epoch: int) -> list[tuple[Shape, np.ndarray]]:
        """Each batch of an epoch: its shape and the numbers of its rows."""
        draws = rng.RowRandom(rng.row_keys(seed, epoch, np.array([0])))
        order = draws.permutation("finetune rows", len(self._rows))[0]
        rest = len(self._rows) % self.batch_size
        plan, left = [], np.zeros(0, int)
        for size in np.unique(self._buckets):
            left = np.concatenate([left, order[self._buckets[order] == size]])
            if 0 < rest <= len(left):
                plan.append((self._shape(size), left[:rest]))
                left, rest = left[rest:], 0
            full = len(left) // self.batch_size * self.batch_size
            plan += [(self._shape(size), part) for part in left[:full].reshape(-1, self.batch_size)]
            left = left[full:]
        return plan


def micro_batches(batch: Mapping[str, jax.Array], shards: int) -> int:
    """How many parts of a batch are computed one after the other: on an accelerator 1.

    shards: that the rows of a part divide over.
    """
    if jax.default_backend() != "cpu":
        return 1
    rows, tokens = len(batch["example_weights"]), sum(batch[n].size for n in _TOKENS if n in batch)
    counts = [count for count in range(2, rows + 1) if rows % (count * shards) == 0]
    return max((count for count in counts if tokens > count * _CPU_TOKENS), default=1)


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
    stacked = np.zeros(whole, feature.dtype)
    for i, row in enumerate(rows):
        stacked[i, ..., : row[name].shape[-1]] = row[name]
    return stacked
