"""Locates the vocabulary file of a tokenizer folder and reads the options in its other files."""

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
FORMS = ("spiece.model", "spm.model", PIPELINE, FAIRSEQ, "vocab.json", "vocab.txt")
MAX_SENTINELS = 1 << 16
_REMEDY = added_tokens.REMEDY
_FILES = {
    "wordpiece": "vocab.txt",
    "bpe": "vocab.json + merges.txt",
    "sentencepiece": "spiece.model",
    "bytes": CONFIG,
    "pipeline": PIPELINE,
}


@dataclasses.dataclass(frozen=True)
class Options(schema.Open):
    """The options of tokenizer_config.json, under transformers' names; None if missing.

    names: (role, piece) for each role that has a piece in the file.
    """

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    keep_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    split_by_punct: bool | None = None
    tokenizer_class: str | None = None
    extra_ids: Annotated[int, schema.Between(0, MAX_SENTINELS)] | None = None
    names: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Folder:
    """A tokenizer's folder, with the settings in it that are needed to read the vocabulary.

    config: content of tokenizer_config.json, completed by special_tokens_map.json; empty if the
        folder has neither.
    overrides: the options given by the caller, which override those in the files.
    class_name: the tokenizer class; "" if unknown. source: the file and the key that name the
        class, for messages.
    """

    path: epath.Path
    config: dict[str, Any]
    overrides: dict[str, bool]
    class_name: str
    source: str

    @functools.cached_property
    def properties(self) -> tokenizer_classes.Class | None:
        """The properties of the class; None if the files name a class that is not supported."""
        if not self.class_name:  # the model_type is missing or not in the table
            return tokenizer_classes.PIPELINE if self.source else tokenizer_classes.ANY
        return tokenizer_classes.find(self.class_name)

    @functools.cached_property
    def pipeline(self) -> dict[str, Any]:
        """The content of tokenizer.json; empty if the file does not exist."""
        file = self.path / PIPELINE
        return schema.read_object(file, _REMEDY) if file.exists() else {}

    @functools.cached_property
    def added(self) -> added_tokens.Added:
        """The added tokens in the files, {id: token}."""
        return added_tokens.read(self.path, self.config, self.pipeline)

    @functools.cached_property
    def prefix_once(self) -> bool:
        """Whether a space is prepended only at the start of a text, not also after special tokens.

        False for SentencePiece classes: in transformers 5 they prepend a space after special tokens
        even if the pipeline in tokenizer.json does not. (transformers 4 follows tokenizer.json.)
        """
        if self.properties.kind == "sentencepiece":
            return False
        if self.pipeline:
            return not library_model.begins_words_behind_specials(self.pipeline)
        return self.config.get(library_model.PREPEND) != "always"

    @functools.cached_property
    def options(self) -> Options:
        """The options.

        Options from the caller override those in the files, which override the class defaults.
        """
        where = self.path / CONFIG
        values = {key: value for key, value in self.config.items() if value is not None}
        values.pop("names", None)
        defaults = dict(self.properties.defaults) if self.properties else {}
        options = schema.typed({**defaults, **values, **self.overrides}, Options, where, _REMEDY)
        names = []
        for role in ROLES:
            piece = self.config.get(f"{role}_token")
            piece = piece.get("content") if isinstance(piece, dict) else piece
            if piece and not isinstance(piece, str):
                raise errors.UserError(
                    f"{where}: {role}_token = {schema.short(piece)}: must be a string; {_REMEDY}"
                )
            names += [(role, piece)] if piece else []
        return dataclasses.replace(options, names=tuple(names))


def find(path: epath.Path, overrides: dict[str, bool]) -> tuple[epath.Path, Folder]:
    """Returns the vocabulary file and its `Folder`. `path` is the file or its folder.

    Raises UserError if there is none, or if the tokenizer class is unknown or cannot read the file.
    """
    if not path.exists():
        raise errors.UserError(f"{path}: not found; give a folder or one of {forms()}")
    folder = _folder(path if path.is_dir() else path.parent, overrides)
    if folder.properties is None:
        raise errors.UserError(
            f"{path}: its tokenizer class is {folder.class_name} ({folder.source}), which bertjax "
            f"does not support; save it from transformers as a fast tokenizer, with {PIPELINE}"
        )
    candidates = _vocabularies(path, folder) if path.is_dir() else [path]
    if not candidates:
        raise errors.UserError(f"{path}: contains no tokenizer; the folder needs one of {forms()}")
    kinds = (folder.properties.kind, "pipeline")
    supported = [file for file in candidates if "any" in kinds or kind(file) in kinds]
    if not supported:
        names = [_FILES[name] for name in dict.fromkeys(kinds)]
        raise errors.UserError(
            f"{path}: its class is {folder.class_name or 'unknown'}, which needs one of "
            f"{', '.join(names)}, not {candidates[0].name}; the class comes from {folder.source}"
        )
    if supported[0].name == FAIRSEQ and folder.properties.layout == "plain":
        raise errors.UserError(
            f"{supported[0]}: its ids depend on its model (XLM-R or CamemBERT); copy the model's "
            f"{MODEL_CONFIG} to the same folder"
        )
    file = os.fspath(supported[0])  # NOTE: to epath, a device such as /dev/zero is a file
    if "://" not in file and supported[0].exists() and not os.path.isfile(file):
        raise errors.UserError(f"{supported[0]}: is not a file; give a folder or one of {forms()}")
    return supported[0], folder


def _folder(path: epath.Path, overrides: dict[str, bool]) -> Folder:
    config, model = (
        schema.read_object(path / name, _REMEDY) if (path / name).exists() else {}
        for name in (CONFIG, MODEL_CONFIG)
    )
    if added_tokens.DECODER not in config and (path / SPECIALS).exists():  # as in transformers
        config |= schema.read_object(path / SPECIALS, _REMEDY)
    for name, content in ((CONFIG, config), (MODEL_CONFIG, model)):
        if content.get("tokenizer_class"):
            source = f"tokenizer_class in {name}"
            return Folder(path, config, overrides, str(content["tokenizer_class"]), source)
    model_type = model.get("model_type")
    if not model_type:
        return Folder(path, config, overrides, "", "")
    source = f"model_type {schema.short(model_type)} in {MODEL_CONFIG}"
    class_name = tokenizer_classes.MODEL_TYPES.get(str(model_type), "")
    return Folder(path, config, overrides, class_name, source)


def _vocabularies(path: epath.Path, folder: Folder) -> list[epath.Path]:
    """Returns the files of the folder that may contain its vocabulary, in order of preference."""
    files = [path / form for form in FORMS if (path / form).exists()]
    models = sorted(file for file in path.glob("*.model") if file.name not in FORMS)
    files += models if len(models) == 1 else []
    return [*files, path / CONFIG] if folder.properties is tokenizer_classes.BYTES else files


def kind(file: epath.Path) -> str:
    """Returns the kind of vocabulary in a file of this name, as in `tokenizer_classes`."""
    if file.name in (CONFIG, PIPELINE):
        return "bytes" if file.name == CONFIG else "pipeline"
    return {".model": "sentencepiece", ".json": "bpe"}.get(file.suffix, "wordpiece")


def forms() -> str:
    """Returns the names that a vocabulary file can have, for messages."""
    return ", ".join(FORMS).replace("vocab.json", "vocab.json + merges.txt")
