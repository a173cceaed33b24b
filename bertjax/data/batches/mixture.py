"""Mixes several sources of training samples: a batch depends only on the seed and its step.

The samples of a phase are numbered 0, 1, 2, ... Each block of BLOCK numbers has a fixed count of
samples from every source, in an order drawn at random for the block. So the source of a sample, and
how many samples of that source come before it, are computed without looking at earlier blocks.

    order = Order({"web": 0.7, "books": 0.3}, seed=0)
    order.drawn(1_000)                      # {"books": 304, "web": 696}
    mixture = Mixture({"web": web, "books": books}, order, transform, batch_size=256)
    mixture.batch(step)                     # {"input_ids": int32[256, L], ...}
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from bertjax.data.batches import loader
from bertjax.data.batches.rng import RowRandom, row_keys

BLOCK = 2**16


class Order:
    """The source of each sample of a phase.

    counts: {source: its number of samples in a block}, in proportion to the weights.
    """

    def __init__(self, weights: Mapping[str, float], seed: int, number: int = 0):
        """Rounds the counts by largest remainders; a weight above 0 gets at least one sample.

        weights: {source: weight}, not negative. number: distinguishes phases, so that each has its
        own order.
        """
        total = sum(weights.values())
        shares = {name: BLOCK * weight / total for name, weight in weights.items() if weight > 0}
        counts = {name: max(int(share), 1) for name, share in shares.items()}
        by_remainder = sorted(shares, key=lambda name: (counts[name] - shares[name], name))
        for name in by_remainder[: max(BLOCK - sum(counts.values()), 0)]:
            counts[name] += 1
        largest = max(counts, key=lambda name: (counts[name], name))
        counts[largest] -= sum(counts.values()) - BLOCK  # what the smallest sources were given
        self.counts = counts
        self._seed, self._number = seed, number
        self._block = functools.lru_cache(maxsize=4)(self._draw_block)

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns, for each sample, the index of its source and its position in that source.

        numbers: int64[B], the numbers of the samples. The index counts the keys of `counts`; the
        position is the number of earlier samples of the source.
        """
        if len(self.counts) == 1:
            return np.zeros_like(numbers), numbers
        counts = np.array(list(self.counts.values()), np.int64)
        blocks, offsets = np.divmod(numbers, BLOCK)
        indices, positions = np.empty_like(numbers), np.empty_like(numbers)
        for block, member in loader.groups(blocks):
            index_of, rank_of = self._block(block)
            index = index_of[offsets[member]]
            indices[member] = index
            positions[member] = block * counts[index] + rank_of[offsets[member]]
        return indices, positions

    def drawn(self, num_samples: int) -> dict[str, int]:
        """Returns {source: how many of the first `num_samples` samples are from it}."""
        blocks, rest = divmod(num_samples, BLOCK)
        if len(self.counts) == 1:
            return dict.fromkeys(self.counts, num_samples)
        partial = np.bincount(self._block(blocks)[0][:rest], minlength=len(self.counts)).tolist()
        counts = self.counts.items()
        return {
            name: blocks * count + more
            for (name, count), more in zip(counts, partial, strict=True)
        }

    def _draw_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the source of each sample in a block, and how many of it come before."""
        counts = list(self.counts.values())
        rng = RowRandom(row_keys(self._seed, self._number, np.array([block])))
        permutation = rng.permutation("mixture/block", BLOCK)[0]
        indices = np.repeat(np.arange(len(counts)), counts)[permutation]
        ranks = np.empty(BLOCK, np.int64)
        for index, count in enumerate(counts):
            ranks[indices == index] = np.arange(count)
        return indices, ranks


class Mixture:
    """An endless stream of training batches from one or more sources, indexed by step.

    Args:
      streams: {source: its samples}, for the same sequences as the transform.
      order: the source of each sample.
      transform: called with a batch and the random numbers of its rows; returns the final batch.
      batch_size: number of rows in the global batch.
      first: {source: position of its first sample}; 0 if absent.
    """

    def __init__(
        self,
        streams: Mapping[str, loader.Stream],
        order: Order,
        transform: loader.Transform,
        *,
        batch_size: int,
        first: Mapping[str, int] = MappingProxyType({}),
    ):
        self.batch_size = batch_size
        self._streams = [streams[name] for name in order.counts]
        self._first = [first.get(name, 0) for name in order.counts]
        self._order, self._transform = order, transform

    @property
    def samples_per_epoch(self) -> int:
        """The number of samples in one epoch of every source together."""
        return sum(stream.samples_per_epoch for stream in self._streams)

    def batch(self, step: int, rows: slice | np.ndarray = slice(None)) -> loader.Batch:
        """Returns the given rows of global batch `step`; thread safe.

        Raises:
          UserError: a record cannot be read.
        """
        numbers = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)[rows]
        indices, positions = self._order.places(numbers)
        keys = np.empty(len(numbers), np.uint64)
        parts = []
        for index, member in loader.groups(indices):
            own = self._first[index] + positions[member]  # positions in the source's stream
            part, keys[member] = self._streams[index].samples(own)
            parts.append((member, part))
        return self._transform(loader.merge(parts, len(numbers)), RowRandom(keys))
