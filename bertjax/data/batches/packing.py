"""Documents cut in pieces, and pieces put in rows: several a row (packed) or one a row.

A piece is a run of tokens of one document. Both ways of filling rows have the same pieces, and no
piece sees another one of its row (`data.batches.layout`), so the loss is the same either way.

`Documents`, `Prefixes` and `Enclosed` are samplings as in `data.batches.samples`;
`data.batches.denoising` has another. A row of their tables is a row of the model: where its pieces
start, and their sizes.

    sampling = Documents(length=128, end=1, pad=0, packing=True)
    window = sampling.window(records)
    table = sampling.segment(window, rng)
    batch = sampling.assemble(window, table[rows])  # input_ids [B, 128], piece_sizes [B, K]

Shapes: B rows, L length, K pieces a row at most, D documents or capacities of a row, P pieces.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax import errors
from bertjax.data.batches import layout
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers import vocabulary

Batch = dict[str, np.ndarray]

_TOKENS_A_SLOT = 8  # a row has room for a piece per so many tokens; shorter ones leave it less full
_MAX_COSTS = 2048  # different costs up to which `best_fit` is quick


def slots(length: int, packing: bool) -> int:
    """K: pieces that a row may hold."""
    return max(1, length // _TOKENS_A_SLOT) if packing else 1


def end_of_text(specials: vocabulary.Specials) -> int:
    """The id that ends a text: eos, or sep where there is none. UserError if both lack."""
    if specials.end < 0:
        raise errors.UserError(
            "the tokenizer has neither an end of text nor a sep token, which language modelling "
            "needs: train or choose another tokenizer"
        )
    return specials.end


def start_of_text(specials: vocabulary.Specials) -> int:
    """The id that a decoder reads first: bos, else eos, else cls. UserError if all lack."""
    if specials.start < 0:
        raise errors.UserError(
            "the tokenizer has no bos, eos or cls token to start a text with, which language "
            "modelling needs: train or choose another tokenizer"
        )
    return specials.start


def padding(specials: vocabulary.Specials) -> int:
    """The id on padding, which is never seen: GPT-2 has none, any will do."""
    return max(specials.pad, 0)


def decoder_start(specials: vocabulary.Specials, own: int) -> int:
    """The id that the decoder of an encoder-decoder reads first: `own`; padding if that is -1."""
    return padding(specials) if own < 0 else own


# From records to pieces


@dataclasses.dataclass(frozen=True)
class Window:
    """Documents back to back. tokens: uint16 or uint32 [T]; edges: int64[D + 1], ends with T.

    What lies of one document in one record counts as a document, for records come shuffled.
    """

    tokens: np.ndarray
    edges: np.ndarray


def join(records: Sequence, end: int | None = None) -> Window:
    """The documents of records of `data.prepared.store`, each followed by `end` if it is given."""
    tokens = np.concatenate([record.tokens for record in records])
    sentences = np.concatenate([record.tokens_per_sentence for record in records])
    counts = np.concatenate([record.sentences_per_document for record in records])
    token_edges, sentence_edges = _edges(sentences), _edges(counts)
    edges = token_edges[sentence_edges]
    edges = np.unique(edges)  # without what has no tokens
    if end is None:
        return Window(tokens, edges)
    return Window(np.insert(tokens, edges[1:], end), edges + np.arange(len(edges)))


def cut(window: Window, limit: int | np.ndarray, rng: RowRandom) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents in pieces of `limit` tokens (a number or int[D]) but for one of each document,
    at a random place among the others, which has what is left.

    Returns the first token of each piece and its size, int64[P], in the order of the text.
    """
    sizes = np.diff(window.edges)
    counts = -(-sizes // limit)
    shorter = np.cumsum(counts) - counts + rng.integers("packing/cut", 0, counts, len(sizes))[0]
    limits = np.broadcast_to(limit, sizes.shape)
    size = np.repeat(limits, counts)
    size[shorter] = sizes - (counts - 1) * limits
    return np.cumsum(size) - size, size


# From pieces to rows


def best_fit(costs_DP: np.ndarray, capacity: Sequence[int]) -> np.ndarray:
    """int64[P]: the row of each piece, by best fit, the largest pieces first.

    A piece goes where it leaves least room, and to a new row where it fits nowhere. costs_DP: what
    a piece takes of each capacity of a row, int, from 1 to the capacity.
    Pieces of one cost are placed at once, so the time grows with the number of different costs.
    """
    capacity_D = np.array(capacity, np.int64)[:, None]
    _, first_C, kind_P, counts_C = np.unique(
        _codes(costs_DP, capacity), return_index=True, return_inverse=True, return_counts=True
    )
    cost_DC = costs_DP[:, first_C]
    members = np.split(np.argsort(kind_P, kind="stable"), np.cumsum(counts_C)[:-1])
    scale_D = 2**24 // capacity_D

    rows_P = np.empty(costs_DP.shape[1], np.int64)
    left_DR = np.empty_like(costs_DP, np.int64)
    opened, room = 0, np.zeros(0, np.int64)  # rows so far, and which of them are not full
    for kind in np.argsort(-(cost_DC * scale_D).max(axis=0), kind="stable"):
        cost_D, pieces = cost_DC[:, kind, None], members[kind]
        room = room[(left_DR[:, room] > 0).all(axis=0)]
        fits = room[(left_DR[:, room] >= cost_D).all(axis=0)]
        # Ties go to the row opened first: the words are distinct, so any sort gives one order.
        words = ((left_DR[:, fits] * scale_D).sum(axis=0) << 32) | fits
        if len(words) > len(pieces):
            words = np.partition(words, len(pieces) - 1)[: len(pieces)]
        fits = np.sort(words) & 0xFFFFFFFF
        times = (left_DR[:, fits] // cost_D).min(axis=0)
        times = np.diff(np.minimum(np.cumsum(times), len(pieces)), prepend=0)
        placed = int(times.sum())
        rows_P[pieces[:placed]] = np.repeat(fits, times)
        left_DR[:, fits] -= times * cost_D

        new = np.arange(len(pieces) - placed) // int((capacity_D // cost_D).min())
        rows_P[pieces[placed:]] = opened + new
        taken = np.bincount(new)
        left_DR[:, opened : opened + len(taken)] = capacity_D - taken * cost_D
        room = np.concatenate([room, np.arange(opened, opened + len(taken))])
        opened += len(taken)
    return rows_P


def coarse(costs_DP: np.ndarray, capacity: Sequence[int]) -> np.ndarray:
    """The costs, rounded up until there are few enough different ones."""
    capacity_D, unit = np.array(capacity)[:, None], 1
    rounded_DP = costs_DP
    while len(np.unique(_codes(rounded_DP, capacity))) > _MAX_COSTS:
        unit *= 2
        rounded_DP = np.minimum(-(-costs_DP // unit) * unit, capacity_D)
    return rounded_DP


def tabulate(rows_P: np.ndarray, slots: int, **columns: np.ndarray) -> np.ndarray:
    """One table row for each row: the columns of its pieces, int32[slots] a column, 0 where empty.

    The pieces of a row keep the order in which they are given.
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
    """The table of pieces in rows: shuffled and packed, or one a row if there is one slot.

    costs_DP, capacity: as in `best_fit`. columns: what the table says of each piece, int[P].
    """
    order = rng.permutation(stream, costs_DP.shape[1])[0]
    columns = {name: column[order] for name, column in columns.items()}
    if slots == 1:
        return tabulate(np.arange(len(order)), 1, **columns)
    costs_DP = coarse(costs_DP[:, order], capacity)
    costs_DP = np.vstack([costs_DP, np.ones(len(order), np.int64)])  # of the slots
    return tabulate(best_fit(costs_DP, [*capacity, slots]), slots, **columns)


@dataclasses.dataclass(frozen=True)
class Documents:
    """Documents as they are, each ended by `end`, in pieces of at most `length` tokens."""

    length: int
    end: int
    pad: int
    packing: bool

    def window(self, records: Sequence) -> Window:
        """Joins records of `data.prepared.store` to a window."""
        return join(records, self.end)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """A table of rows, each token of the window once; rng is of one row, the window's."""
        start, size = cut(window, self.length, rng)
        k = slots(self.length, self.packing)
        return arrange(size[None], (self.length,), k, rng, "packing/pieces", start=start, size=size)

    def assemble(self, window: Window, table: np.ndarray) -> Batch:
        """input_ids int32[B, L], pieces back to back, and piece_sizes int32[B, K]."""
        return assemble(window, table, self.length, self.pad)


@dataclasses.dataclass(frozen=True)
class Prefixes:
    """Documents in pieces, each split at random in a prefix and a rest.

    Prefix and rest are each ended by a token of their own, and rows have room for `length` tokens
    of either. The split decides how pieces fit together, so it is drawn here, for the window.
    Pieces are a little shorter than rows: two of full length, with their four ends, never fit.
    """

    length: int
    pad: int
    packing: bool

    def window(self, records: Sequence) -> Window:
        """Joins records of `data.prepared.store` to a window."""
        return join(records)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """A table of rows, each token of the window once; rng is of one row, the window's."""
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
        """input_ids int32[B, 2 L], pieces back to back; piece_sizes, prefix_sizes int32[B, K]."""
        batch = assemble(window, table, 2 * self.length, self.pad)
        return batch | {"prefix_sizes": table["prefix"]}


@dataclasses.dataclass(frozen=True)
class Enclosed:
    """Documents in pieces of at most `length` tokens, among them `first` before a piece and `last`
    behind it: the text that an encoder reads, [CLS] piece [SEP]."""

    length: int
    first: int
    last: int
    pad: int
    packing: bool

    def window(self, records: Sequence) -> Window:
        """Joins records of `data.prepared.store` to a window."""
        return join(records)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """A table of rows, each token of the window once; rng is of one row, the window's."""
        start, size = cut(window, self.length - 2, rng)
        k = slots(self.length, self.packing)
        return arrange(
            size[None] + 2, (self.length,), k, rng, "packing/pieces", start=start, size=size
        )

    def assemble(self, window: Window, table: np.ndarray) -> Batch:
        """The features of `layout.lay_out`."""
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
    """The pieces of table rows back to back: input_ids int32[B, width], piece_sizes int32[B, K]."""
    sizes_BK = table["size"]
    sizes_P = sizes_BK[sizes_BK > 0]
    shift_P = table["start"][sizes_BK > 0] - (np.cumsum(sizes_P) - sizes_P)
    source_T = np.repeat(shift_P, sizes_P) + np.arange(int(sizes_P.sum()))
    ids_BW = np.full((len(table), width), pad, np.int32)
    ids_BW[np.arange(width) < sizes_BK.sum(axis=1)[:, None]] = window.tokens[source_T]
    return {"input_ids": ids_BW, "piece_sizes": sizes_BK}


def _codes(costs_DP: np.ndarray, capacity: Sequence[int]) -> np.ndarray:
    """int64[P]: one number for each different cost."""
    return np.cumprod([1, *np.add(capacity[:-1], 1)]) @ costs_DP


def _edges(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
