"""A folder that holds a tokenizer: which file has its vocabulary, and what the others say of it."""

import dataclasses
import functools
import os
from typing import Annotated, Any

from etils import epath

from bertjax import errors, schema
from bertjax.data.tokenizers import added_tokens, library_model, tokenizer_classes

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
CONFIG = "tokenizer_config.json"
MODEL_CONFIG = "config.json"
SPECIALS = "special_tokens_map.json"
PIPELINE = "tokenizer.json"
FAIRSEQ = "sentencepiece.bpe.model"
FORMS = ("spiece.model", PIPELINE, FAIRSEQ, "vocab.json", "vocab.txt")
MAX_SENTINELS = 1 << 16
_AGAIN = added_tokens.AGAIN
_FILES = {
    "wordpiece": "vocab.txt",
    "bpe": "vocab.json + merges.txt",
    "sentencepiece": "spiece.model",
    "bytes": CONFIG,
    "pipeline": PIPELINE,
}


@dataclasses.dataclass(frozen=True)
class Options(schema.Open):
    """What tokenizer_config.json says, under transformers' names; None where it says nothing.

    names: role -> piece, for the roles that it names.
    """

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    keep_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    tokenizer_class: str | None = None
    extra_ids: Annotated[int, schema.Between(0, MAX_SENTINELS)] | None = None
    names: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Folder:
    """The files that lie beside a vocabulary, as far as they say how to read it.

    config: of tokenizer_config.json, completed by special_tokens_map.json; empty without them.
    said: the rules that the caller asks for, which override every file.
    class_name: of the tokenizer, "" where it is not known. source: the file and key that says it.
    """

    path: epath.Path
    config: dict[str, Any]
    said: dict[str, bool]
    class_name: str
    source: str

    @functools.cached_property
    def known(self) -> tokenizer_classes.Class | None:
        """What is known of the class; None of one that is not in the table."""
        if not self.class_name:  # of a model_type that is not in the table, or not named at all
            return tokenizer_classes.PIPELINE if self.source else tokenizer_classes.ANY
        return tokenizer_classes.find(self.class_name)

    @functools.cached_property
    def pipeline(self) -> dict[str, Any]:
        """The content of tokenizer.json; empty without one."""
        file = self.path / PIPELINE
        return schema.read_object(file, _AGAIN) if file.exists() else {}

    @functools.cached_property
    def added(self) -> added_tokens.Added:
        """The added tokens that the files list, by id."""
        return added_tokens.read(self.path, self.config, self.pipeline)

    @functools.cached_property
    def prefix_once(self) -> bool:
        """Whether what follows a special token begins no word.

        It does begin one by the SentencePiece classes of transformers 5, whatever tokenizer.json
        says; transformers 4 follows tokenizer.json.
        """
        if self.known.kind == "sentencepiece":
            return False
        if self.pipeline:
            return not library_model.begins_words_behind_specials(self.pipeline)
        return self.config.get(library_model.PREPEND) != "always"

    @functools.cached_property
    def options(self) -> Options:
        """The options: what the caller asks for, then the files, then the class's defaults."""
        where = self.path / CONFIG
        stated = {key: value for key, value in self.config.items() if value is not None}
        stated.pop("names", None)
        defaults = dict(self.known.defaults) if self.known else {}
        options = schema.typed({**defaults, **stated, **self.said}, Options, where, _AGAIN)
        names = []
        for role in ROLES:
            piece = self.config.get(f"{role}_token")
            piece = piece.get("content") if isinstance(piece, dict) else piece
            if piece and not isinstance(piece, str):
                raise errors.UserError(
                    f"{where}: {role}_token = {schema.short(piece)}: must be a text; {_AGAIN}"
                )
            names += [(role, piece)] if piece else []
        return dataclasses.replace(options, names=tuple(names))


def find(path: epath.Path, said: dict[str, bool]) -> tuple[epath.Path, Folder]:
    """The file of the vocabulary, and what lies beside it. UserError if the class reads no such."""
    if not path.exists():
        raise errors.UserError(f"{path}: no such tokenizer; give a folder or one of {forms()}")
    folder = _folder(path if path.is_dir() else path.parent, said)
    if folder.known is None:
        raise errors.UserError(
            f"{path}: its tokenizer class is {folder.class_name} ({folder.source}), which bertjax "
            f"does not know; save it from transformers as a fast tokenizer, with {PIPELINE}"
        )
    candidates = _vocabularies(path, folder) if path.is_dir() else [path]
    if not candidates:
        raise errors.UserError(f"{path}: no tokenizer in this folder; it needs one of {forms()}")
    kinds = (folder.known.kind, "pipeline")
    fitting = [file for file in candidates if "any" in kinds or kind(file) in kinds]
    if not fitting:
        reads = [_FILES[name] for name in dict.fromkeys(kinds)]
        raise errors.UserError(
            f"{path}: its class is {folder.class_name or 'not known'}, which needs one of "
            f"{', '.join(reads)}, not {candidates[0].name}; the class is by {folder.source}"
        )
    if fitting[0].name == FAIRSEQ and folder.known.layout == "plain":
        raise errors.UserError(
            f"{fitting[0]}: its ids follow from the model that it is for, XLM-R or CamemBERT; put "
            f"the {MODEL_CONFIG} of the model beside it"
        )
    file = os.fspath(fitting[0])  # epath takes a device for a file
    if "://" not in file and fitting[0].exists() and not os.path.isfile(file):
        raise errors.UserError(f"{fitting[0]}: is not a file; give a folder or one of {forms()}")
    return fitting[0], folder


def _folder(path: epath.Path, said: dict[str, bool]) -> Folder:
    config, model = (
        schema.read_object(path / name, _AGAIN) if (path / name).exists() else {}
        for name in (CONFIG, MODEL_CONFIG)
    )
    if added_tokens.DECODER not in config and (path / SPECIALS).exists():  # as in transformers
        config |= schema.read_object(path / SPECIALS, _AGAIN)
    for name, content in ((CONFIG, config), (MODEL_CONFIG, model)):
        if content.get("tokenizer_class"):
            source = f"tokenizer_class in {name}"
            return Folder(path, config, said, str(content["tokenizer_class"]), source)
    model_type = model.get("model_type")
    if not model_type:
        return Folder(path, config, said, "", "")
    source = f"model_type {schema.short(model_type)} in {MODEL_CONFIG}"
    class_name = tokenizer_classes.MODEL_TYPES.get(str(model_type), "")
    return Folder(path, config, said, class_name, source)


def _vocabularies(path: epath.Path, folder: Folder) -> list[epath.Path]:
    """The files of the folder that may hold its vocabulary, the one to prefer first."""
    found = [path / form for form in FORMS if (path / form).exists()]
    others = sorted(file for file in path.glob("*.model") if file.name not in FORMS)
    found += others if len(others) == 1 else []
    return [*found, path / CONFIG] if folder.known is tokenizer_classes.BYTES else found


def kind(file: epath.Path) -> str:
    """The kind of vocabulary that a file of this name holds, as `tokenizer_classes` has it."""
    if file.name in (CONFIG, PIPELINE):
        return "bytes" if file.name == CONFIG else "pipeline"
    return {".model": "sentencepiece", ".json": "bpe"}.get(file.suffix, "wordpiece")


def forms() -> str:
    """The names of the files that hold a vocabulary, for messages."""
    return ", ".join(FORMS).replace("vocab.json", "vocab.json + merges.txt")
