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
    wanted = {**source.fields, **fields, "heads": _heads(source, module, heads)}
    whole = _whole(source.family, wanted)
    made = plugins.model(source.family, whole)
    shapes = {
        name: leaf.shape for name, leaf in artifact.flatten(plugins.abstract_params(made)).items()
    }
    keeps_heads = source.task is not None and (
        (source.task["kind"], list(source.task["labels"])) == (kind, list(labels))
    )
    found = _found(source, made, shapes, keeps_heads=keeps_heads)
    rows, pieces = source.fields["vocab_size"], whole["vocab_size"]
    allowed = f"{rows} or more, the vocabulary size of the model"
    errors.check(pieces >= rows, "model.vocab_size", pieces, allowed)
    lacking = tuple(
        name
        for name in shapes
        if name not in found or (pieces > rows and "vocab" in sharding.param_axes(name))
    )
    params = found | (jax.device_get(_draw(made, lacking, key)) if lacking else {})
    for name in lacking:
        if name in {f"{head}/logits/bias" for head in heads}:
            params[name] = np.full_like(params[name], output_bias)
    for name in found.keys() & set(lacking):
        params[name] = _more_rows(name, found[name], np.array(params[name]), rows)
    for name, shape in shapes.items():
        if params[name].shape != shape:
            raise errors.UserError(
                f"parameter {name} has shape {params[name].shape} in the model to start with, but "
                f"shape {shape} with the given model fields: do not change the model's sizes"
            )
    return source.family, whole, artifact.unflatten({name: params[name] for name in shapes})


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
            f"a {source.family} has no head {', '.join(sorted(unknown))}: choose a text-to-text "
            "task for this model, or an encoder for this task"
        )
    wanted = set(heads)
    if "classifier" in heads and module.Model.layouts["classifier"].pooled:
        wanted.add("pooler")
    return tuple(head for head in module.HEADS if head in wanted)


def _whole(family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every field of the family's Config except those of `Compute`."""
    known = {field.name for field in dataclasses.fields(plugins.family(family).Config)}
    for name in fields:
        if name not in known:
            raise errors.UserError(f"a {family} has no field {name}: leave it out")
    return layers.fields_of(plugins.model(family, dict(fields)).config)


def _found(
    source: artifact.Artifact, made: Any, shapes: Mapping[str, Any], *, keeps_heads: bool
) -> dict[str, np.ndarray]:
    """Returns {path in the model: its initial value, from the source}.

    Omits the parameters that the source lacks. keeps_heads: whether to use the source's task heads.
    """
    theirs = artifact.flatten(source.params)
    found = {}
    for name in shapes:
        head, _, rest = name.partition("/")
        if head not in heads_lib.DOWNSTREAM:
            found[name] = theirs.get(name)
            continue
        if keeps_heads and np.shape(theirs.get(name)) == shapes[name]:
            found[name] = theirs[name]
        elif begins := made.layouts[head].starts_as:
            found[name] = theirs.get(f"{begins}/{rest}")
    return {name: np.asarray(leaf) for name, leaf in found.items() if leaf is not None}


@functools.partial(jax.jit, static_argnames=("made", "names"))
def _draw(made: Any, names: tuple[str, ...], key: jax.Array) -> dict[str, jax.Array]:
    """Initializes the parameters in `names`; the others are not computed."""
    fresh = artifact.flatten(plugins.init_params(made, key))
    return {name: fresh[name] for name in names}


def _more_rows(name: str, found: np.ndarray, fresh: np.ndarray, rows: int) -> np.ndarray:
    """Copies the values of the first `rows` pieces from `found` to `fresh`; returns `fresh`.

    `fresh` is the initialized parameter for a larger vocabulary.
    """
    first = (slice(None),) * sharding.param_axes(name).index("vocab") + (slice(rows),)
    fresh[first] = found[first]
    return fresh
