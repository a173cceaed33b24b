"""WordPiece and byte-level BPE: a `tokenizers.Tokenizer` with a cache of words in front of it."""

import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

from bertjax.data import word_cache

KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}
SPACE = {"bpe": "\u0120", "unigram": "\u2581"}  # marks a piece that begins a word

# Settings of the library's JSON which decide no id.
_SILENT = ("vocab", "merges", "trim_offsets", "fuse_unk", "dropout")


class LibraryModel:
    """Text to ids by the rules of a `tokenizers` pipeline.

    kind: wordpiece, bpe, or unigram (a tokenizer.json without its SentencePiece model).
    pieces: the vocabulary in the order of ids, without the sentinels of T5 at its end.
    num_sentinels: how many of those there are, <extra_id_0> the last.
    """

    def __init__(self, library: tokenizers.Tokenizer):
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True  # `[MASK]` in a text is five plain characters
        self.library = library
        self._spec = json.loads(library.to_str())
        self.kind = KINDS[self._spec["model"]["type"]]
        pieces = _pieces(library)
        self.num_sentinels = _count_sentinels(pieces)
        self.pieces = pieces[: len(pieces) - self.num_sentinels]
        self.special_ids = [
            token["id"]
            for token in self._spec["added_tokens"]
            if token["special"] and token["id"] < len(self.pieces)
        ]
        self._cache = self._word_cache()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        if self._cache is None:
            return self._plain(texts)
        return self._cache.encode_batch(texts)

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids of each text, and the characters [start, stop) of each id."""
        encodings = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens left out."""
        text = self.library.decode(list(ids), skip_special_tokens=True)
        return text.removeprefix(" ") if self._prefix_space else text

    def continuations(self) -> np.ndarray:
        """bool[size]: pieces that go on with the word before them."""
        if self.kind == "wordpiece":
            prefix = self._spec["model"]["continuing_subword_prefix"]
            return np.array([piece.startswith(prefix) for piece in self.pieces])
        return np.array([not piece.startswith(SPACE[self.kind]) for piece in self.pieces])

    def rules(self) -> dict:
        """What decides the ids, in a form which does not change with the library's version."""
        model, added = self._spec["model"], self._spec["added_tokens"]
        normalizer = dict(self._spec["normalizer"] or {})
        if normalizer.get("type") == "BertNormalizer" and normalizer["strip_accents"] is None:
            normalizer["strip_accents"] = normalizer["lowercase"]
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges(model)]
        return {
            "model": _settings(model),
            "normalizer": _settings(normalizer),
            "pre_tokenizer": _settings(self._spec["pre_tokenizer"]),
            "parsed": [token["content"] for token in added if not token["special"]],
            "merges": pairs,
            "pieces": self.pieces,
            "scores": [score for _, score in model["vocab"][: len(self.pieces)]]
            if self.kind == "unigram"
            else [],
        }

    @property
    def spec(self) -> dict:
        """The library's JSON."""
        return self._spec

    @property
    def _prefix_space(self) -> bool:
        return bool((self._spec["pre_tokenizer"] or {}).get("add_prefix_space"))

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        return _ids(self.library, texts)

    def _word_cache(self) -> word_cache.WordCache | None:
        """The cache, where the pipeline is one whose cutting places are known."""
        if any(not token["special"] for token in self._spec["added_tokens"]):
            return None
        normalizer, cutter = self._spec["normalizer"], self._spec["pre_tokenizer"] or {}
        if (
            self.kind == "wordpiece"
            and (normalizer or {}).get("type") == "BertNormalizer"
            and cutter.get("type") == "BertPreTokenizer"
        ):
            chunks = word_cache.wordpiece_chunks(
                split_ideographs=normalizer["handle_chinese_chars"]
            )
            return word_cache.WordCache(chunks, self._encode_words)
        if (
            self.kind == "bpe"
            and normalizer is None
            and cutter.get("type") == "ByteLevel"
            and cutter["use_regex"]
        ):
            chunks = word_cache.byte_level_chunks(prefix_space=cutter["add_prefix_space"])
            spec = self._spec | {"pre_tokenizer": cutter | {"add_prefix_space": False}}
            unprefixed = tokenizers.Tokenizer.from_str(json.dumps(spec))
            unprefixed.encode_special_tokens = True
            return word_cache.WordCache(chunks, lambda words: _ids(unprefixed, words))
        return None

    def _encode_words(self, words: Sequence[str]) -> Iterable[Sequence[int]]:
        """Ids of chunks from `word_cache.wordpiece_chunks`: thrice the speed of a call with each.

        They go as one text with full stops between them: no other chunk holds one, and the id of a
        full stop cannot come out of a word. The count is checked all the same.
        """
        stop = self._plain(["."])[0]
        plain = [word for word in words if word != "."]
        ids = self._plain([" . ".join(plain) + " ."])[0]
        ends = [i for i, piece in enumerate(ids) if [piece] == stop]
        if len(ends) != len(plain):
            return self._plain(words)
        rows = dict(zip(plain, _cut(ids, ends), strict=True))
        rows["."] = stop
        return [rows[word] for word in words]


def merges(model: dict) -> list:
    """Merges of the library's JSON model; WordPiece has none."""
    return model["merges"] if model["type"] == "BPE" else []


def _ids(library: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    encodings = library.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def _cut(ids: list[int], ends: list[int]) -> Iterable[list[int]]:
    start = 0
    for end in ends:
        yield ids[start:end]
        start = end + 1


def _pieces(library: tokenizers.Tokenizer) -> list[str]:
    by_id = {i: piece for piece, i in library.get_vocab(with_added_tokens=True).items()}
    if sorted(by_id) != list(range(len(by_id))):
        missing = next(i for i in range(len(by_id)) if i not in by_id)
        raise ValueError(f"no piece has id {missing}")
    return [by_id[i] for i in range(len(by_id))]


def _count_sentinels(pieces: list[str]) -> int:
    """How many pieces at the end are <extra_id_n>, ..., <extra_id_1>, <extra_id_0>."""
    pairs = enumerate(reversed(pieces))
    return next((i for i, piece in pairs if piece != f"<extra_id_{i}>"), len(pieces))


def _settings(section: dict | None) -> dict:
    """The settings that say something: false, none and empty ones come and go with versions."""
    return {
        key: value
        for key, value in (section or {}).items()
        if key not in _SILENT and value not in (None, False, "", [])
    }
