"""The file forms of a tokenizer: reads any of them.

    vocab.txt                       WordPiece; casing from tokenizer_config.json beside it
    vocab.json + merges.txt         byte-level BPE
    tokenizer.json                  any pipeline of the `tokenizers` library
    spiece.model (or *.model)       SentencePiece
    tokenizer_config.json alone     ByT5Tokenizer's bytes

In a folder which holds several, the one that says most is read: spiece.model, tokenizer.json,
vocab.json, vocab.txt. Paths may be gs://.
"""

import dataclasses
import itertools
import json

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertjax import errors
from bertjax.data import byte_model, library_model, unigram_model, vocabulary

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
# What the roles are called where no tokenizer_config.json says so: in BERT, in RoBERTa and T5, in
# GPT-2, and names in BERT's manner.
NAMES = (
    {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>",
     "bos": "<s>", "eos": "</s>"},
    {"bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    {"bos": "[BOS]", "eos": "[EOS]"},
)  # fmt: skip
SENTINEL = "<extra_id_{}>"
BYTES = "ByT5Tokenizer"  # the class that needs no vocabulary
CONFIG = "tokenizer_config.json"
FORMS = ("spiece.model", "tokenizer.json", "vocab.json", "vocab.txt")

Model = library_model.LibraryModel | unigram_model.UnigramModel | byte_model.ByteModel


@dataclasses.dataclass(frozen=True)
class Options:
    """What tokenizer_config.json says, under transformers' names; None where it says nothing.

    names: role -> piece, for the roles that it names.
    """

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    keep_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    tokenizer_class: str | None = None
    extra_ids: int | None = None
    names: tuple[tuple[str, str], ...] = ()


def read(path: str, lowercase: bool | None, strip_accents: bool | None) -> tuple[Model, Options]:
    """The model in a file or folder, and the options that stood beside it.

    lowercase, strip_accents: None takes tokenizer_config.json's; without one, vocab.txt is uncased
    unless it holds upper-case pieces, and SentencePiece applies its own rules only.
    Raises UserError, naming the file and the line.
    """
    file = _file(epath.Path(path))
    options = _options(file.parent / CONFIG)
    if lowercase is not None:
        options = dataclasses.replace(options, do_lower_case=lowercase)
    if strip_accents is not None:
        options = dataclasses.replace(
            options, strip_accents=strip_accents, keep_accents=not strip_accents
        )
    try:
        if file.name == CONFIG:
            return _read_bytes(file, options), options
        if file.suffix == ".model":
            return _read_sentencepiece(file, options), options
        if file.name == "tokenizer.json":
            library = _read_pipeline(file, options)
        elif file.suffix == ".json":
            library = _read_byte_level(file, options)
        else:
            library = _read_wordpiece(file, options)
        return library_model.LibraryModel(library), options
    except errors.UserError:
        raise
    except Exception as error:  # the libraries raise bare Exception for what they cannot read
        raise errors.UserError(f"{file}: not a tokenizer that can be read: {error}") from error


def special_names(pieces: set[str], options: Options) -> dict[str, str]:
    """Role -> piece, for the roles that the vocabulary has."""
    tables = (dict(options.names), *NAMES)
    found = {}
    for role in ROLES:
        piece = next((t[role] for t in tables if t.get(role) in pieces), None)
        found |= {role: piece} if piece else {}
    return found


def sentinels(model: Model, options: Options) -> np.ndarray:
    """Ids of <extra_id_0>, <extra_id_1> ...: int32[as many as the files say, else the usual].

    Where they are no pieces their ids lie above, counting down in T5 and, as transformers has it,
    up in ByT5.
    """
    declared = model.num_sentinels if isinstance(model, library_model.LibraryModel) else 0
    return _sentinels(model, declared or options.extra_ids or 0)


def of_pieces(model: Model, options: Options) -> tuple[vocabulary.Specials, np.ndarray]:
    """(specials, sentinels) as they were if the files said no bos, eos or number of sentinels."""
    kept = tuple((role, piece) for role, piece in options.names if role not in ("bos", "eos"))
    names = special_names(set(model.pieces), dataclasses.replace(options, names=kept))
    ids = {role: model.pieces.index(piece) for role, piece in names.items()}
    return vocabulary.Specials(**dict.fromkeys(ROLES, -1) | ids), _sentinels(model, 0)


def _sentinels(model: Model, count: int) -> np.ndarray:
    """count: of those that are no pieces; 0 is the usual one."""
    ids = {piece.removeprefix(unigram_model.SPACE): i for i, piece in enumerate(model.pieces)}
    names = map(SENTINEL.format, itertools.count())
    declared = [ids[name] for name in itertools.takewhile(ids.__contains__, names)]
    if declared:
        return np.array(declared, np.int32)
    size = len(model.pieces)
    if model.kind == "bytes":
        return np.arange(size, size + (count or byte_model.NUM_SENTINELS), dtype="i4")
    return vocabulary.sentinels_above(size, count or vocabulary.NUM_SENTINELS)


def wordpiece(pieces: list[str], options: Options, unk: str = "[UNK]") -> tokenizers.Tokenizer:
    """BERT's pipeline over a vocabulary."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unk))
    library.normalizer = _bert_normalizer(options)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return finish(library, options)


def byte_level(
    ids: dict[str, int], pairs: list[tuple[str, str]], options: Options
) -> tokenizers.Tokenizer:
    """GPT-2's pipeline over a vocabulary and its merges."""
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
    """Declares the special tokens."""
    names = special_names(set(library.get_vocab()), options)
    joined = isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel)
    library.add_special_tokens(
        [
            # where a piece holds the space before it, so does the mask that stands for one
            tokenizers.AddedToken(name, special=True, lstrip=joined and name == names.get("mask"))
            for name in sorted(set(names.values()), key=library.token_to_id)
        ]
    )
    return library


def _file(path: epath.Path) -> epath.Path:
    if path.is_file():
        return path
    if not path.exists():
        raise errors.UserError(f"{path}: no such tokenizer; give a folder or one of {_forms()}")
    for form in FORMS:
        if (path / form).exists():
            return path / form
    if _options(path / CONFIG).tokenizer_class == BYTES:
        return path / CONFIG
    models_found = sorted(str(file) for file in path.glob("*.model"))
    if len(models_found) == 1:
        return epath.Path(models_found[0])
    raise errors.UserError(f"{path}: no tokenizer in this folder; it needs one of {_forms()}")


def _forms() -> str:
    return ", ".join(FORMS).replace("vocab.json", "vocab.json + merges.txt")


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


def _parsed(file: epath.Path) -> dict:
    try:
        value = json.loads(_text(file))
    except json.JSONDecodeError as error:
        raise errors.UserError(f"{file}: line {error.lineno} is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise errors.UserError(f"{file}: a JSON object was expected, not a {type(value).__name__}")
    return value


def _options(file: epath.Path) -> Options:
    if not file.exists():
        return Options()
    config = _parsed(file)
    fields = {f.name: config[f.name] for f in dataclasses.fields(Options) if f.name in config}
    names = {}
    for role in ROLES:
        piece = config.get(f"{role}_token")
        names |= {role: piece["content"] if isinstance(piece, dict) else piece} if piece else {}
    return Options(**fields | {"names": tuple(names.items())})


def _read_bytes(file: epath.Path, options: Options) -> byte_model.ByteModel:
    if options.tokenizer_class != BYTES:
        raise errors.UserError(
            f"{file}: its class is {options.tokenizer_class}, which needs one of {_forms()}"
        )
    return byte_model.ByteModel()


def _bert_normalizer(options: Options) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.tokenize_chinese_chars is not False,
        strip_accents=options.strip_accents,
        lowercase=options.do_lower_case is not False,
    )


def _read_wordpiece(file: epath.Path, options: Options) -> tokenizers.Tokenizer:
    pieces = [line.rstrip("\r") for line in _text(file).removesuffix("\n").split("\n")]
    first_line: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            raise errors.UserError(f"{file}: line {number} is blank; a line holds one piece")
        if piece in first_line:
            raise errors.UserError(
                f"{file}: line {number} repeats the piece {piece!r} of line {first_line[piece]}"
            )
        first_line[piece] = number
    unk = special_names(set(pieces), options).get("unk")
    if unk is None:
        raise errors.UserError(f"{file}: no line holds [UNK], the piece for unknown words; add it")
    if options.do_lower_case is None:
        cased = any(piece != piece.lower() for piece in pieces if piece[0] not in "[<")
        options = dataclasses.replace(options, do_lower_case=not cased)
    return wordpiece(pieces, options, unk)


def _read_byte_level(file: epath.Path, options: Options) -> tokenizers.Tokenizer:
    ids = _parsed(file)
    merges_file = file.parent / "merges.txt"
    if not merges_file.exists():
        raise errors.UserError(f"{file}: merges.txt is not beside it; byte-level BPE needs both")
    pairs = []
    for number, line in enumerate(_text(merges_file).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = tuple(line.rstrip("\r").split(" "))
        if len(pair) != 2 or any(piece not in ids for piece in (*pair, "".join(pair))):
            raise errors.UserError(
                f"{merges_file}: line {number} merges no two pieces of {file.name}: {line!r}"
            )
        pairs.append(pair)
    return byte_level(ids, pairs, options)


def _read_pipeline(file: epath.Path, options: Options) -> tokenizers.Tokenizer:
    spec = _parsed(file)
    kind = (spec.get("model") or {}).get("type")
    if kind not in library_model.KINDS:
        known = ", ".join(library_model.KINDS)
        raise errors.UserError(f"{file}: its model is {kind!r}; bertjax reads {known}")
    normalizer = spec.get("normalizer") or {}
    if normalizer.get("type") == "BertNormalizer":  # as in transformers, the config file wins
        wanted = {
            "lowercase": options.do_lower_case,
            "strip_accents": options.strip_accents,
            "handle_chinese_chars": options.tokenize_chinese_chars,
        }
        spec["normalizer"] |= {key: value for key, value in wanted.items() if value is not None}
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _read_sentencepiece(file: epath.Path, options: Options) -> unigram_model.UnigramModel:
    albert = None
    named_albert = (options.tokenizer_class or "").startswith("Albert")
    if named_albert or options.do_lower_case is not None or options.keep_accents is not None:
        albert = unigram_model.AlbertRules(
            lowercase=options.do_lower_case is not False,
            strip_accents=not options.keep_accents,
        )
    return unigram_model.UnigramModel(file.read_bytes(), albert)
