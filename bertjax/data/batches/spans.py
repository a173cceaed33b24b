"""T5's span corruption: chooses noise tokens and replaces noise spans with sentinels.

Source: Raffel et al. 2020 (arXiv 1910.10683), section 3.1.4 and figure 2. The functions work on
many pieces of text at once: the tokens of P pieces lie back to back in one array [T], and sizes_P
holds the size of each piece. A piece of n tokens has round(n * density) noise tokens, in spans of
`mean_length` tokens on average. It starts with text and ends with noise.

    noise = Noise(density=0.15, mean_length=3.0)
    noise_runs, text_runs = spans.noise_runs(sizes_BK, *noise.counts(sizes_BK, max_spans), rng)
    inputs, sizes = spans.replace(tokens, noise_runs, sizes_P, sentinels)
    targets, sizes = spans.replace(tokens, text_runs, sizes_P, sentinels)

Shapes: B rows, K slots for pieces per row (size 0: empty), P pieces, T tokens of all pieces.
"""

import dataclasses
import functools
from typing import NamedTuple

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
        return counts(sizes, self.density, self.mean_length, max_spans)

    def lengths(
        self, sizes: np.ndarray, max_spans: int = _NO_LIMIT
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of tokens in the inputs and in the targets of corrupted pieces.

        Both include the sentinels and one EOS.
        """
        tokens, spans = self.counts(sizes, max_spans)
        return sizes - tokens + np.where(tokens > 0, spans, 0) + 1, tokens + spans + 1

    @functools.lru_cache(maxsize=64)  # noqa: B019 -- samplers are made anew for each batch
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


def counts(
    sizes: np.ndarray,
    density: float | np.ndarray,
    mean_length: float | np.ndarray,
    max_spans: int = _NO_LIMIT,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same as `Noise.counts`, for pieces with different kinds of noise.

    density, mean_length: the fields of `Noise`, numbers or arrays that broadcast to `sizes`.
    """
    tokens = np.clip(np.rint(sizes * density).astype(np.int64), 1, np.maximum(1, sizes))
    tokens = np.minimum(tokens, np.maximum(sizes - 1, 0))
    spans = np.maximum(np.rint(tokens / mean_length).astype(np.int64), 1)
    spans = np.minimum(np.minimum(spans, sizes - tokens), max_spans)
    return tokens, spans


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


class Runs(NamedTuple):
    """Runs of consecutive tokens, ascending; no run is empty and no two runs of a piece touch.

    start, size: int64[R], the index of the first token of each run, and its number of tokens.
    per_piece: int64[P], the number of runs in each piece.
    """

    start: np.ndarray
    size: np.ndarray
    per_piece: np.ndarray


def noise_runs(
    sizes_BK: np.ndarray, noise_BK: np.ndarray, spans_BK: np.ndarray, rng: RowRandom
) -> tuple[Runs, Runs]:
    """Returns the runs of noise tokens and the runs of other tokens in all P pieces.

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
    group_BW = np.repeat((number_BG << np.uint64(48)).ravel(), padded_BG.ravel())
    words_BW = rng.bits("spans/score", width).astype(np.uint64)
    words_BW <<= np.uint64(16)
    words_BW |= np.arange(width, dtype=np.uint64)
    words_BW |= group_BW.reshape(words_BW.shape)
    words = words_BW.reshape(-1)
    words[offset_BG[groups_BG > 0]] &= ~np.uint64(0xFFFF_FFFF_0000)
    words_BW.sort(axis=1)

    spans_BG = np.minimum(np.repeat(spans_BK, 2, axis=1), groups_BG)
    counts_G, counts_B = spans_BG.ravel(), spans_BG.sum(axis=1)
    ranks = np.arange(int(counts_B.sum()))  # the ranks of the lowest scores of all groups
    ranks += np.repeat(offset_BG.ravel() - (np.cumsum(counts_G) - counts_G), counts_G)
    starts = (words.take(ranks, mode="clip") & np.uint64(0xFFFF)).astype(np.int64)
    row_starts_B = np.arange(num_rows) * width - (np.cumsum(padding_B) - padding_B)
    starts += np.repeat(row_starts_B, counts_B)
    starts.sort()
    sizes = np.diff(starts, append=int(sizes_BK.sum()))

    real_BK = sizes_BK > 0
    counts_P2 = spans_BG.reshape(num_rows, -1, 2)[real_BK]
    is_noise = np.repeat(np.tile([True, False], len(counts_P2)), counts_P2.ravel())
    noise, text = sizes[is_noise], sizes[~is_noise]
    # Spans of the text, each followed by a span of noise, which is empty in pieces without noise.
    pairs = np.zeros((len(text), 2), np.int64)
    pairs[:, 0] = text
    has_noise = np.repeat(counts_P2[:, 0] > 0, counts_P2[:, 1])
    pairs[has_noise, 1] = noise
    stops = np.cumsum(pairs).reshape(pairs.shape)
    return (
        Runs(stops[has_noise, 0], noise, counts_P2[:, 0]),
        Runs(stops[:, 0] - text, text, counts_P2[:, 1]),
    )


def replace(
    tokens_T: np.ndarray, runs: Runs, sizes_P: np.ndarray, sentinels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Replaces run n of each piece, counted from 0, with sentinels[n].

    If the runs are noise, these are the inputs (noise_span_to_unique_sentinel of T5). If they are
    the text between the noise, these are the targets (nonnoise_span_to_unique_sentinel).

    sizes_P: piece sizes, all positive; a piece has at most len(sentinels) runs.
    Returns the tokens of all pieces, int32, and the size of each piece, int64[P].
    """
    start, size, per_piece = runs
    removed = np.cumsum(size - 1)  # tokens removed up to and including each run
    places = start - removed + (size - 1)  # the indices of the sentinels in the result
    total = len(tokens_T) - int(removed[-1]) if len(size) else len(tokens_T)
    # Each token of the result is shifted by the tokens removed before it.
    stretches = np.diff(places + 1, prepend=0, append=total)
    source = np.repeat(np.concatenate([[0], removed]), stretches)
    source += np.arange(total)
    result = tokens_T.take(source, mode="clip").astype(np.int32, copy=False)
    number = np.arange(len(size)) - np.repeat(np.cumsum(per_piece) - per_piece, per_piece)
    result[places] = sentinels[number]
    edges = np.concatenate([[0], np.cumsum(per_piece)])
    removed_P = np.diff(np.concatenate([[0], removed])[edges])
    return result, sizes_P - removed_P
