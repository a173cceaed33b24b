"""Control tasks: labels that a probe can predict only if it memorises (arXiv 1909.03368).

    controls.labels(["the", "cat", "the"], counts_C, seed=0)      # int32[3]; equal for equal keys

Hewitt and Liang give each word type a random label, which its tokens have in train and in dev. A
probe that does well on this task can memorise words, so its accuracy on the real task says little
about the model. Selectivity is the accuracy on the real task minus that on the control task, on the
same dev examples.

A token's key is its word, without case, because an uncased model cannot tell "The" from "the". The
key of a text is one of its words, see `text_keys`. So equal keys occur in train and in dev, and a
memorised label can be right in dev.

Shapes: N examples, C labels.
"""

import collections
import hashlib
from collections.abc import Sequence

import numpy as np

from bertjax.finetuning.examples import types as examples_lib

MIN_TEXTS = 5  # in how many texts of train the key of a text occurs, if one of its words does
_WORD = 2**64


def labels(keys: Sequence[str], counts_C: np.ndarray, seed: int) -> np.ndarray:
    """Returns the control label of each key, int32[N].

    A key's label depends only on the key, the seed and the counts, so it is the same in every file.
    counts_C: how often each label of the real task occurs in train. The control labels of the keys
    are drawn with these frequencies, so that both tasks are similarly unbalanced.
    """
    bounds_C = np.cumsum(counts_C) / np.sum(counts_C)
    drawn: dict[str, int] = {}
    for key in keys:
        if key not in drawn:
            digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()
            share = int.from_bytes(digest, "little") / _WORD
            drawn[key] = min(int(np.searchsorted(bounds_C, share, side="right")), len(counts_C) - 1)
    return np.array([drawn[key] for key in keys], np.int32)


def word_key(word: str) -> str:
    """Returns the key of a token that is this word."""
    return word.casefold()


def text_keys(
    train: Sequence[Sequence[str]], dev: Sequence[Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Returns the key of each example of train and of dev; an example is one or more texts.

    The key is the rarest word of the example among those that occur in `MIN_TEXTS` or more examples
    of train. Rare words make many different keys, so that no key decides most of the accuracy; the
    minimum makes sure that each key has examples to memorise. If an example has no such word, its
    key is its most frequent word in train; if it has no word at all, its key is "".
    """
    words = {name: [_words(texts) for texts in part] for name, part in
             (("train", train), ("dev", dev))}  # fmt: skip
    counts = collections.Counter(word for found in words["train"] for word in found)

    def rank(word: str) -> tuple[bool, int, str]:
        is_rare = counts[word] < MIN_TEXTS
        return is_rare, -counts[word] if is_rare else counts[word], word

    keys = {name: [min(found, key=rank, default="") for found in part]
            for name, part in words.items()}  # fmt: skip
    return keys["train"], keys["dev"]


def _words(texts: Sequence[str]) -> set[str]:
    return {word_key(w) for text in texts for w in examples_lib.Words.cut(text).words}
