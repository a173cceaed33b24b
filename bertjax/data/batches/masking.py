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

from bertjax.data.batches.rng import RowRandom

_LAST_SCORE = np.uint32(2**31)  # greater than the score of any candidate


def counts(lengths_B: np.ndarray, rate: float, limit: int) -> np.ndarray:
    """Returns int64[B]: the numbers of predictions in rows of lengths_B tokens.

    They are rate * lengths_B, rounded half to even like Python's `round`, but at least 1 and at
    most `limit`.
    """
    return np.clip(np.rint(lengths_B * rate), 1, limit).astype(np.int64)


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
    positions_BP = shuffled(candidates_BL, rng)[:, :limit]
    used_BP = np.arange(limit) < np.minimum(counts_B, candidates_BL.sum(axis=1))[:, None]
    positions_BP = np.where(used_BP, positions_BP, candidates_BL.shape[1])
    positions_BP.sort(axis=1)
    positions_BP[~used_BP] = 0
    return positions_BP, used_BP.astype(np.float32)


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
    words_B = first_BL.sum(axis=1)
    fits_LB = np.zeros((length, b), bool)
    room_B = counts_B.copy()
    for rank in range(words_B.max(initial=0)):
        size_B = sizes[order_BL[:, rank]]
        fits_LB[rank] = (size_B <= room_B) & (rank < words_B)
        room_B -= size_B * fits_LB[rank]
        if not np.any(room_B * (rank + 1 < words_B)):
            break

    word_starts = np.sort(order_BL[fits_LB.T])
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
    truth_BP = np.take_along_axis(input_ids_BL, positions_BP, axis=1)
    random_BP = random_ids[rng.integers("masking/random", 0, len(random_ids), truth_BP.shape[1])]
    action_BP = rng.uniform("masking/action", truth_BP.shape[1])
    if deciders_BP is not None:
        action_BP = np.take_along_axis(action_BP, deciders_BP, axis=1)
    ids_BP = np.where(action_BP < mask_token_rate + random_token_rate, random_BP, truth_BP)
    ids_BP = np.where(action_BP < mask_token_rate, mask_id, ids_BP)
    # Unused slots have position 0, which is never chosen. They write back the token at position 0.
    ids_BP = np.where(used_BP, ids_BP, truth_BP)
    masked_BL = input_ids_BL.copy()
    np.put_along_axis(masked_BL, positions_BP, ids_BP.astype(masked_BL.dtype), axis=1)
    return masked_BL, np.where(used_BP, truth_BP, 0)


def shuffled(candidates_BL: np.ndarray, rng: RowRandom) -> np.ndarray:
    """Returns int32[B, L]: the columns of each row, the candidates first and in random order.

    A random score and the column are packed into one 32-bit word. No two words of a row are equal,
    so the order does not depend on the sort algorithm. Sorting the words is several times faster
    than argsort.
    """
    length = candidates_BL.shape[1]
    low_bits = np.uint32((1 << (length - 1).bit_length()) - 1)
    score_BL = rng.bits("masking/score", length) >> np.uint32(1)
    score_BL &= ~low_bits
    score_BL[~candidates_BL] = _LAST_SCORE
    score_BL |= np.arange(length, dtype=np.uint32)
    score_BL.sort(axis=1)
    score_BL &= low_bits
    return score_BL.view(np.int32)
