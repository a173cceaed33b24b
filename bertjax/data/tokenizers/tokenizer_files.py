"""Reads a tokenizer from any of its file forms.

    vocab.txt                       WordPiece
    vocab.json + merges.txt         byte-level BPE
    tokenizer.json                  any pipeline of the `tokenizers` library
    spiece.model (or *.model)       SentencePiece; spm.model in DeBERTa-v2 and v3
    sentencepiece.bpe.model         SentencePiece with fairseq's ids, as in XLM-R and CamemBERT
    tokenizer_config.json alone     bytes, by ByT5Tokenizer

If a folder has several forms, the vocabulary is read from the first form in
`tokenizer_folder.FORMS` that the folder's tokenizer class supports (`tokenizer_classes`). Rules and
added tokens are read from the other files. If the pieces in spiece.model and tokenizer.json differ,
only tokenizer.json is used, as in transformers. Paths may be gs://.
"""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertjax import errors, paths, schema
from bertjax.data.tokenizers import (
    added_tokens,
    byte_model,
    library_model,
    sentencepiece_files,
    sentencepiece_model,
    tokenizer_classes,
    tokenizer_folder,
    vocabulary,
)
from bertjax.data.tokenizers.tokenizer_folder import Folder, Options

# Default pieces for the roles that tokenizer_config.json does not name, tried in this order: those
# of BERT, those of RoBERTa and T5, those of GPT-2, and pieces in BERT's style.
NAMES = (
    {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>",
     "bos": "<s>", "eos": "</s>"},
    {"bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    {"bos": "[BOS]", "eos": "[EOS]"},
)  # fmt: skip
SENTINEL = sentencepiece_files.SENTINEL
ROLES = tokenizer_folder.ROLES
CONFIG = tokenizer_folder.CONFIG
_REMEDY = added_tokens.REMEDY

Model = library_model.LibraryModel | sentencepiece_model.UnigramModel | byte_model.ByteModel


def read(path: str, lowercase: bool | None, strip_accents: bool | None) -> tuple[Model, Options]:
    """Returns the model in a file or folder, and its options.

    lowercase, strip_accents: None means the value in the files; if they have none, transformers'
    default for the class. If no file names a class, vocab.txt is uncased unless it has upper-case
    pieces, and a SentencePiece model applies only the rules in its own file.
    Raises UserError with the file and, if known, the line.
    """
    overrides = {}
    if lowercase is not None:
        overrides["do_lower_case"] = lowercase
    if strip_accents is not None:
        overrides |= {"strip_accents": strip_accents, "keep_accents": not strip_accents}
    file, folder = tokenizer_folder.find(paths.of(path), overrides)
    with library_errors(file):
        return _READERS[tokenizer_folder.kind(file)](file, folder), folder.options


@contextlib.contextmanager
def library_errors(file: epath.Path) -> Iterator[None]:
    """Converts errors of the libraries that read `file` to a UserError."""
    try:
        yield
    except (errors.UserError, OSError, MemoryError):
        raise
    except BaseException as error:
        # A panic of a library in Rust is a BaseException of a class that cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise errors.UserError(f"{file}: cannot be read as a tokenizer: {error}") from error
        raise


def special_names(pieces: set[str], options: Options) -> dict[str, str]:
    """Returns {role: piece} for the roles that have a piece in the vocabulary."""
    tables = (dict(options.names), *NAMES)
    names = {}
    for role in ROLES:
        piece = next((t[role] for t in tables if t.get(role) in pieces), None)
        names |= {role: piece} if piece else {}
    return names


def sentinels(model: Model, options: Options) -> np.ndarray:
    """Returns the int32 ids of the sentinels <extra_id_0>, <extra_id_1> ...

    Their number is the one in the files, by default 100. If sentinels are not pieces, their ids are
    above the pieces and count down as in T5. In ByT5 they are the ids of bytes.
    """
    if isinstance(model, byte_model.ByteModel):
        return model.sentinels
    return _sentinels(model, model.num_sentinels or options.extra_ids or 0)


def of_pieces(model: Model, options: Options) -> tuple[vocabulary.Specials, np.ndarray]:
    """Returns (specials, sentinels), ignoring bos, eos and the number of sentinels in the files."""
    role_names = tuple((role, piece) for role, piece in options.names if role not in ("bos", "eos"))
    names = special_names(set(model.pieces), dataclasses.replace(options, names=role_names))
    ids = {role: model.pieces.index(piece) for role, piece in names.items()}
    return vocabulary.Specials(**dict.fromkeys(ROLES, -1) | ids), _sentinels(model, 0)


def _sentinels(model: Model, count: int) -> np.ndarray:
    """Returns the ids of the sentinel pieces. If there are none, returns `count` ids above the
    pieces, or 100 ids if `count` is 0."""
    ids = {piece.removeprefix(sentencepiece_model.SPACE): i for i, piece in enumerate(model.pieces)}
    names = map(SENTINEL.format, itertools.count())
    declared = [ids[name] for name in itertools.takewhile(ids.__contains__, names)]
    if declared:
        return np.array(declared, np.int32)
    size = len(model.pieces)
    if model.kind == "bytes":  # as in earlier versions, so that fingerprints stay valid
        return byte_model.sentinels_above()
    return vocabulary.sentinels_above(size, count or vocabulary.NUM_SENTINELS)


def wordpiece(pieces: list[str], options: Options, unk: str = "[UNK]") -> tokenizers.Tokenizer:
    """Returns BERT's pipeline with this vocabulary."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unk))
    library.normalizer = _bert_normalizer(options)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return finish(library, options)


def byte_level(
    ids: dict[str, int], pairs: list[tuple[str, str]], options: Options
) -> tokenizers.Tokenizer:
    """Returns GPT-2's pipeline with this vocabulary and these merges."""
    unk = dict(options.names).get("unk") or NAMES[1]["unk"]
    model = models.BPE(ids, pairs, unk_token=unk if unk in ids else None)
    library = tokenizers.Tokenizer(model)
    if options.do_lower_case:
        library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(options.add_prefix_space)
    )
    library.decoder = decoders.ByteLevel()
    return finish(library, options)


def finish(library: tokenizers.Tokenizer, options: Options) -> tokenizers.Tokenizer:
    """Declares the special tokens in the library, except those that it has, and returns it."""
    names = special_names(set(library.get_vocab()), options)
    declared = {token.content for token in library.get_added_tokens_decoder().values()}
    spaced = not isinstance(library.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    library.add_special_tokens(
        [
            # If pieces include the space before a word, so does the mask, which replaces a piece.
            tokenizers.AddedToken(name, special=True, lstrip=spaced and name == names.get("mask"))
            for name in sorted(set(names.values()) - declared, key=library.token_to_id)
        ]
    )
    return library


def _text(file: epath.Path) -> str:
    data = file.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise errors.UserError(f"{file}: line {line} is not UTF-8; save it as UTF-8") from error
    if not text.strip():
        raise errors.UserError(f"{file}: the file is empty")
    return text


def _read_bytes(file: epath.Path, folder: Folder) -> byte_model.ByteModel:
    if folder.properties is not tokenizer_classes.BYTES:  # e.g. a class of kind "any"
        raise errors.UserError(
            f"{file}: contains no vocabulary; the folder needs one of {tokenizer_folder.forms()}"
        )
    sentinel = SENTINEL.split("{", 1)[0]
    for i, token in folder.added.items():
        if i >= len(byte_model.ByteModel.pieces) and not token.content.startswith(sentinel):
            raise errors.UserError(
                f"{file}: the added token {token.content!r} is not supported: ByT5Tokenizer has "
                "only bytes and sentinels; remove the token"
            )
    return byte_model.of_config(folder.config, file, folder.added)


def _bert_normalizer(options: Options) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.tokenize_chinese_chars is not False,
        strip_accents=options.strip_accents,
        lowercase=options.do_lower_case is not False,
    )


def _read_wordpiece(file: epath.Path, folder: Folder) -> library_model.LibraryModel:
    options = folder.options
    pieces = [line.rstrip("\r") for line in _text(file).removesuffix("\n").split("\n")]
    first_line: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            raise errors.UserError(f"{file}: line {number} is blank; remove the line")
        if piece in first_line:
            raise errors.UserError(
                f"{file}: line {number} repeats the piece {piece!r} of line {first_line[piece]}"
            )
        first_line[piece] = number
    unk = special_names(set(pieces), options).get("unk")
    if unk is None:
        raise errors.UserError(f"{file}: contains no [UNK], the piece for unknown words; add it")
    if options.do_lower_case is None:
        cased = any(piece != piece.lower() for piece in pieces if piece[0] not in "[<")
        options = dataclasses.replace(options, do_lower_case=not cased)
    return _extended(wordpiece(pieces, options, unk), file, folder)


def _read_byte_level(file: epath.Path, folder: Folder) -> library_model.LibraryModel:
    ids = schema.typed(
        schema.read_object(file, _REMEDY), dict[str, added_tokens.Id], file, _REMEDY
    )
    merges_file = file.parent / "merges.txt"
    if not merges_file.exists():
        raise errors.UserError(f"{file}: byte-level BPE also needs merges.txt in this folder")
    pairs = []
    for number, line in enumerate(_text(merges_file).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = tuple(line.rstrip("\r").split(" "))
        if len(pair) != 2 or any(piece not in ids for piece in (*pair, "".join(pair))):
            raise errors.UserError(
                f"{merges_file}: line {number} must merge two pieces of {file.name}: {line!r}"
            )
        pairs.append(pair)
    return _extended(byte_level(ids, pairs, folder.options), file, folder)


def _read_pipeline(file: epath.Path, folder: Folder) -> library_model.LibraryModel:
    spec = dict(folder.pipeline)
    kind = library_model.model_type(spec.get("model"))
    if kind not in tuple(library_model.KINDS):
        kinds = ", ".join(library_model.KINDS)
        raise errors.UserError(f"{file}: its model is {kind!r}; must be one of {kinds}")
    spec["model"] = spec["model"] | {"type": kind}
    for part, type_name, rules in (
        ("normalizer", "BertNormalizer", _bert_rules(folder)),
        ("pre_tokenizer", "ByteLevel", _byte_level_rules(folder)),
    ):
        file_rules = spec.get(part)
        if isinstance(file_rules, dict) and file_rules.get("type") == type_name:
            spec[part] = file_rules | rules
    return _extended(tokenizers.Tokenizer.from_str(json.dumps(spec)), file, folder)


def _bert_rules(folder: Folder) -> dict[str, bool | None]:
    """Returns the settings that override those of the normalizer in tokenizer.json."""
    options = folder.options
    rules = {
        "lowercase": options.do_lower_case,
        "strip_accents": options.strip_accents,
        "handle_chinese_chars": options.tokenize_chinese_chars,
    }
    if folder.properties.kind == "wordpiece":  # such a class overrides all settings
        return rules
    if folder.class_name:  # as in transformers, only the caller's arguments override the file
        rules = {
            "lowercase": folder.overrides.get("do_lower_case"),
            "strip_accents": folder.overrides.get("strip_accents"),
        }
    return {key: value for key, value in rules.items() if value is not None}


def _byte_level_rules(folder: Folder) -> dict[str, bool]:
    if folder.properties.kind != "bpe":
        return {}
    return {"add_prefix_space": bool(folder.options.add_prefix_space)}


def _extended(
    library: tokenizers.Tokenizer, file: epath.Path, folder: Folder
) -> library_model.LibraryModel:
    added_tokens.declare(library, folder.added, file)
    return library_model.LibraryModel(library)


def _read_sentencepiece(
    file: epath.Path, folder: Folder
) -> sentencepiece_model.UnigramModel | library_model.LibraryModel:
    model = sentencepiece_files.read(file, folder)
    return model or _read_pipeline(folder.path / tokenizer_folder.PIPELINE, folder)


_READERS = {
    "bytes": _read_bytes,
    "pipeline": _read_pipeline,
    "sentencepiece": _read_sentencepiece,
    "bpe": _read_byte_level,
    "wordpiece": _read_wordpiece,
}
