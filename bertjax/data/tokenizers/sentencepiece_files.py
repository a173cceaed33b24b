"""Reads a SentencePiece model, with the rules and tokens that the files beside it add."""

import itertools
import json
from typing import Any

import tokenizers
from etils import epath
from tokenizers import models, normalizers

from bertjax import errors
from bertjax.data.tokenizers import (
    added_tokens,
    albert_rules,
    sentencepiece_model,
    tokenizer_folder,
    vocabulary,
)
from bertjax.data.tokenizers.tokenizer_folder import Folder

SENTINEL = "<extra_id_{}>"
_PROBE = "A\u00c9\u0301b \u00c7d"  # reveals whether a normalizer lowercases or strips accents


def read(file: epath.Path, folder: Folder) -> sentencepiece_model.UnigramModel | None:
    """Returns the model in `file`; None if only the folder's tokenizer.json has the right ids.

    Raises UserError if the class has an option that is not supported.
    """
    data = file.read_bytes()
    albert, layout = _albert_rules(folder), folder.properties.layout
    if refusal := _unsupported_option(folder):
        if folder.pipeline:
            return None
        raise errors.UserError(
            f"{folder.path / tokenizer_folder.CONFIG}: {refusal} = true is not supported for "
            f"{folder.class_name}; save it from transformers as a fast tokenizer, with "
            f"{tokenizer_folder.PIPELINE}"
        )
    if folder.pipeline:
        layout = _common_layout(data, folder)
        if layout is None:
            return None
        if folder.properties.kind == "any" and folder.class_name:
            plain = sentencepiece_model.UnigramModel(data, albert, layout=layout)
            if _normalized(folder.pipeline) != _without_spaces(plain.normalized(_PROBE)):
                return None
    model = sentencepiece_model.UnigramModel(
        data,
        albert,
        layout=layout,
        added=_completed(folder, sentencepiece_model.pieces_of(data, layout)),
        prefix_once=folder.prefix_once,
    )
    if folder.pipeline and model.prefix_once != folder.prefix_once:  # added tokens make it False
        return None
    return model


def _albert_rules(folder: Folder) -> albert_rules.AlbertRules | None:
    """Returns ALBERT's cleaning if the class has it, or if the caller or the options request it.

    Folders written by bertjax have a generic class and request it by the option keep_accents.
    """
    options = folder.options
    has_rules = "keep_accents" in folder.properties.defaults or folder.overrides
    if folder.properties.kind == "any":
        has_rules = has_rules or options.keep_accents is not None
        has_rules = has_rules or (not folder.class_name and options.do_lower_case is not None)
    if not has_rules:
        return None
    return albert_rules.AlbertRules(
        lowercase=options.do_lower_case is not False, strip_accents=not options.keep_accents
    )


def _unsupported_option(folder: Folder) -> str:
    """Returns an option that is on in the folder and that its class refuses; "" if none is."""
    for name in folder.properties.unsupported:
        if getattr(folder.options, name) and name not in folder.overrides:
            return name
    return ""


def _common_layout(data: bytes, folder: Folder) -> str | None:
    """Returns the layout that makes the SentencePiece model's vocabulary equal tokenizer.json's.

    Ignores added tokens at the end of tokenizer.json. Returns None if the vocabularies differ.
    """
    vocab = folder.pipeline.get("model", {}).get("vocab", [])
    scores: list[float] = []
    if isinstance(vocab, dict):
        json_pieces = sorted(vocab, key=vocab.__getitem__)
    else:
        json_pieces, scores = [piece for piece, _ in vocab], [score for _, score in vocab]
    added = {token.content for token in folder.added.values()}
    for name in sentencepiece_model.LAYOUTS:
        try:
            model_pieces = sentencepiece_model.pieces_of(data, name)
        except ValueError:  # this layout is for models with other special pieces
            continue
        size = len(model_pieces)
        if json_pieces[:size] == model_pieces and added.issuperset(json_pieces[size:]):
            same = sentencepiece_model.same_scores(data, name, scores)
            return name if same or not scores else None
    return None


def _normalized(pipeline: dict[str, Any]) -> str:
    spec = pipeline.get("normalizer")
    return _without_spaces(_normalizer(spec).normalize_str(_PROBE) if spec else _PROBE)


def _normalizer(spec: dict[str, Any]) -> normalizers.Normalizer:
    frame = json.loads(tokenizers.Tokenizer(models.BPE()).to_str()) | {"normalizer": spec}
    return tokenizers.Tokenizer.from_str(json.dumps(frame)).normalizer


def _without_spaces(text: str) -> str:
    return text.replace(sentencepiece_model.SPACE, "").replace(" ", "")


def _completed(folder: Folder, pieces: list[str]) -> added_tokens.Added:
    """Returns the added tokens, and those that the class adds to `pieces`."""
    added = dict(_with_sentinels(folder, len(pieces)))
    contents = {*pieces, *(token.content for token in added.values())}
    for name in folder.properties.added:
        if name not in contents:
            free_id = next(i for i in itertools.count(len(pieces)) if i not in added)
            added[free_id] = tokenizers.AddedToken(name, special=True, normalized=False)
    return added


def _with_sentinels(folder: Folder, size: int) -> added_tokens.Added:
    """Returns the added tokens, and T5's sentinels if there is a gap for them below added ids."""
    above = [i for i in folder.added if i >= size]
    count = folder.options.extra_ids or vocabulary.NUM_SENTINELS
    if not above or min(above) != size + count:
        return folder.added
    names = (SENTINEL.format(n) for n in reversed(range(count)))
    sentinels = {
        i: tokenizers.AddedToken(name, special=True, normalized=False)
        for i, name in enumerate(names, start=size)
    }
    return dict(folder.added) | sentinels
