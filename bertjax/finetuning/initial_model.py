"""Makes the model that fine-tuning starts from: a checkpoint's parameters and new heads.

family, fields, params = initial_model.model(source, ("classifier",), {"num_labels": 3}, key)
module = plugins.model(family, fields)
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from bertjax import errors, plugins, sharding
from bertjax.artifact import artifact
from bertjax.models.common import heads as heads_lib
from bertjax.models.common import layers
from bertjax.objectives import distillation


def model(
    source: artifact.Artifact,
    heads: tuple[str, ...],
    fields: Mapping[str, Any],
    key: jax.Array,
    kind: str = "",
    labels: Sequence[str] = (),
    output_bias: float = 0.0,
) -> tuple[str, dict[str, Any], Any]:
    """Returns (family, fields, params) of the model; initializes what the source lacks.

    heads: the task's heads, which replace the source's. The pooler is added if the family's
    classifier uses it. If `heads` is (), an encoder keeps only its pooler, if it has one, and any
    other model gets the head "lm".
    fields: model fields that differ from the source's (num_labels, adapter_size, dropout rates,
    vocab_size). key: the random key for new parameters. kind, labels: the task type's name and
    labels. The source's task heads are kept only if they were trained for the same kind and labels.
    output_bias: the initial bias of each output of a new head, if the head has biases.

    From an ELECTRA with generator and discriminator, uses the discriminator. The returned fields
    are all of the family's Config except those of `Compute`; params are on the host, float32.
    Raises UserError if the family lacks a head, for an unknown field, and for fields that change
    the shape of the source's arrays; only the vocabulary may grow.
    """
    source = artifact.part(source)
    module = plugins.family(source.family)
    partial_fields = {**source.fields, **fields, "heads": _heads(source, module, heads)}
    all_fields = _all_fields(source.family, partial_fields)
    new_model = plugins.model(source.family, all_fields)
    shapes = {
        name: leaf.shape
        for name, leaf in artifact.flatten(plugins.abstract_params(new_model)).items()
    }
    keeps_heads = source.task is not None and (
        (source.task["kind"], list(source.task["labels"])) == (kind, list(labels))
    )
    source_values = _source_values(source, new_model, shapes, keeps_heads=keeps_heads)
    rows, pieces = source.fields["vocab_size"], all_fields["vocab_size"]
    allowed = f"{rows} or more, the vocabulary size of the model"
    errors.check(pieces >= rows, "model.vocab_size", pieces, allowed)
    missing = tuple(
        name
        for name in shapes
        if name not in source_values or (pieces > rows and "vocab" in sharding.param_axes(name))
    )
    params = source_values | (
        jax.device_get(_initialize(new_model, missing, key)) if missing else {}
    )
    for name in missing:
        if name in {f"{head}/logits/bias" for head in heads}:
            params[name] = np.full_like(params[name], output_bias)
    for name in source_values.keys() & set(missing):
        params[name] = _grow(name, source_values[name], np.array(params[name]), rows)
    for name, shape in shapes.items():
        if params[name].shape != shape:
            raise errors.UserError(
                f"parameter {name} has shape {params[name].shape} in the model that fine-tuning "
                f"starts from, but shape {shape} in this run: do not change the model's sizes"
            )
    return source.family, all_fields, artifact.unflatten({name: params[name] for name in shapes})


def shallower(source: artifact.Artifact, num_layers: int) -> artifact.Artifact:
    """Returns the model with `num_layers` of its layers, evenly spread; 0: all of them.

    The first and the last layer are among them, as in DistilBERT. Raises UserError if the model has
    fewer layers, or if it is not a stack of different layers.
    """
    old = source.fields["num_layers"]
    if num_layers in (0, old):
        return source
    errors.check(num_layers < old, "num_layers", num_layers,
                 f"at most {old}, the number of layers of config.model, or 0")  # fmt: skip
    flat = artifact.flatten(source.params)
    if plugins.family(source.family).KIND == "encoder_decoder" or not any(
        "/layers/" in path and len(leaf) == old for path, leaf in flat.items()
    ):
        raise errors.UserError(
            f"config.num_layers = {num_layers}: a {source.family} cannot be shortened; set it to 0"
        )
    kept = distillation.spread_layers(old, num_layers)
    params = {path: leaf[kept] if "/layers/" in path else leaf for path, leaf in flat.items()}
    fields = {**source.fields, "num_layers": num_layers}
    return dataclasses.replace(source, fields=fields, params=artifact.unflatten(params))


def _heads(
    source: artifact.Artifact, module: ModuleType, heads: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the heads in the family's order, with or without the pooler as `model` documents."""
    if not heads:
        if module.KIND != "encoder":
            return ("lm",)
        return tuple(head for head in source.fields["heads"] if head == "pooler")
    unknown = set(heads) - {*module.HEADS, "pooler"}
    if unknown:
        raise errors.UserError(
            f"the model family '{source.family}' has no head {', '.join(sorted(unknown))}: "
            "choose a text-to-text task for this model, or an encoder for this task"
        )
    names = set(heads)
    if "classifier" in heads and module.Model.layouts["classifier"].pooled:
        names.add("pooler")
    return tuple(head for head in module.HEADS if head in names)


def _all_fields(family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every field of the family's Config except those of `Compute`."""
    names = {field.name for field in dataclasses.fields(plugins.family(family).Config)}
    for name in fields:
        if name not in names:
            raise errors.UserError(
                f"the model family '{family}' has no field '{name}': leave it out"
            )
    return layers.fields_of(plugins.model(family, dict(fields)).config)


def _source_values(
    source: artifact.Artifact, new_model: Any, shapes: Mapping[str, Any], *, keeps_heads: bool
) -> dict[str, np.ndarray]:
    """Returns {path in the model: its initial value, from the source}.

    Omits the parameters that the source lacks. keeps_heads: whether to use the source's task heads.
    """
    flat = artifact.flatten(source.params)
    values = {}
    for name in shapes:
        head, _, rest = name.partition("/")
        if head not in heads_lib.DOWNSTREAM:
            values[name] = flat.get(name)
            continue
        if keeps_heads and np.shape(flat.get(name)) == shapes[name]:
            values[name] = flat[name]
        elif prefix := new_model.layouts[head].starts_as:
            values[name] = flat.get(f"{prefix}/{rest}")
    return {name: np.asarray(leaf) for name, leaf in values.items() if leaf is not None}


@functools.partial(jax.jit, static_argnames=("new_model", "names"))
def _initialize(new_model: Any, names: tuple[str, ...], key: jax.Array) -> dict[str, jax.Array]:
    """Initializes the parameters in `names`; the others are not computed."""
    params = artifact.flatten(plugins.init_params(new_model, key))
    return {name: params[name] for name in names}


def _grow(name: str, old: np.ndarray, new: np.ndarray, rows: int) -> np.ndarray:
    """Copies the values of the first `rows` pieces from `old` to `new`; returns `new`.

    `new` is the initialized parameter for a larger vocabulary.
    """
    index = (slice(None),) * sharding.param_axes(name).index("vocab") + (slice(rows),)
    new[index] = old[index]
    return new
