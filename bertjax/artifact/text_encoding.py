"""How a model turns a text into a vector: prompt, length, pooling, dense layers, normalisation.

A folder of sentence-transformers stores the same (see `sentence_folder`). An artifact stores it
under the key `encoding` of its config.json, and the arrays of dense layers beside its parameters.

    encoding = text_encoding.of(model)          # None for a model that was not trained for vectors
    encoding.pooling, encoding.normalizes       # "mean", True

Shapes: D width before a dense layer, E width after it.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import errors, schema
from bertjax.models.common import heads

ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid", "silu")
NORMALIZE = "normalize"  # the kind of a layer that scales vectors to length 1
_DENSE = "dense"
_REMEDY = "export or copy the folder again"


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense layer behind the pooling: activation(x kernel + bias). The bias may be None."""

    activation: str
    kernel_DE: np.ndarray
    bias_E: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How a model turns a text into a vector.

    pooling: how the vector is pooled from the last hidden states, one of `heads.POOLINGS`.
    max_length: texts are truncated to this many tokens, special tokens included.
    layers: what follows the pooling, in this order: dense layers, or NORMALIZE.
    prompts: {name: text that is put in front of a text}. default_prompt: the name of the prompt
        that is used if none is given; "": no prompt.
    pools_prompt: whether the tokens of the prompt are pooled too.
    lower_case: whether texts are converted to lower case.
    num_dims: how many of the first dimensions of a vector are kept; 0: all. normalizes_kept:
        whether what is kept is scaled to length 1.
    similarity: the measure that the model was trained for, as sentence-transformers names it.
    """

    pooling: str
    max_length: int
    layers: tuple[Dense | str, ...] = ()
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    pools_prompt: bool = True
    lower_case: bool = False
    num_dims: int = 0
    normalizes_kept: bool = False
    similarity: str = "cosine"

    @property
    def dense(self) -> list[Dense]:
        """The dense layers."""
        return [layer for layer in self.layers if isinstance(layer, Dense)]

    @property
    def inner(self) -> tuple[Dense | str, ...]:
        """The layers up to the last dense layer; () if there is no dense layer."""
        places = [index for index, layer in enumerate(self.layers) if isinstance(layer, Dense)]
        return self.layers[: max(places, default=-1) + 1]

    @property
    def normalizes(self) -> bool:
        """Whether the vectors have length 1."""
        if self.num_dims:
            return self.normalizes_kept
        return bool(self.layers) and self.layers[-1] == NORMALIZE

    def normalized(self, normalizes: bool) -> "Encoding":
        """Returns the encoding with vectors of length 1, or without the last normalisation."""
        if normalizes == self.normalizes:
            return self
        if self.num_dims:
            return dataclasses.replace(self, normalizes_kept=normalizes)
        layers = (*self.layers, NORMALIZE) if normalizes else self.layers[:-1]
        return dataclasses.replace(self, layers=layers)

    def with_tensors(self, arrays: Mapping[str, np.ndarray]) -> "Encoding":
        """Returns the encoding with other arrays of its dense layers, named as in `tensors`."""
        layers = tuple(
            dataclasses.replace(
                layer, kernel_DE=arrays[f"{index}/kernel"], bias_E=arrays.get(f"{index}/bias")
            )
            if isinstance(layer, Dense)
            else layer
            for index, layer in enumerate(self.layers)
        )
        return dataclasses.replace(self, layers=layers)

    def full_width(self, hidden_size: int) -> int:
        """Returns the size of the vectors of a model of this width before they are truncated."""
        return self.dense[-1].kernel_DE.shape[1] if self.dense else hidden_size

    def width(self, hidden_size: int) -> int:
        """Returns the size of the vectors of a model of this width."""
        size = self.full_width(hidden_size)
        return min(size, self.num_dims) if self.num_dims else size

    def summary(self) -> str:
        """Returns a few words, such as "vectors by mean pooling, dense 384 to 128, normalised"."""
        parts = [f"vectors by {self.pooling} pooling"]
        for layer in self.layers:
            if isinstance(layer, Dense):
                parts.append("dense {} to {}".format(*layer.kernel_DE.shape))
            else:
                parts.append("normalised")
        return ", ".join(parts)

    def prompt(self, name: str | None, text: str | None) -> str:
        """Returns the prompt to put in front of a text.

        text: the prompt itself; name: the name of one of `prompts`; if both are None, it is the
        default prompt. Raises UserError if both are given, or if the model has no such prompt.
        """
        if text is not None and name is not None:
            raise errors.UserError("give either a prompt or the name of a prompt, not both")
        if text is not None:
            return text
        name = self.default_prompt if name is None else name
        if name and name not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise errors.UserError(
                f"prompt_name = {name!r}: the model has no such prompt (its prompts: {names})"
            )
        return self.prompts[name] if name else ""


def of(model: Any) -> Encoding | None:
    """Returns the encoding of an artifact; None if the model was not trained for vectors.

    A model that was fine-tuned for vectors has the options of its task, whatever it was before.
    """
    task = model.task
    if task is None:
        return model.encoding
    if "pooling" not in task.get("config", {}):  # earlier versions stored no options
        return None
    return trained(model.encoding, task)


def trained(before: Encoding | None, task: Mapping[str, Any]) -> Encoding:
    """Returns the encoding of a model that was fine-tuned for vectors.

    before: the encoding of the model that training started from. Its prompts are kept. task: the
    task of the artifact.
    """
    config = task["config"]
    base = before or Encoding("mean", task["max_length"])
    layers, similarity = base.layers, base.similarity
    if "normalize" in config:
        layers = (*base.inner, *([NORMALIZE] if config["normalize"] else []))
        # Only this loss compares inner products; the others compare cosines.
        is_dot = config.get("loss") == "margin_mse" and not config["normalize"]
        similarity = "dot" if is_dot else "cosine"
    return dataclasses.replace(
        base,
        pooling=config["pooling"],
        max_length=task["max_length"],
        layers=layers,
        similarity=similarity,
    )


def agrees(encoding: Encoding, task: Mapping[str, Any]) -> bool:
    """Returns whether a model with this encoding may have been fine-tuned on the task for it."""
    return "pooling" in task["config"] and digest(trained(encoding, task)) == digest(encoding)


@dataclasses.dataclass(frozen=True)
class _Layer:
    kind: str
    activation: str = ""
    has_bias: bool = False


@dataclasses.dataclass(frozen=True)
class _Stored:
    """An encoding in the config.json of an artifact, without the arrays of its dense layers."""

    pooling: str
    max_length: schema.Count
    layers: list[_Layer]
    prompts: dict[str, str]
    default_prompt: str
    pools_prompt: bool
    lower_case: bool
    num_dims: schema.Count
    normalizes_kept: bool
    similarity: str


def to_json(encoding: Encoding) -> dict[str, Any]:
    """Returns the encoding without the arrays of dense layers, for `from_json`."""
    layers = [
        dataclasses.asdict(_Layer(_DENSE, layer.activation, layer.bias_E is not None))
        if isinstance(layer, Dense)
        else dataclasses.asdict(_Layer(layer))
        for layer in encoding.layers
    ]
    fields = {f.name: getattr(encoding, f.name) for f in dataclasses.fields(encoding)}
    return {**fields, "layers": layers, "prompts": dict(encoding.prompts)}


def kinds(layers: Sequence[Dense | str]) -> tuple[str, ...]:
    """Returns the kind of each layer: the activation of a dense layer, or NORMALIZE."""
    return tuple(layer.activation if isinstance(layer, Dense) else layer for layer in layers)


def tensors(encoding: Encoding) -> dict[str, np.ndarray]:
    """Returns {name: array} of the dense layers, for `from_json`; {} if there are none.

    The names are "0/kernel" and "0/bias" for the layer 0.
    """
    arrays = {}
    for index, layer in enumerate(encoding.layers):
        if isinstance(layer, Dense):
            arrays[f"{index}/kernel"] = layer.kernel_DE
            if layer.bias_E is not None:
                arrays[f"{index}/bias"] = layer.bias_E
    return arrays


def from_json(content: Any, arrays: Mapping[str, np.ndarray], where: Any) -> Encoding:
    """Returns the encoding that `to_json` and `tensors` stored.

    Raises UserError naming `where` if the content is invalid or an array is missing.
    """
    stored = schema.typed(content, _Stored, where, _REMEDY)
    layers: list[Dense | str] = []
    for index, layer in enumerate(stored.layers):
        if layer.kind == NORMALIZE:
            layers.append(NORMALIZE)
            continue
        names = [f"{index}/kernel"] + [f"{index}/bias"] * layer.has_bias
        missing = [name for name in names if name not in arrays]
        if layer.kind != _DENSE or layer.activation not in ACTIVATIONS or missing:
            raise errors.UserError(
                f"{where}: layer {index} is not a layer of this version, or lacks its arrays; "
                f"{_REMEDY}"
            )
        bias_E = arrays[names[1]] if layer.has_bias else None
        layers.append(Dense(layer.activation, arrays[names[0]], bias_E))
    if stored.pooling not in heads.POOLINGS:
        raise errors.UserError(
            f"{where}: pooling = {stored.pooling!r}: must be one of {', '.join(heads.POOLINGS)}"
        )
    fields = {f.name: getattr(stored, f.name) for f in dataclasses.fields(stored)}
    return Encoding(**{**fields, "layers": tuple(layers)})


def settings(encoding: Encoding) -> dict[str, Any]:
    """Returns what vectors depend on besides arrays: the content of `to_json` without prompts.

    Prompts do not count: vectors with the prompts for queries and for documents are compared.
    """
    content = to_json(encoding)
    for name in ("prompts", "default_prompt", "similarity"):
        del content[name]
    return content


def digest(encoding: Encoding) -> str:
    """Returns a hex sha256 of `settings` and of the arrays of dense layers."""
    result = hashlib.sha256(repr(sorted(settings(encoding).items())).encode())
    for name, array in sorted(tensors(encoding).items()):
        result.update(name.encode())
        result.update(np.ascontiguousarray(array))
    return result.hexdigest()
