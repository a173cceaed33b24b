"""Groups rows of token ids into batches whose rows a model packs into fewer, fuller rows.

`batching.Batches` needs a program for each length of rows, and computes the padding of each row.
Here all batches have one shape, which needs one program, and a few percent of the tokens are
padding. How the layers compute packed rows: `models.common.row_packing`.

A batch is a number of groups, one for each micro-batch of each device, and each group is packed on
its own. So all batches, and all groups of a batch, should have about as many tokens. The rows of an
epoch are sorted by length, the longest first, and dealt out in rounds, one to each batch: the
longer ones to the batches that have fewer tokens. Before, each length is changed at random by at
most `_JITTER` of it, so that other rows meet in each epoch. The rows of a batch are dealt out to
its groups likewise. A group takes its rows, the longest first, each into the fullest packed row
that has room for it.

    packed = cheaper(Batches(...), shards=1, micro_batches=1)
    for batch in packed.epoch(seed=0, epoch=0):     # {"input_ids": int[32, 128], ...}
        batch["packed_from"]                        # int[1, 7, 132]

A row may consist of several texts (`rows.stack`). Each of them is packed like a row of one text, in
the group of its row.

Shapes: K groups of an epoch, G groups of a batch, S rows of a group, T texts of the rows of a
group, R packed rows of a group.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bertjax.data.batches import rng
from bertjax.finetuning import batching
from bertjax.inference import batching as inference_batching
from bertjax.models.common import row_packing

_JITTER = 0.1
_TRIALS = 3  # that the shape of packed rows must fit
_ATTEMPTS = 8  # in an epoch, before the order of a trial is taken again


class Packed(NamedTuple):
    """The shape of the packed rows of a group: their number and their length."""

    rows: int
    length: int


class Plan(NamedTuple):
    """Which rows each group of a batch has, and where they are in its packed rows.

    numbers: int[G, S], the indices of the rows, or -1. rows, starts: int[G, T], the packed row of
    each text, and its first place there.
    """

    numbers: np.ndarray
    rows: np.ndarray
    starts: np.ndarray


class PackedBatches:
    """The rows of `Batches`, grouped into batches of one shape.

    shards: into how many parts the mesh splits a batch. micro_batches: into how many parts a step
    splits the rows of a device; 0: into those that suit a CPU, and 1 on an accelerator.
    """

    def __init__(self, batches: batching.Batches, shards: int, micro_batches: int = 0):
        self._of = batches
        self.batch_size, self.num_rows = batches.batch_size, batches.num_rows
        self.steps_per_epoch = -(-self.num_rows // self.batch_size)
        self._longest = inference_batching.round_up(int(batches.lengths.max()), batches.price.step)
        self._shards = shards
        mean = int(batches.text_lengths.sum()) // self.steps_per_epoch
        self._parts = micro_batches or batching.num_parts(self.batch_size, mean, shards)
        self._slots = self.batch_size // (shards * self._parts)
        self._totals = batches.text_lengths.sum(axis=1)  # int[rows], in tokens
        self._num_groups = self.steps_per_epoch * shards * self._parts  # of an epoch
        trials = [self._groups(seed=-1, epoch=0, attempt=i) for i in range(_TRIALS)]
        self._fitting = trials[0]
        self.packed = self._shape([self._text_sizes(dealt) for dealt in trials])

    def _shape(self, sizes: list[np.ndarray]) -> Packed:
        """Returns the cheapest shape into which the groups of all trials fit.

        sizes: int[K, T] for each trial, the numbers of tokens of the texts.
        """
        price = self._of.price
        fullest = max(int(each.sum(axis=1).max()) for each in sizes)
        length = inference_batching.round_up(self._longest, price.packed_step)
        best, best_cost = Packed(sizes[0].shape[1], length), np.inf
        while fullest / length * price.of_row(length) < best_cost:  # the cost without padding
            count = -(-fullest // length)
            while count * price.of_row(length) < best_cost:
                if all(_placed(each, Packed(count, length)) is not None for each in sizes):
                    best, best_cost = Packed(count, length), count * price.of_row(length)
                count += 1
            length += price.packed_step
        return best

    def cost(self) -> float:
        """Returns the cost of a pass over the rows, see `batching.Batches.cost`."""
        price = self._of.price
        compilation = price.compilation / max(self._of.passes, 1)
        return self._num_groups * self.packed.rows * price.of_row(self.packed.length) + compilation

    def tokens_per_length(self) -> dict[int, int]:
        """Returns {length of packed rows: their number of tokens, padding included}."""
        return {self.packed.length: self._num_groups * self.packed.rows * self.packed.length}

    def epoch(self, seed: int, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of an epoch from batch `start` on, each row once an epoch."""
        plans = self._plans(seed, epoch)
        order = rng.permutation("finetune batches", self.steps_per_epoch, seed, epoch)
        for index in order[start:]:
            yield self._batch(plans[index])[1]

    def in_order(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields (row numbers, batch) for all rows, each once; -1 for rows that are padding."""
        yield from map(self._batch, self._plans(0, 0))

    def one_of_each_shape(self, in_order: bool) -> list[dict[str, np.ndarray]]:
        """Returns one batch, because all have the same shape."""
        del in_order
        return [next(self.in_order())[1]]

    def _sizes(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers of tokens of rows, in the shape of `numbers`; 0 for -1."""
        return np.where(numbers < 0, 0, self._totals[numbers])

    def _text_sizes(self, numbers: np.ndarray) -> np.ndarray:
        """Returns int[X, T], the numbers of tokens of the texts of rows, `numbers` int[X, S]."""
        sizes = np.where(numbers[..., None] < 0, 0, self._of.text_lengths[numbers])
        return sizes.reshape(len(numbers), -1)

    def _groups(self, seed: int, epoch: int, attempt: int) -> np.ndarray:
        """Returns int[K, S]: the rows of each group, or -1; a batch has consecutive groups.

        Which rows a batch has depends neither on the mesh nor on the number of micro-batches.
        """
        lengths = self._totals
        random = rng.RowRandom(rng.row_keys(seed, epoch, np.array([attempt])))
        (jitter,) = random.uniform("finetune lengths", len(lengths)) * 2 - 1
        rows = rng.permutation("finetune rows", len(lengths), seed, epoch, attempt)
        rows = rows[np.argsort(-(lengths * (1 + _JITTER * jitter))[rows], kind="stable")]
        missing = self.steps_per_epoch * self.batch_size - len(rows)
        rows = np.pad(rows, (0, missing), constant_values=-1)
        (batches,) = _dealt(rows[None], self._sizes(rows)[None], self.steps_per_epoch)
        order = np.argsort(-self._sizes(batches), axis=1, kind="stable")
        batches = np.take_along_axis(batches, order, axis=1)
        groups = _dealt(batches, self._sizes(batches), self._shards * self._parts)
        return groups.reshape(-1, self._slots)

    def _plans(self, seed: int, epoch: int) -> list[Plan]:
        """Returns the groups of each batch. Few attempts do not fit, and a trial always does."""
        attempts = (self._groups(seed, epoch, i) for i in range(_ATTEMPTS))
        for dealt in itertools.chain(attempts, [self._fitting]):
            places = _placed(self._text_sizes(dealt), self.packed)
            if places is not None:
                arrays = (np.split(x, self.steps_per_epoch) for x in (dealt, *places))
                return [Plan(*parts) for parts in zip(*arrays, strict=True)]
        raise AssertionError("the shape of packed rows fits the trials")

    def _batch(self, plan: Plan) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns (row numbers, batch) of the groups of a batch, device after device.

        A step takes the rows m, m + count, m + 2 count ... of a device as micro-batch m. The groups
        of `packed_from` are in the same order.
        """
        numbers = plan.numbers.reshape(self._shards, self._parts, -1).swapaxes(1, 2).ravel()
        batch = self._of.batch(numbers, batching.Shape(self._longest, 0, self._longest))
        batch[row_packing.NAME] = self._packed_from(plan)
        return numbers, batch

    def _packed_from(self, plan: Plan) -> np.ndarray:
        """Returns int32[G, R, length], see `row_packing`."""
        shape = len(plan.numbers), *self.packed
        sources, sizes = np.full(shape, -1, np.int32), self._text_sizes(plan.numbers)
        for group, text in zip(*np.nonzero(sizes), strict=True):
            start, size = plan.starts[group, text], sizes[group, text]
            row = sources[group, plan.rows[group, text]]
            row[start : start + size] = np.arange(size) + text * self._longest
        return sources


AnyBatches = batching.Batches | PackedBatches


def cheaper(batches: batching.Batches, shards: int, micro_batches: int = 0) -> AnyBatches:
    """Returns `batches`, or packed batches of the same rows if these cost less."""
    packed = PackedBatches(batches, shards, micro_batches)
    return packed if packed.cost() < batches.cost() else batches


def _dealt(rows_XN: np.ndarray, sizes_XN: np.ndarray, count: int) -> np.ndarray:
    """Returns int[X, count, N / count]: the rows dealt out in rounds, one to each group.

    rows_XN: about the longest first. In each round, the longer rows go to the groups that have
    fewer tokens.
    """
    dealt = np.empty((len(rows_XN), count, rows_XN.shape[1] // count), rows_XN.dtype)
    totals = np.zeros((len(rows_XN), count), int)
    for number in range(dealt.shape[2]):
        part = slice(number * count, (number + 1) * count)
        longest = np.argsort(-sizes_XN[:, part], axis=1, kind="stable")
        emptiest = np.argsort(totals, axis=1, kind="stable")
        rows, sizes = (np.take_along_axis(x[:, part], longest, 1) for x in (rows_XN, sizes_XN))
        np.put_along_axis(dealt[:, :, number], emptiest, rows, axis=1)
        totals += np.take_along_axis(sizes, np.argsort(emptiest, axis=1), axis=1)
    return dealt


def _placed(sizes_KT: np.ndarray, packed: Packed) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the packed row and the first place of each text, int[K, T]; None if one has no room.

    Each text goes, the longest of a group first, into the fullest packed row with room for it.
    """
    groups = np.arange(len(sizes_KT))
    free = np.full((len(sizes_KT), packed.rows), packed.length)
    rows, starts = np.zeros_like(sizes_KT), np.zeros_like(sizes_KT)
    for texts in np.argsort(-sizes_KT, axis=1, kind="stable").T:
        sizes = sizes_KT[groups, texts]
        room = np.where(free < sizes[:, None], packed.length + 1, free)
        fullest = room.argmin(axis=1)
        if (room[groups, fullest] > packed.length).any():
            return None
        rows[groups, texts], starts[groups, texts] = fullest, packed.length - free[groups, fullest]
        free[groups, fullest] -= sizes
    return rows, starts
