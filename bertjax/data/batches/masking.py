"""Masked language modelling: chooses the positions to predict and masks them.

This module chooses single tokens and whole words; `data.batches.span_masking` chooses runs of
words. All functions are vectorised over the batch.

The rules are those of BERT (Devlin et al. 2019, section 3.1, and its create_pretraining_data.py). A
row of n tokens, including [CLS] and [SEP], gets min(P, max(1, round(rate * n))) predictions. [CLS],
[SEP] and padding are never chosen. 80% of the chosen tokens become [MASK], 10% become a random
token, 10% stay. Every row has P slots; unused slots have position 0 and weight 0.

Shapes: B rows, L length, P predictions per row.
"""

import numpy as np

from bertjax.data.batches.rng import RowRandom, integers, uniform

_LAST_BIT = 31  # set in the scores of positions that are not candidates; no candidate has it
_LARGEST = np.uint32((1 << _LAST_BIT) - 1)  # the largest score of a candidate


def counts(lengths_B: np.ndarray, rate: float, limit: int) -> np.ndarray:
    """Returns int64[B]: the numbers of predictions in rows of lengths_B tokens.

    They are rate * lengths_B, rounded half to even like Python's `round`, but at least 1 and at
    most `limit`.
    """
    counts_B = np.rint(lengths_B * rate).astype(np.int64)
    return np.minimum(np.maximum(counts_B, 1), limit)


def numbers_of(places_BL: np.ndarray) -> np.ndarray:
    """Returns int64[B]: how many of the bool places_BL are true in each row."""
    # Much faster than a sum of bool, which converts each element to a wide integer.
    return np.bitwise_count(np.packbits(places_BL, axis=1)).sum(axis=1, dtype=np.int64)


def choose_tokens(
    candidates_BL: np.ndarray, counts_B: np.ndarray, limit: int, rng: RowRandom
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses counts_B of the candidates in each row; all subsets are equally likely.

    Args:
      candidates_BL: bool, the positions that may be predicted.
      counts_B: int, at most `limit`. In a row with fewer candidates, all candidates are chosen.
      limit: P, at most L.
      rng: the random numbers for these rows.

    Returns:
      positions int32[B, P], ascending, and weights float32[B, P], 1 where a slot is used.
    """
    length = candidates_BL.shape[1]
    score_BP = _sorted_scores(candidates_BL, rng)[:, :limit]
    used_BP = np.arange(limit) < counts_B[:, None]
    used_BP &= score_BP <= _LARGEST
    positions_BP = np.where(used_BP, score_BP & _low_bits(length), np.uint32(length))
    positions_BP.sort(axis=1)
    positions_BP *= used_BP  # the slots in use come first, before and after sorting
    return positions_BP.view(np.int32), used_BP.astype(np.float32)


def choose_words(
    candidates_BL: np.ndarray,
    continues_BL: np.ndarray,
    counts_B: np.ndarray,
    limit: int,
    rng: RowRandom,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses whole words, at most counts_B positions in each row.

    Words are tried in random order. A word that would exceed the count is skipped, and a later,
    shorter word may be chosen instead. A row in which every word exceeds the count has no
    prediction.

    Args:
      continues_BL: bool, true where a token continues the word of the token before it. It is
        ignored if the position before is not a candidate ([CLS], [SEP]): a new word starts there.
      The other arguments and the result are as in `choose_tokens`.
    """
    b, length = candidates_BL.shape
    first_BL, sizes = words(candidates_BL, continues_BL)
    order_BL = shuffled(first_BL, rng) + np.arange(b, dtype=np.int32)[:, None] * length
    words_B = numbers_of(first_BL)

    # The first words of each row fit until one would exceed the count. These are at most P words.
    size_BP = sizes[order_BL[:, :limit]]
    ranks_P = np.arange(size_BP.shape[1])
    size_BP *= ranks_P < words_B[:, None]
    filled_BP = np.cumsum(size_BP, axis=1)
    fits_BP = (filled_BP <= counts_B[:, None]) & (size_BP > 0)
    rank_B = numbers_of(fits_BP)
    room_B = counts_B - np.where(fits_BP, size_BP, 0).sum(axis=1)
    chosen = [order_BL[:, :limit][fits_BP]]
    # The other words of a row are tried one by one, as long as there is room.
    rows = np.flatnonzero((room_B > 0) & (rank_B < words_B))
    while len(rows):
        word = order_BL[rows, rank_B[rows]]
        size = sizes[word]
        fits = size <= room_B[rows]
        chosen.append(word[fits])
        room_B[rows] -= size * fits
        rank_B[rows] += 1
        rows = rows[(room_B[rows] > 0) & (rank_B[rows] < words_B[rows])]

    word_starts = np.sort(np.concatenate(chosen))
    return slots(word_starts, sizes[word_starts], counts_B - room_B, (length, limit))


def words(candidates_BL: np.ndarray, continues_BL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns bool[B, L], true where a word of candidates starts, and the word sizes, int64[B * L].

    The sizes are those of the flattened batch: the size of a word at its first token, 0 at its
    other tokens, and 1 at a position that is not a candidate.
    """
    inside_BL = continues_BL & candidates_BL
    inside_BL[:, 1:] &= candidates_BL[:, :-1]
    inside_BL[:, 0] = False
    # Indices into the flattened batch: the positions that start a word or are not a candidate.
    starts = np.flatnonzero(~inside_BL)
    sizes = np.zeros(inside_BL.size, np.int64)
    sizes[starts] = np.diff(starts, append=inside_BL.size)
    return candidates_BL & ~inside_BL, sizes


def slots(
    starts: np.ndarray, sizes: np.ndarray, counts_B: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Converts runs of positions to the positions and weights that `choose_tokens` returns.

    Args:
      starts, sizes: the runs of all rows, ascending; starts are indices into the flattened [B, L].
      counts_B: number of positions in the runs of each row.
      shape: the pair (L, P).
    """
    length, limit = shape
    offsets = np.cumsum(sizes) - sizes
    positions = np.repeat(starts - offsets, sizes)
    positions += np.arange(len(positions))
    used_BP = np.arange(limit) < counts_B[:, None]
    positions_BP = np.zeros(used_BP.shape, np.int32)
    positions_BP[used_BP] = positions % length
    return positions_BP, used_BP.astype(np.float32)


def apply(
    input_ids_BL: np.ndarray,
    positions_BP: np.ndarray,
    weights_BP: np.ndarray,
    rng: RowRandom,
    *,
    mask_id: int,
    random_ids: np.ndarray,
    mask_token_rate: float,
    random_token_rate: float,
    deciders_BP: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Masks the chosen positions.

    Args:
      positions_BP, weights_BP: the chosen positions, as returned by `choose_tokens`.
      random_ids: int[R], the ids from which random tokens are drawn.
      mask_token_rate, random_token_rate: shares of the chosen positions that become `mask_id` and
        a random token; the other chosen positions keep their token.
      deciders_BP: int, for each slot, the slot whose draw decides between mask, random and keep. If
        this is always the first slot of the span, all tokens of a span are treated alike. If None,
        each slot uses its own draw.

    Returns:
      The masked input_ids, int32[B, L], a new array, and masked_ids int32[B, P], the original
      tokens of the chosen positions (0 in unused slots).
    """
    used_BP = weights_BP > 0
    count, length = positions_BP.shape[1], input_ids_BL.shape[1]
    places_BP = positions_BP + length * np.arange(len(positions_BP))[:, None]
    truth_BP = input_ids_BL.reshape(-1).take(places_BP, mode="clip")
    random_BP, action_BP = rng.bits_of(("masking/random", "masking/action"), count)
    random_BP = random_ids.take(integers(random_BP, 0, len(random_ids)), mode="clip")
    action_BP = uniform(action_BP)
    if deciders_BP is not None:
        action_BP = np.take_along_axis(action_BP, deciders_BP, axis=1)
    # Unused slots have position 0, which is never chosen. They write back the token at position 0.
    changed_BP = used_BP & (action_BP < mask_token_rate + random_token_rate)
    is_mask_BP = action_BP < mask_token_rate
    random_BP += (mask_id - random_BP) * is_mask_BP
    ids_BP = truth_BP + (random_BP - truth_BP) * changed_BP
    masked_BL = input_ids_BL.copy()
    masked_BL.reshape(-1)[places_BP] = ids_BP
    return masked_BL, truth_BP * used_BP


def shuffled(candidates_BL: np.ndarray, rng: RowRandom) -> np.ndarray:
    """Returns int32[B, L]: the columns of each row, the candidates first and in random order."""
    score_BL = _sorted_scores(candidates_BL, rng)
    score_BL &= _low_bits(candidates_BL.shape[1])
    return score_BL.view(np.int32)


def _sorted_scores(candidates_BL: np.ndarray, rng: RowRandom) -> np.ndarray:
    """Returns uint32[B, L]: a word for each column, sorted in each row.

    A random score and the column are packed into one word: the column in the `_low_bits`, the score
    above them. The words of candidates are at most _LARGEST. No two words of a row are equal, so
    the order does not depend on the sort algorithm. Sorting the words is several times faster than
    argsort.
    """
    length = candidates_BL.shape[1]
    score_BL = rng.bits("masking/score", length) >> np.uint32(1)
    score_BL &= ~_low_bits(length)
    score_BL |= np.arange(length, dtype=np.uint32)
    score_BL |= np.left_shift(~candidates_BL, _LAST_BIT, dtype=np.uint32)
    score_BL.sort(axis=1)
    return score_BL


def _low_bits(length: int) -> np.uint32:
    """Returns the bits that a column below `length` needs."""
    return np.uint32((1 << (length - 1).bit_length()) - 1)
