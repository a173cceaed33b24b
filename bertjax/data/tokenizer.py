"""One small class for every tokenizer: WordPiece, byte-level BPE, SentencePiece unigram.

A tokenizer adds no special tokens to a text and finds none in it: `[SEP]` typed by a user is plain
text. Its fingerprint covers all that decides the ids, so that equal fingerprints mean equal ids,
whichever files the tokenizer came from.

    tokenizer = load("bert-base-uncased/vocab.txt")
    tokenizer.encode_batch(["The cat sat."])        # [[1996, 4937, 2938, 1012]]
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from bertjax.data import library_model, tokenizer_files, tokenizer_training
from bertjax.data.vocabulary import Specials, Vocabulary

KINDS = tokenizer_training.KINDS


class Tokenizer:
    """Text to ids and back.

    kind: wordpiece, bpe or unigram.
    size: number of pieces, specials included.
    specials: ids of the special tokens, -1 for those that the vocabulary lacks.
    fingerprint: hex sha256 of what decides the ids (vocabulary, merges, rules, specials).
    """

    def __init__(self, model: tokenizer_files.Model, options: tokenizer_files.Options):
        self._model = model
        self._names = tokenizer_files.special_names(set(model.pieces), options)
        ids = {piece: i for i, piece in enumerate(model.pieces)}
        by_role = {role: ids[piece] for role, piece in self._names.items()}
        self.kind: str = model.kind
        self.size: int = len(model.pieces)
        self.specials = Specials(**dict.fromkeys(tokenizer_files.ROLES, -1) | by_role)
        self.fingerprint: str = _fingerprint(self.kind, model.rules(), by_role)
        self._special_ids = sorted({*by_role.values(), *model.special_ids})
        self._special_names = {model.pieces[i]: i for i in self._special_ids}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        try:
            return self._model.encode_batch(texts)
        except (TypeError, RuntimeError):  # half of a surrogate pair, as JSON can hold
            return self._model.encode_batch(_repaired(texts))

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids of each text, and for each id the characters [start, stop) that it covers.

        White space before a word belongs to no piece.
        """
        return [
            (ids, [_trimmed(text, start, stop) for start, stop in offsets])
            for text, (ids, offsets) in zip(
                texts, self._model.encode_with_offsets(_repaired(texts)), strict=True
            )
        ]

    def encode(self, text: str, *, specials_in_text: bool = False) -> list[int]:
        """Ids of one text.

        specials_in_text: `[MASK]` and the other special tokens in the text count as such.
        """
        if not specials_in_text or not self._special_names:
            return self.encode_batch([text])[0]
        names = sorted(self._special_names, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        ids: list[int] = []
        for i, part in enumerate(parts):
            if i % 2:
                ids.append(self._special_names[part])
            elif part:
                ids += self._encode_part(part, first=i == 0, last=i == len(parts) - 1)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are left out."""
        return self._model.decode([int(i) for i in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces as the vocabulary writes them."""
        return [self._model.pieces[i] for i in ids]

    def continuations(self) -> np.ndarray:
        """bool[size]: True where a piece goes on with the word before it."""
        return self._model.continuations() & ~self.special_mask()

    def special_mask(self) -> np.ndarray:
        """bool[size]: True for special tokens."""
        mask = np.zeros(self.size, bool)
        mask[self._special_ids] = True
        return mask

    def vocabulary(self) -> Vocabulary:
        """The tables that batches need, without the rules."""
        return Vocabulary(self.size, self.specials, self.continuations(), self.special_mask())

    def save(self, folder: str, *, max_length: int | None = None) -> None:
        """Writes every file form that the kind has; transformers' AutoTokenizer loads the folder.

        max_length: written as `model_max_length`, the longest input of the model.
        """
        target = epath.Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        files = tokenizer_files.contents(self._model, self._names, max_length)
        for name, data in files.items():
            (target / name).write_bytes(data)

    def _encode_part(self, part: str, *, first: bool, last: bool) -> list[int]:
        """Ids of the text between two special tokens, which take the space before them."""
        ids = self.encode_batch([part if last or self.kind == "wordpiece" else part.rstrip()])[0]
        begins_word = first or part[0].isspace()
        if ids and not begins_word and self.pieces(ids[:1]) == [library_model.SPACE.get(self.kind)]:
            return ids[1:]  # the space that the rules put in front of every text
        return ids


def load(
    path: str, *, lowercase: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """A tokenizer from a folder or a file: see `tokenizer_files` for the forms.

    lowercase, strip_accents: override what the files say. A SentencePiece model for which either is
    given (or whose tokenizer_config.json is ALBERT's) gets ALBERT's cleaning of the text.
    Raises UserError, naming the file and the line.
    """
    return Tokenizer(*tokenizer_files.read(path, lowercase, strip_accents))


def train(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """A new tokenizer of exactly `vocab_size` pieces. Deterministic.

    kind: wordpiece, bpe or unigram.
    lowercase: None is True for wordpiece and False for the others.
    strip_accents: WordPiece only; None does as `lowercase` does.
    Raises UserError where the text cannot give so few or so many pieces.
    """
    return Tokenizer(
        *tokenizer_training.train(
            kind, texts, vocab_size, lowercase=lowercase, strip_accents=strip_accents
        )
    )


def _fingerprint(kind: str, rules: dict, specials: dict[str, int]) -> str:
    content = {"kind": kind, "rules": rules, "specials": specials}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _repaired(texts: Sequence[str]) -> list[str]:
    """The texts with U+FFFD for each lone surrogate."""
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    inner = text[start:stop].lstrip()
    return (stop - len(inner), stop) if inner else (start, stop)
