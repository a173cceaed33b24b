"""Converts between the config.json of transformers and the fields of our models.

A family's `HF_MODEL_TYPES` are the values of "model_type" that it reads, each of one family only.
Its `HF_CONFIG` has the one that it writes, and maps other keys to our fields. It also lists the
keys that must have one value ("fixed"; "fixed_in_class" for the classes of a task), and has these
entries for anything that is not one key for one field:

    "read": (content, names of the tensors) -> fields
    "types": key -> type, for `schema.typed`, of the keys that "read" uses
    "write": fields -> keys
    "repeated": fields -> names in HF_TIED that the file must nevertheless contain
"""

import contextlib
import pathlib
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from bertjax import errors, plugins, schema
from bertjax.artifact import artifact, hf_defaults, hf_tasks, weight_files
from bertjax.data.tokenizers import special_tokens

ACTIVATIONS = {  # theirs -> ours; of two names for the same activation we write the first
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}


def readers(first: str = "") -> Iterator[tuple[str, str]]:
    """Yields (model_type of a config.json, family that reads it), from HF_MODEL_TYPES.

    first: the family to import first, so that a match with it imports no other. Skips files that
    cannot be loaded, so that a broken file fails only what names it.
    """
    for family in sorted(plugins.families(), key=lambda name: name != first):
        model_types = ()
        with contextlib.suppress(errors.UserError):
            model_types = getattr(plugins.family(family), "HF_MODEL_TYPES", ())
        for model_type in model_types:
            yield model_type, family


def of_model(module: ModuleType, model: artifact.Artifact, ending: str) -> dict[str, Any]:
    """Returns the content of config.json.

    ending: the end of the class name, as returned by `hf_tasks.ending_of`.
    """
    spec = module.HF_CONFIG
    content = {theirs: model.fields[ours] for theirs, ours in spec["fields"].items()}
    for theirs, ours in spec["fields"].items():
        if ours == "activation":
            wanted = content[theirs]
            content[theirs] = next(t for t, mine in ACTIVATIONS.items() if mine == wanted)
    specials = model.tokenizer.specials
    ids = {name: getattr(specials, name) for name in ("pad", "bos", "eos")}
    if module.KIND != "encoder":  # generation stops at the end-of-text token
        ids["eos"] = specials.end
    if module.KIND == "decoder":
        ids["bos"] = specials.start
    if module.KIND == "encoder_decoder":
        own = model.fields["decoder_start_id"]
        ids["decoder_start"] = special_tokens.decoder_start(specials, own)
    name = hf_tasks.architecture(module, ending) if ending else None
    return {
        "architectures": [name or spec["architectures"][tuple(model.fields["heads"])]],
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
    """Returns the content of config.json, completed with transformers' defaults, and our family.

    Raises UserError if the file is missing or damaged, or if no family has its model_type.
    """
    content = schema.read_object(file, weight_files.AGAIN)
    classes = content.get("architectures")
    schema.typed(classes, list[str] | None, f"{file}: architectures", weight_files.AGAIN)
    name = str(content.get("model_type"))
    family = next((family for own, family in readers(name) if own == name), None)
    if family is None:
        known = sorted(own for own, _ in readers())
        raise errors.UserError(
            f"{file}: model_type = {name!r} is not supported; must be one of {', '.join(known)}"
        )
    return {**hf_defaults.DEFAULTS.get(name, {}), **content}, family


def fields(
    module: ModuleType,
    content: Mapping[str, Any],
    ending: str,
    tensors: Collection[str],
    file: pathlib.Path,
) -> dict[str, Any]:
    """Returns the model's fields, with the heads of its class or of the family's default Config.

    ending: the end of the class name for a task, or "". tensors: the tensor names in the files.
    Raises UserError naming `file` and the key if our model does not support a value.
    """
    spec = module.HF_CONFIG
    for key, value in (spec["fixed"] | spec.get("fixed_in_class", {}).get(ending, {})).items():
        if content.get(key, value) != value:
            raise errors.UserError(
                f"{file}: {key} = {content[key]!r} is not supported; must be {value!r}"
            )
    default = module.Config()
    found: dict[str, Any] = {"heads": default.heads, "num_labels": 0, "adapter_size": 0}
    for key, ours in spec["fields"].items():
        usual = getattr(default, ours)
        if key not in content:  # the family is not in transformers, so `read` added no defaults
            found[ours] = usual
            continue
        value = content[key]
        if ours == "activation":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                raise errors.UserError(
                    f"{file}: {key} = {value!r} is not supported; must be one of "
                    f"{', '.join(ACTIVATIONS)}"
                )
            value = ACTIVATIONS[value]
        if type(usual) is float and type(value) is int:
            value = float(value)
        if type(value) is not type(usual):
            raise errors.UserError(
                f"{file}: {key} = {value!r} must be of the same type as {usual!r}"
            )
        found[ours] = value
    for key, shape in spec.get("types", {}).items():
        if key in content:
            schema.typed(content[key], shape, f"{file}: {key}", weight_files.AGAIN)
    found |= spec["read"](content, tensors) if "read" in spec else {}
    if ending:
        found["heads"] = hf_tasks.heads(module, ending)
        found["num_labels"] = hf_tasks.num_labels(content, ending, file)
    return found
