"""Builds the pipeline of the `tokenizers` library that reproduces a SentencePiece model's ids.

transformers reads this pipeline from tokenizer.json. The reference is native SentencePiece; the
pipeline reproduces its ids in these steps:

    clean      ALBERT's `preprocess_text`, if the model has it
    normalize  the model's character table, applied to the units that SentencePiece matches
    space      merges, strips and prepends spaces, as the model defines
    segment    Unigram or BPE, applied to each word, or to the whole text if pieces span words

Raises NotRepeatable for models of words, because they encode a run of unknown words as one unknown
piece. Raises it also for models with a user-defined symbol that their own character table changes.
NOTE: character tables are assumed to be close to NFKC; this is not checked.
"""

import functools
import re
import sys
import unicodedata
from collections.abc import Sequence

import sentencepiece
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from bertjax import errors
from bertjax.data.tokenizers.sentencepiece_proto import sentencepiece_model_pb2

SPACE = "\u2581"
_PIECE = sentencepiece_model_pb2.ModelProto.SentencePiece
_TRAINER = sentencepiece_model_pb2.TrainerSpec
_TYPES = {_TRAINER.UNIGRAM: "unigram", _TRAINER.BPE: "bpe", _TRAINER.CHAR: "char"}

# The score of pieces that are not in the model: too low for any text to contain them.
_LOWEST_SCORE = -100.0
_FINAL_SPACES = rf"[ {SPACE}]+\z"
# A code point that separates units inside the normalizer. No character is assigned to it, it is
# never part of a longer grapheme, and normalization never composes or reorders it.
_BREAK = "\ufff0"
# The library looks up such a character and the one before it as one unit. If the table contains the
# one before it, such a character would be lost. A _BREAK between the two prevents this.
_JOINING = "\\p{M}\u200c\u200d\uff9e\uff9f\U0001f3fb-\U0001f3ff\u1160-\u11ff\n"


class NotRepeatable(errors.UserError):
    """Raised for a model whose ids no pipeline of the `tokenizers` library can reproduce."""


def build(
    proto: sentencepiece_model_pb2.ModelProto,
    albert: object | None,
    *,
    pieces: Sequence[str],
    ids: Sequence[int],
    prefix_once: bool,
    cut: bool = False,
) -> tokenizers.Tokenizer:
    """Returns the pipeline for the SentencePiece model `proto`.

    albert: `albert_rules.AlbertRules`, or None.
    pieces: the vocabulary in id order. ids: the ids of the pieces of `proto`, in the order in which
    `proto` lists them.
    prefix_once: see `sentencepiece_model.UnigramModel`.
    cut: whether texts will be split at added tokens after normalisation.
    Raises NotRepeatable if there is no such pipeline; the message does not name the file.
    """
    library = tokenizers.Tokenizer(_model(proto, pieces, ids))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    _check_symbols(proto)
    spaces, splitters = _spaces(proto, prefix_once=prefix_once, cut=cut)
    library.normalizer = normalizers.Sequence(
        [*(_albert(albert) if albert else []), *(_table(charsmap) if charsmap else []), *spaces]
    )
    if albert is not None:  # split off a comma after a number
        splitters.append(pre_tokenizers.Split(Regex(r"(?<=\d),(?!\d)"), "isolated"))
    library.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    library.decoder = _decoder(proto)
    return library


def _check_symbols(proto: sentencepiece_model_pb2.ModelProto) -> None:
    """Raises NotRepeatable if the model's character table changes a user-defined symbol."""
    spec = proto.normalizer_spec.SerializeToString()
    table = sentencepiece.SentencePieceNormalizer(
        normalizer_spec=spec, add_dummy_prefix=False, escape_whitespaces=False
    )
    for piece in proto.pieces:
        text = piece.piece
        if piece.type == _PIECE.USER_DEFINED and table.normalize(text.strip(SPACE)) != text.strip(
            SPACE
        ):
            raise NotRepeatable(
                f"the symbol {text!r} of this SentencePiece model is changed by the model's own "
                "normalization, which transformers always applies: train the model with a symbol "
                f"that it does not change, such as {table.normalize(text)!r}"
            )


def _model(
    proto: sentencepiece_model_pb2.ModelProto, pieces: Sequence[str], ids: Sequence[int]
) -> models.Model:
    trainer = proto.trainer_spec
    unk = ids[trainer.unk_id]
    kind = _TYPES.get(trainer.model_type)
    if kind is None:
        raise NotRepeatable(
            "a SentencePiece model of words cannot be exported to transformers, which has no "
            "unknown piece that spans several words"
        )
    if kind == "unigram":
        scores = dict(zip(ids, (_score(piece, proto) for piece in proto.pieces), strict=True))
        pairs = [(piece, scores.get(i, _LOWEST_SCORE)) for i, piece in enumerate(pieces)]
        return models.Unigram(pairs, unk, byte_fallback=trainer.byte_fallback)
    return models.BPE(
        {piece: i for i, piece in enumerate(pieces)},
        _merges(proto) if kind == "bpe" else [],
        unk_token=pieces[unk],
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
        ignore_merges=any(piece.type == _PIECE.USER_DEFINED for piece in proto.pieces),
    )


def _score(piece, proto) -> float:
    if piece.type != _PIECE.USER_DEFINED:
        return piece.score
    best = max(p.score for p in proto.pieces if p.type == _PIECE.NORMAL)
    return len(piece.piece.encode()) * best - 0.1


def _merges(proto: sentencepiece_model_pb2.ModelProto) -> list[tuple[str, str]]:
    """Returns each pair of pieces whose concatenation is a piece too.

    The pairs are sorted by the score of that piece, best first.
    """
    scores = {p.piece: p.score for p in proto.pieces if p.type == _PIECE.NORMAL}
    pairs = []
    for piece in sorted(scores, key=scores.get, reverse=True):
        cuts = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        pairs += [(a, b) for a, b in cuts if a in scores and b in scores]
    return pairs


def _albert(rules) -> list[normalizers.Normalizer]:
    steps = [
        normalizers.Replace(Regex(r"[\t-\r\x1c-\x1f\x85\p{Z}]+"), " "),
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if rules.strip_accents:
        marks = _ranges([i for i in range(sys.maxunicode + 1) if unicodedata.combining(chr(i))])
        steps += [normalizers.NFKD(), *_removed(marks)]
    if rules.lowercase:
        # Matches a sigma at the end of a word, to lowercase it as str.lower() does.
        final_sigma = "\\p{Cased}\\p{Case_Ignorable}*\\K\u03a3(?!\\p{Case_Ignorable}*\\p{Cased})"
        steps += [normalizers.Replace(Regex(final_sigma), "\u03c2"), normalizers.Lowercase()]
    return steps


def _removed(characters: str) -> list[normalizers.Normalizer]:
    """Returns steps that remove the characters of a regex class.

    At the start of a text, the steps replace them with a space. NOTE: if a step removed the
    first character of a text, the library would lose the start of the text and its table would
    panic. The space is harmless, because it merges with the space prepended to the text.
    """
    return [
        normalizers.Replace(Regex(rf"\A[{characters}]+"), " "),
        normalizers.Replace(Regex(f"[{characters}]"), ""),
    ]


@functools.cache
def _controls() -> list[int]:
    """Returns the code points of all control and format characters."""
    code_points = range(1, sys.maxunicode + 1)
    return [i for i in code_points if unicodedata.category(chr(i)) in ("Cc", "Cf")]


def _table(charsmap: bytes) -> list[normalizers.Normalizer]:
    """Returns the steps that apply the model's character table.

    The library looks up single characters only, but the table also replaces sequences of several
    characters, namely those that NFKC composes. The steps of `_composed`, which come first, replace
    these sequences.
    """
    spec = sentencepiece_model_pb2.NormalizerSpec(precompiled_charsmap=charsmap)
    table = sentencepiece.SentencePieceNormalizer(
        normalizer_spec=spec.SerializeToString(),
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    dropped = [i for i in _controls() if table.normalize(chr(i)) == ""]
    return [
        *_composed(charsmap),
        *(_removed(_ranges(dropped)) if dropped else []),
        normalizers.Replace(Regex(f"(?<=(?m:.))(?=[{_JOINING}])"), _BREAK),
        normalizers.Precompiled(charsmap),
        normalizers.Replace(_BREAK, ""),
    ]


@functools.cache
def _composed(charsmap: bytes) -> tuple[normalizers.Normalizer, ...]:
    """Returns steps that compose letters with marks as the table does; other marks are unchanged.

    SentencePiece replaces the longest sequence that is in its table. NFKC would reorder and compose
    all marks after a letter, so a break is inserted after every sequence that is in the table.
    """
    spec = sentencepiece_model_pb2.NormalizerSpec(precompiled_charsmap=charsmap)
    table = sentencepiece.SentencePieceNormalizer(normalizer_spec=spec.SerializeToString())
    heads: dict[str, list[int]] = {}
    for text, _ in table.Decompile():
        if len(text) > 1 and all(unicodedata.category(mark)[0] == "M" for mark in text[1:]):
            heads.setdefault(text[1:], []).append(ord(text[0]))
    if not heads:
        return ()
    sequences = [
        f"[{_ranges(sorted(letters))}]" + "".join(_ranges([ord(mark)]) for mark in marks)
        for marks, letters in sorted(heads.items(), key=lambda pair: (-len(pair[0]), pair[0]))
    ]
    unit = rf"(?>{'|'.join(sequences)}|(?m:.))"
    boundary = rf"(?:\G|(?!\p{{M}}))(?=(?m:.)\p{{M}}){unit}\K(?=\p{{M}})"
    return normalizers.Replace(Regex(boundary), _BREAK), normalizers.NFKC()


def _spaces(proto, *, prefix_once: bool, cut: bool):
    rules, trainer = proto.normalizer_spec, proto.trainer_spec
    strip, prefix = rules.remove_extra_whitespaces, rules.add_dummy_prefix
    suffix = trainer.treat_whitespace_as_suffix
    once = prefix_once and prefix and not suffix
    steps = []
    if strip:
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
        if not once:
            steps += [normalizers.Replace(Regex(r"\A +"), "")]
        steps += [normalizers.Replace(Regex(_FINAL_SPACES), "")]
    if suffix or not (strip and prefix):
        steps += [normalizers.Replace(" ", SPACE)]
    if suffix and prefix:
        steps += [normalizers.Replace(Regex(r"(?<=(?m:.))\z"), SPACE)]
    # The text before an added token may still end with spaces.
    splitters = [pre_tokenizers.Split(Regex(_FINAL_SPACES), "removed")] if strip and cut else []
    scheme = "first" if once else "always"
    if prefix and not suffix:
        splitters += [pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=scheme, split=False)]
    names = [p.piece for p in proto.pieces if p.type in (_PIECE.NORMAL, _PIECE.USER_DEFINED)]
    inner = slice(None, -1) if suffix else slice(1, None)
    has_words = SPACE in names and not any(SPACE in name[inner] for name in names)
    if suffix:
        if has_words:
            splitters += [pre_tokenizers.Split(SPACE, "merged_with_previous")]
    else:
        splitters += [pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=has_words)]
    if trainer.byte_fallback and not any("<0" in name for name in names):
        # a text that contains the name of a byte piece, such as <0x41>, must not match that piece
        splitters += [pre_tokenizers.Split(Regex(r"(?<=<)(?=0x[0-9A-F]{2}>)"), "isolated")]
    symbols = [p.piece for p in proto.pieces if p.type == _PIECE.USER_DEFINED]
    if symbols and trainer.model_type != _TRAINER.UNIGRAM:
        patterns = sorted(map(re.escape, symbols), key=len, reverse=True)
        splitters += [pre_tokenizers.Split(Regex("|".join(patterns)), "isolated")]
    return steps, splitters


def _decoder(proto):
    rules, trainer = proto.normalizer_spec, proto.trainer_spec
    steps = [decoders.Replace(SPACE, " ")]
    if trainer.byte_fallback:
        steps += [decoders.ByteFallback()]
    steps += [decoders.Fuse()]
    if rules.add_dummy_prefix:
        sides = (
            {"left": 0, "right": 1}
            if trainer.treat_whitespace_as_suffix
            else {"left": 1, "right": 0}
        )
        steps += [decoders.Strip(content=" ", **sides)]
    return decoders.Sequence(steps)


def _ranges(points: list[int]) -> str:
    """Returns the inside of a regex character class that matches these code points (ascending)."""
    spans = []
    for point in points:
        if spans and spans[-1][1] == point - 1:
            spans[-1][1] = point
        else:
            spans.append([point, point])
    return "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" if a < b else rf"\x{{{a:x}}}" for a, b in spans)
