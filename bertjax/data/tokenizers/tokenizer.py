"""One class for all tokenizers: WordPiece, byte-level BPE, SentencePiece unigram and bytes.

By default a tokenizer adds no special tokens to a text and matches none in it: `[SEP]` typed by a
user is plain text. Its fingerprint covers everything that determines the ids of texts and of
batches, so equal fingerprints mean equal ids, whichever files the tokenizer was loaded from.

    tokenizer = load("bert-base-uncased/vocab.txt")
    tokenizer.encode_batch(["The cat sat."])        # [[1996, 4937, 2938, 1012]]
"""

import functools
import hashlib
import json
import string
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

from bertjax import errors, paths
from bertjax.data.tokenizers import (
    added_tokens,
    byte_model,
    library_model,
    special_tokens,
    tokenizer_export,
    tokenizer_files,
    tokenizer_training,
)
from bertjax.data.tokenizers.vocabulary import Specials, Vocabulary

KINDS = tokenizer_training.KINDS
_TRIAL_TEXT = "A trial: 1,000 caf\u00e9s \u4f60"
_PUNCTUATION = frozenset(string.punctuation)


class Tokenizer:
    """Converts text to ids and back.

    kind: wordpiece, bpe, unigram or bytes.
    size: number of pieces, specials included.
    specials: ids of the special tokens; -1 if the vocabulary has no such token.
    sentinels: int32, ids of T5's <extra_id_0>, <extra_id_1> ...: see `Vocabulary`.
    reserved_sentinels: int32, the sentinels whose ids never occur in text. These are all sentinels,
        except in ByT5, where only the first sentinels are: the others are bytes that occur in text.
    fingerprint: hex sha256 of everything that determines the ids (vocabulary, merges, rules,
        specials, sentinels).
    """

    def __init__(self, model: tokenizer_files.Model, options: tokenizer_files.Options):
        self._model = model
        self._names = tokenizer_files.special_names(set(model.pieces), options)
        ids = {piece: i for i, piece in enumerate(model.pieces)}
        by_role = {role: ids[piece] for role, piece in self._names.items()}
        self.kind: str = model.kind
        self.size: int = len(model.pieces)
        self.specials = Specials(**dict.fromkeys(tokenizer_files.ROLES, -1) | by_role)
        self.sentinels: np.ndarray = tokenizer_files.sentinels(model, options)
        self.fingerprint: str = self._fingerprint(options, by_role)
        spare = byte_model.SPARE if self.kind == "bytes" else 0
        self.reserved_sentinels: np.ndarray = self.sentinels[self.sentinels >= spare]
        reserved = self.reserved_sentinels[self.reserved_sentinels < self.size]
        self._special_ids = sorted({*by_role.values(), *model.special_ids, *reserved.tolist()})
        self._sentinel_names = {
            int(i): tokenizer_files.SENTINEL.format(n)
            for n, i in enumerate(self.reserved_sentinels)
        }
        self._special_names = {  # the piece of a sentinel may be a letter, as in ByT5
            model.pieces[i]: i for i in self._special_ids if i not in self._sentinel_names
        }
        self._special_names |= {
            tokenizer_files.SENTINEL.format(n): int(i) for n, i in enumerate(self.sentinels)
        }

    def __repr__(self) -> str:
        return (
            f"<Tokenizer: {self.kind}, {self.size:,} pieces, fingerprint {self.fingerprint[:12]}>"
        )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens."""
        try:
            return self._model.encode_batch(texts)
        # The text contains a lone surrogate, which is possible in JSON.
        except (TypeError, RuntimeError, UnicodeEncodeError):
            return self._model.encode_batch(_repaired(texts))

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and the character span [start, stop) of each id.

        A span does not include the white space before a word.
        """
        return [
            (ids, [_trimmed(text, start, stop) for start, stop in offsets])
            for text, (ids, offsets) in zip(
                texts, self._model.encode_with_offsets(_repaired(texts)), strict=True
            )
        ]

    def encode(self, text: str, *, specials_in_text: bool = False) -> list[int]:
        """Returns the ids of one text.

        specials_in_text: encode `[MASK]` and other special tokens in the text as special tokens.
        """
        if not specials_in_text or not self._special_names:
            return self.encode_batch([text])[0]
        text = _repaired([text])[0]
        ids: list[int] = []
        for start, stop, i in self._splitter.split(text):
            if i >= 0:
                ids.append(i)
            elif start == 0:
                ids += self.encode_batch([text[:stop]])[0]
            else:
                ids += self._model.encode_behind(text[start:stop])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, in which sentinels appear as words such as <extra_id_0>.

        Skips special tokens and ids without a piece.
        """
        parts: list[str] = []
        run: list[int] = []
        for i in map(int, ids):
            if i in self._sentinel_names:
                parts += [self._model.decode(run), self._sentinel_names[i]]
                run = []
            elif 0 <= i < self.size:
                run.append(i)
        parts.append(self._model.decode(run))
        if self.kind == "bytes":  # white space around a sentinel is in the ids already
            return "".join(parts)
        return " ".join(part for part in parts if part) if len(parts) > 1 else parts[0]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the pieces as in the vocabulary; sentinels as <extra_id_0>, <extra_id_1> ..."""
        return [self._sentinel_names.get(int(i)) or self._model.pieces[i] for i in ids]

    def readable(self, ids: Sequence[int]) -> list[str]:
        """Returns the pieces in readable form: pieces of bytes are decoded to text.

        Bytes of an incomplete character and control characters are written as escapes, such as
        \\xc3. Spaces and continued words are marked as in `pieces`.
        """
        return [self._sentinel_names.get(int(i)) or self._model.readable(int(i)) for i in ids]

    def continuations(self) -> np.ndarray:
        """Returns bool[size]: True where a piece continues the word before it.

        Punctuation is always a word of its own, as in BERT and ALBERT.
        """
        marks = np.array([_PUNCTUATION.issuperset(piece) for piece in self._model.pieces])
        return self._model.continuations() & ~marks & ~self.special_mask()

    def special_mask(self) -> np.ndarray:
        """Returns bool[size]: True for special tokens."""
        mask = np.zeros(self.size, bool)
        mask[self._special_ids] = True
        return mask

    def token_bytes(self) -> np.ndarray:
        """Returns int[size]: the bytes of text that each piece stands for; 0 for special tokens.

        The counts of a text's ids add up to its bytes in UTF-8, with spaces: see `piece_bytes`.
        """
        return np.where(self.special_mask(), 0, self._model.token_bytes())

    def keeps_spaces(self) -> bool:
        """Returns whether a leading space changes the ids of a text.

        This is true of the tokenizers of GPT-2 and ByT5, for example.

        If so, sentences that are encoded one by one need a space between them.
        """
        return self.encode_batch([" a"]) != self.encode_batch(["a"])

    def keeps_line_breaks(self) -> bool:
        """Returns whether the ids of a text tell a line break from a space."""
        return self.encode_batch(["a\nb"]) != self.encode_batch(["a b"])

    def vocabulary(self) -> Vocabulary:
        """Returns the parts of the tokenizer that are needed to make batches, without the rules."""
        return Vocabulary(
            self.size, self.specials, self.continuations(), self.special_mask(), self.sentinels
        )

    def save(
        self,
        folder: str,
        *,
        kind: str = "encoder",
        token_types: bool = True,
        max_length: int | None = None,
        ends: special_tokens.Ends | None = None,
        exported: bool = False,
    ) -> None:
        """Writes every file form of the tokenizer's kind to a folder.

        transformers' AutoTokenizer can load the folder, except in the case below.
        exported: whether to raise UserError if transformers cannot reproduce the ids, as for
        SentencePiece models of words. If false, such a tokenizer is written in a form that only
        `load` can read.

        The other arguments configure how transformers prepares a text for the model.
        kind: the kind of the model. For an "encoder", [CLS] and [SEP] are put around a text; for an
        "encoder_decoder", the end-of-text token is put after it; for a "decoder", nothing is added.
        token_types: whether the model distinguishes two texts by token types.
        max_length: the longest input of the model.
        ends: the special tokens around the texts of a fine-tuned model; they replace the tokens
        that `kind` implies.
        """
        target = paths.of(folder)
        target.mkdir(parents=True, exist_ok=True)
        files = tokenizer_export.contents(
            self._model,
            self._names,
            self.sentinels,
            kind=kind,
            token_types=token_types,
            max_length=max_length,
            ends=ends,
            exported=exported,
        )
        for name, data in files.items():
            try:
                (target / name).write_bytes(data)
            except OSError as error:  # NOTE: if a write fails late, `error` does not name the file
                raise errors.UserError(
                    f"{target / name}: cannot be written ({error.strerror}); fix that and run the "
                    "same command again"
                ) from error

    def _fingerprint(self, options: tokenizer_files.Options, specials: dict[str, int]) -> str:
        # The first fingerprints did not include start, end and sentinels. They are included only if
        # they do not follow from the pieces, so that old fingerprints stay valid.
        role_ids = {role: i for role, i in specials.items() if role not in ("bos", "eos")}
        content = {"kind": self.kind, "rules": self._model.rules(), "specials": role_ids}
        default, sentinels = tokenizer_files.of_pieces(self._model, options)
        for name in ("start", "end"):  # the ids that start and end a text, whatever their roles
            if getattr(self.specials, name) != getattr(default, name):
                content[name] = getattr(self.specials, name)
        if not np.array_equal(self.sentinels, sentinels):
            content["sentinels"] = self.sentinels.tolist()
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @functools.cached_property
    def _splitter(self) -> added_tokens.Splitter:
        """Splits texts at special tokens, which have the same flags as in exported files."""
        declared = self._model.special_tokens()
        # If pieces include the space before a word, so do the mask and the sentinels, because they
        # replace pieces.
        greedy = {self.specials.mask, *self.reserved_sentinels.tolist()}
        spaced = self.kind in library_model.SPACE
        tokens = []
        for name, i in self._special_names.items():
            token = declared.get(i)
            if token is None or token.content != name:
                lstrip = spaced and i in greedy
                token = tokenizers.AddedToken(name, special=True, lstrip=lstrip)
            tokens.append((i, token))
        return added_tokens.Splitter(tokens)


def load(
    path: str, *, lowercase: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """Loads a tokenizer from a folder or a file: see `tokenizer_files` for the forms.

    lowercase, strip_accents: override the settings in the files. If either is given, or if the
    folder is ALBERT's, a SentencePiece model gets ALBERT's text cleaning.
    Raises UserError with the file and, if known, the line.
    """
    with tokenizer_files.library_errors(path):
        loaded = Tokenizer(*tokenizer_files.read(path, lowercase, strip_accents))
        ids, _ = loaded.encode_with_offsets([_TRIAL_TEXT])[0]  # a damaged tokenizer fails here
        loaded.decode([*loaded.encode(_TRIAL_TEXT), *ids])
    return loaded


def train(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """Trains a tokenizer with exactly `vocab_size` pieces. The result is deterministic.

    kind: wordpiece, bpe or unigram.
    lowercase: None means True for wordpiece and False for the others.
    strip_accents: WordPiece only; None means the value of `lowercase`.
    Raises UserError if `vocab_size` is too small or too large for the text.
    """
    return Tokenizer(
        *tokenizer_training.train(
            kind, texts, vocab_size, lowercase=lowercase, strip_accents=strip_accents
        )
    )


def of_bytes() -> Tokenizer:
    """Returns ByT5's tokenizer, which needs no training."""
    return Tokenizer(byte_model.ByteModel(), tokenizer_files.Options())


def _repaired(texts: Sequence[str]) -> list[str]:
    """Replaces each lone surrogate in the texts with U+FFFD."""
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def _trimmed(text: str, start: int, stop: int) -> tuple[int, int]:
    inner = text[start:stop].lstrip()
    return (stop - len(inner), stop) if inner else (start, stop)
