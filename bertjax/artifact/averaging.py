"""Averages the parameters of several models, usually of checkpoints of one run.

    model = averaging.average(["run/checkpoints/1000", "run/checkpoints/2000"])

The mean of checkpoints with some distance along a run with a high learning rate has a lower loss
than each of them (Sanyal et al., arXiv 2306.03241; Ajroldi et al., arXiv 2502.06761). The mean of
models that were fine-tuned from the same checkpoint is a model soup (Wortsman et al., arXiv
2203.05482).
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from bertjax import errors
from bertjax.artifact import artifact, loading, text_encoding


def average(
    paths: Sequence[str | os.PathLike],
    weights: Sequence[float] | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> artifact.Artifact:
    """Returns a model with the mean of the parameters of the models at `paths`.

    The tokenizer, the step and the configs are those of the model with the highest step. The mean
    is computed in float32. Only one model is in memory at a time, besides the mean. Each is read
    once, so that the newest checkpoint of a run that is still training may be among them.

    paths: two or more, of any format that `loading.load` reads. weights: a number above 0 for each
    path, in proportion to its share of the mean; None: equal shares. done: called with the number
    of models that were read and the number of all.

    Raises UserError if the weights are invalid, if a model cannot be read, or if two models differ
    in family, fields, tokenizer, objective or task. Fields that only matter in training may differ.
    """
    if len(paths) < 2:
        raise errors.UserError(f"--input: gives {len(paths)} model; repeat it for two or more")
    weights = [1.0] * len(paths) if weights is None else weights
    _check_weights(weights, len(paths))
    for path in paths:
        loading.find(path)  # so that a wrong path is reported before anything is read
    mean: dict[str, np.ndarray] = {}
    models: list[artifact.Artifact] = []  # with only the shapes of their parameters
    total_weight = 0.0
    for path, weight in zip(paths, weights, strict=True):
        model = loading.load(path)
        params, encoding = artifact.flatten(model.params), text_encoding.of(model)
        arrays = params | ({} if encoding is None else text_encoding.tensors(encoding))
        shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in params.items()}
        models.append(
            dataclasses.replace(
                model, params=artifact.unflatten(shapes), encoding=encoding, lora=None
            )
        )
        _check_fit(path, models[-1], paths[0], models[0])
        total_weight += weight
        _add(mean, arrays, np.float32(weight / total_weight))
        del model, params, arrays  # before the next one is read
        done(len(models), len(paths))
    newest = max(models, key=lambda model: model.step or 0)
    params = {name: mean[name] for name in artifact.flatten(newest.params)}
    encoding = newest.encoding and newest.encoding.with_tensors(mean)
    return dataclasses.replace(
        newest, params=artifact.unflatten(params), encoding=encoding, origin="", source=""
    )


def _add(
    mean: dict[str, np.ndarray], arrays: Mapping[str, np.ndarray], share: np.float32
) -> None:
    """Moves the mean towards the arrays, in place. share: 1 for the first model.

    The mean of equal arrays is that array, bit for bit.
    """
    for name, array in arrays.items():
        if name in mean:
            mean[name] += (array - mean[name]) * share
        else:
            mean[name] = np.array(array, np.float32)


def _check_weights(weights: Sequence[float], num_models: int) -> None:
    if len(weights) != num_models:
        raise errors.UserError(
            f"--weights: has {len(weights)} weights, but there are {num_models} models; give one "
            "for each --input, in the same order"
        )
    for weight in weights:
        if not 0 < weight < math.inf:
            raise errors.UserError(f"--weights: {weight:g} must be a number above 0")


def _check_fit(
    path: str | os.PathLike,
    model: artifact.Artifact,
    first_path: str | os.PathLike,
    first: artifact.Artifact,
) -> None:
    """Raises UserError naming the first difference between two models that matters."""
    values, first_values = _compared(model), _compared(first)
    for name in values | first_values:
        if values.get(name) != first_values.get(name):
            raise errors.UserError(
                f"{path}: does not fit {first_path}: its {name} is {values.get(name)!r}, not "
                f"{first_values.get(name)!r}; average only models of the same kind"
            )


def _compared(model: artifact.Artifact) -> dict[str, object]:
    """Returns {name: value} of everything that must be equal in models that are averaged."""
    fields = {
        name: value
        for name, value in model.fields.items()
        if name != "init_std" and not name.endswith("dropout_rate")  # of training only
    }
    shapes = {
        f"shape of {name}": tuple(leaf.shape)
        for name, leaf in artifact.flatten(model.params).items()
    }
    task = {f"task's {name}": value for name, value in (model.task or {}).items()}
    encoding: dict[str, object] = {}
    if model.encoding is not None:
        arrays = text_encoding.tensors(model.encoding)
        values = text_encoding.settings(model.encoding)
        values |= {f"shape of {name}": array.shape for name, array in arrays.items()}
        encoding = {f"text encoding's {name}": value for name, value in values.items()}
    return {
        "family": model.family,
        **fields,
        "tokenizer": model.tokenizer.fingerprint[:12],
        **encoding,
        "objective": model.objective and model.objective["name"],
        **task,
        **shapes,
    }
