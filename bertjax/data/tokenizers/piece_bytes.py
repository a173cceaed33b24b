"""Counts the bytes of UTF-8 text that each piece of a vocabulary stands for.

Pieces of byte-level BPE, SentencePiece and ByT5 contain the spaces of the text, so their counts add
up to the bytes of the text. WordPiece drops the spaces. Therefore a piece that starts a word counts
one byte for the space before it, except punctuation and in scripts that are written without spaces.
This counts a space too many inside "(see" and one too few before it. In English prose the sum is
within 0.03% of the bytes of the text, and in 26 of 36 translations of the Universal Declaration of
Human Rights within 1%; most of the others have unknown pieces.

The text is what the normalizer of the tokenizer keeps of it. For example, lowercasing without
accents makes a letter of two bytes one byte. An unknown piece has no bytes.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

_SENTENCEPIECE_SPACE = "\u2581"
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # the name of a byte in SentencePiece's vocabularies
# Thai, Lao, Myanmar, Khmer, kana, and ideographs: no spaces between words.
_WITHOUT_SPACES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
)
_SPACED_WORD = re.compile(rf"[^\W_{_WITHOUT_SPACES}]")  # its first letter or digit


def of_words(pieces: Sequence[str], prefix: str) -> np.ndarray:
    """Returns the counts for WordPiece. prefix: marks a piece that continues a word."""
    return np.array([
        len(piece.removeprefix(prefix).encode())
        + (not piece.startswith(prefix) and _SPACED_WORD.match(piece) is not None)
        for piece in pieces
    ])  # fmt: skip


def of_byte_level(pieces: Sequence[str], alphabet: Iterable[str]) -> np.ndarray:
    """Returns the counts for byte-level BPE, in which a character of `alphabet` is one byte.

    A piece with another character is an added token, which is counted as it is written.
    """
    letters = frozenset(alphabet)
    return np.array([
        len(piece) if letters.issuperset(piece) else len(piece.encode()) for piece in pieces
    ])  # fmt: skip


def of_sentencepiece(pieces: Sequence[str], *, byte_fallback: bool) -> np.ndarray:
    """Returns the counts for pieces in which U+2581 is a space.

    byte_fallback: whether a piece such as <0x41> is a byte.
    """
    return np.array([
        1
        if byte_fallback and _BYTE_PIECE.fullmatch(piece)
        else len(piece.replace(_SENTENCEPIECE_SPACE, " ").encode())
        for piece in pieces
    ])  # fmt: skip
