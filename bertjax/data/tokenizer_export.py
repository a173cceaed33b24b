"""Writes a tokenizer in every file form that its kind has, so that transformers loads it too.

What transformers puts around a text depends on the model that the tokenizer is saved with:

    encoder            [CLS] text [SEP]    the roles that the vocabulary has; T5's: text </s>
    decoder            text
    encoder_decoder    text </s>           eos, or sep where there is none; sentinels are declared
"""

import json

import numpy as np
import tokenizers
from tokenizers import AddedToken, processors

from bertjax.data import library_model, tokenizer_files, unigram_model, vocabulary


def contents(
    model: tokenizer_files.Model,
    names: dict[str, str],
    sentinels: np.ndarray,
    *,
    kind: str,
    token_types: bool,
    max_length: int | None,
) -> dict[str, bytes]:
    """File name -> bytes of every form; transformers loads the folder, 4 and 5 alike.

    names: role -> piece. sentinels: their ids. kind, token_types, max_length: of the model that
    the tokenizer is for, see `Tokenizer.save`.
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
        config["tokenizer_class"] = "ByT5Tokenizer"
    else:
        library = _library(model, names)
        if kind == "encoder_decoder":
            _declare(library, sentinels)
        if kind != "encoder" or library.post_processor is None:
            library.post_processor = _template(library, _ends(names, kind), token_types=token_types)
        pipeline = json.loads(library.to_str())
        config |= _class_options(model, pipeline, kind)
        files = _vocabulary_files(model, pipeline) | {"tokenizer.json": _json(pipeline)}
    return files | {
        tokenizer_files.CONFIG: _json(config),
        "special_tokens_map.json": _json(special_tokens),
    }


def _library(model: tokenizer_files.Model, names: dict[str, str]) -> tokenizers.Tokenizer:
    if isinstance(model, unigram_model.UnigramModel):
        options = tokenizer_files.Options(names=tuple(names.items()))
        return tokenizer_files.finish(model.library(), options)
    return tokenizers.Tokenizer.from_str(json.dumps(model.spec))


def _declare(library: tokenizers.Tokenizer, sentinels: np.ndarray) -> None:
    """The sentinels above the pieces as special tokens, which the library numbers in turn."""
    by_id = {int(i): tokenizer_files.SENTINEL.format(n) for n, i in enumerate(sentinels)}
    new = sorted(i for i in by_id if i >= library.get_vocab_size())
    library.add_special_tokens([AddedToken(by_id[i], special=True) for i in new])


def _ends(names: dict[str, str], kind: str) -> tuple[str | None, str | None]:
    """The pieces in front of a text and behind it."""
    if kind == "decoder":
        return None, None
    if kind == "encoder_decoder":
        return None, names.get("eos") or names.get("sep")
    return names.get("cls"), names.get("sep")


def _template(
    library: tokenizers.Tokenizer, ends: tuple[str | None, str | None], *, token_types: bool
) -> processors.PostProcessor | None:
    first, last = ends
    if first is None and last is None:
        return None
    head, tail = [f"{first}:0"] * bool(first), [f"{last}:0"] * bool(last)
    # RoBERTa, which has no token types, parts a pair with two of them.
    between = tail * 2 if first == "<s>" and not token_types else tail
    second = f"{{}}:{int(token_types)}".format
    return processors.TemplateProcessing(
        single=[*head, "$A:0", *tail],
        pair=[*head, "$A:0", *between, second("$B"), *[second(last)] * bool(last)],
        special_tokens=[(name, library.token_to_id(name)) for name in ends if name],
    )


def _class_options(model: tokenizer_files.Model, pipeline: dict, kind: str) -> dict:
    """What tokenizer_config.json says of the rules, and the class where transformers has one."""
    options, name = {}, None
    normalizer = pipeline["normalizer"] or {}
    if isinstance(model, unigram_model.UnigramModel):
        if model.albert is not None:
            name = "AlbertTokenizer"
            options = {
                "do_lower_case": model.albert.lowercase,
                "keep_accents": not model.albert.strip_accents,
                "remove_space": True,
            }
    elif model.kind == "bpe":
        cutter = pipeline["pre_tokenizer"] or {}
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
    if isinstance(model, unigram_model.UnigramModel):
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
