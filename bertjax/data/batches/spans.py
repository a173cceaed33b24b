"""Noise of T5: which tokens of a text are hidden, and the text with sentinels in their place.

Raffel et al. 2020 (arXiv 1910.10683), section 3.1.4 and figure 2. Vectorised over ragged batches:
the tokens of P pieces of text lie back to back in one array [T], and sizes_P says how many belong
to each. A piece of n tokens has round(n * density) noise tokens in spans of `mean_length` tokens on
average; it starts with text and ends with noise.

    noise = Noise(density=0.15, mean_length=3.0)
    hidden = noise_mask(sizes_BK, *noise.counts(sizes_BK, max_spans), rng)
    inputs, sizes = noise_span_to_unique_sentinel(tokens, hidden, sizes_P, sentinels)
    targets, sizes = nonnoise_span_to_unique_sentinel(tokens, hidden, sizes_P, sentinels)

Shapes: B rows, K pieces a row (size 0: none), P pieces, T tokens of all pieces.
"""

import dataclasses

import numpy as np

from bertjax.data.batches.rng import RowRandom

_NO_LIMIT = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Noise:
    """How much is hidden, and in spans of how many tokens.

    density: share of the tokens, above 0 and below 1. mean_length: 1 or more; infinite: one span,
    which is the end of the piece, so that the rest is a prefix.
    """

    density: float
    mean_length: float

    def counts(
        self, sizes: np.ndarray, max_spans: int = _NO_LIMIT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Noise tokens and spans of pieces of `sizes` tokens: int64 of the same shape.

        A lone token is never noise; it counts as a piece with a span of no tokens.
        """
        tokens = np.clip(np.rint(sizes * self.density).astype(np.int64), 1, np.maximum(1, sizes))
        tokens = np.minimum(tokens, np.maximum(sizes - 1, 0))
        spans = np.maximum(np.rint(tokens / self.mean_length).astype(np.int64), 1)
        spans = np.minimum(np.minimum(spans, sizes - tokens), max_spans)
        return tokens, spans

    def lengths(
        self, sizes: np.ndarray, max_spans: int = _NO_LIMIT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the inputs and of the targets of pieces, sentinels and an EOS included."""
        tokens, spans = self.counts(sizes, max_spans)
        return sizes - tokens + np.where(tokens > 0, spans, 0) + 1, tokens + spans + 1

    def longest_piece(
        self, inputs_length: int, targets_length: int | None = None, max_spans: int = _NO_LIMIT
    ) -> int:
        """The longest piece of text that corrupted does not exceed the lengths; 0 if none fits."""
        sizes = np.arange(1, int(inputs_length / (1 - self.density)) + 2)
        inputs, targets = self.lengths(sizes, max_spans)
        fits = inputs <= inputs_length
        if targets_length is not None:
            fits &= targets <= targets_length
        return int(np.count_nonzero(fits))  # both lengths grow with the size


def random_spans_lengths(inputs_length: int, density: float, mean_length: float) -> tuple[int, int]:
    """Text tokens that fill inputs of a length when they are corrupted, and their targets' length.

    random_spans_helper of T5's preprocessors with an EOS at both ends: (568, 114) for inputs of 512
    with density 0.15 and spans of 3.
    """
    noise = Noise(density, mean_length)
    tokens_length = noise.longest_piece(inputs_length)
    targets_length = int(noise.lengths(np.array(tokens_length))[1])
    # At half of the tokens inputs and targets are meant to be equally long.
    if density == 0.5 and targets_length > inputs_length:
        return tokens_length - 1, targets_length - 1
    return tokens_length, targets_length


def noise_mask(
    sizes_BK: np.ndarray, noise_BK: np.ndarray, spans_BK: np.ndarray, rng: RowRandom
) -> np.ndarray:
    """bool[T]: the noise tokens of all pieces.

    The noise_BK tokens of a piece are cut in spans_BK spans and its other tokens too, all ways of
    cutting alike, and the spans are put alternately, as random_spans_noise_mask of T5 does.

    rng: random numbers of the B rows.
    """
    # Noise tokens and then the others of each piece make two groups; the spans of a group start at
    # its first token and at random ones behind: those of lowest random score.
    groups_BG = np.stack([noise_BK, sizes_BK - noise_BK], axis=2).reshape(len(sizes_BK), -1)
    sizes_G, spans_G = groups_BG.ravel(), np.repeat(spans_BK.ravel(), 2)
    row_sizes_B = groups_BG.sum(axis=1)
    before_G = np.cumsum(sizes_G) - sizes_G
    group_BG = np.broadcast_to(np.arange(groups_BG.shape[1], dtype=np.uint64), groups_BG.shape)
    group_T = np.repeat(group_BG.ravel(), sizes_G)  # within its row

    width = int(row_sizes_B.max(initial=0))
    real_BW = np.arange(width) < row_sizes_B[:, None]
    score_T = rng.bits("spans/score", width)[real_BW].astype(np.uint64)
    score_T[before_G[sizes_G > 0]] = 0
    # Group, score and column share a word, so that sorting a row sorts each of its groups.
    column_BW = np.broadcast_to(np.arange(width, dtype=np.uint64), real_BW.shape)
    words_BW = np.full(real_BW.shape, np.uint64(2**64 - 1))
    words_BW[real_BW] = group_T << np.uint64(48) | score_T << np.uint64(16) | column_BW[real_BW]
    words_BW.sort(axis=1)
    column_T = (words_BW[real_BW] & np.uint64(0xFFFF)).astype(np.int64)

    chosen_T = np.arange(len(group_T)) < np.repeat(before_G + spans_G, sizes_G)
    row_start_T = np.repeat(np.cumsum(row_sizes_B) - row_sizes_B, row_sizes_B)
    starts_T = np.zeros(len(group_T), bool)
    starts_T[row_start_T[chosen_T] + column_T[chosen_T]] = True
    starts = np.flatnonzero(starts_T)
    span_sizes = np.diff(starts, append=len(starts_T))
    of_noise = group_T[starts] % 2 == 0

    alternate = np.zeros((int(spans_BK.sum()), 2), np.int64)  # text span, noise span
    alternate[:, 0] = span_sizes[~of_noise]
    alternate[np.repeat(noise_BK.ravel() > 0, spans_BK.ravel()), 1] = span_sizes[of_noise]
    return np.repeat(np.tile([False, True], len(alternate)), alternate.ravel())


def noise_span_to_unique_sentinel(
    tokens_T: np.ndarray, noise_T: np.ndarray, sizes_P: np.ndarray, sentinels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The pieces with each span of noise replaced by one sentinel, the first by sentinels[0].

    noise_T: bool. sizes_P: all positive, with at most len(sentinels) spans a piece.
    Returns int32 tokens of all pieces, and the size of each, int64[P].
    """
    piece_starts = np.cumsum(sizes_P) - sizes_P
    before_T = np.zeros_like(noise_T)
    before_T[1:] = noise_T[:-1]
    before_T[piece_starts] = False
    span_T = noise_T & ~before_T  # the first token of each span
    spans_P = np.add.reduceat(span_T, piece_starts, dtype=np.int64)
    number = np.arange(int(spans_P.sum())) - np.repeat(np.cumsum(spans_P) - spans_P, spans_P)
    marked_T = tokens_T.astype(np.int32)
    marked_T[span_T] = sentinels[number]
    noise_P = np.add.reduceat(noise_T, piece_starts, dtype=np.int64)
    return marked_T[~noise_T | span_T], sizes_P - noise_P + spans_P


def nonnoise_span_to_unique_sentinel(
    tokens_T: np.ndarray, noise_T: np.ndarray, sizes_P: np.ndarray, sentinels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The targets: each span of text replaced by a sentinel, the noise kept. See above."""
    return noise_span_to_unique_sentinel(tokens_T, ~noise_T, sizes_P, sentinels)
