"""Words and runs of words as numbers, to find texts that are the same or that overlap.

    words.squeezed("The  Cat\nsat.")                  # "the cat sat."
    for hashes in words.runs("The cat sat.", 2):      # uint64[2]: "the cat", "cat sat"
        ...

Case and punctuation do not count. In scripts that are written without spaces (Chinese, Japanese,
Thai, Lao, Burmese, Khmer), each character is a word.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterator

import numpy as np

from bertjax.data.corpus import sentences

_PIECE = 1 << 20  # characters whose words are in memory at once
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word of a run loses its low bits
# The vowel signs of Indic scripts, and marks that no single character includes, are no letters for
# `re`, but belong to their words.
_WORD = re.compile("[\\w\u0300-\u036f\u064b-\u065f\u0900-\u0963\u0966-\u0dff]+")
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


def squeezed(text: str) -> str:
    """Normalises case and whitespace, to find near-duplicate texts."""
    return " ".join(text.lower().split())


def digest(text: str) -> int:
    """Returns a hash of 64 bits of the squeezed text."""
    return int.from_bytes(_blake(squeezed(text)), "little")


def runs(text: str, length: int) -> Iterator[np.ndarray]:
    """Yields hashes of 64 bits of all runs of `length` words of a text, in order, as uint64[N].

    Yields several arrays for a long text, so that the memory does not grow with it, and none for a
    text of fewer words.
    """
    hashes = np.zeros(0, np.uint64)
    for piece in sentences.chopped(text, _PIECE):
        numbers = np.fromiter(map(_hash, split(piece)), np.uint64)
        hashes = np.concatenate([hashes, numbers])
        count = len(hashes) - length + 1
        if count > 0:
            result = np.zeros(count, np.uint64)
            for i in range(length):
                result = result * MULTIPLIER + hashes[i : i + count]
            yield result
            hashes = hashes[count:]


def split(text: str) -> list[str]:
    """Returns the words of a text in lower case."""
    text = text.lower()
    if not text.isascii():
        text = _WITHOUT_SPACES.sub(r" \g<0> ", unicodedata.normalize("NFC", text))
    return _WORD.findall(text)


@functools.lru_cache(1 << 16)
def _hash(word: str) -> int:
    return int.from_bytes(_blake(word), "little")


def _blake(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
