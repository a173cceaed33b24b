"""SentencePiece by the native library, and ALBERT's cleaning of the text in front of it."""

import base64
import dataclasses
import hashlib
import json
import re
import struct
import unicodedata
from collections.abc import Sequence

import numpy as np
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers

SPACE = "\u2581"
_CONTROL = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
_UNKNOWN = sentencepiece_model_pb2.ModelProto.SentencePiece.UNKNOWN
_COMMA_AFTER_DIGIT = re.compile(r".*\d,", re.DOTALL).fullmatch


@dataclasses.dataclass(frozen=True)
class AlbertRules:
    """Text cleaning of ALBERT (google-research/albert, tokenization.py: `preprocess_text`).

    White space runs become one space, ``x'' quotes become "x"; by option accents go (NFKD without
    combining marks) and letters are lowered. A piece which ends in a digit and a comma is cut again
    without the comma.
    """

    lowercase: bool
    strip_accents: bool

    def clean(self, text: str) -> str:
        """The text as ALBERT's `preprocess_text` leaves it."""
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        if self.strip_accents:
            text = unicodedata.normalize("NFKD", text)
            text = "".join(char for char in text if not unicodedata.combining(char))
        return text.lower() if self.lowercase else text

    def clean_with_origins(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """`clean(text)` and, for each of its characters, the span of `text` it comes from."""
        cleaned, origins = [], []
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        for match in re.compile(r"\s+|``|''|.", re.DOTALL).finditer(text, first, last):
            chunk = match.group()
            chars = " " if chunk.isspace() else '"' if len(chunk) == 2 else chunk
            if self.strip_accents:
                chars = unicodedata.normalize("NFKD", chars)
                chars = "".join(char for char in chars if not unicodedata.combining(char))
            chars = chars.lower() if self.lowercase else chars
            cleaned.append(chars)
            origins += [match.span()] * len(chars)
        return "".join(cleaned), origins


class UnigramModel:
    """Text to ids by a SentencePiece model.

    kind: "unigram".
    pieces: the vocabulary in the order of ids.
    """

    kind = "unigram"

    def __init__(self, model_bytes: bytes, albert: AlbertRules | None = None):
        self.model_bytes = model_bytes
        self.albert = albert
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        self._proto = sentencepiece_model_pb2.ModelProto.FromString(model_bytes)
        self.pieces = [piece.piece for piece in self._proto.pieces]
        self.special_ids = [
            i for i, piece in enumerate(self._proto.pieces) if piece.type in (_CONTROL, _UNKNOWN)
        ]
        self._comma_ids = frozenset(
            i for i, piece in enumerate(self.pieces) if _COMMA_AFTER_DIGIT(piece)
        )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        if self.albert is None:
            return self._processor.encode(list(texts))
        rows = self._processor.encode([self.albert.clean(text) for text in texts])
        return [row if self._comma_ids.isdisjoint(row) else self._cut_commas(row) for row in rows]

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids of each text, and the characters [start, stop) of each id."""
        return [self._encode_one_with_offsets(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens left out."""
        specials = set(self.special_ids)
        return self._processor.decode([i for i in map(int, ids) if i not in specials])

    def continuations(self) -> np.ndarray:
        """bool[size]: pieces that go on with the word before them."""
        return np.array([not piece.startswith(SPACE) for piece in self.pieces])

    def rules(self) -> dict:
        """What decides the ids."""
        normalizer = self._proto.normalizer_spec
        return {
            "model": int(self._proto.trainer_spec.model_type),
            "pieces": [[p.piece, struct.pack("<f", p.score).hex(), p.type]
                       for p in self._proto.pieces],
            "charsmap": hashlib.sha256(normalizer.precompiled_charsmap).hexdigest(),
            "dummy_prefix": normalizer.add_dummy_prefix,
            "extra_whitespaces": normalizer.remove_extra_whitespaces,
            "albert": self.albert and dataclasses.asdict(self.albert),
        }

    def library(self) -> tokenizers.Tokenizer:
        """The nearest pipeline of the `tokenizers` library, for transformers.

        Its ids are the same on ordinary text; SentencePiece's are the ones that count.
        """
        scores = [(piece.piece, piece.score) for piece in self._proto.pieces]
        unk = self._proto.trainer_spec.unk_id
        library = tokenizers.Tokenizer(models.Unigram(scores, unk_id=unk, byte_fallback=False))
        steps = []
        if self.albert is not None:
            steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
            if self.albert.strip_accents:
                steps += [normalizers.NFKD(), normalizers.StripAccents()]
            if self.albert.lowercase:
                steps.append(normalizers.Lowercase())
        steps.append(_precompiled(self._proto.normalizer_spec.precompiled_charsmap))
        library.normalizer = normalizers.Sequence(steps)
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
        )
        library.decoder = decoders.Metaspace(prepend_scheme="always")
        return library

    def _cut_commas(self, ids: Sequence[int]) -> list[int]:
        out: list[int] = []
        for i in ids:
            out += self._cut_comma(i) if i in self._comma_ids else [i]
        return out

    def _cut_comma(self, i: int) -> list[int]:
        piece = self.pieces[i]
        parts = self._processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
        if not piece.startswith(SPACE) and parts[0].startswith(SPACE):
            parts[0] = parts[0][1:]
        return self._processor.piece_to_id([part for part in parts if part] + [","])

    def _encode_one_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        if self.albert is None:
            found = self._processor.encode_as_offset_mapping(text)
            return found["ids"], found["offsets"]
        cleaned, origins = self.albert.clean_with_origins(text)
        found = self._processor.encode_as_offset_mapping(cleaned)
        ids, offsets = [], []
        for i, (start, stop) in zip(found["ids"], found["offsets"], strict=True):
            parts = self._cut_comma(i) if i in self._comma_ids else [i]
            for part in parts[:-1]:
                end = min(stop, start + len(self.pieces[part]))
                offsets.append((start, end))
                start = end
            offsets.append((start, stop))
            ids += parts
        return ids, [_origin(origins, start, stop) for start, stop in offsets]


def _origin(origins: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    if start >= len(origins):
        return (0, 0) if not origins else (origins[-1][1], origins[-1][1])
    return origins[start][0], origins[max(start, stop - 1)][1]


def _precompiled(charsmap: bytes) -> normalizers.Normalizer:
    spec = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    frame = json.loads(tokenizers.Tokenizer(models.BPE()).to_str()) | {"normalizer": spec}
    return tokenizers.Tokenizer.from_str(json.dumps(frame)).normalizer
