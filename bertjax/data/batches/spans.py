"""T5's span corruption: chooses noise tokens and replaces noise spans with sentinels.

Source: Raffel et al. 2020 (arXiv 1910.10683), section 3.1.4 and figure 2. The functions work on
many pieces of text at once: the tokens of P pieces lie back to back in one array [T], and sizes_P
holds the size of each piece. A piece of n tokens has round(n * density) noise tokens, in spans of
`mean_length` tokens on average. It starts with text and ends with noise.

    noise = Noise(density=0.15, mean_length=3.0)
    noise_T = noise_mask(sizes_BK, *noise.counts(sizes_BK, max_spans), rng)
    inputs, sizes = noise_span_to_unique_sentinel(tokens, noise_T, sizes_P, sentinels)
    targets, sizes = nonnoise_span_to_unique_sentinel(tokens, noise_T, sizes_P, sentinels)

Shapes: B rows, K slots for pieces per row (size 0: empty), P pieces, T tokens of all pieces.
"""

import dataclasses

import numpy as np

from bertjax.data.batches.rng import RowRandom

_NO_LIMIT = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Noise:
    """A kind of noise: how many tokens are noise, and how long the noise spans are.

    density: share of noise tokens, above 0 and below 1.
    mean_length: average number of tokens in a span, at least 1. If it is infinite, a piece has one
        span, at its end, and the text before the span is a prefix.
    """

    density: float
    mean_length: float

    def counts(
        self, sizes: np.ndarray, max_spans: int = _NO_LIMIT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of noise tokens and of spans, int64, in pieces of `sizes` tokens.

        max_spans: maximum number of noise spans in a piece.
        A piece of one token has no noise token and one span, which is empty.
        """
        tokens = np.clip(np.rint(sizes * self.density).astype(np.int64), 1, np.maximum(1, sizes))
        tokens = np.minimum(tokens, np.maximum(sizes - 1, 0))
        spans = np.maximum(np.rint(tokens / self.mean_length).astype(np.int64), 1)
        spans = np.minimum(np.minimum(spans, sizes - tokens), max_spans)
        return tokens, spans

    def lengths(
        self, sizes: np.ndarray, max_spans: int = _NO_LIMIT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of tokens in the inputs and in the targets of corrupted pieces.

        Both include the sentinels and one EOS.
        """
        tokens, spans = self.counts(sizes, max_spans)
        return sizes - tokens + np.where(tokens > 0, spans, 0) + 1, tokens + spans + 1

    def longest_piece(
        self, inputs_length: int, targets_length: int | None = None, max_spans: int = _NO_LIMIT
    ) -> int:
        """Returns the number of tokens in the longest piece that fits; 0 if no piece fits.

        A piece fits if its inputs and its targets, with at most max_spans noise spans, do not
        exceed inputs_length and targets_length (None means no limit).
        """
        sizes = np.arange(1, int(inputs_length / (1 - self.density)) + 2)
        inputs, targets = self.lengths(sizes, max_spans)
        fits = inputs <= inputs_length
        if targets_length is not None:
            fits &= targets <= targets_length
        return int(np.count_nonzero(fits))  # both lengths grow with the size


def random_spans_lengths(inputs_length: int, density: float, mean_length: float) -> tuple[int, int]:
    """Returns (number of text tokens before corruption, length of the targets) for inputs_length.

    Same as random_spans_helper in T5's preprocessors. Both inputs and targets include an EOS. For
    example, the result is (568, 114) for inputs_length 512, density 0.15 and mean_length 3.
    """
    noise = Noise(density, mean_length)
    tokens_length = noise.longest_piece(inputs_length)
    targets_length = int(noise.lengths(np.array(tokens_length))[1])
    # At density 0.5, inputs and targets are meant to be equally long.
    if density == 0.5 and targets_length > inputs_length:
        return tokens_length - 1, targets_length - 1
    return tokens_length, targets_length


def noise_mask(
    sizes_BK: np.ndarray, noise_BK: np.ndarray, spans_BK: np.ndarray, rng: RowRandom
) -> np.ndarray:
    """Returns bool[T]: the noise mask of all pieces.

    The noise_BK noise tokens of a piece are divided into spans_BK spans, and its other tokens into
    as many text spans; all divisions are equally likely. Text spans and noise spans alternate, as
    in random_spans_noise_mask of T5.

    sizes_BK: numbers of tokens in the pieces. rng: the random numbers for the B rows.
    """
    # The noise tokens and the other tokens of each piece form two groups. The spans of a group
    # start at its first token and at random later tokens: those with the lowest random scores.
    # Rows are padded to the same width by one more group, so that no step needs a mask.
    num_rows, width = len(sizes_BK), int(sizes_BK.sum(axis=1).max(initial=0))
    groups_BG = np.stack([noise_BK, sizes_BK - noise_BK], axis=2).reshape(num_rows, -1)
    padding_B = width - groups_BG.sum(axis=1)
    padded_BG = np.concatenate([groups_BG, padding_B[:, None]], axis=1)
    offset_BG = (np.cumsum(padded_BG) - padded_BG.ravel()).reshape(padded_BG.shape)[:, :-1]

    # Group, score and column are packed into one word, in this order. So sorting the words of a row
    # sorts the scores within each group.
    number_BG = np.broadcast_to(np.arange(padded_BG.shape[1], dtype=np.uint64), padded_BG.shape)
    words_BW = rng.bits("spans/score", width).astype(np.uint64)
    words_BW <<= np.uint64(16)
    words_BW |= np.arange(width, dtype=np.uint64)
    group_BW = np.repeat((number_BG << np.uint64(48)).ravel(), padded_BG.ravel())
    words_BW |= group_BW.reshape(words_BW.shape)
    words_BW.reshape(-1)[offset_BG[groups_BG > 0]] &= ~np.uint64(0xFFFF_FFFF_0000)
    words_BW.sort(axis=1)

    spans_BG = np.minimum(np.repeat(spans_BK, 2, axis=1), groups_BG)
    counts_G, counts_B = spans_BG.ravel(), spans_BG.sum(axis=1)
    ranks = np.arange(int(counts_B.sum()))  # the ranks of the lowest scores of all groups
    ranks += np.repeat(offset_BG.ravel() - (np.cumsum(counts_G) - counts_G), counts_G)
    column = (words_BW.reshape(-1)[ranks] & np.uint64(0xFFFF)).astype(np.int64)
    starts_BW = np.zeros(num_rows * width, bool)
    starts_BW[np.repeat(np.arange(num_rows) * width, counts_B) + column] = True
    starts = np.flatnonzero(starts_BW) - np.repeat(np.cumsum(padding_B) - padding_B, counts_B)
    span_sizes = np.diff(starts, append=num_rows * width - int(padding_B.sum()))
    is_noise = np.repeat(np.arange(counts_G.size) % 2 == 0, counts_G)

    pairs = np.zeros((int(spans_BK.sum()), 2), np.int64)  # text span, noise span
    pairs[:, 0] = span_sizes[~is_noise]
    pairs[np.repeat(noise_BK.ravel() > 0, spans_BK.ravel()), 1] = span_sizes[is_noise]
    return np.repeat(np.tile([False, True], len(pairs)), pairs.ravel())


def noise_span_to_unique_sentinel(
    tokens_T: np.ndarray, noise_T: np.ndarray, sizes_P: np.ndarray, sentinels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Replaces noise span n of each piece, counted from 0, with sentinels[n].

    noise_T: bool. sizes_P: piece sizes, all positive; a piece has at most len(sentinels) spans.
    Returns the tokens of all pieces, int32, and the size of each piece, int64[P].
    """
    piece_starts = np.cumsum(sizes_P) - sizes_P
    previous_T = np.zeros_like(noise_T)
    previous_T[1:] = noise_T[:-1]
    previous_T[piece_starts] = False
    span_T = noise_T & ~previous_T  # the first token of each span
    spans_P = np.add.reduceat(span_T, piece_starts, dtype=np.int64)
    number = np.arange(int(spans_P.sum())) - np.repeat(np.cumsum(spans_P) - spans_P, spans_P)
    marked_T = tokens_T.astype(np.int32)
    marked_T[span_T] = sentinels[number]
    noise_P = np.add.reduceat(noise_T, piece_starts, dtype=np.int64)
    return marked_T[~noise_T | span_T], sizes_P - noise_P + spans_P


def nonnoise_span_to_unique_sentinel(
    tokens_T: np.ndarray, noise_T: np.ndarray, sizes_P: np.ndarray, sentinels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the targets: replaces the text spans, not the noise spans, with sentinels.

    Arguments and results are as in `noise_span_to_unique_sentinel`.
    """
    return noise_span_to_unique_sentinel(tokens_T, ~noise_T, sizes_P, sentinels)
