"""Trains the dense layers behind the pooling of text vectors as parameters of the model.

An artifact has the arrays of these layers in its encoding. In fine-tuning they are parameters, and
every strategy trains them as it trains a head:

    params = projection.joined(params, task_type, source)      # params["projection"]["0"]["kernel"]
    model.apply({"params": params}, pooled=x_BND, kinds=kinds, method=projection.project)
    params, encoding = projection.split(params, source.encoding)        # for the artifact

The layers are `Encoding.inner`: those up to the last dense layer, with any normalisation between
them. Whether vectors are scaled to length 1 at the end is an option of the task type.

Shapes: B batch, N texts of an example, D model, E vector.
"""

from typing import Any

import jax

from bertjax.artifact import artifact, text_encoding
from bertjax.inference import text_vectors

NAME = "projection"  # first part of the paths of the parameters
POOLED = "pooled"  # the vectors before the first layer


def kinds(task_type: Any, source: artifact.Artifact) -> tuple[str, ...]:
    """Returns the kinds of the layers that the task type trains, see `text_encoding.kinds`.

    source: the model that fine-tuning starts from, or a fine-tuned one. Returns () if it has no
    dense layers, or if the task type does not train text vectors.
    """
    encoding = text_encoding.of(source) if task_type.pooling else None
    return () if encoding is None else text_encoding.kinds(encoding.inner)


def width(source: artifact.Artifact) -> int:
    """Returns the size of the vectors that are trained: that of a last dense layer, or D."""
    encoding, hidden_size = text_encoding.of(source), source.fields["hidden_size"]
    return hidden_size if encoding is None else encoding.full_width(hidden_size)


def joined(params: Any, task_type: Any, source: artifact.Artifact) -> Any:
    """Returns the parameters with those of the layers that the task type trains, if any."""
    if not kinds(task_type, source):
        return params
    return {**params, NAME: artifact.unflatten(text_encoding.tensors(text_encoding.of(source)))}


def split(
    params: Any, encoding: text_encoding.Encoding | None
) -> tuple[Any, text_encoding.Encoding | None]:
    """Returns the parameters without those of the layers, and the encoding with their arrays.

    Returns both unchanged if the parameters have no such layers.
    """
    if encoding is None or NAME not in params:
        return params, encoding
    rest = {name: tree for name, tree in params.items() if name != NAME}
    return rest, encoding.with_tensors(artifact.flatten(params[NAME]))


def project(
    model: Any, pooled: jax.Array, kinds: tuple[str, ...], *, deterministic: bool = True
) -> dict[str, jax.Array]:
    """Returns "vectors", float32[B, N, E], and "pooled", which a frozen body's cache keeps.

    To be called as a method of the Linen module, by `model.apply`. pooled: float32[B, N, D].
    """
    del deterministic  # the layers have no dropout
    arrays = model.variables["params"][NAME]
    return {"vectors": text_vectors.projected(pooled, arrays, kinds), POOLED: pooled}
