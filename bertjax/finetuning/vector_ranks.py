"""Ranks the texts that match a query among all candidates of a split, by their vectors.

    pool = Pool(examples)
    pool.ranks(vectors_NBD)         # [Rank(rank=1, nearest="a text"), ...], one for each example

The candidates are the second texts and the hard negatives of all examples, each text once.

Shapes: B examples, N texts of an example, D model, M candidates, R queries of a block.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax.finetuning.examples import types as examples_lib

SIMILARITIES = 2**25  # maximum in memory at once: a block of queries times all candidates


class Rank(NamedTuple):
    """The rank, from 1, of the best match of a query, and the candidate that is most similar."""

    rank: int
    nearest: str


class Pool:
    """The candidates of a split, and which of them match the query of each example.

    A text matches a query if any example pairs them.
    """

    def __init__(self, examples: Sequence[examples_lib.Sentence]):
        numbers_BN = text_numbers(examples)
        self._first_B, second_B = numbers_BN[:, :2].T
        numbers_M, place_M = np.unique(numbers_BN[:, 1:], return_index=True)
        self._numbers_M, place_M = numbers_M[numbers_M >= 0], place_M[numbers_M >= 0]
        row_M, text_M = np.divmod(place_M, numbers_BN.shape[1] - 1)
        self._row_M, self._text_M = row_M, 1 + text_M
        self._texts = [examples[i].texts[j] for i, j in zip(row_M, self._text_M, strict=True)]
        self._matches = collections.defaultdict(list)
        for first, second in zip(self._first_B, second_B, strict=True):
            self._matches[first].append(second)

    def ranks(self, vectors_NBD: np.ndarray) -> list[Rank]:
        """Returns the rank of the best match for each example, by inner products.

        A candidate that equals the query is excluded, unless it is a match. A text with the same
        product as the best match ranks before the match.
        """
        candidates_MD = vectors_NBD[self._text_M, self._row_M]
        result, size = [], max(1, SIMILARITIES // len(candidates_MD))
        for start in range(0, len(self._first_B), size):
            products_RM = vectors_NBD[0, start : start + size] @ candidates_MD.T
            for i, products_M in enumerate(products_RM, start):
                first = self._first_B[i]
                matches_M = np.zeros(len(candidates_MD), bool)
                matches_M[np.searchsorted(self._numbers_M, self._matches[first])] = True
                is_query_M = (self._numbers_M == first) & ~matches_M
                products_M = np.where(is_query_M, -np.inf, products_M)
                # NOTE: `~(a < b)` and not `a >= b`, so that NaN ranks before the match.
                before_M = ~matches_M & ~(products_M < products_M[matches_M].max())
                nearest = self._texts[products_M.argmax()]
                result.append(Rank(1 + int(before_M.sum()), nearest))
        return result


def text_numbers(examples: Sequence[examples_lib.Sentence]) -> np.ndarray:
    """Returns int32[B, N]: a number for each text; equal texts have equal numbers.

    The number of texts that an example lacks is -1.
    """
    numbers: dict[str, int] = {}
    result_BN = np.full((len(examples), max(len(e.texts) for e in examples)), -1, np.int32)
    for i, example in enumerate(examples):
        for j, text in enumerate(example.texts):
            result_BN[i, j] = numbers.setdefault(text, len(numbers))
    return result_BN


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors [..., D] scaled to length 1; a vector of zeros stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)
