"""Encodes text by WordPiece, byte-level BPE or Unigram, with the library `tokenizers` and a cache.

In names and comments, "library" means a `tokenizers.Tokenizer`, and its JSON is that of
tokenizer.json.
"""

import functools
import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from bertjax.data.tokenizers import byte_model, piece_bytes, word_cache

KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}
SPACE = {"bpe": "\u0120", "unigram": "\u2581"}  # marks a piece that starts a word

# GPT-2's alphabet writes each byte as a visible character. Bytes without one get U+0100 and up.
_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = sorted({*range(256)} - {*_VISIBLE})
_BYTES = {chr(byte): byte for byte in _VISIBLE}
_BYTES |= {chr(0x100 + n): byte for n, byte in enumerate(_HIDDEN)}

# Keys that `_settings` drops: `rules` adds vocab and merges itself; the others change no id.
_IGNORED_KEYS = ("vocab", "merges", "trim_offsets", "fuse_unk", "dropout")
PREPEND = "prepend_scheme"  # key of tokenizer_config.json; used if there is no tokenizer.json
_PROBE = "\ufdd0"  # a noncharacter, which does not occur in text


class LibraryModel:
    """Encodes text by the rules of a `tokenizers` pipeline.

    kind: wordpiece, bpe, or unigram (a tokenizer.json without its SentencePiece model).
    pieces: the vocabulary in id order, without T5's sentinels at its end.
    num_sentinels: the number of these sentinels; <extra_id_0> is the last one.
    prefix_once: matters only if the pipeline prepends a space to a text. If true, it does so only
        at the start of the text; if false, also after each special token. Always true for a
        pipeline in the form that `prefixed_once` returns.
    """

    def __init__(self, library: tokenizers.Tokenizer, *, prefix_once: bool = False):
        library.no_padding()
        library.no_truncation()
        spec = json.loads(library.to_str())
        pre_tokenizer = spec["pre_tokenizer"]
        once = pre_tokenizer == _prefixed_once(pre_tokenizer)
        self.prefix_once = prefix_once or once
        if once:  # a plain ByteLevel gives plain text the same ids, and `_word_cache` supports it
            level = pre_tokenizer["pretokenizers"][-1]
            library.pre_tokenizer = pre_tokenizers.ByteLevel(
                add_prefix_space=True,
                trim_offsets=level["trim_offsets"],
                use_regex=level["use_regex"],
            )
            spec = json.loads(library.to_str())
        library.encode_special_tokens = True  # `[MASK]` in a text is six plain characters
        self._spec = spec
        self.library = _without_specials(library, spec)
        self.kind = KINDS[self._spec["model"]["type"]]
        pieces = _pieces(library)
        self.num_sentinels = count_sentinels(pieces)
        self.pieces = pieces[: len(pieces) - self.num_sentinels]
        self.special_ids = [
            token["id"]
            for token in self._spec["added_tokens"]
            if token["special"] and token["id"] < len(self.pieces)
        ]
        self._added = {token["id"] for token in self._spec["added_tokens"]}
        self._cache = self._word_cache()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens."""
        if self._cache is None:
            return self._encode_uncached(texts)
        return self._cache.encode_batch(texts)

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and the character span [start, stop) of each id."""
        encodings = self.library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_behind(self, text: str) -> list[int]:
        """Returns the ids of a text that follows a special token; see `prefix_once`."""
        return _ids(self._probe_library, [_PROBE + text.replace(_PROBE, "\ufffd")])[0][1:]

    def special_tokens(self) -> dict[int, tokenizers.AddedToken]:
        """Returns {id: special token}, as declared in the library."""
        return {
            token["id"]: tokenizers.AddedToken(**{k: v for k, v in token.items() if k != "id"})
            for token in self._spec["added_tokens"]
            if token["special"]
        }

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids; skips special tokens."""
        text = self.library.decode(list(ids), skip_special_tokens=True)
        return text.removeprefix(" ") if self._prefix_space else text

    def readable(self, i: int) -> str:
        """Returns the piece in readable form, see `Tokenizer.readable`."""
        piece = self.pieces[i]
        if self.kind != "bpe" or i in self._added or not _BYTES.keys() >= set(piece):
            return piece
        return byte_model.text_of(bytes(_BYTES[c] for c in piece)).replace(" ", SPACE["bpe"])

    def continuations(self) -> np.ndarray:
        """Returns bool[size]: true for pieces that continue the word before them."""
        if self.kind == "wordpiece":
            prefix = self._spec["model"]["continuing_subword_prefix"]
            return np.array([piece.startswith(prefix) for piece in self.pieces])
        return np.array([not piece.startswith(SPACE[self.kind]) for piece in self.pieces])

    def token_bytes(self) -> np.ndarray:
        """Returns int[size]: the bytes of text that each piece stands for, see `piece_bytes`."""
        model = self._spec["model"]
        if self.kind == "wordpiece":
            return piece_bytes.of_words(self.pieces, model["continuing_subword_prefix"])
        parts = (self._spec["normalizer"], self._spec["pre_tokenizer"])
        if any(_contains(part, "ByteLevel") for part in parts):
            return piece_bytes.of_byte_level(self.pieces, _BYTES)
        byte_fallback = bool(model.get("byte_fallback"))
        return piece_bytes.of_sentencepiece(self.pieces, byte_fallback=byte_fallback)

    def rules(self) -> dict:
        """Returns the rules that determine the ids, in a form independent of library versions."""
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
        """The JSON of the library, before `prefix_once` is applied; see `pipeline`."""
        return self._spec

    @property
    def pipeline(self) -> dict:
        """The JSON of the library after applying `prefix_once`, for export."""
        return self._exported_spec(self._spec)

    def _exported_spec(self, spec: dict) -> dict:
        return prefixed_once(spec) if self.prefix_once else spec

    @functools.cached_property
    def _probe_library(self) -> tokenizers.Tokenizer:
        """The pipeline with the added token _PROBE, which represents any special token."""
        spec = self._exported_spec(json.loads(self.library.to_str()))
        library = tokenizers.Tokenizer.from_str(json.dumps(spec))
        library.encode_special_tokens = True
        library.add_tokens([_probe()])
        return library

    @property
    def _prefix_space(self) -> bool:
        return bool((self._spec["pre_tokenizer"] or {}).get("add_prefix_space"))

    def _encode_uncached(self, texts: Sequence[str]) -> list[list[int]]:
        return _ids(self.library, texts)

    def _word_cache(self) -> word_cache.WordCache | None:
        """Returns a cache; None if added tokens match in text or `word_cache` has no splitter."""
        if any(not token["special"] for token in self._spec["added_tokens"]):
            return None
        normalizer, pre_tokenizer = self._spec["normalizer"], self._spec["pre_tokenizer"] or {}
        if (
            self.kind == "wordpiece"
            and (normalizer or {}).get("type") == "BertNormalizer"
            and pre_tokenizer.get("type") == "BertPreTokenizer"
        ):
            chunks = word_cache.wordpiece_chunks(
                split_ideographs=normalizer["handle_chinese_chars"]
            )
            return word_cache.WordCache(chunks, self._encode_words)
        if (
            self.kind == "bpe"
            and normalizer is None
            and pre_tokenizer.get("type") == "ByteLevel"
            and pre_tokenizer["use_regex"]
        ):
            chunks = word_cache.byte_level_chunks(prefix_space=pre_tokenizer["add_prefix_space"])
            spec = self._spec | {"pre_tokenizer": pre_tokenizer | {"add_prefix_space": False}}
            unprefixed = tokenizers.Tokenizer.from_str(json.dumps(spec))
            unprefixed.encode_special_tokens = True
            return word_cache.WordCache(chunks, lambda words: _ids(unprefixed, words))
        return None

    def _encode_words(self, words: Sequence[str]) -> Iterable[Sequence[int]]:
        """Returns the ids of chunks from `word_cache.wordpiece_chunks`.

        Joins the chunks to one text, with a full stop after each, encodes this text, and splits its
        ids at the full stops. This is 3 times as fast as encoding each chunk separately. It is
        correct because a full stop is always a separate chunk and no other chunk yields its id. If
        the number of full stops is nevertheless wrong, each chunk is encoded separately.
        """
        stop = self._encode_uncached(["."])[0]
        plain = [word for word in words if word != "."]
        ids = self._encode_uncached([" . ".join(plain) + " ."])[0]
        ends = [i for i, piece in enumerate(ids) if [piece] == stop]
        if len(ends) != len(plain):
            return self._encode_uncached(words)
        rows = dict(zip(plain, _split_at(ids, ends), strict=True))
        rows["."] = stop
        return [rows[word] for word in words]


def model_type(model: object) -> object:
    """Returns the type of a model in tokenizer.json; None if it cannot be inferred.

    Files from before version 0.10 of the library, such as those of bert-base-uncased, gpt2 and
    t5-small on the Hub, do not state the type.
    """
    if not isinstance(model, dict) or "type" in model:
        return model["type"] if isinstance(model, dict) else None
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "max_input_chars_per_word" in model else None


def merges(model: dict) -> list:
    """Returns the merges of a model in tokenizer.json; [] if the model is not BPE."""
    return model["merges"] if model["type"] == "BPE" else []


def prefixed_once(spec: dict) -> dict:
    """Returns a pipeline that prepends a space at the start of a text but not after special tokens.

    The library's ByteLevel also prepends a space after each special token. A pipeline is returned
    unchanged unless its pre-tokenizer is a ByteLevel that prepends spaces.

    spec: the JSON of the pipeline.
    """
    pre_tokenizer = spec["pre_tokenizer"] or {}
    if pre_tokenizer.get("type") != "ByteLevel" or not pre_tokenizer["add_prefix_space"]:
        return spec
    return spec | {"pre_tokenizer": _prefixed_once({"pretokenizers": [{}, pre_tokenizer]})}


def begins_words_behind_specials(pipeline: dict) -> bool:
    """Returns whether a pipeline of tokenizer.json prepends a space to text after a special token.

    The pipelines of ALBERT, T5 and XLM-R do: their Metaspace has the prepend_scheme "always".
    """
    model = {"type": "WordLevel", "vocab": {"": 0, "a": 1}, "unk_token": ""}
    parts = {part: pipeline.get(part) for part in ("normalizer", "pre_tokenizer")}
    library = tokenizers.Tokenizer.from_str(json.dumps(parts | {"model": model}))
    library.add_tokens([_probe()])
    return 1 not in library.encode(_PROBE + "a").ids


def _probe() -> tokenizers.AddedToken:
    return tokenizers.AddedToken(_PROBE, normalized=False)


def _without_specials(library: tokenizers.Tokenizer, spec: dict) -> tokenizers.Tokenizer:
    """Returns a library that does not match special tokens in text.

    Special tokens that are also pieces, such as the control pieces of a Unigram vocabulary, could
    match like any other piece. If one does, they are renamed to strings that do not occur in text.
    """
    specials = {token["content"]: token["id"] for token in spec["added_tokens"] if token["special"]}
    rows = zip(_ids(library, list(specials)), specials.values(), strict=True)
    if not any(i in ids for ids, i in rows):
        return library

    def rename(piece: str) -> str:
        return _PROBE + piece if piece in specials else piece

    model = dict(spec["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {rename(piece): i for piece, i in model["vocab"].items()}
    else:
        model["vocab"] = [(rename(piece), score) for piece, score in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = rename(model["unk_token"])
    added = [token | {"content": rename(token["content"])} for token in spec["added_tokens"]]
    changes = {"model": model, "added_tokens": added, "post_processor": None}
    library = tokenizers.Tokenizer.from_str(json.dumps(spec | changes))
    library.encode_special_tokens = True
    return library


def _prefixed_once(pre_tokenizer: dict | None) -> dict:
    """Returns the pre-tokenizer of `prefixed_once`.

    pre_tokenizer: a Sequence of pre-tokenizers, of which the last one, a ByteLevel, is used.
    """
    parts = (pre_tokenizer or {}).get("pretokenizers", [])
    level = parts[-1] if parts else {}
    space = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}
    level = level | {"add_prefix_space": False}
    return {"type": "Sequence", "pretokenizers": [space, level]}


def _ids(library: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    encodings = library.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def _split_at(ids: list[int], ends: list[int]) -> Iterable[list[int]]:
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


def count_sentinels(pieces: list[str]) -> int:
    """Returns the number of sentinels at the end: <extra_id_n>, ..., <extra_id_1>, <extra_id_0>."""
    pairs = enumerate(reversed(pieces))
    return next((i for i, piece in pairs if piece != f"<extra_id_{i}>"), len(pieces))


def _contains(section: dict | None, kind: str) -> bool:
    """Returns whether a normalizer or pre-tokenizer is of this type or has such a part."""
    section = section or {}
    parts = [*section.get("normalizers", ()), *section.get("pretokenizers", ())]
    return section.get("type") == kind or any(_contains(part, kind) for part in parts)


def _settings(section: dict | None) -> dict:
    """Drops the keys in _IGNORED_KEYS, and settings that are False, None or empty.

    Some versions of the library write False, None and empty settings, and others omit them.
    """
    return {
        key: value
        for key, value in (section or {}).items()
        if key not in _IGNORED_KEYS and value not in (None, False, "", [])
    }
