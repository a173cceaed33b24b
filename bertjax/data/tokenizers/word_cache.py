"""Caches the ids of words: several times as fast as the `tokenizers` library, with the same ids.

One regular expression splits a text into chunks, only at places where the ids on either side do not
depend on the text on the other side. Each chunk is looked up. The chunks of a batch that are not
cached are passed to the library in one call. Chunks are cached in their original form (`The` and
`the` are two entries), so the rules are not repeated here: the library computes every id.

    encode_words = lambda words: [library.encode(word).ids for word in words]
    cache = WordCache(wordpiece_chunks(), encode_words)
    cache.encode_batch(["unwanted, running"])
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

# White space that separates words by BERT's rules. NOTE: str.isspace() also matches \x0b, \x0c,
# \x1c.., \x85, but the rules delete these as control characters, so that `a\x0cb` is one word.
_GAPS = " \t\n\r\xa0\u2028\u2029\u3000"
_ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"
# Characters of category P that NFD does not change: in BERT each one is a separate token.
_OTHER_PUNCTUATION = (
    r"\xa1\xa7\xab\xb6\xb7\xbb\xbf\u2010-\u2027\u2030-\u2043"
    r"\u3001-\u3003\u3008-\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
_PUNCTUATION = _ASCII_PUNCTUATION + _OTHER_PUNCTUATION
_IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff"  # unified ideographs, which NFD does not change
# The characters of the library's \s; Python's \s also matches \x1c-\x1f.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

CACHE_COST = 1 << 23  # in letters: about 200,000 words of 8 letters, 40 MB
_ENTRY_COST = 32  # overhead of an entry, in letters, so that many short words fill the cache too

Chunks = Callable[[str], list[str]]


def wordpiece_chunks(*, split_ideographs: bool = True) -> Chunks:
    """Returns a splitter for BertNormalizer + BertPreTokenizer.

    It splits at white space, punctuation and (if split_ideographs) ideographs.
    """
    single = _PUNCTUATION + (_IDEOGRAPHS if split_ideographs else "")
    return re.compile(f"[^{_GAPS}{single}]+|[{single}]").findall


def byte_level_chunks(*, prefix_space: bool = False) -> Chunks:
    """Returns a splitter for GPT-2's pattern, for pipelines without a normalizer.

    Runs of ASCII letters, of digits and of the punctuation above are split as in the pattern. If
    any other character follows a run, all text up to the next white space is one chunk; the library
    splits the chunk further.
    prefix_space: whether to prepend a space to a text that does not start with one.
    """
    whole_run = rf"(?![^{_SPACE}A-Za-z0-9{_PUNCTUATION}])"
    split = re.compile(
        "'(?:s|t|re|ve|m|ll|d)"
        rf"| ?[A-Za-z]++{whole_run}| ?[0-9]++{whole_run}| ?[{_PUNCTUATION}]++{whole_run}"
        rf"| ?[^{_SPACE}]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
    ).findall
    if not prefix_space:
        return split
    return lambda text: split(text if not text or text.startswith(" ") else " " + text)


class WordCache:
    """Encodes texts chunk by chunk, with a cache.

    chunks: splits a text into chunks that can be encoded independently.
    encode_words: returns the ids of each chunk in a list of chunks. The ids of a chunk must not
        depend on the other chunks.
    cost: maximum size of the cache, in letters; a full cache is cleared.
    """

    def __init__(
        self,
        chunks: Chunks,
        encode_words: Callable[[Sequence[str]], Iterable[Sequence[int]]],
        *,
        cost: int = CACHE_COST,
    ):
        self._chunks = chunks
        self._encode_words = encode_words
        self._cost_limit = cost
        self._cost = 0
        self._ids: dict[str, tuple[int, ...]] = {}
        self._shared_ints: dict[int, int] = {}  # one int object per id, which saves memory

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        words_by_text = list(map(self._chunks, texts))
        ids = self._ids
        new = set(itertools.chain.from_iterable(words_by_text)).difference(ids)
        if new:
            ids = self._add_words(ids, sorted(new))
        flatten = itertools.chain.from_iterable
        return [list(flatten(map(ids.__getitem__, words))) for words in words_by_text]

    def _add_words(
        self, cached: dict[str, tuple[int, ...]], new: list[str]
    ) -> dict[str, tuple[int, ...]]:
        """Encodes and caches the new words; returns {word: ids} of the cached and the new words."""
        share = self._shared_ints.setdefault
        rows = self._encode_words(new)
        added = {
            word: tuple(share(i, i) for i in row) for word, row in zip(new, rows, strict=True)
        }
        cost = sum(map(len, new)) + _ENTRY_COST * len(new)
        if self._cost + cost > self._cost_limit:
            self._ids, self._cost = added, cost
            return cached | added
        cached.update(added)
        self._cost += cost
        return cached
