"""Cuts documents into pieces and puts pieces into rows: several per row (packed) or one per row.

A piece is a run of tokens of one document. The pieces are the same in both cases, and no piece
attends to another piece of its row (`data.batches.layout`). Therefore packing does not change the
loss.

`Documents`, `Prefixes`, `Enclosed` and `denoising.Corruption` have the same methods as the classes
of `data.batches.samples`. An entry of their tables describes one row of the batch: the start and
the size of each piece in the row.

    sampling = Documents(length=128, end=1, pad=0, packing=True)
    window = sampling.window(records)
    table = sampling.segment(window, rng)
    batch = sampling.assemble(window, table[rows])  # input_ids [B, 128], piece_sizes [B, K]

Shapes: B rows, L length, K maximum number of pieces per row, P pieces, D documents. In the names
costs_DP and capacity_D, D is the number of capacities of a row.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.batches import layout
from bertjax.data.batches.rng import RowRandom

Batch = dict[str, np.ndarray]

_TOKENS_A_SLOT = 8  # one slot per 8 tokens: if pieces are shorter on average, rows cannot be filled
_LONG_PIECE = 128  # if pieces have this many tokens on average, slices of the text are copied
_MAX_COSTS = 2048  # `best_fit` is fast for up to this many distinct costs


def slots(length: int, packing: bool) -> int:
    """Returns K, the maximum number of pieces in a row."""
    return max(1, length // _TOKENS_A_SLOT) if packing else 1


# From records to pieces


@dataclasses.dataclass(frozen=True)
class Window:
    """The documents of some records, back to back.

    tokens: uint16 or uint32 [T].
    edges: int64[D + 1], the index of the first token of each document, then T.
    A document that continues in the next record counts as two, because records are shuffled.
    """

    tokens: np.ndarray
    edges: np.ndarray


def join(records: Sequence, end: int | None = None) -> Window:
    """Joins records from `data.prepared.store`; appends `end`, if any, to each document."""
    tokens = np.concatenate([record.tokens for record in records])
    sentences = np.concatenate([record.tokens_per_sentence for record in records])
    counts = np.concatenate([record.sentences_per_document for record in records])
    token_edges, sentence_edges = _edges(sentences), _edges(counts)
    edges = token_edges[sentence_edges]
    edges = np.unique(edges)  # drops documents without tokens
    if end is None:
        return Window(tokens, edges)
    return Window(np.insert(tokens, edges[1:], end), edges + np.arange(len(edges)))


def cut(window: Window, limit: int | np.ndarray, rng: RowRandom) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into pieces of `limit` tokens (a number or int[D]).

    If the size of a document is not a multiple of `limit`, one random piece of it is shorter.
    Returns the first token and the size of each piece, two int64[P], in the order of the text.
    """
    sizes = np.diff(window.edges)
    counts = -(-sizes // limit)
    short = np.cumsum(counts) - counts + rng.integers("packing/cut", 0, counts, len(sizes))[0]
    limits = np.broadcast_to(limit, sizes.shape)
    size = np.repeat(limits, counts)
    size[short] = sizes - (counts - 1) * limits
    return np.cumsum(size) - size, size


# From pieces to rows


def best_fit(costs_DP: np.ndarray, capacity: Sequence[int]) -> np.ndarray:
    """Returns int64[P]: the row of each piece, by best-fit decreasing bin packing.

    A piece is placed in the row where it leaves the least room, or in a new row if no row has room.
    Pieces of equal cost are placed together, so the time grows with the number of distinct costs.

    costs_DP: int, the amount of each capacity that a piece uses, from 1 to the capacity.
    capacity: the D capacities of a row, such as the lengths of its inputs and of its targets.
    """
    _, first_C, kind_P, counts_C = np.unique(
        _codes(costs_DP, capacity), return_index=True, return_inverse=True, return_counts=True
    )
    cost_DC = costs_DP[:, first_C]
    members = np.split(np.argsort(kind_P, kind="stable"), np.cumsum(counts_C)[:-1])
    rows_P = np.empty(len(kind_P), np.int64)
    rows = _Rows(capacity, len(kind_P))
    for kind in np.argsort(-(cost_DC * rows.scale_D1).max(axis=0), kind="stable").tolist():
        pieces = members[kind]
        filled = rows.fill(cost_DC[:, kind], len(pieces))
        rows_P[pieces[: len(filled)]] = filled
        if len(filled) < len(pieces):
            opened = rows.open(cost_DC[:, kind], len(pieces) - len(filled))
            rows_P[pieces[len(filled) :]] = opened
    return rows_P


class _Rows:
    """The rows of `best_fit`, R at most, and the room in them.

    The room of a row is also counted as one number, the sum of all its capacities times `scale_D1`.
    It is kept in one word with the number of the row, in the high 32 bits. So words are distinct,
    and any algorithm sorts them in the same order.
    """

    def __init__(self, capacity: Sequence[int], limit: int):
        self._capacity_D1 = np.array(capacity, np.int32)[:, None]
        self.scale_D1 = 2**24 // self._capacity_D1.astype(np.int64)
        self._free_DR = np.zeros((len(capacity), limit), np.int32)
        self._words_R = np.zeros(limit, np.int64)
        self._size = 0

    def fill(self, cost_D: np.ndarray, number: int) -> np.ndarray:
        """Adds up to `number` pieces of equal cost; returns the row of each, as far as they fit.

        The rows with the least room are filled first, at a tie the row opened first.
        """
        rows = self._fullest(cost_D.tolist(), number)
        if not len(rows):
            return rows
        cost_D1 = cost_D.astype(np.int32)[:, None]
        free_DR = self._free_DR[:, rows]
        counts = (free_DR // cost_D1).min(axis=0)
        totals = np.cumsum(counts)
        last = int(np.searchsorted(totals, number))  # the row that gets the last piece
        if last < len(rows):
            counts[last] -= totals[last] - number
            counts[last + 1 :] = 0
        free_DR -= counts * cost_D1
        self._set(rows, free_DR)
        return np.repeat(rows, counts)

    def open(self, cost_D: np.ndarray, number: int) -> np.ndarray:
        """Adds `number` pieces of equal cost to new rows; returns the row of each."""
        cost_D1 = cost_D[:, None]
        new = np.arange(number) // int((self._capacity_D1 // cost_D1).min())
        counts = np.bincount(new)
        rows = self._size + np.arange(len(counts))
        self._set(rows, self._capacity_D1 - counts * cost_D1)
        self._size += len(counts)
        return rows[new]

    def _fullest(self, cost: list[int], number: int) -> np.ndarray:
        """Returns the `number` rows with the least room in which a piece fits, or all such rows."""
        free, *others = self._free_DR[:, : self._size]
        fits = free >= cost[0]
        for free, c in zip(others, cost[1:], strict=True):  # faster than `all` over the first axis
            fits &= free >= c
        words = self._words_R[: self._size][fits]
        if len(words) > number:
            words = np.partition(words, number - 1)[:number]
        words.sort()
        return words & 0xFFFFFFFF

    def _set(self, rows: np.ndarray, free_DR: np.ndarray) -> None:
        """Sets the room that is left in `rows`."""
        self._free_DR[:, rows] = free_DR
        self._words_R[rows] = ((free_DR * self.scale_D1).sum(axis=0) << 32) | rows


def coarse(costs_DP: np.ndarray, capacity: Sequence[int]) -> np.ndarray:
    """Rounds costs_DP up, so coarsely that at most _MAX_COSTS distinct costs remain."""
    capacity_D, unit = np.array(capacity)[:, None], 1
    rounded_DP = costs_DP
    while len(np.unique(_codes(rounded_DP, capacity))) > _MAX_COSTS:
        unit *= 2
        rounded_DP = np.minimum(-(-costs_DP // unit) * unit, capacity_D)
    return rounded_DP


def tabulate(rows_P: np.ndarray, slots: int, **columns: np.ndarray) -> np.ndarray:
    """Returns a structured array with one entry per row.

    Each column becomes a field int32[slots], which is 0 in empty slots. The pieces of a row keep
    their order.

    rows_P: the row of each piece. columns: int[P], one value per piece.
    """
    order = np.argsort(rows_P, kind="stable")
    row = rows_P[order]
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    fields = [(name, np.int32, (slots,)) for name in columns]
    table = np.zeros(int(rows_P.max(initial=-1)) + 1, fields)
    for name, column in columns.items():
        table[name][row, slot] = column[order]
    return table


def arrange(
    costs_DP: np.ndarray,
    capacity: Sequence[int],
    slots: int,
    rng: RowRandom,
    stream: str,
    **columns: np.ndarray,
) -> np.ndarray:
    """Shuffles pieces and returns their table: packed into rows, or one per row if `slots` is 1.

    costs_DP, capacity: as in `best_fit`. columns: as in `tabulate`.
    stream: the name of the stream of random numbers (see `RowRandom`).
    """
    order = rng.permutation(stream, costs_DP.shape[1])[0]
    columns = {name: column[order] for name, column in columns.items()}
    if slots == 1:
        return tabulate(np.arange(len(order)), 1, **columns)
    costs_DP = coarse(costs_DP[:, order], capacity)
    costs_DP = np.vstack([costs_DP, np.ones(len(order), np.int64)])  # each piece takes one slot
    return tabulate(best_fit(costs_DP, [*capacity, slots]), slots, **columns)


@dataclasses.dataclass(frozen=True)
class Documents:
    """Samples documents, each followed by the token `end`, in pieces of at most `length` tokens."""

    length: int
    end: int
    pad: int
    packing: bool

    def window(self, records: Sequence) -> Window:
        """Joins records from `data.prepared.store` into a window."""
        return join(records, self.end)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns the table of the window's rows. Each token of the window is in exactly one piece.

        rng: the random numbers for the window, a `RowRandom` with a single row.
        """
        start, size = cut(window, self.length, rng)
        k = slots(self.length, self.packing)
        return arrange(size[None], (self.length,), k, rng, "packing/pieces", start=start, size=size)

    def assemble(self, window: Window, table: np.ndarray) -> Batch:
        """Returns input_ids int32[B, L] with pieces back to back, and piece_sizes int32[B, K]."""
        return assemble(window, table, self.length, self.pad)


@dataclasses.dataclass(frozen=True)
class Prefixes:
    """Samples pieces of documents, each split at a random point into a prefix and the rest.

    The prefix and the rest get one end token each. A row has room for `length` tokens of prefixes
    and `length` tokens of rests. `segment` draws the split, because the split decides which pieces
    fit into one row. A piece has at most `length` - 4 tokens, because two pieces of `length` tokens
    would never fit into one row together with their four end tokens.
    """

    length: int
    pad: int
    packing: bool

    def window(self, records: Sequence) -> Window:
        """Joins records from `data.prepared.store` into a window."""
        return join(records)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns the table of the window's rows. Each token of the window is in exactly one piece.

        rng: the random numbers for the window, a `RowRandom` with a single row.
        """
        start, size = cut(window, self.length - 4, rng)
        prefix = rng.integers("packing/prefix", np.minimum(1, size - 1), size, len(size))[0]
        return arrange(
            np.stack([prefix + 1, size - prefix + 1]),
            (self.length, self.length),
            slots(self.length, self.packing),
            rng,
            "packing/pieces",
            start=start,
            size=size,
            prefix=prefix,
        )

    def assemble(self, window: Window, table: np.ndarray) -> Batch:
        """Returns input_ids int32[B, 2 L] with pieces back to back, and piece_sizes and
        prefix_sizes int32[B, K]."""
        batch = assemble(window, table, 2 * self.length, self.pad)
        return batch | {"prefix_sizes": table["prefix"]}


@dataclasses.dataclass(frozen=True)
class Enclosed:
    """Samples pieces for an encoder, each between the tokens `first` and `last`: [CLS] piece [SEP].

    A piece has at most `length` tokens, including these two.
    """

    length: int
    first: int
    last: int
    pad: int
    packing: bool

    def window(self, records: Sequence) -> Window:
        """Joins records from `data.prepared.store` into a window."""
        return join(records)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns the table of the window's rows. Each token of the window is in exactly one piece.

        rng: the random numbers for the window, a `RowRandom` with a single row.
        """
        start, size = cut(window, self.length - 2, rng)
        k = slots(self.length, self.packing)
        return arrange(
            size[None] + 2, (self.length,), k, rng, "packing/pieces", start=start, size=size
        )

    def assemble(self, window: Window, table: np.ndarray) -> Batch:
        """Returns the features of `layout.lay_out`."""
        batch = assemble(window, table, self.length, self.pad)
        sizes_BK = batch["piece_sizes"]
        sizes_P = sizes_BK[sizes_BK > 0]
        stops_P = np.cumsum(sizes_P)
        places = np.stack([stops_P - sizes_P, stops_P], axis=1).ravel()
        ends = np.tile([self.first, self.last], len(sizes_P))
        tokens_T = np.insert(layout.pieces_of(batch), places, ends)
        return layout.lay_out(
            tokens_T, sizes_BK + 2 * (sizes_BK > 0), self.length, self.pad, packing=self.packing
        )


def assemble(window: Window, table: np.ndarray, width: int, pad: int) -> Batch:
    """Returns input_ids int32[B, width], with pieces back to back, and piece_sizes int32[B, K].

    pad: the id that fills a row after its last piece.
    """
    sizes_BK = table["size"]
    used_BK = layout.used(sizes_BK)
    real_BK = used_BK > 0
    sizes_P = used_BK[real_BK]
    starts_P = table["start"][:, : used_BK.shape[1]][real_BK]
    if sizes_P.sum() >= _LONG_PIECE * len(sizes_P) > 0:
        ranges = zip(starts_P.tolist(), (starts_P + sizes_P).tolist(), strict=True)
        tokens_T = np.concatenate([window.tokens[start:stop] for start, stop in ranges])
    else:
        source_T = np.repeat(starts_P - (np.cumsum(sizes_P) - sizes_P), sizes_P)
        source_T += np.arange(len(source_T))
        # NOTE: "clip" saves a check of the bounds; all indices are within them.
        tokens_T = window.tokens.take(source_T, mode="clip")
    ids_BW = np.full((len(table), width), pad, np.int32)
    ids_BW[layout.filled(used_BK, width)] = tokens_T.astype(np.int32)
    return {"input_ids": ids_BW, "piece_sizes": sizes_BK}


def _codes(costs_DP: np.ndarray, capacity: Sequence[int]) -> np.ndarray:
    """Returns int64[P]: encodes the costs of each piece as one number, without collisions."""
    return np.cumprod([1, *np.add(capacity[:-1], 1)]) @ costs_DP


def _edges(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
