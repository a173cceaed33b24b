"""Chooses runs of whole words to mask: n-grams (ALBERT) and spans of geometric length (SpanBERT).

    lengths_BK = span_masking.draw_lengths(span_masking.geometric(0.2, 10), limit, rng)
    positions_BP, weights_BP = span_masking.choose_spans(
        candidates_BL, continues_BL, counts_B, limit, lengths_BK, rng, gap=1)
    first_BP, last_BP = span_masking.runs(positions_BP, weights_BP)

Vectorised over the batch, like `data.batches.masking`. Shapes: B rows, L length, P predictions per
row, K spans drawn per row.
"""

import numpy as np

from bertjax.data.batches import masking
from bertjax.data.batches.rng import RowRandom


def harmonic(longest: int) -> np.ndarray:
    """Returns float64[longest]: the probabilities of 1, 2 ... words.

    The probability of n words is proportional to 1 / n (ALBERT, arXiv 1909.11942, section 4.1).
    """
    weights = 1.0 / np.arange(1, longest + 1)
    return weights / weights.sum()


def geometric(p: float, longest: int) -> np.ndarray:
    """Returns float64[longest]: the probabilities of 1, 2 ... words.

    The distribution is geometric, Geo(p), truncated at `longest` words and normalised. SpanBERT
    (arXiv 1907.10529, section 3.1) uses p = 0.2 and at most 10 words, which gives 3.8 on average.
    """
    weights = (1.0 - p) ** np.arange(longest)
    return weights / weights.sum()


def draw_lengths(probabilities: np.ndarray, count: int, rng: RowRandom) -> np.ndarray:
    """Returns int64[B, count]: lengths in words. Length n has probability probabilities[n - 1]."""
    edges = np.cumsum(probabilities)[:-1]
    return 1 + np.searchsorted(edges, rng.uniform("masking/words", count), side="right")


def choose_spans(
    candidates_BL: np.ndarray,
    continues_BL: np.ndarray,
    counts_B: np.ndarray,
    limit: int,
    lengths_BK: np.ndarray,
    rng: RowRandom,
    *,
    gap: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses runs of whole words, at most counts_B positions in each row.

    In each row, words are tried in random order, each at most once, as the first word of a run. The
    length of the run is the next one in lengths_BK. The run is accepted if all its words are
    consecutive candidates and it is at least `gap` positions away from the accepted runs. Otherwise
    the same length is tried at the next word, so that no length is favoured.

    A run is shortened, to whole words, only if it would exceed counts_B. So only the last runs
    accepted in a row may be shorter than drawn.

    Args:
      candidates_BL, continues_BL, counts_B, limit: as in `masking.choose_words`.
      lengths_BK: lengths of the runs in words, in the order in which they are placed; K >= limit.
      gap: minimum number of positions between two runs. With gap=1 no two runs touch, so the
        positions next to a run are never masked; with gap=0 runs may be adjacent.

    Returns:
      positions int32[B, P], ascending, and weights float32[B, P], 1 where a slot is used.
    """
    b, length = candidates_BL.shape
    first_BL, sizes = masking.words(candidates_BL, continues_BL)
    # Starts and ends of words are indices into the flattened batch. A run that starts at word w can
    # contain only the words w to stops[w] - 1. After these words the row ends, or there is a
    # position that is not a candidate.
    starts = np.flatnonzero(first_BL)
    ends = starts + sizes[starts]
    is_last = np.append((starts[1:] != ends[:-1]) | (starts[1:] % length == 0), True)
    stops = np.flatnonzero(is_last) + 1
    stops = np.repeat(stops, np.diff(stops, prepend=0))
    numbers = np.cumsum(first_BL) - 1
    ended = np.cumsum(np.bincount(ends, minlength=b * length + 1))  # words that end by an index

    order_BL = masking.shuffled(first_BL, rng) + np.arange(b, dtype=np.int32)[:, None] * length
    words_B = first_BL.sum(axis=1)
    room_B = counts_B.copy()
    runs_B = np.zeros(b, np.int64)
    from_BP, to_BP = np.full((2, b, limit), -1)  # the accepted runs; ends are exclusive
    rows = np.flatnonzero((words_B > 0) & (room_B > 0))
    rank = 0
    while len(rows):
        start, run, room = order_BL[rows, rank], runs_B[rows], room_B[rows]
        word, target = numbers[start], lengths_BK[rows, run]
        size = np.minimum(target, ended[np.minimum(start + room, b * length)] - word)
        valid = (size > 0) & (word + size <= stops[word])
        end = ends[np.where(valid, word + size - 1, word)]
        # A run may be shorter than `target` if the count allows no more words, but not if the
        # candidates end first.
        valid &= (size == target) | (word + size < stops[word]) | (end - start == room)
        used = slice(run.max() + 1)
        before = end[:, None] + gap <= from_BP[rows, used]
        apart = before | (start[:, None] >= to_BP[rows, used] + gap)
        ok = valid & apart.all(axis=1)
        row, slot = rows[ok], run[ok]
        from_BP[row, slot], to_BP[row, slot] = start[ok], end[ok]
        room_B[row] -= end[ok] - start[ok]
        runs_B[row] += 1
        rank += 1
        rows = rows[(room_B[rows] > 0) & (words_B[rows] > rank)]

    begin, end = np.sort(from_BP[from_BP >= 0]), np.sort(to_BP[to_BP >= 0])
    return masking.slots(begin, end - begin, counts_B - room_B, (length, limit))


def runs(positions_BP: np.ndarray, weights_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each slot, the first and the last slot of its run, as two int64[B, P].

    A run is a maximal sequence of consecutive chosen positions. With gap >= 1 these are the runs
    chosen by `choose_spans`; with gap=0 adjacent n-grams form one run. Each unused slot counts as a
    run of one slot.
    """
    slots_P = np.arange(positions_BP.shape[1])
    continues_BP = np.diff(positions_BP, axis=1, prepend=-2) == 1
    continues_BP &= weights_BP > 0
    first_BP = np.maximum.accumulate(np.where(continues_BP, 0, slots_P), axis=1)
    ends_BP = np.append(~continues_BP[:, 1:], np.ones((len(continues_BP), 1), bool), axis=1)
    last_BP = np.where(ends_BP, slots_P, slots_P[-1])
    last_BP = np.minimum.accumulate(last_BP[:, ::-1], axis=1)[:, ::-1]
    return first_BP, last_BP


def boundaries(positions_BP: np.ndarray, weights_BP: np.ndarray) -> np.ndarray:
    """Returns int32[B, P, 2]: the positions just before and just after the run of each slot.

    If no runs touch, both positions are unmasked. For unused slots both are 0.
    """
    first_BP, last_BP = runs(positions_BP, weights_BP)
    left_BP = np.take_along_axis(positions_BP, first_BP, axis=1) - 1
    right_BP = np.take_along_axis(positions_BP, last_BP, axis=1) + 1
    used_BP1 = weights_BP[:, :, None] > 0
    return np.where(used_BP1, np.stack([left_BP, right_BP], axis=-1), 0).astype(np.int32)
