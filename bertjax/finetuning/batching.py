"""Groups rows of token ids into batches, rows of similar length together.

Each row belongs to a bucket, the shortest one that is long enough, and is padded to the bucket's
length. An epoch shuffles the rows, depending on the seed and the epoch. The rows left over after
the full batches of a bucket move to the next longer bucket. An epoch has rows / batch_size steps,
rounded up. At most one batch is not full. It gets the shortest rows, because the padding rows that
fill it cost as much computation as real rows. The order of the buckets depends on the epoch, but
not on the seed, so all seeds have the same order of batch shapes.

Each bucket costs a compilation, and padding tokens cost computation. For rows that are read
repeatedly, `fitted` chooses the buckets with the least total cost, which differ between a CPU and
an accelerator. Other rows use the buckets of `common`.

    batches = Batches(encoded.rows, task_type.features(), lengths, batch_size=32, passes=3)
    for batch in batches.epoch(seed=0, epoch=0):      # {"input_ids": int[32, 64], ...}
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from bertjax import progress, sharding
from bertjax.data.batches import rng
from bertjax.finetuning import rows as rows_lib
from bertjax.inference import batching as inference_batching
from bertjax.models.common import row_packing

# Bucket lengths of `common`. Except for 64, each is at most 1.5 times the previous one.
_COMMON = (32, 64, 96, 128, 192, 256, 384, 512)
# Lengths that tasks with common programs prefer, so that a program serves several tasks.
_SHARED = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_FIRST_STEP = 8  # first_length is a multiple of this number of tokens
_MIN_SAVING = 0.01  # the minimum share of all tokens that each additional bucket must save
_MAX_BUCKETS = 10  # the maximum number of buckets
# On a CPU, a batch is split into micro-batches that are as small as possible, but each has more
# tokens than this. On one and two cores, larger micro-batches are no more efficient, and their
# activations for the backward pass take more memory (0.27 MB per token for MiniLM).
_CPU_TOKENS = 768
Row = Mapping[str, np.ndarray]


class Price(NamedTuple):
    """The costs that `fitted` weighs.

    compilation: how many tokens the model can process in the time of one compilation.
    step: bucket lengths are multiples of this number of tokens. `fitted` uses a larger step if
        rows may be longer than 1024 tokens.
    packed_step: the same for packed rows, see `packed_batches`.
    attention: the part of the cost of a token that each token of its row adds.
    """

    compilation: int
    step: int
    packed_step: int
    attention: float

    def of_row(self, length: int) -> float:
        """Returns the cost of a row, padding included, in tokens of a short row."""
        return length * (1 + self.attention * length)


# Prices for a small model on two CPU cores, and for BERT-base on one accelerator if a compilation
# takes 10 s. MiniLM in bfloat16 takes 1.08 times as long for a token in a row of 128 as in a row of
# 28. The scores of BERT-base have P / (6 x 768) of the FLOPs of the rest, for rows of P tokens; a
# kernel for TPUs computes them in blocks of 128.
_CPU, _ACCELERATOR = Price(8_000, 4, 4, 1 / 1300), Price(2_000_000, 32, 128, 1 / 4608)


def common(length: int, longest: int) -> int:
    """Returns the length of the common bucket for a row of `length` tokens; at most `longest`."""
    scale = 1
    while length > _COMMON[-1] * scale:
        scale *= 2
    return min(next(size * scale for size in _COMMON if size * scale >= length), longest)


def fitted(
    lengths: np.ndarray, longest: int, passes: int, price: Price = _CPU, tasks: int = 1
) -> np.ndarray:
    """Returns the bucket lengths, ascending, with the least cost for rows of these lengths.

    lengths: int[rows], in tokens. longest: the maximum bucket length. tasks: how many tasks share
    their programs; if there are several, each pays only its part for a bucket of a common length.

    The cost is the number of tokens, padding included, in `passes` passes over the rows, plus one
    compilation per bucket. Dynamic programming finds the best buckets for each number of buckets.
    """
    step = price.step * max(1, -(-longest // 1024))
    sizes = np.unique(np.minimum(np.maximum(-(-lengths // step), 1) * step, longest))
    shared = np.array([size for size in _SHARED if size % step == 0], int)
    if tasks > 1:
        top = min([longest, *shared[shared >= sizes[-1]][:1]])
        sizes = np.unique([*sizes[:-1], *shared[shared < top], top])
    rows = np.searchsorted(np.sort(lengths), sizes, side="right")  # rows that fit in each size
    # tokens[i, j]: tokens of bucket j, padding included, if i is the next smaller bucket
    tokens = np.where(np.tri(len(sizes), k=-1).T > 0, (rows - rows[:, None]) * sizes, np.inf)
    compilations = np.where(np.isin(sizes, [*shared, longest]), 1 / tasks, 1.0)
    bucket_cost = np.maximum(
        price.compilation / passes * compilations, _MIN_SAVING * lengths.sum()
    )
    costs = rows * sizes + bucket_cost  # cost[j]: least cost if bucket j is the longest
    predecessors = [np.full(len(sizes), -1)]
    best_cost, best_count = costs[-1], 0
    for count in range(1, min(_MAX_BUCKETS, len(sizes))):
        options = costs[:, None] + tokens + bucket_cost
        predecessors.append(options.argmin(axis=0))
        costs = options.min(axis=0)
        if costs[-1] < best_cost:
            best_cost, best_count = costs[-1], count
    last, buckets = len(sizes) - 1, []
    for previous in reversed(predecessors[: best_count + 1]):
        buckets.append(sizes[last])
        last = previous[last]
    return np.array(buckets[::-1])


class Shape(NamedTuple):
    """The lengths, in tokens, to which the rows of a batch are padded.

    first_length: of the first text of rows with several texts; a query is shorter than a document.
    """

    length: int
    target_length: int
    first_length: int


class Order(Protocol):
    """The order of the rows in training. num_rows: how many an epoch has."""

    @property
    def num_rows(self) -> int: ...

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """Returns the numbers of an epoch's rows. A row may occur several times, or not at all."""


class Shuffled(NamedTuple):
    """The order of an epoch that has each row once."""

    num_rows: int

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """Returns a permutation of all rows."""
        return rng.permutation("finetune rows", self.num_rows, seed, epoch)


class InOrder(Protocol):
    """Batches of rows that are read once. num_rows: the number of rows."""

    num_rows: int

    def in_order(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields (row numbers, batch) for all rows, each once; -1: a padding row, as at the end."""


class Batches:
    """The rows of a split, grouped into batches.

    lengths: the maximum lengths of a batch. passes: how many times the rows will be read; `fitted`
    uses this number to choose the bucket lengths. If it is 0, the bucket lengths are those of
    `common`. tasks: see `fitted`. order: of the rows in an epoch; None: each row once.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        features: Mapping[str, rows_lib.Feature],
        lengths: rows_lib.Lengths,
        batch_size: int,
        passes: int = 0,
        tasks: int = 1,
        order: Order | None = None,
    ):
        self._rows, self._features, self.batch_size = rows, features, batch_size
        self.num_rows = len(rows)
        self._order = order or Shuffled(len(rows))
        self.passes = passes
        self.price = _CPU if jax.default_backend() == "cpu" else _ACCELERATOR
        self.lengths = row_lengths(rows, features, "length")  # int[rows], in tokens
        if passes:
            sizes = fitted(self.lengths, lengths.length, passes, self.price, tasks)
            self._buckets = sizes[np.searchsorted(sizes, self.lengths)]
        else:
            self._buckets = np.array([common(n, lengths.length) for n in self.lengths], int)
        targets = row_lengths(rows, features, "target_length")
        firsts = row_lengths(rows, features, "first_length")
        self._shapes = {}
        for size in np.unique(self._buckets):
            # Rows only move to longer buckets: a batch has rows of its bucket or of shorter ones.
            members = self._buckets <= size
            target_length = common(int(targets[members].max()), lengths.target_length)
            first_length = inference_batching.round_up(int(firsts[members].max()), _FIRST_STEP)
            self._shapes[size] = Shape(int(size), target_length, min(first_length, int(size)))
        self.steps_per_epoch = -(-self._order.num_rows // batch_size)

    def tokens_per_length(self) -> dict[int, int]:
        """Returns {length of a bucket: the number of tokens of its rows, padding included}."""
        sizes, counts = np.unique(self._buckets, return_counts=True)
        return {int(size): int(size * count) for size, count in zip(sizes, counts, strict=True)}

    @functools.cached_property
    def text_lengths(self) -> np.ndarray:
        """int[rows, N]: the numbers of tokens of the N texts of a row; N is 1 if it is one text."""
        if np.ndim(self._rows[0]["input_ids"]) > 1:  # see `rows.stack`
            return np.array([row["attention_mask"].sum(-1) for row in self._rows], int)
        return self.lengths[:, None]

    def cost(self) -> float:
        """Returns the cost of a pass over the rows, see `fitted`: in tokens, compilations included.

        The passes share the cost of the compilations.
        """
        shapes = [shape for shape, _ in self._plan(0, 0)]
        compilations = self.price.compilation * len(set(shapes)) / max(self.passes, 1)
        return compilations + self.batch_size * sum(map(self._row_cost, shapes))

    def _row_cost(self, shape: Shape) -> float:
        others = self.text_lengths.shape[1] - 1
        length = shape.length
        first = rows_lib.computed_length(shape.first_length, length) if others else length
        return self.price.of_row(first) + others * self.price.of_row(length)

    def epoch(self, seed: int, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Yields the batches of an epoch from batch `start` on. See `Order` for the rows."""
        plan = self._plan(seed, epoch)
        # Independent of the seed, so that the order of the buckets is the same for all seeds.
        order = rng.permutation("finetune batches", self.steps_per_epoch, epoch=epoch)
        for index in order[start:]:
            shape, numbers = plan[index]
            yield self.batch(numbers, shape)

    def in_order(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields (row numbers, batch) for all rows, each once, the shortest first."""
        for shape, numbers in self._ordered():
            yield numbers, self.batch(numbers, shape)

    def one_of_each_shape(self, in_order: bool) -> list[dict[str, np.ndarray]]:
        """Returns one batch of each shape.

        in_order: True for the shapes that `in_order()` yields, False for those of `epoch()`.
        """
        if in_order:
            batches = self._ordered()
        elif isinstance(self._order, Shuffled):
            batches = self._plan(0, 0)
        else:  # epochs may have different numbers of rows of a length
            of_size = {size: np.flatnonzero(self._buckets == size) for size in set(self._buckets)}
            batches = [(self._shapes[s], rows[: self.batch_size]) for s, rows in of_size.items()]
        return [self.batch(numbers, shape) for shape, numbers in dict(batches).items()]

    def batch(self, numbers: np.ndarray, shape: Shape) -> dict[str, np.ndarray]:
        """Returns the batch of the rows with these indices.

        Where an index is -1, and behind the last one if there are fewer than `batch_size`, there
        are padding rows, which have weight 0.
        """
        missing = [-1] * (self.batch_size - len(numbers))
        numbers = np.array([*numbers, *missing])
        rows = [self._rows[i] for i in np.where(numbers < 0, numbers.max(), numbers)]
        weights = (numbers >= 0).astype(np.float32)
        stacked = {name: _stack(rows, name, f, shape) for name, f in self._features.items()}
        return {**stacked, "example_weights": weights}

    def _ordered(self) -> Iterator[tuple[Shape, np.ndarray]]:
        order = np.argsort(self.lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            yield self._shapes[self._buckets[numbers].max()], numbers

    def _plan(self, seed: int, epoch: int) -> list[tuple[Shape, np.ndarray]]:
        """Returns (shape, row numbers) of each batch of an epoch."""
        order = self._order(seed, epoch)
        remainder = len(order) % self.batch_size
        plan, pending = [], np.zeros(0, int)
        for size in np.unique(self._buckets):
            pending = np.concatenate([pending, order[self._buckets[order] == size]])
            if 0 < remainder <= len(pending):
                plan.append((self._shapes[size], pending[:remainder]))
                pending, remainder = pending[remainder:], 0
            full = len(pending) // self.batch_size * self.batch_size
            plan += [
                (self._shapes[size], part) for part in pending[:full].reshape(-1, self.batch_size)
            ]
            pending = pending[full:]
        return plan


def micro_batches(batch: Mapping[str, jax.Array], shards: int) -> int:
    """Returns the number of micro-batches to split a batch into; always 1 on an accelerator.

    shards: into how many parts the mesh splits the rows of a batch. If the result is above 1, the
    number of rows of a micro-batch is a multiple of `shards`.
    """
    if row_packing.NAME in batch:
        return len(batch[row_packing.NAME]) // shards
    return num_parts(len(batch["example_weights"]), num_tokens(batch), shards)


def num_parts(rows: int, tokens: int, shards: int) -> int:
    """Returns `micro_batches` for this number of rows and tokens, if the rows are not packed."""
    if jax.default_backend() != "cpu":
        return 1
    counts = [count for count in range(2, rows + 1) if rows % (count * shards) == 0]
    return max((count for count in counts if tokens > count * _CPU_TOKENS), default=1)


def num_tokens(batch: Mapping[str, jax.Array]) -> int:
    """Returns the number of tokens that the layers compute for a batch, padding included."""
    if row_packing.NAME in batch:
        return batch[row_packing.NAME].size
    if batch["input_ids"].ndim == 3:
        size, num_texts, length = batch["input_ids"].shape
        return size * (rows_lib.computed_first_length(batch) + (num_texts - 1) * length)
    return sum(batch[name].size for name in ("input_ids", "decoder_input_ids") if name in batch)


def row_lengths(
    rows: Sequence[Row], features: Mapping[str, rows_lib.Feature], length_name: str
) -> np.ndarray:
    """Returns int[rows]: the length of the longest array of each row.

    Counts only the arrays whose `Feature.length` is `length_name`. The length is 0 if there is
    none.
    """
    names = [name for name, feature in features.items() if feature.length == length_name]
    return np.array([max((row[n].shape[-1] for n in names), default=0) for row in rows], int)


def _stack(rows: Sequence[Row], name: str, feature: rows_lib.Feature, shape: Shape) -> np.ndarray:
    if not feature.length:
        return np.stack([np.asarray(row[name], feature.dtype) for row in rows])
    first = rows[0][name]
    full_shape = (len(rows), *first.shape[:-1], getattr(shape, feature.length))
    stacked = np.zeros(full_shape, feature.dtype)
    for i, row in enumerate(rows):
        stacked[i, ..., : row[name].shape[-1]] = row[name]
    return stacked


def forward(
    step: Callable[..., dict[str, jax.Array]],
    params: Any,
    batches: InOrder,
    place: Callable[[dict[str, np.ndarray]], dict[str, Any]] = dict,
    on_progress: progress.Done = lambda done, total: None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of `step` for every row, in the order of the rows, on the host.

    Arrays that differ in length between batches are padded with zeros.

    place: function that puts a batch on the device. on_progress: called with (number of finished
    rows, total number of rows) after each batch.
    """
    parts: list[tuple[np.ndarray, Mapping[str, np.ndarray]]] = []
    rows_done = 0
    for numbers, outputs in by_batch(step, params, batches, place):
        parts.append((numbers, outputs))
        rows_done += len(numbers)
        on_progress(rows_done, batches.num_rows)
    arrays = {}
    for name in parts[0][1]:
        shapes = [outputs[name].shape for _, outputs in parts]
        shape = list(np.max(shapes, axis=0))
        shape[0] = sum(len(numbers) for numbers, _ in parts)
        arrays[name] = np.zeros(shape, parts[0][1][name].dtype)
        for numbers, outputs in parts:
            values = outputs[name]
            arrays[name][(numbers, *(slice(n) for n in values.shape[1:]))] = values
    return arrays


def by_batch(
    step: Callable[..., dict[str, jax.Array]],
    params: Any,
    batches: InOrder,
    place: Callable[[dict[str, np.ndarray]], dict[str, Any]] = dict,
) -> Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
    """Yields (row numbers, outputs of `step`) of each batch, without its padding rows."""
    for numbers, batch in batches.in_order():
        # Waits for the outputs before the next batch is dispatched: see `runtime.dispatch`.
        outputs, is_row = sharding.fetch(step(params, place(batch))), numbers >= 0
        yield numbers[is_row], {name: x[: len(numbers)][is_row] for name, x in outputs.items()}
