"""The artifact: our format for sharing a model (parameters, config and tokenizer).

    artifact/params.safetensors    every parameter under its path, float32, layers stacked
    artifact/encoding.safetensors  dense layers behind the pooling of text vectors, if there are any
    artifact/config.json           family, fields of the model, fingerprint of the tokenizer, step,
                                   checksum of the parameters, configs of the run and the task
    artifact/tokenizer/            the tokenizer's files
    artifact/lora.safetensors      the matrices of LoRA, if the model was fine-tuned by it; they are
                                   merged into the parameters too

`read` verifies what it loads: the checksum of the parameter file, the shape of every array, and
the tokenizer's fingerprint and size must match the config.

    artifact.write(model, "artifact/")
    model = artifact.read("artifact/")
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from bertjax import errors, files, plugins, schema, sharding
from bertjax.artifact import lora as lora_lib
from bertjax.artifact import text_encoding, weight_files
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.models.common import encoders

FORM = schema.Form("bertjax-artifact", 1)
PARAMS = "params.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer"
ENCODING = "encoding.safetensors"


@dataclasses.dataclass(frozen=True)
class _Task(schema.Open):
    """The keys of `task` that all types of tasks share; a key with a default may be absent."""

    name: str
    kind: str
    config: dict[str, Any]
    labels: list[str]
    max_length: schema.Count
    prompt_ids: list[schema.Count] = dataclasses.field(default_factory=list)
    num_texts: schema.Count = 0
    text_column: str = ""
    label_column: str = ""


@dataclasses.dataclass(frozen=True)
class _Config(schema.Open):
    """The content of an artifact's config.json. Files of earlier versions lack the last keys."""

    family: str
    model: dict[str, Any]
    objective: dict[str, Any] | None
    tokenizer_fingerprint: str
    step: schema.Count | None
    params_sha256: schema.Sha256
    config: dict[str, Any] | None
    task: dict[str, Any] | None = None
    encoding: dict[str, Any] | None = None
    encoding_sha256: schema.Sha256 | None = None
    source: str = ""
    lora: lora_lib.Content | None = None


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A model in memory, with everything needed to use it.

    fields: the fields of the family's Config, except those of `layers.Compute`.
    params: nested dict of float32 arrays on the host, or of ShapeDtypeStructs.
    step, objective, config: from the training run; None if unknown.
    task: the task that the model was fine-tuned for, as a JSON object with the keys of `_Task` and
    additional keys that depend on the type of task; None if the model was not fine-tuned.
    encoding: how the model turns a text into a vector; None if it was not trained for this. After
    fine-tuning, use `text_encoding.of`, which heeds the task.
    origin: a readable name of the format that the model was read from; "" if it was not read.
    source: the model that this one was fine-tuned from, as the user named it, or read from, if it
    is on the Hub: "org/name@<commit hash>"; "" if unknown.
    lora: the matrices that fine-tuning by LoRA added to the parameters; None if it added none.
    """

    family: str
    fields: dict[str, Any]
    params: Any
    tokenizer: tokenizer_lib.Tokenizer
    step: int | None = None
    objective: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    encoding: text_encoding.Encoding | None = None
    origin: str = ""
    source: str = ""
    lora: lora_lib.Lora | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def summary(self) -> str:
        """Returns one line: family, size, heads, task, longest input, tokenizer and step."""
        count = num_params(self.params, self.fields["vocab_size"])
        parts = [f"{self.family}, {count:,} parameters"]
        if self.fields["heads"]:
            parts.append(f"heads {', '.join(self.fields['heads'])}")
        if self.task:
            labels = f" of {len(self.task['labels'])} labels" if self.task["labels"] else ""
            parts.append(f"task {self.task['name']}{labels}")
        encoding = text_encoding.of(self)
        if encoding is not None:
            parts.append(encoding.summary())
        parts.append(f"at most {self.fields['max_length']:,} tokens")
        parts.append(f"{self.tokenizer.kind} of {self.tokenizer.size:,} pieces")
        if self.step is not None:
            parts.append(f"step {self.step:,}")
        return "; ".join(parts)


def flatten(params: Any) -> dict[str, Any]:
    """Returns {path: leaf}, with paths such as "encoder/layers/mlp/wi/kernel"."""
    return traverse_util.flatten_dict(params, sep="/")


def unflatten(flat: Mapping[str, Any]) -> Any:
    """Returns a nested dict made from {path: leaf}; the inverse of `flatten`."""
    return traverse_util.unflatten_dict(dict(flat), sep="/")


def real_shape(path: str, shape: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """Returns the shape of the parameter at `path` without the padding of its vocab axis."""
    axes = sharding.param_axes(path)
    return tuple(vocab_size if a == "vocab" else n for a, n in zip(axes, shape, strict=True))


def num_params(params: Any, vocab_size: int) -> int:
    """Returns the number of parameters, not counting padding of the vocabulary."""
    shapes = {path: leaf.shape for path, leaf in flatten(params).items()}
    return sum(int(np.prod(real_shape(path, shape, vocab_size))) for path, shape in shapes.items())


def abstract_params(family: str, fields: Mapping[str, Any], where: Any) -> Any:
    """Returns the shapes and dtypes (ShapeDtypeStructs) of the parameters of a model.

    Raises UserError naming `where` if no model can be built with these fields.
    """
    try:
        return plugins.abstract_params(plugins.model(family, dict(fields)))
    except (errors.UserError, TypeError, ValueError) as error:
        raise errors.UserError(f"{where}: no model can be built: {error}") from error


def check_tokenizer(
    tokenizer: tokenizer_lib.Tokenizer, vocab_size: int, where: str | os.PathLike
) -> None:
    """Raises UserError naming `where` if an id of the tokenizer is not below `vocab_size`."""
    max_id = max(tokenizer.size - 1, *dataclasses.astuple(tokenizer.specials))
    if max_id >= vocab_size:
        raise errors.UserError(
            f"{where}: the tokenizer has ids up to {max_id}, but the model has {vocab_size} "
            "embeddings; use the tokenizer that the model was trained with"
        )


def check_fingerprint(tokenizer: Any, fingerprint: str, where: str | os.PathLike) -> None:
    """Raises UserError naming `where` if the tokenizer's fingerprint is not `fingerprint`."""
    if tokenizer.fingerprint != fingerprint:
        raise errors.UserError(
            f"{where}: is not the tokenizer that the model was trained with (its fingerprint is "
            f"{tokenizer.fingerprint[:12]}, not {fingerprint[:12]}); restore the right files"
        )


def check_task(content: Any, where: Any) -> None:
    """Raises UserError naming `where` if a key of `_Task` is invalid, or missing but required."""
    schema.typed(content, _Task, where, weight_files.REMEDY)


def fingerprint(model: Artifact) -> str:
    """Returns the hex sha256 of the parameters; it does not depend on the format of the files."""
    digest = hashlib.sha256()
    for path, array in sorted(flatten(model.params).items()):
        digest.update(path.encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def has_token_types(fields: Mapping[str, Any]) -> bool:
    """Returns whether a model with these fields has a token type for each text of a pair."""
    return fields.get("type_vocab_size", 0) >= 2


def starts_texts(model: Artifact) -> bool:
    """Returns whether prompts must begin with the start-of-text token.

    True for a decoder pretrained by bertjax, whose training texts all begin with that token.
    """
    return model.objective is not None and plugins.family(model.family).KIND == "decoder"


def objective(model: Artifact) -> tuple[Any, Any]:
    """Returns (module, Config) of the objective that trained the model; (None, None) if unknown."""
    if model.objective is None:
        return None, None
    fields = model_fields(model.objective, "objective")
    name = fields.pop("name")
    module = plugins.objective(name)
    try:
        return module, module.Config(**fields)
    except TypeError as error:
        raise errors.UserError(
            f"the model was trained with fields of the objective '{name}' that this version "
            f"does not have: {error}"
        ) from error


def reads_prefixes(model: Artifact) -> bool:
    """Returns whether the model is a decoder trained as a prefix LM.

    Such a model attends bidirectionally within a prefix.
    """
    if model.objective is None or plugins.family(model.family).KIND != "decoder":
        return False
    module, config = objective(model)
    return "prefix_mask" in module.features(config, model.fields["max_length"])


def top_of_text(model: Artifact) -> int:
    """Returns the upper limit, exclusive, of the ids that the model may generate.

    The limit is one more than the highest id of the tokenizer's pieces and, for an encoder-decoder,
    of the sentinels. It is at most vocab_size.
    """
    limit = model.tokenizer.size
    if plugins.family(model.family).KIND == "encoder_decoder":  # sentinels may lie above pieces
        limit = max(limit, *(model.tokenizer.sentinels + 1))
    return min(limit, model.fields["vocab_size"])


def part(model: Artifact, name: str = "") -> Artifact:
    """Returns part `name` of a model that consists of several models; "" selects the first part.

    For example, a part of ELECTRA is its generator. A model that has no parts is returned unchanged
    if `name` is "". Raises UserError if there is no part `name`.
    """
    module = plugins.family(model.family)
    parts = _parts(module, model)
    if not parts:
        if name:
            raise errors.UserError(f"--part={name}: {model.family} has no parts; remove the flag")
        return model
    if name and name not in parts:
        raise errors.UserError(f"--part={name}: must be one of {', '.join(parts)}")
    fields, params = parts[name or next(iter(parts))]
    if fields == model.fields:
        return model
    return dataclasses.replace(
        model, fields=fields, params=params, objective=None, config=None, lora=None
    )


def _parts(module: Any, model: Artifact) -> dict[str, tuple[dict[str, Any], Any]]:
    """Returns {name: (fields, params)} of the models in `model`; {} if it has no parts.

    A family that is published as a pair has a function `parts`; its generator or discriminator
    alone is its own only part. A pair of any other encoder is split by `encoders.parts`.
    """
    if hasattr(module, "parts"):
        return module.parts(model.fields, model.params)
    if not issubclass(module.Config, encoders.Fields):
        return {}
    config = module.Config(**model.fields)
    return encoders.parts(config, model.fields, model.params) if config.is_pair else {}


def write(model: Artifact, folder: str | os.PathLike) -> None:
    """Writes the artifact to `folder` atomically; replaces an existing artifact."""
    encoding = text_encoding.of(model)
    arrays = {} if encoding is None else text_encoding.tensors(encoding)
    with files.new_folder(folder) as new:
        weight_files.write_tensors(new / PARAMS, flatten(jax.device_get(model.params)))
        model.tokenizer.save(new / TOKENIZER, token_types=has_token_types(model.fields))
        content = {
            "family": model.family,
            "model": model.fields,
            "objective": model.objective,
            "tokenizer_fingerprint": model.tokenizer.fingerprint,
            "step": model.step,
            "params_sha256": files.sha256(new / PARAMS),
            "config": model.config,
            "task": model.task,
            "source": model.source,
            "lora": None if model.lora is None else lora_lib.write(model.lora, new),
        }
        if encoding is not None:
            content["encoding"] = text_encoding.to_json(encoding)
        if arrays:
            weight_files.write_tensors(new / ENCODING, arrays)
            content["encoding_sha256"] = files.sha256(new / ENCODING)
        schema.write(new / CONFIG, content, FORM)


def read(folder: str | os.PathLike, *, with_params: bool = True) -> Artifact:
    """Returns the artifact in `folder`. If not `with_params`, `params` contains only shapes.

    Raises UserError naming the file if a file is missing, damaged, written in another version of
    the format or inconsistent with the other files. NOTE: the checksum is verified only if
    `with_params`.
    """
    folder = pathlib.Path(folder)
    file = folder / CONFIG
    content = schema.read(file, _Config, weight_files.REMEDY, form=FORM)
    if content.task is not None:
        check_task(content.task, f"{file}: task")
    fields = model_fields(content.model, file)
    abstract = abstract_params(content.family, fields, file)
    tokenizer = tokenizer_lib.load(folder / TOKENIZER)
    check_fingerprint(tokenizer, content.tokenizer_fingerprint, folder / TOKENIZER)
    check_tokenizer(tokenizer, fields["vocab_size"], folder / TOKENIZER)
    return Artifact(
        family=content.family,
        fields=fields,
        params=_read_params(folder, abstract, content.params_sha256, with_params),
        tokenizer=tokenizer,
        step=content.step,
        objective=content.objective,
        config=content.config,
        task=content.task,
        encoding=_read_encoding(folder, content, with_params),
        origin="artifact",
        source=content.source,
        lora=lora_lib.read(content.lora, folder) if content.lora and with_params else None,
    )


def _read_encoding(
    folder: pathlib.Path, content: _Config, with_params: bool
) -> text_encoding.Encoding | None:
    if content.encoding is None:
        return None
    file, arrays = folder / ENCODING, {}
    if content.encoding_sha256 is not None:
        shapes = weight_files.tensor_shapes(file)
        if with_params:
            _check_sha256(file, content.encoding_sha256)
            arrays = weight_files.read_tensors(file, list(shapes))
        else:
            arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return text_encoding.from_json(content.encoding, arrays, f"{folder / CONFIG}: encoding")


def model_fields(content: Any, where: Any) -> dict[str, Any]:
    """Returns `content`, a model's fields from JSON, with lists converted to tuples.

    Raises UserError naming `where` if `content` is not an object.
    """
    if not isinstance(content, dict):
        raise errors.UserError(f"{where}: the fields of a model must be an object, not {content!r}")
    return {key: tuple(v) if isinstance(v, list) else v for key, v in content.items()}


def _read_params(folder: pathlib.Path, abstract: Any, sha256: str, with_params: bool) -> Any:
    file = folder / PARAMS
    shapes = {path: leaf.shape for path, leaf in flatten(abstract).items()}
    stored = weight_files.tensor_shapes(file)
    for path in sorted(shapes.keys() | stored.keys()):
        if shapes.get(path) != stored.get(path):
            raise errors.UserError(
                f"{file}: {path} has shape {stored.get(path)}, but {shapes.get(path)} is required "
                f"by {folder / CONFIG}; the files belong to different models; {weight_files.REMEDY}"
            )
    if not with_params:
        return abstract
    _check_sha256(file, sha256)
    return unflatten(weight_files.read_tensors(file, list(shapes)))


def _check_sha256(file: pathlib.Path, sha256: str) -> None:
    if files.sha256(file) != sha256:
        raise errors.UserError(
            f"{file}: its checksum differs from that in {CONFIG}; the file is corrupt; "
            f"{weight_files.REMEDY}"
        )
