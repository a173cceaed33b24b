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

from bertjax.data.batches import layout
from bertjax.data.batches.rng import RowRandom

_NO_LIMIT = 2**31 - 1
_PLACE_BITS = 24  # of a token in its group of noise or of text


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
    tokens = np.maximum(np.rint(sizes * density).astype(np.int64), 1)
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
    real_BK = sizes_BK > 0
    sizes_P2 = np.stack([noise_BK[real_BK], (sizes_BK - noise_BK)[real_BK]], axis=1)
    counts_P2 = np.minimum(spans_BK[real_BK][:, None], sizes_P2)
    # Rows whose pieces all have one span need no scores.
    random_B = (spans_BK > 1).any(axis=1)
    random_P = layout.per_piece(random_B, real_BK)
    scores_T = _scores(sizes_BK[random_B], RowRandom(rng.keys[random_B]))
    groups, later = _lowest(scores_T, sizes_P2[random_P].ravel(), counts_P2[random_P].ravel() - 1)

    # Where each group starts if all groups of noise come first and then all groups of text.
    first_P2 = (np.cumsum(sizes_P2.T) - sizes_P2.T.ravel()).reshape(2, -1).T
    later += first_P2[random_P].ravel()[groups]
    is_start = np.zeros(int(sizes_P2.sum()) + 1, bool)
    is_start[first_P2[counts_P2 > 0]] = is_start[later] = is_start[-1] = True
    lengths = np.diff(np.flatnonzero(is_start))
    noise_P, text_P = counts_P2.T
    noise, text = np.split(lengths, [int(noise_P.sum())])
    # Spans of the text, each followed by a span of noise, which is empty in pieces without noise.
    has_noise = np.repeat(noise_P > 0, text_P)
    pairs = np.zeros((len(text), 2), np.int64)
    pairs[:, 0] = text
    pairs[has_noise, 1] = noise
    stops = np.cumsum(pairs).reshape(pairs.shape)
    return Runs(stops[has_noise, 0], noise, noise_P), Runs(stops[:, 0] - text, text, text_P)


def _scores(sizes_BK: np.ndarray, rng: RowRandom) -> np.ndarray:
    """Returns uint32[T]: a random score for each token of the pieces of B rows."""
    width = int(sizes_BK.sum(axis=1).max(initial=0))
    return rng.bits("spans/score", width)[layout.filled(sizes_BK, width)]


def _lowest(
    scores_T: np.ndarray, sizes_G: np.ndarray, counts_G: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the counts_G tokens with the lowest scores in each group, except its first token.

    Of equal scores the first is chosen. scores_T: uint32, the tokens of all groups, back to back.
    counts_G: below the sizes_G; no token is chosen if it is 0 or less.
    Returns the group of each chosen token, ascending, and its place in the group, int64 both.
    """
    # Only tokens whose score is below a limit are sorted. The limit of a group lets somewhat
    # more tokens pass than are needed; if it lets too few pass, then all tokens of the group do.
    wanted_G = np.maximum(counts_G, 0)
    first_G = np.cumsum(sizes_G) - sizes_G
    passing_G = wanted_G + 3 * np.sqrt(wanted_G) + 4
    share_G = np.where(wanted_G > 0, passing_G / np.maximum(sizes_G, 1), 0)
    limits_G = (np.minimum(share_G, 1) * (2**32 - 1)).astype(np.uint32)
    while True:
        below_T = scores_T <= np.repeat(limits_G, sizes_G)
        below_T[first_G[sizes_G > 0]] = False
        tokens = np.flatnonzero(below_T)
        edges_G = np.searchsorted(tokens, np.append(first_G, len(scores_T)))
        numbers_G = np.diff(edges_G)
        too_few_G = numbers_G < wanted_G
        if not too_few_G.any():
            break
        limits_G[too_few_G] = 2**32 - 1

    # Score and place in the group are packed into one word, in this order. Groups of up to 1, 2, 4
    # ... words are the rows of an array and are sorted so, much faster than all words at once. The
    # last word fills the rows.
    words = scores_T[tokens].astype(np.int64)
    words <<= _PLACE_BITS
    words += tokens - np.repeat(first_G, numbers_G)
    words = np.append(words, np.iinfo(np.int64).max)
    places = np.empty(int(wanted_G.sum()), np.int64)
    results_G = np.cumsum(wanted_G) - wanted_G  # where the places of a group start
    power_G = np.where(wanted_G > 0, np.frexp(numbers_G - 1)[1], -1)
    for power in np.unique(power_G[power_G >= 0]).tolist():
        groups = np.flatnonzero(power_G == power)
        columns = np.arange(2**power)
        index = edges_G[groups, None] + columns
        index[columns >= numbers_G[groups, None]] = -1
        rows = words[index]
        rows.sort(axis=1)
        chosen = columns < wanted_G[groups, None]
        places[(results_G[groups, None] + columns)[chosen]] = rows[chosen]
    places &= 2**_PLACE_BITS - 1
    return np.repeat(np.arange(len(sizes_G)), wanted_G), places


def replace(
    tokens_T: np.ndarray,
    runs: Runs,
    sizes_P: np.ndarray,
    sentinels: np.ndarray,
    *,
    starts_P: np.ndarray | None = None,
    end: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Replaces run n of each piece, counted from 0, with sentinels[n].

    If the runs are noise, these are the inputs (noise_span_to_unique_sentinel of T5). If they are
    the text between the noise, these are the targets (nonnoise_span_to_unique_sentinel).

    sizes_P: piece sizes, all positive; a piece has at most len(sentinels) runs.
    starts_P, end: ids to put before each piece and after it, if any.
    Returns the tokens of all pieces, int32, and the size of each piece, int64[P].
    """
    start, size, per_piece = runs
    before, after = int(starts_P is not None), int(end is not None)
    first_P = np.cumsum(per_piece) - per_piece
    removed = np.zeros(len(size) + 1, np.int64)  # tokens removed before each run
    np.cumsum(size - 1, out=removed[1:])
    sizes_P = sizes_P - np.diff(removed[np.append(first_P, len(size))]) + before + after
    stops_P = np.cumsum(sizes_P)
    piece = np.repeat(np.arange(len(per_piece)), per_piece)
    places = start - removed[:-1]  # the indices of the sentinels in the result
    places += before
    places += (before + after) * piece

    # The source of each token of the result: it is one token after the source of the token before,
    # unless that one is a sentinel, which stands for a run, or has been added.
    steps = np.ones(int(sizes_P.sum()) + 1, np.int64)
    steps[places + 1] = size
    if before + after:
        steps[stops_P - sizes_P + before] = 1 - before - after
    steps[before : before + 1] = -before
    source = np.cumsum(steps[:-1])
    # NOTE: "wrap" saves a check of the bounds. Only tokens that are overwritten below have a source
    # out of bounds.
    result = tokens_T.take(source, mode="wrap").astype(np.int32, copy=False)
    result[places] = sentinels[np.arange(len(size)) - first_P[piece]]
    if starts_P is not None:
        result[stops_P - sizes_P] = starts_P
    if end is not None:
        result[stops_P - 1] = end
    return result, sizes_P
