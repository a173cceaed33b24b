"""Pads sequences to a small number of shapes, to limit the number of compilations.

    for rows in batching.longest_first(sequences, lambda longest: 32):
        chosen = [sequences[row] for row in rows]
        shape = batching.power_of_two(len(rows)), batching.round_up(len(chosen[0]))
        ids_BL, real_BL = batching.padded(chosen, shape, pad=0)

Shapes: R sequences, B rows of a batch, L length, C columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

LENGTH_MULTIPLE = 32


def round_up(count: int, multiple: int = LENGTH_MULTIPLE) -> int:
    """Returns the smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


def round_finely(length: int) -> int:
    """Returns `length` rounded up to a multiple of 8, or by less than a quarter if it is longer."""
    return round_up(length, max(8, power_of_two_within(max(length, 1)) // 4))


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def power_of_two_within(count: int) -> int:
    """Returns the largest power of two that is at most `count`, which must be 1 or more."""
    return 1 << (count.bit_length() - 1)


def longest_first(
    sequences: Sequence[np.ndarray], batch_size: Callable[[int], int]
) -> Iterator[list[int]]:
    """Yields batches of sequences of similar length, as lists of indices, the longest first.

    batch_size: a function from the length of a batch's longest sequence to the number of sequences
    in the batch.
    """
    order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row]))
    while order:
        size = batch_size(len(sequences[order[0]]))
        yield order[:size]
        order = order[size:]


def padded(
    sequences: Sequence[np.ndarray], shape: tuple[int, int], pad: int, *, left: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Pads one or more sequences. Returns (ids int32[B, L], real bool[B, L]).

    `real` is False for padding. Rows after the last sequence contain only padding.

    shape: the pair (B, L). pad: the id of padding. left: whether to pad on the left.
    """
    size_B = np.zeros(shape[0], int)
    size_B[: len(sequences)] = [len(sequence) for sequence in sequences]
    place_L = np.arange(shape[1])
    real_BL = (place_L[::-1] if left else place_L) < size_B[:, None]
    ids_BL = np.full(shape, pad, np.int32)
    ids_BL[real_BL] = np.concatenate(sequences)
    return ids_BL, real_BL


def batches(
    columns: Mapping[str, Sequence[np.ndarray]],
    batch_size: Callable[[int], int],
    pad: int,
    max_length: int,
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yields (indices of the rows, batch), the longest first; a batch may end with padding rows.

    A batch has the features PREFIXinput_ids and PREFIXattention_mask, int32[B, L]. Lengths are
    rounded up, and B is a power of two.

    columns: {prefix: a sequence for each row}; the first one determines the order. batch_size: as
    in `longest_first`. pad: the id of padding. max_length: the limit of rounded lengths.
    """
    for rows in longest_first(next(iter(columns.values())), batch_size):
        batch = {}
        for prefix, column in columns.items():
            members = [column[row] for row in rows]
            longest = max(len(member) for member in members)
            shape = power_of_two(len(rows)), min(round_up(longest), max_length)
            ids_BL, real_BL = padded(members, shape, pad)
            batch[f"{prefix}input_ids"] = ids_BL
            batch[f"{prefix}attention_mask"] = real_BL.astype(np.int32)
        yield rows, batch


def buckets(
    columns: Sequence[Sequence[np.ndarray]], limit: int, pad: int
) -> Iterator[tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]]:
    """Groups rows by the rounded lengths of their sequences. Yields (rows, ids, real) per group.

    A row has one sequence in each column: for example, the inputs of an encoder are one column and
    those of a decoder are another. In the result, `rows` are the indices of the rows in the group;
    `ids` and `real` contain the arrays that `padded` returns, one for each column. Lengths below 32
    are rounded up to a multiple of 4, longer ones by less than a quarter, but not above `limit`.

    columns: one list per column, of R sequences with at most `limit` tokens each.
    pad: the id of padding.
    """
    sizes = [np.array([len(sequence) for sequence in column], int) for column in columns]
    lengths_RC = np.stack([_round_sizes(size_R, limit) for size_R in sizes], axis=1)
    for shape in np.unique(lengths_RC, axis=0):
        rows = np.flatnonzero((lengths_RC == shape).all(axis=1))
        arrays = [
            padded([column[row] for row in rows], (len(rows), int(length)), pad)
            for length, column in zip(shape, columns, strict=True)
        ]
        yield rows, [ids for ids, _ in arrays], [real for _, real in arrays]


def _round_sizes(size_R: np.ndarray, limit: int) -> np.ndarray:
    step_R = 2 ** np.maximum(np.log2(size_R).astype(int) - 2, 2)
    return np.minimum(-(-size_R // step_R) * step_R, limit)
