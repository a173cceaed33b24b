"""Writes a tokenizer in every file form of its kind, so that transformers can load it too.

The special tokens that transformers adds to a text depend on the model that the tokenizer is for:

    encoder            [CLS] text [SEP]    omits missing tokens: with T5's vocabulary, text </s>
    decoder            text
    encoder_decoder    text </s>           </s> is eos, or sep if there is no eos

For an encoder_decoder, the sentinels are declared too. For a fine-tuned model, the special tokens
are those around its inputs (`data.tokenizers.special_tokens`).
"""

import json

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from bertjax.data.tokenizers import (
    library_model,
    sentencepiece_model,
    sentencepiece_pipeline,
    special_tokens,
    tokenizer_files,
    vocabulary,
)


def contents(
    model: tokenizer_files.Model,
    names: dict[str, str],
    sentinels: np.ndarray,
    *,
    kind: str,
    token_types: bool,
    max_length: int | None,
    ends: special_tokens.Ends | None,
    exported: bool,
) -> dict[str, bytes]:
    """Returns {file name: content} for every form, for transformers 4 and 5.

    names: {role: piece}. sentinels: their ids. kind, token_types, max_length, ends: properties of
        the model that the tokenizer is for, see `Tokenizer.save`.
    exported: what to do if transformers cannot reproduce the ids: raise UserError if true, omit
        tokenizer.json if false.
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
            _declare_sentinels(library, sentinels, lstrip=model.kind in library_model.SPACE)
        _set_post_processor(library, names, ends, kind=kind, token_types=token_types)
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
            if exported or model.layout != "plain":  # only tokenizer.json records a layout
                raise
            return None
    return tokenizers.Tokenizer.from_str(json.dumps(model.pipeline))


def _declare_sentinels(
    library: tokenizers.Tokenizer, sentinels: np.ndarray, *, lstrip: bool
) -> None:
    """Adds the sentinels above the pieces as special tokens; the library numbers them in order.

    lstrip: whether a sentinel includes the space before it, like the pieces that it replaces.
    """
    by_id = {int(i): tokenizer_files.SENTINEL.format(n) for n, i in enumerate(sentinels)}
    new = sorted(i for i in by_id if i >= library.get_vocab_size())
    library.add_special_tokens([AddedToken(by_id[i], special=True, lstrip=lstrip) for i in new])


def _set_post_processor(
    library: tokenizers.Tokenizer,
    names: dict[str, str],
    ends: special_tokens.Ends | None,
    *,
    kind: str,
    token_types: bool,
) -> None:
    """Sets the library's post-processor, which adds special tokens around texts.

    The new post-processor adds `ends` or, if `ends` is None, the usual tokens of `kind`. But an
    existing post-processor may do more than add tokens: RoBERTa's also handles the spaces before
    words. Therefore the existing post-processor is kept in two cases:
      - `ends` is not None, and the existing post-processor already adds these tokens.
      - `ends` is None, `kind` is "encoder", and the existing post-processor is not the generic one.
    """
    if ends is not None:
        if not _adds(library, ends, token_types=token_types):
            library.post_processor = _template(library, ends, token_types=token_types)
        return
    generic = _template(library, _ends(library, names, kind), token_types=True)
    current = library.post_processor
    if kind != "encoder" or current is None or repr(current) == repr(generic):
        # RoBERTa, which has no token types, separates a pair by two </s>.
        roberta = names.get("cls") == "<s>" and not token_types
        ends = _ends(library, names, kind, between=1 + roberta)
        library.post_processor = _template(library, ends, token_types=token_types)


def _adds(library: tokenizers.Tokenizer, ends: special_tokens.Ends, *, token_types: bool) -> bool:
    """Returns whether the library already adds `ends` and these token types."""
    a, b = (library.encode(text, add_special_tokens=False) for text in "ab")
    single, pair = library.post_process(a), library.post_process(a, b)
    first = [*ends.head, *a.ids, *ends.between]
    second = [*b.ids, *ends.tail]
    types = [0] * len(first) + [int(token_types)] * len(second)
    expected = [*ends.head, *a.ids, *ends.tail]
    return (single.ids, pair.ids, pair.type_ids) == (expected, first + second, types)


def _ends(
    library: tokenizers.Tokenizer, names: dict[str, str], kind: str, *, between: int = 1
) -> special_tokens.Ends:
    def token_id(*roles: str) -> int:
        return next((library.token_to_id(names[role]) for role in roles if role in names), -1)

    if kind == "decoder":
        return special_tokens.Ends()
    if kind == "encoder_decoder":
        return special_tokens.encoder_ends(-1, token_id("eos", "sep"))
    return special_tokens.encoder_ends(token_id("cls"), token_id("sep"), between=between)


def _template(
    library: tokenizers.Tokenizer, ends: special_tokens.Ends, *, token_types: bool
) -> processors.PostProcessor | None:
    if not any(ends):
        return None
    tokens = {i: library.id_to_token(i) for part in ends for i in part}
    # Colons and dollar signs have a special meaning in a template.
    names = {i: f"token {i}" if {*piece} & {*":$"} else piece for i, piece in tokens.items()}

    def part_template(part: tuple[int, ...], type_id: int) -> list[str]:
        return [f"{names[i]}:{type_id}" for i in part]

    second_type = int(token_types)
    return processors.TemplateProcessing(
        single=[*part_template(ends.head, 0), "$A:0", *part_template(ends.tail, 0)],
        pair=[
            *part_template(ends.head, 0),
            "$A:0",
            *part_template(ends.between, 0),
            f"$B:{second_type}",
            *part_template(ends.tail, second_type),
        ],
        special_tokens=[
            {"id": names[i], "ids": [i], "tokens": [piece]} for i, piece in tokens.items()
        ],
    )


def _class_options(model: tokenizer_files.Model, pipeline: dict, kind: str) -> dict:
    """Returns the entries of tokenizer_config.json for the text rules (case, accents, spaces).

    They include the tokenizer class if it is not the generic one.
    """
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
        pre_tokenizer = model.spec["pre_tokenizer"] or {}
        options = {
            "add_prefix_space": bool(pre_tokenizer.get("add_prefix_space")),
            "do_lower_case": normalizer.get("type") == "Lowercase",
        }
    elif normalizer.get("type") == "BertNormalizer":
        name = "BertTokenizer"
        options = {
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    # BertTokenizer builds its own pipeline, which adds an encoder's special tokens, so other kinds
    # of models keep the generic class.
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
