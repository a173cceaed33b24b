"""Loads batches: a batch depends only on the dataset, the settings, the seed and its step, not on
the host or on earlier batches.

An epoch is a random permutation of the dataset's records, cut into windows of about `window_tokens`
tokens. The text of each window is segmented into samples, which are shuffled.

The number of samples used from a window is fixed beforehand: the number of its records times the
samples per record in the first window. So the window of sample i is known without reading earlier
windows. If a window yields more samples, some are skipped at random. If it yields fewer, some are
repeated with different masks. (If there is only one window, each sample of the first epoch is used
exactly once.)

    stream = Stream(dataset, sampling, seed=0)
    stream.samples(np.arange(256))  # ({"input_ids": int32[256, L], ...}, keys)

`mixture.Mixture` makes batches of the samples of one or more streams.

    for batch in train_batches(mixture, start_step, stop_step): ...
"""

import collections
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Protocol

import grain
import numpy as np

from bertjax import errors
from bertjax.data.batches.rng import RowRandom, row_keys

Batch = dict[str, np.ndarray]
Transform = Callable[[Batch, RowRandom], Batch]
WINDOW_TOKENS = 2**23


class Dataset(Protocol):
    """The interface of a prepared dataset (see `data.prepared.store`)."""

    num_records: int
    num_tokens: int

    def read(self, indices: np.ndarray) -> list: ...


class Sampling(Protocol):
    """The interface of the classes that turn records into samples (see `data.batches.samples`)."""

    def window(self, records: list): ...
    def segment(self, window, rng: RowRandom) -> np.ndarray: ...
    def assemble(self, window, table: np.ndarray) -> Batch: ...


class Steps(Protocol):
    """The interface of `mixture.Mixture`: training batches, indexed by step."""

    def batch(self, step: int, rows: slice | np.ndarray = slice(None)) -> Batch: ...


class Windows:
    """The windows of each epoch.

    Window w contains the records edges[w] to edges[w + 1] - 1 of the epoch's permutation.
    """

    def __init__(self, dataset: Dataset, sampling: Sampling, seed: int, window_tokens: int):
        if dataset.num_records == 0:
            raise errors.UserError(
                "this split of the dataset contains no text: prepare a larger corpus"
            )
        self.sampling = sampling
        self._dataset = dataset
        self._seed = seed
        self._permutation = functools.lru_cache(maxsize=2)(self._permute)
        count = max(1, round(dataset.num_tokens / window_tokens))
        count = min(count, dataset.num_records)
        self.edges = np.arange(count + 1) * dataset.num_records // count

    def __len__(self) -> int:
        return len(self.edges) - 1

    def read(self, epoch: int, w: int) -> tuple[object, np.ndarray]:
        """Returns window w of an epoch (see `Sampling.window`) and its table of samples, shuffled.

        Raises UserError if the records of the window yield no sample.
        """
        records = self._permutation(epoch)[self.edges[w] : self.edges[w + 1]]
        window = self.sampling.window(self._dataset.read(records))
        rng = RowRandom(row_keys(self._seed, epoch, np.array([w])))
        table = self.sampling.segment(window, rng)
        if not len(table):
            raise errors.UserError(
                f"{len(records)} records of the dataset give no sample: their documents are too "
                "short for this objective (a pair of segments needs at least two tokens)"
            )
        return window, table.take(rng.permutation("window/samples", len(table))[0])

    def _permute(self, epoch: int) -> np.ndarray:
        rng = RowRandom(row_keys(self._seed, epoch, np.array([0])))
        return rng.permutation("epoch/records", self._dataset.num_records)[0]


class Stream:
    """An endless stream of the samples of a dataset.

    Args:
      dataset: the prepared records.
      sampling: turns records into samples.
      seed: determines the order, the segmentation and the masking.
      window_tokens: samples are shuffled within windows of this many tokens; memory grows with it.

    Attributes:
      samples_per_epoch: the number N of samples in an epoch. The sample at position p of the
        stream is sample p % N of epoch p // N.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampling: Sampling,
        *,
        seed: int,
        window_tokens: int = WINDOW_TOKENS,
    ):
        self._seed = seed
        self._sampling = sampling
        self._windows = Windows(dataset, sampling, seed, window_tokens)
        self._read_ahead = _ReadAhead(self._windows)
        _, table = self._read_ahead.get(0)
        records = np.diff(self._windows.edges)
        sizes = np.maximum(1, np.rint(records * (len(table) / records[0]))).astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self.samples_per_epoch = int(self._starts[-1])

    def samples(self, positions: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Returns (samples at `positions` before the transform, keys of their random numbers).

        positions: int64[B]. Thread safe. Raises UserError if a record cannot be read.
        """
        epochs, indices = np.divmod(positions, self.samples_per_epoch)
        w = np.searchsorted(self._starts, indices, side="right") - 1
        numbers = epochs * len(self._windows) + w  # window numbers, counted across epochs
        keys = np.empty(len(numbers), np.uint64)
        parts = []
        for number, member in groups(numbers):
            epoch, w = divmod(number, len(self._windows))
            window, table = self._read_ahead.get(number)
            # If the table has fewer samples than are used of the window, it is repeated.
            sample = (indices[member] - self._starts[w]) % len(table)
            parts.append((member, self._sampling.assemble(window, table.take(sample))))
            keys[member] = row_keys(self._seed, epoch, indices[member])
        return merge(parts, len(numbers)), keys


def train_batches(
    mixture: Steps,
    start_step: int,
    stop_step: int,
    rows: slice | np.ndarray = slice(None),
    *,
    num_threads: int = 1,
    prefetch: int = 8,
) -> Iterator[Batch]:
    """Yields the given rows of batches start_step to stop_step - 1, prefetched by threads.

    num_threads: number of threads that build batches. If it is 0, each batch is built when it is
    requested. prefetch: maximum number of batches built ahead.
    """
    steps = grain.MapDataset.range(start_step, stop_step)
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=prefetch)
    return iter(steps.map(functools.partial(mixture.batch, rows=rows)).to_iter_dataset(options))


def eval_batches(
    dataset: Dataset,
    sampling: Sampling,
    transform: Transform,
    *,
    batch_size: int,
    seed: int,
    max_samples: int | None = None,
    rows: slice | np.ndarray = slice(None),
    window_tokens: int = WINDOW_TOKENS,
) -> Iterator[Batch]:
    """Yields each sample once, or only the first max_samples, in an order fixed by the seed.

    A batch has the features of `transform` and example_weights float32[B]. The last batch is padded
    with rows of weight 0. All features of these rows are 0, except that an attention_mask is 1 at
    the first position.

    rows: which rows of each batch to yield.
    """
    windows = Windows(dataset, sampling, seed, window_tokens)

    def build(first: int, pieces: list[tuple[object, np.ndarray]]) -> Batch:
        parts = [sampling.assemble(window, table) for window, table in pieces]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        index = first + np.arange(len(batch["input_ids"]))
        batch = transform(batch, RowRandom(row_keys(seed, 0, index)))
        return {name: value[rows] for name, value in _fill(batch, batch_size).items()}

    first, pieces, size = 0, [], 0
    for w in range(len(windows)):
        window, table = windows.read(0, w)
        if max_samples is not None:
            table = table[: max_samples - first - size]
        while len(table):
            free = batch_size - size
            pieces.append((window, table[:free]))
            size += len(table[:free])
            table = table[free:]
            if size == batch_size:
                yield build(first, pieces)
                first, pieces, size = first + batch_size, [], 0
        if first + size == max_samples:
            break
    if pieces:
        yield build(first, pieces)


class _ReadAhead:
    """Reads a window by its number, counted across epochs, and the next window in the background.

    cache_size: how many of the most recent windows are cached.
    """

    def __init__(self, windows: Windows, cache_size: int = 3):
        self._windows = windows
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self._futures: collections.OrderedDict[int, futures.Future] = collections.OrderedDict()
        self._pool = futures.ThreadPoolExecutor(2, thread_name_prefix="bertjax-window")

    def get(self, number: int) -> tuple[object, np.ndarray]:
        with self._lock:
            future = self._submit(number)
            self._submit(number + 1)
            while len(self._futures) > self._cache_size:
                self._futures.popitem(last=False)
        return future.result()

    def _submit(self, number: int) -> futures.Future:
        if number not in self._futures:
            epoch_and_window = divmod(number, len(self._windows))
            self._futures[number] = self._pool.submit(self._windows.read, *epoch_and_window)
        self._futures.move_to_end(number)
        return self._futures[number]


def groups(numbers: np.ndarray) -> Iterator[tuple[int, slice | np.ndarray]]:
    """Yields each number and where it is in `numbers`: all of the array, or these indices."""
    if len(numbers) and numbers.min() == numbers.max():
        yield int(numbers[0]), slice(None)
        return
    for number in np.unique(numbers):
        yield int(number), np.flatnonzero(numbers == number)


def merge(parts: list[tuple[slice | np.ndarray, Batch]], rows: int) -> Batch:
    """Merges parts into one batch of `rows` rows.

    A part is a pair: the indices of its rows in the merged batch, and a batch of these rows.
    """
    if len(parts) == 1:
        return parts[0][1]
    merged = {
        name: np.empty((rows, *value.shape[1:]), value.dtype) for name, value in parts[0][1].items()
    }
    for member, part in parts:
        for name, value in part.items():
            merged[name][member] = value
    return merged


def _fill(batch: Batch, batch_size: int) -> Batch:
    """Adds example_weights, and pads the batch to batch_size with rows of weight 0."""
    size = len(batch["input_ids"])
    batch = batch | {"example_weights": np.ones(size, np.float32)}
    if size == batch_size:
        return batch
    padded = {
        name: np.pad(value, [(0, batch_size - size)] + [(0, 0)] * (value.ndim - 1))
        for name, value in batch.items()
    }
    # A row of weight 0 attends to its first token. Packed rows have no attention_mask; their
    # padding attends to nothing.
    if "attention_mask" in padded:
        padded["attention_mask"][size:, 0] = 1
    return padded
