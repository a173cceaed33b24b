"""Writes a tokenizer in every file form that its kind has, so that transformers loads it too.

What transformers puts around a text depends on the model that the tokenizer is saved with:

    encoder            [CLS] text [SEP]    the roles that the vocabulary has; T5's: text </s>
    decoder            text
    encoder_decoder    text </s>           eos, or sep where there is none; sentinels are declared

A model that was fine-tuned says itself what it reads (`data.tokenizers.special_tokens`).
"""

import json
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from bertjax.data.tokenizers import (
    library_model,
    sentencepiece_model,
    sentencepiece_pipeline,
    tokenizer_files,
    vocabulary,
)


class Ends(NamedTuple):
    """Ids of the special tokens in front of a text, between two, and behind the last one."""

    head: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()


def encoder_ends(cls: int, sep: int, *, between: int = 1) -> Ends:
    """[CLS] A [SEP] B [SEP], with so many [SEP] between; without those that are -1."""
    tail = (sep,) if sep >= 0 else ()
    return Ends((cls,) if cls >= 0 else (), tail * between, tail)


def contents(
    model: tokenizer_files.Model,
    names: dict[str, str],
    sentinels: np.ndarray,
    *,
    kind: str,
    token_types: bool,
    max_length: int | None,
    ends: Ends | None,
    exported: bool,
) -> dict[str, bytes]:
    """File name -> bytes of every form; transformers loads the folder, 4 and 5 alike.

    names: role -> piece. sentinels: their ids. kind, token_types, max_length, ends: of the model
    that the tokenizer is for, see `Tokenizer.save`.
    exported: raise UserError if transformers cannot repeat the ids, instead of leaving out
        tokenizer.json.
    """
    special_tokens = {f"{role}_token": piece for role, piece in names.items()}
    inputs = ["input_ids", *["token_type_ids"] * token_types, "attention_mask"]
    config = special_tokens | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    if kind == "encoder_decoder" or len(sentinels) != vocabulary.NUM_SENTINELS:
        config["extra_ids"] = len(sentinels)
    files = {}
    if model.kind == "bytes":
        config |= model.options()
    elif (library := _library(model, names, exported=exported)) is None:
        config |= _class_options(model, {}, kind) | model.options()
        files = _vocabulary_files(model, {})
    else:
        if kind == "encoder_decoder":
            _declare(library, sentinels, lstrip=model.kind in library_model.SPACE)
        _put(library, names, ends, kind=kind, token_types=token_types)
        pipeline = json.loads(library.to_str())
        config |= _class_options(model, pipeline, kind)
        files = _vocabulary_files(model, pipeline) | {"tokenizer.json": _json(pipeline)}
    return files | {
        tokenizer_files.CONFIG: _json(config),
        "special_tokens_map.json": _json(special_tokens),
    }


def _library(
    model: tokenizer_files.Model, names: dict[str, str], *, exported: bool
) -> tokenizers.Tokenizer | None:
    if isinstance(model, sentencepiece_model.UnigramModel):
        options = tokenizer_files.Options(names=tuple(names.items()))
        try:
            return tokenizer_files.finish(model.library(), options)
        except sentencepiece_pipeline.NotRepeatable:
            if exported or model.layout != "plain":  # a layout is told by tokenizer.json only
                raise
            return None
    return tokenizers.Tokenizer.from_str(json.dumps(model.pipeline))


def _declare(library: tokenizers.Tokenizer, sentinels: np.ndarray, *, lstrip: bool) -> None:
    """The sentinels above the pieces as special tokens, which the library numbers in turn.

    lstrip: they take the space before them, as the pieces that they stand for do.
    """
    by_id = {int(i): tokenizer_files.SENTINEL.format(n) for n, i in enumerate(sentinels)}
    new = sorted(i for i in by_id if i >= library.get_vocab_size())
    library.add_special_tokens([AddedToken(by_id[i], special=True, lstrip=lstrip) for i in new])


def _put(
    library: tokenizers.Tokenizer,
    names: dict[str, str],
    ends: Ends | None,
    *,
    kind: str,
    token_types: bool,
) -> None:
    """Makes the library put `ends` around texts, or what the kind of model has.

    What an encoder's tokenizer came with stays where nobody says better, or where it does the same:
    it may know more, as RoBERTa's does of the spaces in front of words.
    """
    if ends is not None:
        if not _puts(library, ends, token_types=token_types):
            library.post_processor = _template(library, ends, token_types=token_types)
        return
    usual = _template(library, _ends(library, names, kind), token_types=True)  # of no known model
    found = library.post_processor
    if kind != "encoder" or found is None or repr(found) == repr(usual):
        # RoBERTa, which has no token types, parts a pair with two of them.
        roberta = names.get("cls") == "<s>" and not token_types
        ends = _ends(library, names, kind, between=1 + roberta)
        library.post_processor = _template(library, ends, token_types=token_types)


def _puts(library: tokenizers.Tokenizer, ends: Ends, *, token_types: bool) -> bool:
    """Whether the library does so already."""
    a, b = (library.encode(text, add_special_tokens=False) for text in "ab")
    one, two = library.post_process(a), library.post_process(a, b)
    first = [*ends.head, *a.ids, *ends.between]
    second = [*b.ids, *ends.tail]
    types = [0] * len(first) + [int(token_types)] * len(second)
    alone = [*ends.head, *a.ids, *ends.tail]
    return (one.ids, two.ids, two.type_ids) == (alone, first + second, types)


def _ends(
    library: tokenizers.Tokenizer, names: dict[str, str], kind: str, *, between: int = 1
) -> Ends:
    def number(*roles: str) -> int:
        return next((library.token_to_id(names[role]) for role in roles if role in names), -1)

    if kind == "decoder":
        return Ends()
    if kind == "encoder_decoder":
        return encoder_ends(-1, number("eos", "sep"))
    return encoder_ends(number("cls"), number("sep"), between=between)


def _template(
    library: tokenizers.Tokenizer, ends: Ends, *, token_types: bool
) -> processors.PostProcessor | None:
    if not any(ends):
        return None
    tokens = {i: library.id_to_token(i) for part in ends for i in part}
    # In a template a colon and a dollar sign have a meaning of their own.
    names = {i: f"token {i}" if {*piece} & {*":$"} else piece for i, piece in tokens.items()}

    def typed(part: tuple[int, ...], number: int) -> list[str]:
        return [f"{names[i]}:{number}" for i in part]

    second = int(token_types)
    return processors.TemplateProcessing(
        single=[*typed(ends.head, 0), "$A:0", *typed(ends.tail, 0)],
        pair=[
            *typed(ends.head, 0),
            "$A:0",
            *typed(ends.between, 0),
            f"$B:{second}",
            *typed(ends.tail, second),
        ],
        special_tokens=[
            {"id": names[i], "ids": [i], "tokens": [piece]} for i, piece in tokens.items()
        ],
    )


def _class_options(model: tokenizer_files.Model, pipeline: dict, kind: str) -> dict:
    """What tokenizer_config.json says of the rules, and the class where transformers has one."""
    options, name = {}, None
    normalizer = pipeline.get("normalizer") or {}
    if isinstance(model, sentencepiece_model.UnigramModel):
        if model.albert is not None:
            options = {
                "do_lower_case": model.albert.lowercase,
                "keep_accents": not model.albert.strip_accents,
                "remove_space": True,
            }
    elif model.kind == "bpe":
        cutter = model.spec["pre_tokenizer"] or {}
        options = {
            "add_prefix_space": bool(cutter.get("add_prefix_space")),
            "do_lower_case": normalizer.get("type") == "Lowercase",
        }
    elif normalizer.get("type") == "BertNormalizer":
        name = "BertTokenizer"
        options = {
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    # These classes make a pipeline of their own, with an encoder's ends.
    return options | ({"tokenizer_class": name} if name and kind == "encoder" else {})


def _vocabulary_files(model: tokenizer_files.Model, pipeline: dict) -> dict[str, bytes]:
    if isinstance(model, sentencepiece_model.UnigramModel):
        return {"spiece.model": model.model_bytes}
    if model.kind == "wordpiece":
        return {"vocab.txt": "".join(f"{piece}\n" for piece in model.pieces).encode()}
    if model.kind == "bpe":
        pairs = library_model.merges(pipeline["model"])
        lines = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
        return {
            "vocab.json": _json(pipeline["model"]["vocab"]),
            "merges.txt": "".join(f"{line}\n" for line in ["#version: 0.2", *lines]).encode(),
        }
    return {}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
