"""Finds hard negatives: texts that a model finds similar to a query, but that do not match it.

    pairs = [("who wrote it?", "Ada wrote it in 1843."), ...]
    for mined in mine(model, pairs, corpus, Options(num_negatives=3)):
        mined.negatives         # up to three texts of the corpus, the most similar first

A text that matches a query but is not among its pairs, a false negative, would teach the model the
wrong thing. Such texts are usually nearly as similar as the positive, or more. Therefore a negative
must be less similar than the positive by a margin (Moreira et al., NV-Retriever, arXiv 2407.15831),
and the most similar ranks can be skipped.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax import errors, progress
from bertjax.data.corpus import words
from bertjax.inference import pretrained, search

_QUERIES = 8192  # queries searched at once
_TEXTS = 4096  # texts embedded between two reports of progress


@dataclasses.dataclass(frozen=True)
class Options:
    """Which texts are hard negatives.

    The ranks of a query, from 1, count only texts that do not match it.
    """

    num_negatives: int = 1  # maximum number of negatives of a pair
    min_rank: int = 1  # skips the texts of the ranks before
    max_rank: int = 100  # the last rank that is considered
    margin: float = 0.0  # a negative is less similar than the positive by at least this
    relative_margin: float = 0.05  # the same, as a share of the positive's similarity

    def __post_init__(self):
        def check(ok: bool, name: str, allowed: str) -> None:
            if not ok:
                raise errors.UserError(f"--{name}={getattr(self, name)}: must be {allowed}")

        check(self.num_negatives >= 1, "num_negatives", "1 or more")
        check(self.min_rank >= 1, "min_rank", "1 or more")
        check(self.max_rank >= self.min_rank, "max_rank", f"{self.min_rank} (--min_rank) or more")
        check(self.margin >= 0, "margin", "0 or more")
        check(0 <= self.relative_margin < 1, "relative_margin", "0 or more and less than 1")


class Mined(NamedTuple):
    """The hard negatives of a pair, the most similar first; () if there are none.

    false_negatives: how many texts within the ranks were too similar to the query.
    """

    query: str
    positive: str
    negatives: tuple[str, ...]
    false_negatives: int


def mine(
    model: pretrained.Pretrained,
    pairs: Sequence[tuple[str, str]],
    corpus: Sequence[str],
    options: Options,
) -> Iterator[Mined]:
    """Yields the hard negatives of each pair, in the order of the pairs' first queries.

    corpus: the texts to search; texts that are equal except for case and white space count once. A
    negative is never a text that equals the query or one of its positives in this sense. Searches
    exactly, in blocks; memory grows only with the vectors of the corpus and of the pairs' texts.
    """
    corpus = list({words.squeezed(text): text for text in reversed(corpus)}.values())[::-1]
    by_query: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for query, positive in pairs:
        by_query[words.squeezed(query)].append((query, positive))
    corpus_ND = embed(model, corpus, f"embedding {len(corpus):,} texts of the corpus")
    numbers = {words.squeezed(text): number for number, text in enumerate(corpus)}
    groups = list(by_query.items())
    for start in range(0, len(groups), _QUERIES):
        part = groups[start : start + _QUERIES]
        matches = [
            {key, *(words.squeezed(positive) for _, positive in group)} for key, group in part
        ]
        label = f"embedding {len(part):,} queries and their positives"
        texts = [pair[0] for _, group in part for pair in group[:1]]
        positives = [positive for _, group in part for _, positive in group]
        vectors = embed(model, [*texts, *positives], label)
        queries_QD, positives_PD = vectors[: len(texts)], vectors[len(texts) :]
        with progress.stage("searching") as done:
            k = options.max_rank + max(map(len, matches))
            hits = search.top_k(queries_QD, corpus_ND, k, on_progress=done)
        place = 0
        for (_, group), texts_of_query, query_D, scores_K, indices_K in zip(
            part, matches, queries_QD, *hits, strict=True
        ):
            excluded = {numbers[text] for text in texts_of_query if text in numbers}
            ranked = [
                (score, index)
                for score, index in zip(scores_K.tolist(), indices_K.tolist(), strict=True)
                if index not in excluded
            ][options.min_rank - 1 : options.max_rank]
            for query, positive in group:
                of_positive = float(query_D @ positives_PD[place])
                place += 1
                limit = of_positive - max(
                    options.margin, options.relative_margin * abs(of_positive)
                )
                fitting = [corpus[index] for score, index in ranked if score <= limit]
                chosen = tuple(fitting[: options.num_negatives])
                yield Mined(query, positive, chosen, len(ranked) - len(fitting))


def embed(model: pretrained.Pretrained, texts: Sequence[str], label: str) -> np.ndarray:
    """Returns the vectors of the texts, of length 1 if the model compares cosines.

    label: printed with the progress.
    """
    parts = []
    with progress.stage(label) as done:
        for start in range(0, len(texts), _TEXTS):
            part = texts[start : start + _TEXTS]
            vectors = model.encode(part, normalize=model.compares_cosines(), truncate=True)
            parts.append(vectors)
            done(start + len(part), len(texts))
    return np.concatenate(parts)
