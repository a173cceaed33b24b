"""Masked language modelling: which positions are predicted and what the model sees there.

Single tokens and whole words are chosen here, runs of words in `data.batches.span_masking`.
Vectorised over the batch. As in BERT (Devlin et al. 2019, section 3.1, and its
create_pretraining_data.py): a row of n tokens, specials included, gets
min(P, max(1, round(rate * n))) predictions; [CLS], [SEP] and padding are never chosen; 80% of the
chosen become [MASK], 10% a random piece, 10% stay. Every row has P slots; slots beyond its count
hold position 0 with weight 0.

Shapes: B rows, L length, P predictions a row.
"""

import numpy as np

from bertjax.data.batches.rng import RowRandom

_LAST = np.uint32(2**31)  # a score above those of the candidates


def counts(lengths_B: np.ndarray, rate: float, limit: int) -> np.ndarray:
    """int64[B]: predictions a row, rounded half to even as Python's round does."""
    return np.clip(np.rint(lengths_B * rate), 1, limit).astype(np.int64)


def choose_tokens(
    candidates_BL: np.ndarray, counts_B: np.ndarray, limit: int, rng: RowRandom
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses counts_B of the candidates in each row, all subsets alike.

    Args:
      candidates_BL: bool, the positions that may be predicted.
      counts_B: int, at most `limit`; a row with fewer candidates gives all of them.
      limit: P, at most L.
      rng: random numbers of these rows.

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

    Words come in random order; one that would exceed the count is passed over and a later, shorter
    one may fill its place. A row whose every word is longer than its count has no prediction.

    Args:
      continues_BL: bool, the position goes on with the word of the position before it. After
        [CLS] or [SEP] a word starts all the same.
      Others and the result as in `choose_tokens`.
    """
    b, length = candidates_BL.shape
    first_BL, sizes = words(candidates_BL, continues_BL)
    order_BL = shuffled(first_BL, rng) + np.arange(b, dtype=np.int32)[:, None] * length
    words_B = first_BL.sum(axis=1)
    fits_LB = np.zeros((length, b), bool)
    left_B = counts_B.copy()
    for rank in range(words_B.max(initial=0)):
        size_B = sizes[order_BL[:, rank]]
        fits_LB[rank] = (size_B <= left_B) & (rank < words_B)
        left_B -= size_B * fits_LB[rank]
        if not np.any(left_B * (rank + 1 < words_B)):
            break

    chosen = np.sort(order_BL[fits_LB.T])
    return slots(chosen, sizes[chosen], counts_B - left_B, (length, limit))


def words(candidates_BL: np.ndarray, continues_BL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool[B, L], where a word of candidates starts, and int64[B * L], its number of positions.

    The sizes are flat over the batch, 0 where nothing starts; what is no candidate has size 1.
    """
    inside_BL = continues_BL & candidates_BL
    inside_BL[:, 1:] &= candidates_BL[:, :-1]
    inside_BL[:, 0] = False
    # Flat over the batch: every position that does not go on with a word ends the one before it.
    starts = np.flatnonzero(~inside_BL)
    sizes = np.zeros(inside_BL.size, np.int64)
    sizes[starts] = np.diff(starts, append=inside_BL.size)
    return candidates_BL & ~inside_BL, sizes


def slots(
    starts: np.ndarray, sizes: np.ndarray, counts_B: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights as of `choose_tokens` out of ascending runs, flat over the batch.

    counts_B: positions of each row in all of its runs; shape: (L, P).
    """
    length, limit = shape
    before = np.cumsum(sizes) - sizes
    chosen = np.repeat(starts - before, sizes)
    chosen += np.arange(len(chosen))
    used_BP = np.arange(limit) < counts_B[:, None]
    positions_BP = np.zeros(used_BP.shape, np.int32)
    positions_BP[used_BP] = chosen % length
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
    """Hides the chosen positions.

    Args:
      random_ids: int[R], the ids a random piece is drawn from.
      mask_token_rate, random_token_rate: shares of the chosen that become `mask_id` or a random
        piece; the others keep their token.
      deciders_BP: int, the slot whose draw decides which of the three happens to each slot; the
        first of its span makes a span one decision. None: every slot decides for itself.

    Returns:
      input_ids int32[B, L] as the model sees them, a new array, and masked_ids int32[B, P], the
      tokens that were there (0 in unused slots).
    """
    used_BP = weights_BP > 0
    truth_BP = np.take_along_axis(input_ids_BL, positions_BP, axis=1)
    drawn_BP = random_ids[rng.integers("masking/random", 0, len(random_ids), truth_BP.shape[1])]
    action_BP = rng.uniform("masking/action", truth_BP.shape[1])
    if deciders_BP is not None:
        action_BP = np.take_along_axis(action_BP, deciders_BP, axis=1)
    seen_BP = np.where(action_BP < mask_token_rate + random_token_rate, drawn_BP, truth_BP)
    seen_BP = np.where(action_BP < mask_token_rate, mask_id, seen_BP)
    # Unused slots point at position 0, which is never chosen: they write back what is there.
    seen_BP = np.where(used_BP, seen_BP, truth_BP)
    hidden_BL = input_ids_BL.copy()
    np.put_along_axis(hidden_BL, positions_BP, seen_BP.astype(hidden_BL.dtype), axis=1)
    return hidden_BL, np.where(used_BP, truth_BP, 0)


def shuffled(candidates_BL: np.ndarray, rng: RowRandom) -> np.ndarray:
    """int32[B, L]: the columns of each row, the candidates first and in random order.

    Score and column share one word of 32 bits: no two scores tie, so the order does not depend on
    the sort, and sorting values is several times faster than sorting indices.
    """
    length = candidates_BL.shape[1]
    low = np.uint32((1 << (length - 1).bit_length()) - 1)
    score_BL = rng.bits("masking/score", length) >> np.uint32(1)
    score_BL &= ~low
    score_BL[~candidates_BL] = _LAST
    score_BL |= np.arange(length, dtype=np.uint32)
    score_BL.sort(axis=1)
    score_BL &= low
    return score_BL.view(np.int32)
