"""Converts between the config.json of transformers and the fields of our models.

A family's `HF_MODEL_TYPES` lists the values of "model_type" that the family can read; no other
family reads them. Its `HF_CONFIG` is a dict with these entries:

    "model_type": the value that is written
    "architectures": {our heads, without those in HF_DROPPED: transformers' class name}, for models
        without a task
    "fields": {key in config.json: our field}; names of activations are converted
    "fixed": {key: the only supported value}
    "fixed_in_class": like "fixed", for one class: {end of the class name: {key: value}}
    "import_heads": the sets of heads that a file may contain, see `huggingface`

All other fields and keys are computed by functions:

    "read": function (content, names of the tensors) -> fields
    "types": {key: type for `schema.typed`} for the keys that "read" uses
    "write": function (fields) -> keys
    "repeated": function (fields) -> names in HF_TIED that are written although they are duplicates
"""

import contextlib
import pathlib
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from bertjax import errors, plugins, schema
from bertjax.artifact import artifact, hf_defaults, hf_tasks, weight_files
from bertjax.data.tokenizers import special_tokens

ACTIVATIONS = {  # {transformers' name: ours}; if two have the same value, the first is written
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


def readers(first: str = "") -> Iterator[tuple[str, str]]:
    """Yields (model_type, name of the family that reads it), from every HF_MODEL_TYPES.

    first: the name of the family to import first. If the caller stops iterating at this family, no
    other family is imported. Skips families whose files cannot be loaded, so that a broken file
    does not affect models of other families.
    """
    for family in sorted(plugins.families(), key=lambda name: name != first):
        model_types = ()
        with contextlib.suppress(errors.UserError):
            model_types = getattr(plugins.family(family), "HF_MODEL_TYPES", ())
        for model_type in model_types:
            yield model_type, family


def of_model(module: ModuleType, model: artifact.Artifact, ending: str) -> dict[str, Any]:
    """Returns the content of the config.json for `model`.

    ending: the end of the transformers class name, as returned by `hf_tasks.ending_of`.
    """
    spec = module.HF_CONFIG
    content = {theirs: model.fields[ours] for theirs, ours in spec["fields"].items()}
    for theirs, ours in spec["fields"].items():
        if ours == "activation":
            activation = content[theirs]
            content[theirs] = next(k for k, v in ACTIVATIONS.items() if v == activation)
    specials = model.tokenizer.specials
    ids = {name: getattr(specials, name) for name in ("pad", "bos", "eos")}
    if module.KIND != "encoder":  # generation stops at the end-of-text token
        ids["eos"] = specials.end
    if module.KIND == "decoder":
        ids["bos"] = specials.start
    if module.KIND == "encoder_decoder":
        start_id = model.fields["decoder_start_id"]
        ids["decoder_start"] = special_tokens.decoder_start(specials, start_id)
    if ending:
        name = hf_tasks.architecture(module, ending)
    else:
        dropped = getattr(module, "HF_DROPPED", ())
        heads = [head for head in model.fields["heads"] if f"{head}_head/" not in dropped]
        name = spec["architectures"][tuple(heads)]
    return {
        "architectures": [name],
        "model_type": spec["model_type"],
        "tie_word_embeddings": True,
        **{f"{name}_token_id": i if i >= 0 else None for name, i in ids.items()},
        "torch_dtype": "float32",
        **content,
        **spec["fixed"],
        **(spec["write"](model.fields) if "write" in spec else {}),
        **hf_tasks.to_config(model, ending),
    }


def read(file: pathlib.Path) -> tuple[dict[str, Any], str]:
    """Returns (the content of config.json with transformers' defaults, the name of our family).

    Raises UserError if the file is missing or damaged, or if no family reads its model_type.
    """
    content = schema.read_object(file, weight_files.REMEDY)
    classes = content.get("architectures")
    schema.typed(classes, list[str] | None, f"{file}: architectures", weight_files.REMEDY)
    name = str(content.get("model_type"))
    family = next((family for model_type, family in readers(name) if model_type == name), None)
    if family is None:
        supported = sorted(model_type for model_type, _ in readers())
        raise errors.UserError(
            f"{file}: model_type = {name!r} is not supported; must be one of {', '.join(supported)}"
        )
    return {**hf_defaults.DEFAULTS.get(name, {}), **content}, family


def fields(
    module: ModuleType,
    content: Mapping[str, Any],
    ending: str,
    tensors: Collection[str],
    file: pathlib.Path,
) -> dict[str, Any]:
    """Returns the fields of the family's Config, converted from config.json.

    If the transformers class is for a task, the heads are those of the class. Otherwise they are
    those of the family's default Config. Raises UserError naming `file` and the key if our model
    does not support a value.

    Args:
        content: the content of config.json.
        ending: the end of the class name if the class is for a task, else "".
        tensors: the names of the tensors in the files.
        file: the path of config.json, for error messages.
    """
    spec = module.HF_CONFIG
    for key, value in (spec["fixed"] | spec.get("fixed_in_class", {}).get(ending, {})).items():
        if content.get(key, value) != value:
            raise errors.UserError(
                f"{file}: {key} = {content[key]!r} is not supported; must be {value!r}"
            )
    default = module.Config()
    result: dict[str, Any] = {"heads": default.heads, "num_labels": 0, "adapter_size": 0}
    for key, ours in spec["fields"].items():
        default_value = getattr(default, ours)
        if key not in content:  # the family is not in transformers, so `read` added no defaults
            result[ours] = default_value
            continue
        value = content[key]
        if ours == "activation":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                raise errors.UserError(
                    f"{file}: {key} = {value!r} is not supported; must be one of "
                    f"{', '.join(ACTIVATIONS)}"
                )
            value = ACTIVATIONS[value]
        if type(default_value) is float and type(value) is int:
            value = float(value)
        if type(value) is not type(default_value):
            raise errors.UserError(
                f"{file}: {key} = {value!r} must be of the same type as {default_value!r}"
            )
        result[ours] = value
    for key, shape in spec.get("types", {}).items():
        if key in content:
            schema.typed(content[key], shape, f"{file}: {key}", weight_files.REMEDY)
    result |= spec["read"](content, tensors) if "read" in spec else {}
    if ending:
        result["heads"] = hf_tasks.heads(module, ending)
        result["num_labels"] = hf_tasks.num_labels(content, ending, file)
    return result
