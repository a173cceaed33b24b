"""Grows the parameters of a trained model to the sizes of a larger one of the same family.

    larger = growth.grown(model, fields, fresh_params)

Widths are tiled from the centre, and layers are repeated, as ModernBERT-large was initialized from
ModernBERT-base (Warner et al., arXiv 2412.13663, and `tile_weights_from_middle` in
src/bert_layers/initialization.py of AnswerDotAI/ModernBERT). Each new channel, head or unit copies
one old channel, head or unit as a whole, and all parameters copy the same ones. A table of
positions is repeated from its start, as Longformer extends RoBERTa's (Beltagy et al., arXiv
2004.05150, section 5).

Unlike ModernBERT's code, a weight on an input that has N copies is divided by N, so that sums stay
what they were. If every width is multiplied by an integer, the larger model computes the same
function; otherwise almost the same one, because layer norms weight all channels equally. Copies
would have equal gradients and stay equal, as if the model were not wider. Therefore NOISE times the
fresh parameters are added. Both are steps of Net2Net (Chen et al., arXiv 1511.05641, section 2.2).

The rules follow from the logical axes in `sharding.PARAM_AXES` and hold for every family. The
parameters of a layer whose name begins with "next_" belong to the layer after it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import errors, sharding
from bertjax.artifact import artifact

# Fields that may grow; also those of an ELECTRA's or a DeBERTa's generator, "generator_...".
SIZES = (
    "num_layers", "num_decoder_layers", "hidden_size", "embedding_size", "num_heads",
    "intermediate_size", "max_length",
)  # fmt: skip
# Fields that may take any value, because they only change how positions are computed; also the
# bases of rotary positions, "..._theta".
POSITIONS = ("max_relative_positions",)

# Share of the fresh kernels that is added: a doubled ModernBERT's loss then rises by 0.004.
NOISE = 0.1

Indices = dict[int, np.ndarray]  # {axis: the old index that each new index copies}


def centered(old_size: int, new_size: int) -> np.ndarray:
    """Returns int[new_size]: the old indices in the middle, repeated cyclically on both sides."""
    offset = (new_size - old_size) // 2
    return (np.arange(new_size) - offset) % old_size


def repeated_layers(old_size: int, new_size: int, *, is_next: bool = False) -> np.ndarray:
    """Returns int[new_size]: the old layer that each new layer copies, in the same order.

    Each old layer is repeated equally often, give or take one. ModernBERT rounds to the nearest
    layer instead, which leaves the range if the number of layers is doubled.

    is_next: whether the parameter belongs to the layer after its own, as does a norm at the end of
    a layer for the next one. Then a new layer copies it from the old layer before the one that the
    next new layer copies; the last one copies the last one.
    """
    layers = np.arange(new_size) * old_size // new_size
    return np.maximum(np.append(layers[1:], old_size) - 1, 0) if is_next else layers


def repeated_positions(old_size: int, new_size: int, old_length: int) -> np.ndarray:
    """Returns int[new_size]: rows of a table of positions, repeated after its last row.

    old_length: the number of positions. The rows before them, such as RoBERTa's two rows for
    padding, are not repeated.
    """
    first, rows = old_size - old_length, np.arange(new_size)
    return np.where(rows < first, rows, first + (rows - first) % old_length)


def extends(name: str, old: Any, new: Any) -> bool:
    """Returns whether the value `new` of the field `name` is one that a model can be grown to."""
    return (_is_size(name) and new >= old) or _is_position(name)


def _is_size(name: str) -> bool:
    return name.removeprefix("generator_") in SIZES


def _is_position(name: str) -> bool:
    return name in POSITIONS or name.endswith("_theta")


def check_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the fields that may differ. Raises UserError if a size is smaller.

    old, new: the fields of the Configs of the trained and of the larger model.
    """
    names = tuple(name for name in old if _is_size(name) or _is_position(name))
    for name in names:
        if name in new and not extends(name, old[name], new[name]):
            raise errors.UserError(
                f"config.model.{name} = {new[name]}: must be {old[name]} or more, the value of "
                "config.init_from, because a model can be initialized only from a smaller one"
            )
    return names


def check(
    model: artifact.Artifact, fields: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises UserError if the model cannot be grown to parameters of these `shapes`, by path.

    fields: the fields of the larger model's Config.
    """
    old_shapes = {path: leaf.shape for path, leaf in artifact.flatten(model.params).items()}
    for path, shape in old_shapes.items():
        if path in shapes:
            _indices(path, shape, shapes[path], model.fields, fields)
    _check_projections(old_shapes, shapes)


def _check_projections(
    old: Mapping[str, tuple[int, ...]], new: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises UserError if only one of two models projects the embeddings to the layers' width.

    ELECTRA and DeBERTa have this projection only if the widths differ. Without this check, a random
    one would be added to a trained model, or a trained one would be lost.
    """
    for path in sorted(old.keys() ^ new.keys()):
        if not path.endswith("project/kernel"):
            continue
        prefix = "generator_" if path.startswith("generator_") else ""
        if all(any(p.startswith(f"{prefix}encoder/") for p in model) for model in (old, new)):
            relation, effect = ("differ from", "lost") if path in old else ("equal", "random")
            raise errors.UserError(
                f"config.model.embedding_size must {relation} config.model.{prefix}hidden_size, as "
                f"it does in config.init_from; otherwise {path} would be {effect}"
            )


def grown(model: artifact.Artifact, fields: Mapping[str, Any], fresh: Any) -> artifact.Artifact:
    """Returns a copy of the model with parameters of the shapes of `fresh`.

    The vocabulary's axis keeps its size. Parameters that are not in `fresh` are left out. Raises
    UserError as `check` does.

    fields: the fields of the larger model's Config. fresh: its newly initialized parameters.
    """
    params = {}
    fresh_arrays = artifact.flatten(fresh)
    is_tied = "lm_head/kernel" not in fresh_arrays
    for path, leaf in artifact.flatten(model.params).items():
        if path not in fresh_arrays:
            continue
        noise = fresh_arrays[path]
        indices = _indices(path, leaf.shape, noise.shape, model.fields, fields)
        for axis, index in indices.items():
            old_size = leaf.shape[axis]
            leaf = np.take(leaf, index, axis)
            if _is_summed(path, axis, is_tied=is_tied):
                copies = np.bincount(index, minlength=old_size)[index].astype(leaf.dtype)
                leaf = leaf / np.expand_dims(copies, tuple(range(1, leaf.ndim - axis)))
                if fields.get("scaled_output") and path.endswith("/scale"):  # T5's factor D ** -0.5
                    leaf = leaf * math.sqrt(len(index) / old_size)
        is_wider = any(sharding.param_axes(path)[axis] != "layers" for axis in indices)
        if is_wider and path.endswith("/kernel"):
            leaf = leaf + NOISE * np.asarray(noise)
        params[path] = leaf
    return dataclasses.replace(model, params=artifact.unflatten(params))


def _is_summed(path: str, axis: int, *, is_tied: bool) -> bool:
    """Returns whether the model sums over this axis of the parameter at `path`.

    These are the input axes of a kernel, and the axis of a norm whose output is multiplied with the
    word embeddings. is_tied: whether decoders use the word embeddings as their output layer.
    """
    if path.endswith("/kernel"):
        first = "/layers/" in path
        num_inputs = 2 if re.search(r"(^|/)(out|conv)/kernel$", path) else 1
        return 0 <= axis - first < num_inputs
    if path.startswith("encoder/"):
        return False
    return re.search(rf"(^|/)(mlm_head/norm{'|final_norm' * is_tied})/", path) is not None


def _indices(
    path: str,
    old_shape: tuple[int, ...],
    new_shape: tuple[int, ...],
    old_fields: Mapping[str, Any],
    new_fields: Mapping[str, Any],
) -> Indices:
    """Returns what each axis of the parameter at `path` copies; {} if the shapes are the same."""
    indices: Indices = {}
    names = sharding.param_axes(path)
    for axis, (name, old, new) in enumerate(zip(names, old_shape, new_shape, strict=True)):
        if old == new or name == "vocab":
            continue
        if name == "head_dim":
            raise errors.UserError(
                f"config.model makes attention heads of width {new}, but those of config.init_from "
                f"have width {old}: set the numbers of heads so that the width stays the same"
            )
        if new < old:
            raise errors.UserError(
                f"config.init_from has {path} of shape {old_shape}, but config.model needs "
                f"{new_shape}: a model can be initialized only from a smaller one"
            )
        if name == "layers":
            is_next = re.search(r"/next_\w+/", path) is not None
            indices[axis] = repeated_layers(old, new, is_next=is_next)
        elif axis == 0 and re.search(r"(^|/)(decoder_)?position/embedding$", path):
            indices[axis] = repeated_positions(old, new, old_fields["max_length"])
        elif name is None and axis == 0 and path.endswith("/embedding"):
            raise errors.UserError(
                f"config.init_from has {old} rows in {path}, but config.model needs {new}: only a "
                "table of absolute positions can grow"
            )
        else:
            indices[axis] = centered(old, new)
            widths = old_fields["hidden_size"], new_fields["hidden_size"]
            count = old // widths[0]
            # An input of several concatenated states, as in SpanBERT, is tiled state by state.
            is_concatenated = (old, new) == (count * widths[0], count * widths[1])
            if name == "embed" and count > 1 and is_concatenated:
                starts = np.arange(count)[:, None] * widths[0]
                indices[axis] = (starts + centered(*widths)).reshape(-1)
    return indices
