"""ALBERT's text cleaning, which runs before its SentencePiece model."""

import dataclasses
import re
import unicodedata


@dataclasses.dataclass(frozen=True)
class AlbertRules:
    """Text cleaning of ALBERT (google-research/albert, tokenization.py: `preprocess_text`).

    A run of white space becomes one space, and white space at the ends of the text is removed. The
    quotes in ``x'' become "x". Optionally, accents are removed (NFKD without combining marks) and
    letters are lowercased.

    ALBERT's other rule is applied by `sentencepiece_model`: if a piece ends in a digit and a comma,
    the comma is split off and the rest of the piece is encoded again.
    """

    lowercase: bool
    strip_accents: bool

    def clean(self, text: str) -> str:
        """Returns the text as cleaned by ALBERT's `preprocess_text`."""
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        if self.strip_accents:
            text = unicodedata.normalize("NFKD", text)
            text = "".join(char for char in text if not unicodedata.combining(char))
        return text.lower() if self.lowercase else text

    def clean_with_origins(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Returns `clean(text)` and, for each character of the result, its origin in `text`.

        An origin is a span [start, stop) of `text`.
        """
        cleaned, origins = [], []
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        for match in re.compile(r"\s+|``|''|.", re.DOTALL).finditer(text, first, last):
            chunk = match.group()
            chars = " " if chunk.isspace() else '"' if len(chunk) == 2 else chunk
            if self.strip_accents:
                chars = unicodedata.normalize("NFKD", chars)
                chars = "".join(char for char in chars if not unicodedata.combining(char))
            cleaned.append(chars)
            size = len(chars.lower()) if self.lowercase else len(chars)
            origins += [match.span()] * size
        # Lowercase the text as a whole: the lower case of a sigma depends on the next character.
        text = "".join(cleaned)
        return text.lower() if self.lowercase else text, origins
