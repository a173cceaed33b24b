"""Encodes text with SentencePiece models, using the native library.

Supports ALBERT's text cleaning, the ids that fairseq assigns to pieces, and added tokens.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import tokenizers

from bertjax.data.tokenizers import (
    added_tokens,
    albert_rules,
    library_model,
    piece_bytes,
    sentencepiece_pipeline,
)
from bertjax.data.tokenizers.sentencepiece_proto import sentencepiece_model_pb2

SPACE = "\u2581"
_CONTROL = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
_NORMAL = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
_UNKNOWN = sentencepiece_model_pb2.ModelProto.SentencePiece.UNKNOWN
_COMMA_AFTER_DIGIT = re.compile(r".*\d,", re.DOTALL).fullmatch


class Layout(NamedTuple):
    """The assignment of ids to the pieces of a SentencePiece model.

    head, tail: additional pieces before and after those of the model.
    skipped: the number of pieces at the start of the model that are also in `head` and get their
        ids from there. They must be control or unknown pieces.
    unk: the piece of `head` for unknown text; "" means the model's own unknown piece.
    """

    head: tuple[str, ...] = ()
    skipped: int = 0
    tail: tuple[str, ...] = ()
    unk: str = ""


# fairseq puts its own special tokens before SentencePiece's pieces (transformers 4.57,
# models/xlm_roberta/tokenization_xlm_roberta.py and models/camembert/tokenization_camembert.py).
LAYOUTS = {
    "plain": Layout(),
    "xlm-roberta": Layout(("<s>", "<pad>", "</s>", "<unk>"), 3, ("<mask>",), "<unk>"),
    "camembert": Layout(
        ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1, ("<mask>",), "<unk>"
    ),
}


class UnigramModel:
    """Encodes text with a SentencePiece model.

    kind: "unigram".
    pieces: the vocabulary in id order, without T5's sentinels at its end.
    num_sentinels: the number of added sentinels; <extra_id_0> is the last one.
    layout: a key of LAYOUTS.
    added: {id: added token}; ids above the pieces must follow the pieces without a gap.
    prefix_once: matters only if the model prepends a space to a text. If true, it does so only at
        the start of the text; if false, also after each special token. Always false if an added
        token is not special, because the text after such a token is encoded as a new text.
    Raises ValueError if the added tokens or the layout do not fit the model.
    """

    kind = "unigram"

    def __init__(
        self,
        model_bytes: bytes,
        albert: albert_rules.AlbertRules | None = None,
        *,
        layout: str = "plain",
        added: added_tokens.Added | None = None,
        prefix_once: bool = True,
    ):
        self.model_bytes = model_bytes
        self.albert = albert
        self.layout = layout
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        self._proto = sentencepiece_model_pb2.ModelProto.FromString(model_bytes)
        self._ids = _ids_of_pieces(self._proto, LAYOUTS[layout])
        head, skipped, tail, _ = LAYOUTS[layout]
        base = [piece for piece, _ in _scores(self._proto, LAYOUTS[layout])]
        pieces = _extended(base, added or {})
        self.num_sentinels = library_model.count_sentinels(pieces[len(base) :])
        self.pieces = pieces[: len(pieces) - self.num_sentinels]
        self.added = {i: t for i, t in (added or {}).items() if i < len(self.pieces)}
        self.special_ids = sorted(
            {
                self._ids[i]
                for i, piece in enumerate(self._proto.pieces)
                if piece.type in (_CONTROL, _UNKNOWN)
            }
            | {*range(len(head)), *range(len(base) - len(tail), len(base))}
            | {i for i, token in self.added.items() if token.special}
        )
        self._comma_ids = frozenset(
            i for i, piece in enumerate(self._proto.pieces) if _COMMA_AFTER_DIGIT(piece.piece)
        )
        self._num_base = len(base)
        self._model_index = {i: n for n, i in enumerate(self._ids) if n >= skipped}
        text_tokens = [(i, token) for i, token in self.added.items() if not token.special]
        self.prefix_once = prefix_once and not text_tokens
        self._splitter = (
            added_tokens.Splitter(text_tokens, self._plain_library().normalizer)
            if text_tokens
            else None
        )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens."""
        if self._splitter is None:
            return self._encode_plain(texts)
        cuts = [self._splitter.split(text) for text in texts]
        plain = iter(
            self._encode_plain(
                [
                    text[start:stop]
                    for text, parts in zip(texts, cuts, strict=True)
                    for start, stop, i in parts
                    if i < 0
                ]
            )
        )
        return [
            list(itertools.chain.from_iterable(next(plain) if i < 0 else [i] for *_, i in parts))
            for parts in cuts
        ]

    def encode_behind(self, text: str) -> list[int]:
        """Returns the ids of a text that follows a special token; see `prefix_once`."""
        rules = self._proto.normalizer_spec
        suffix = self._proto.trainer_spec.treat_whitespace_as_suffix
        if not self.prefix_once or not rules.add_dummy_prefix or suffix:
            return self.encode_batch([text])[0]
        table = sentencepiece.SentencePieceNormalizer(
            normalizer_spec=rules.SerializeToString(),
            add_dummy_prefix=False,
            escape_whitespaces=False,
            remove_extra_whitespaces=False,
        )
        spaced = (text if self.albert else table.normalize(text))[:1].isspace()
        if spaced and rules.remove_extra_whitespaces:
            return self.encode_batch([text])[0]
        return self._unprefixed.encode_batch([text])[0]

    def special_tokens(self) -> dict[int, tokenizers.AddedToken]:
        """Returns {id: special token}, for added tokens only."""
        return {i: token for i, token in self.added.items() if token.special}

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and the character span [start, stop) of each id."""
        return [self._encode_one_with_offsets(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids; skips special tokens."""
        specials = set(self.special_ids)
        text_ids = [i for i in map(int, ids) if i not in specials]
        parts: list[str] = []
        for in_model, group in itertools.groupby(text_ids, self._model_index.__contains__):
            run = list(group)
            if not in_model:
                parts += [self.pieces[i] for i in run]
                continue
            space = " " if parts and self.pieces[run[0]].startswith(SPACE) else ""
            parts.append(space + self._processor.decode([self._model_index[i] for i in run]))
        return "".join(parts)

    def readable(self, i: int) -> str:
        """Returns the piece in readable form, see `Tokenizer.readable`."""
        return self.pieces[i]

    def continuations(self) -> np.ndarray:
        """Returns bool[size]: true for pieces that continue the word before them."""
        pieces = enumerate(self.pieces)
        return np.array([not p.startswith(SPACE) and i < self._num_base for i, p in pieces])

    def token_bytes(self) -> np.ndarray:
        """Returns int[size]: the bytes of text that each piece stands for, see `piece_bytes`."""
        byte_fallback = self._proto.trainer_spec.byte_fallback
        return piece_bytes.of_sentencepiece(self.pieces, byte_fallback=byte_fallback)

    def rules(self) -> dict:
        """Returns the rules that determine the ids, for the fingerprint."""
        normalizer = self._proto.normalizer_spec
        rules = {
            "model": int(self._proto.trainer_spec.model_type),
            "pieces": [
                [p.piece, struct.pack("<f", p.score).hex(), p.type] for p in self._proto.pieces
            ],
            "charsmap": hashlib.sha256(normalizer.precompiled_charsmap).hexdigest(),
            "dummy_prefix": normalizer.add_dummy_prefix,
            "extra_whitespaces": normalizer.remove_extra_whitespaces,
            "albert": self.albert and dataclasses.asdict(self.albert),
        }
        # The first fingerprints did not include these keys. They are added only if they differ from
        # the default, so that old fingerprints stay valid.
        if self.layout != "plain":
            rules["layout"] = self.layout
        added = [
            [i, t.content, t.special, t.single_word, t.lstrip, t.rstrip, t.normalized]
            for i, t in sorted(self.added.items())
            if i >= self._num_base or not t.special
        ]
        if added:
            rules["added"] = added
        return rules

    def normalized(self, text: str) -> str:
        """Returns the text after cleaning and normalisation, the form that is split into pieces."""
        return self._processor.normalize(self.albert.clean(text) if self.albert else text)

    def options(self) -> dict[str, Any]:
        """Returns the entries for tokenizer_config.json in a folder without tokenizer.json."""
        entries = {str(i): added_tokens.entry(token) for i, token in self.added.items()}
        options = {added_tokens.DECODER: entries} if entries else {}
        return options if self.prefix_once else options | {library_model.PREPEND: "always"}

    def library(self) -> tokenizers.Tokenizer:
        """Returns a pipeline of the `tokenizers` library with the same ids, for transformers.

        Raises `sentencepiece_pipeline.NotRepeatable` if there is no such pipeline.
        """
        library = self._plain_library()
        added_tokens.declare(library, self.added, "the tokenizer")
        return library

    @functools.cached_property
    def _unprefixed(self) -> "UnigramModel":
        """The same model, except that it prepends no space to a text."""
        proto = sentencepiece_model_pb2.ModelProto.FromString(self.model_bytes)
        proto.normalizer_spec.add_dummy_prefix = False
        return UnigramModel(proto.SerializeToString(), self.albert, layout=self.layout)

    def _plain_library(self) -> tokenizers.Tokenizer:
        """Returns the pipeline of `library`, but without added tokens."""
        return sentencepiece_pipeline.build(
            self._proto,
            self.albert,
            pieces=self.pieces[: self._num_base],
            ids=self._ids,
            prefix_once=self.prefix_once,
            cut=any(token.normalized and not token.special for token in self.added.values()),
        )

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of texts, without looking for added tokens in them."""
        if self.albert is None:
            rows = self._processor.encode(list(texts))
        else:
            rows = self._processor.encode([self.albert.clean(text) for text in texts])
            rows = [r if self._comma_ids.isdisjoint(r) else self._cut_commas(r) for r in rows]
        return rows if self.layout == "plain" else [self._renumbered(row) for row in rows]

    def _renumbered(self, row: Sequence[int]) -> list[int]:
        return [self._ids[i] for i in row]

    def _cut_commas(self, ids: Sequence[int]) -> list[int]:
        cut_ids: list[int] = []
        for i in ids:
            cut_ids += self._cut_comma(i) if i in self._comma_ids else [i]
        return cut_ids

    def _cut_comma(self, i: int) -> list[int]:
        piece = self._proto.pieces[i].piece
        parts = self._processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
        if not piece.startswith(SPACE) and parts[0].startswith(SPACE):
            parts[0] = parts[0][1:]
        return self._processor.piece_to_id([part for part in parts if part] + [","])

    def _encode_one_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        parts = [(0, len(text), -1)] if self._splitter is None else self._splitter.split(text)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for start, stop, i in parts:
            if i >= 0:
                ids.append(i)
                offsets.append((start, stop))
                continue
            piece_ids, spans = self._encode_plain_with_offsets(text[start:stop])
            ids += self._renumbered(piece_ids)
            offsets += [(start + first, start + last) for first, last in spans]
        return ids, offsets

    def _encode_plain_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids and the character spans of the pieces; does not look for added tokens.

        The ids are those of the SentencePiece model, before `layout` changes them.
        """
        if self.albert is None:
            mapping = self._processor.encode_as_offset_mapping(text)
            return mapping["ids"], mapping["offsets"]
        cleaned, origins = self.albert.clean_with_origins(text)
        mapping = self._processor.encode_as_offset_mapping(cleaned)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for i, (start, stop) in zip(mapping["ids"], mapping["offsets"], strict=True):
            parts = self._cut_comma(i) if i in self._comma_ids else [i]
            for part in parts[:-1]:
                end = min(stop, start + len(self._proto.pieces[part].piece))
                offsets.append((start, end))
                start = end
            offsets.append((start, stop))
            ids += parts
        return ids, [_origin(origins, start, stop) for start, stop in offsets]


def _ids_of_pieces(proto: sentencepiece_model_pb2.ModelProto, layout: Layout) -> list[int]:
    """Returns the id of each piece of the model. Raises ValueError if the layout does not fit."""
    head, skipped, _, unk = layout
    for piece in proto.pieces[:skipped]:
        if piece.piece not in head or piece.type not in (_CONTROL, _UNKNOWN):
            raise ValueError(
                f"its first {skipped} pieces must be special, as in models of fairseq, but one is "
                f"{piece.piece!r}"
            )
    model_ids = range(len(head), len(head) + len(proto.pieces) - skipped)
    ids = [*(head.index(piece.piece) for piece in proto.pieces[:skipped]), *model_ids]
    if unk:
        for i, piece in enumerate(proto.pieces):
            if piece.type == _UNKNOWN:
                ids[i] = head.index(unk)
    return ids


def _scores(
    proto: sentencepiece_model_pb2.ModelProto, layout: Layout
) -> list[tuple[str, float]]:
    """Returns (piece, score) for every piece of the layout, in id order."""
    head, skipped, tail, _ = layout
    model_scores = [(piece.piece, piece.score) for piece in proto.pieces[skipped:]]
    return [*((piece, 0.0) for piece in head), *model_scores, *((piece, 0.0) for piece in tail)]


def _extended(pieces: list[str], added: added_tokens.Added) -> list[str]:
    """Returns the pieces followed by the added tokens.

    Raises ValueError if the id of an added token leaves a gap or conflicts with a piece.
    """
    extended = list(pieces)
    ids = {piece: i for i, piece in enumerate(pieces)}
    for i, token in sorted(added.items()):
        name = f"the added token {token.content!r} has id {i}"
        if i > len(extended):
            raise ValueError(f"{name}, but no token has id {len(extended)}")
        if ids.get(token.content, i) != i:
            raise ValueError(
                f"{name}, but this token is already the piece with id {ids[token.content]}"
            )
        if i == len(extended):
            extended.append(token.content)
        elif extended[i] != token.content:
            raise ValueError(f"{name}, which is already the id of {extended[i]!r}")
    return extended


def _origin(origins: list[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    if start >= len(origins):
        return (0, 0) if not origins else (origins[-1][1], origins[-1][1])
    return origins[start][0], origins[max(start, stop - 1)][1]


def pieces_of(model_bytes: bytes, layout: str) -> list[str]:
    """Returns the pieces of a SentencePiece model in id order.

    Raises ValueError if the layout does not fit the model.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(model_bytes)
    _ids_of_pieces(proto, LAYOUTS[layout])
    return [piece for piece, _ in _scores(proto, LAYOUTS[layout])]


def same_scores(model_bytes: bytes, layout: str, scores: Sequence[float]) -> bool:
    """Returns whether the pieces of type NORMAL have these scores.

    Ignores pieces that end in a digit and a comma: transformers lowers their scores for ALBERT.
    scores: the scores to compare with, in id order.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(model_bytes)
    head, skipped, *_ = LAYOUTS[layout]
    pairs = zip(proto.pieces[skipped:], scores[len(head) :], strict=False)
    return all(
        abs(piece.score - score) <= 1e-4 * max(1, abs(score))
        for piece, score in pairs
        if piece.type == _NORMAL and not _COMMA_AFTER_DIGIT(piece.piece)
    )
