"""Finds documents that are duplicates or near duplicates of earlier ones.

Each document gets keys: a hash of its squeezed text and, to find near duplicates, one hash for each
band of its MinHash signature. Documents with a key in common are duplicates of each other, and so
are the duplicates of a duplicate. The first document of such a group is kept.

    keys = np.stack([duplicates.keys_of(text, near=True) for text in texts], axis=1)
    first = duplicates.first_copies(len(texts), keys)          # first[i] < i if i is a duplicate

The signature is that of FineWeb (arXiv 2406.17557, section 3.4): 112 hashes of the runs of five
words, in 14 bands of 8. Two documents with a share s of their runs in common have a band in common
with probability 1 - (1 - s**8)**14: 0.05 for s = 0.5, 0.56 for 0.7, 0.92 for 0.8, 1.00 for 0.9.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from bertjax import errors
from bertjax.data.corpus import words

MODES = ("none", "exact", "near")
RUN = 5  # words
BANDS, ROWS = 14, 8

_SEED = 1
_PIECE = 256  # runs that are hashed at once: few enough for the processor's cache


def num_keys(mode: str) -> int:
    """Returns how many keys a document has in a mode of MODES."""
    return {"none": 0, "exact": 1, "near": 1 + BANDS}[mode]


def check_installed() -> None:
    """Raises UserError if datasketch, which computes MinHash signatures, is not installed."""
    try:
        import datasketch  # noqa: F401
    except ImportError as error:
        raise errors.UserError(
            "--deduplicate=near needs the package datasketch: pip install 'bertjax[dedup]'"
        ) from error


def keys_of(text: str, *, near: bool) -> np.ndarray:
    """Returns the keys of a document: uint64[1], with `near` uint64[1 + BANDS].

    A document of fewer than RUN words is only a near duplicate of documents that equal it.
    """
    exact = np.array([words.digest(text)], np.uint64)
    return np.concatenate([exact, _bands(text, exact)]) if near else exact


def _bands(text: str, exact: np.ndarray) -> np.ndarray:
    signature = _empty_signature().copy()
    for runs in words.runs(text, RUN):
        for start in range(0, len(runs), _PIECE):
            signature.update_batch(runs[start : start + _PIECE].tolist())
    if signature.is_empty():
        signature.update_batch(exact.tolist())
    rows = signature.hashvalues.reshape(BANDS, ROWS)
    keys = np.zeros(BANDS, np.uint64)
    for i in range(ROWS):
        keys = keys * words.MULTIPLIER + rows[:, i]
    return keys


@functools.cache
def _empty_signature() -> Any:
    import datasketch  # optional

    # NOTE: the scheme is named, because another default would change which documents are kept.
    return datasketch.MinHash(
        num_perm=BANDS * ROWS, seed=_SEED, scheme="affine64", hashfunc=int
    )


def first_copies(
    count: int, keys: Iterable[np.ndarray], first: np.ndarray | None = None
) -> np.ndarray:
    """Returns the index of the first document of each document's group: int64[count].

    keys: one key of all documents at a time, as uint64[count]. first: the result for other keys,
    whose groups are joined by these keys; the array is changed. Besides one array of keys, the
    memory is at most 42 bytes for each document.
    """
    first = np.arange(count) if first is None else first
    for key in keys:
        _join(first, key)
    return first


def _join(first: np.ndarray, key: np.ndarray) -> None:
    """Joins the groups of documents that have equal keys.

    `first` is a forest: each document points to an earlier one of its group, or to itself.
    """
    order = np.argsort(key)
    ordered = key[order]
    equal = ordered[1:] == ordered[:-1]
    shared = np.zeros(len(key), bool)  # whether another document has the same key
    shared[1:] |= equal
    shared[:-1] |= equal
    members, ordered = order[shared], ordered[shared]
    del order, equal, shared
    if not len(members):
        return
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sizes = np.diff(starts, append=len(members))
    while True:
        roots = first[members]
        smallest = np.repeat(np.minimum.reduceat(roots, starts), sizes)
        if np.array_equal(roots, smallest):
            return
        # A root of several groups gets the smallest of their roots; the next round joins the rest.
        np.minimum.at(first, roots, smallest)
        _shorten(first)


def _shorten(first: np.ndarray) -> None:
    """Replaces each document's pointer by one to the first document of its group."""
    while not np.array_equal(first, shorter := first[first]):
        first[:] = shorter
