"""Finds the pieces of each word of a sentence.

Other tools encode a whole text at once. To get the same ids, `of_texts` also encodes a sentence as
a whole: its raw text if there is one, otherwise its words with one space between them. The pieces
are then assigned to words by the characters that they cover:

    (sentence,) = of_texts(tokenizer, [Words(("New", "York", "."), text="New York.")])
    [pieces.ids for pieces in sentence]           # together the ids of "New York."

Every piece belongs to one word. A piece that covers characters of several words belongs to the
first of them, so a word may have no piece of its own.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.tokenizers import library_model
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning.examples import types as examples_lib

# NOTE: a piece may be only the space before a text. Its offsets then include the text's first
# character, so these symbols for a space are used to recognise it, not its offsets.
_SPACES = "".join(library_model.SPACE.values())


class Pieces(NamedTuple):
    """The pieces of a word; at least one.

    word: the index of the word in the sentence. carried: how many words directly after it have no
    piece of their own. first: the index of the first piece that covers a character of the word; the
    pieces before it are white space. start: how many pieces begin no later than the word's first
    character. That is `first` + 1, or more if several pieces cover this character, as with bytes.
    """

    word: int
    ids: list[int]
    carried: int = 0
    first: int = 0
    start: int = 1

    def cut(self, size: int) -> "Pieces":
        """Returns a copy with only the first `size` pieces."""
        ids = self.ids[:size]
        return self._replace(
            ids=ids, first=min(self.first, len(ids) - 1), start=min(self.start, len(ids))
        )


def of_texts(
    tokenizer: tokenizer_lib.Tokenizer, examples: Sequence[examples_lib.Words]
) -> Iterator[list[Pieces]]:
    """Yields, for each example, the pieces of its words. Encodes each text as a whole."""
    texts = [example.text or " ".join(example.words) for example in examples]
    encoded = tokenizer.encode_with_offsets(texts)
    for example, text, (ids, offsets) in zip(examples, texts, encoded, strict=True):
        places = example._replace(text=text).places()
        blank = [
            not piece.strip(_SPACES) or not text[start:stop].strip()
            for piece, (start, stop) in zip(tokenizer.pieces(ids), offsets, strict=True)
        ]
        yield _by_words(ids, [start for start, _ in offsets], blank, places)


def of_words(
    tokenizer: tokenizer_lib.Tokenizer, examples: Sequence[examples_lib.Words]
) -> Iterator[list[Pieces]]:
    """Yields, for each example, the pieces of its words. Encodes each word separately.

    With byte-level BPE, a word includes the space before it. A word without pieces becomes the
    unknown piece.
    """
    space = " " if tokenizer.keeps_spaces() else ""
    texts = [space * (i > 0) + word for e in examples for i, word in enumerate(e.words)]
    unknown = [max(tokenizer.specials.unk, 0)]
    encoded = iter(tokenizer.encode_batch(texts))
    for example in examples:
        word_ids = itertools.islice(encoded, len(example.words))
        yield [Pieces(word, list(ids) or unknown) for word, ids in enumerate(word_ids)]


def _by_words(
    ids: Sequence[int],
    starts: Sequence[int],
    blank: Sequence[bool],
    places: Sequence[tuple[int, int]],
) -> list[Pieces]:
    if not places:
        return []
    starts = np.maximum.accumulate(np.array(starts, int))
    owners = np.searchsorted([stop for _, stop in places], starts, side="right")
    owners = np.minimum(owners, len(places) - 1)  # final white space belongs to the last word
    words, lows = np.unique(owners, return_index=True)
    highs, next_words = [*lows[1:], len(ids)], [*words[1:], len(places)]
    result = []
    for word, low, high, next_word in zip(words, lows, highs, next_words, strict=True):
        visible = (i for i in range(low, high) if not blank[i])
        first = next(visible, low) - low
        start = int(np.searchsorted(starts[low:high], places[word][0], side="right"))
        carried = int(next_word - word - 1)
        result.append(
            Pieces(int(word), list(ids[low:high]), carried, int(first), max(start, first + 1))
        )
    return result
