"""Reads and writes what sentence-transformers adds to a Hugging Face folder, without that library.

    modules.json                        the modules in order: Transformer, Pooling, Dense, Normalize
    sentence_bert_config.json           max_seq_length and do_lower_case of the Transformer
    1_Pooling/config.json               how vectors are pooled from the last hidden states
    2_Dense/config.json, 2_Dense/model.safetensors
    config_sentence_transformers.json   prompts, similarity, kind of the model

Versions 2 to 6 write these files with different names of classes and keys. All of them are read.
The old names are written, which every version reads. A folder of a CrossEncoder is read too (see
`cross_encoder`); other kinds of models are refused.
"""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bertjax import errors, files, schema
from bertjax.artifact import cross_encoder, text_encoding, weight_files

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"
_MODULE_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
# The names that different versions gave to the config of the Transformer.
_TRANSFORMER_CONFIGS = ("sentence_bert_config.json",) + tuple(
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_VECTORS = "SentenceTransformer"  # the kind of a model that computes vectors, the default
_POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}  # {theirs: ours}
# {key of versions before 6: pooling, with their name}
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS = {  # {ours: class of torch}
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
_CLASSES = {path.rpartition(".")[2]: name for name, path in _ACTIVATIONS.items()}
_UNSUPPORTED = "a model with this module cannot be loaded"


class Module(NamedTuple):
    """A line of modules.json. kind: the name of its class. folder: the folder with its files."""

    kind: str
    folder: pathlib.Path

    def config(self) -> dict[str, Any]:
        """Returns its config.json; {} if it has none."""
        return _object(self.folder / _MODULE_CONFIG)


def modules(folder: pathlib.Path) -> list[Module]:
    """Returns the modules of a folder; [] if sentence-transformers did not write it.

    Raises UserError if modules.json is damaged, or if a class is not one of sentence-transformers.
    """
    file = folder / MODULES
    if not file.exists():
        return []
    data = b'{"modules":' + file.read_bytes() + b"}"  # the file is a list
    lines = schema.parse(data, file, weight_files.REMEDY)["modules"]
    result = []
    for index, line in enumerate(lines if isinstance(lines, list) else []):
        name, path = (line.get(key) if isinstance(line, dict) else None for key in ("type", "path"))
        if not isinstance(name, str) or not isinstance(path, str) or _leaves(path):
            raise errors.UserError(
                f"{file}: module {index} must be an object with `type`, and `path` in this folder; "
                f"{weight_files.REMEDY}"
            )
        if not name.startswith("sentence_transformers."):
            raise errors.UserError(f"{file}: module {index} is of the class {name}, which is not "
                                   f"part of sentence-transformers; {_UNSUPPORTED}")  # fmt: skip
        result.append(Module(name.rpartition(".")[2], folder / path))
    if not result or result[0].kind != "Transformer":
        kind = result[0].kind if result else "missing"
        raise errors.UserError(f"{file}: module 0 is {kind}, but must be Transformer; "
                               f"{_UNSUPPORTED}")  # fmt: skip
    return result


def _leaves(path: str) -> bool:
    return os.path.isabs(path) or ".." in pathlib.PurePath(path).parts


def read(
    folder: pathlib.Path, parts: list[Module], fields: Mapping[str, Any], *, with_params: bool
) -> text_encoding.Encoding | None:
    """Returns how the model turns a text into a vector; None for a CrossEncoder.

    parts: the result of `modules`. fields: the fields of the model. If not `with_params`, arrays of
    dense layers are not read, only their shapes. Raises UserError naming the module that cannot be
    represented.
    """
    file = folder / CONFIG
    content = _object(file)
    kind = content.get("model_type", _VECTORS)
    if kind == cross_encoder.KIND:
        _check_alone(folder, parts)
        return None
    if kind != _VECTORS:
        raise errors.UserError(
            f"{file}: model_type = {kind!r} is not supported; must be {_VECTORS!r} or "
            f"{cross_encoder.KIND!r}"
        )
    if len(parts) < 2 or parts[1].kind != "Pooling":
        found = parts[1].kind if len(parts) > 1 else "missing"
        raise errors.UserError(f"{folder / MODULES}: module 1 is {found}, but must be Pooling; "
                               f"{_UNSUPPORTED}")  # fmt: skip
    width = fields["hidden_size"]
    pooling, pools_prompt = _pooling(parts[1], width)
    layers: list[text_encoding.Dense | str] = []
    for index, part in enumerate(parts[2:], 2):
        if part.kind == "Dense":
            dense = _dense(part, width, with_params)
            width = dense.kernel_DE.shape[1]
            layers.append(dense)
        elif part.kind == "Normalize":
            _check_input(part, part.config())
            layers.append(text_encoding.NORMALIZE)
        else:
            raise errors.UserError(f"{folder / MODULES}: module {index}, {part.folder.name}, is of "
                                   f"the class {part.kind}; {_UNSUPPORTED}")  # fmt: skip
    length, lower_case = _transformer(parts[0], fields["max_length"])
    prompts = content.get("prompts") or {}
    schema.typed(prompts, dict[str, str | None], f"{file}: prompts", weight_files.REMEDY)
    default = content.get("default_prompt_name") or ""
    num_dims = content.get("truncate_dim") or 0
    similarity = content.get("similarity_fn_name") or "cosine"
    schema.typed(num_dims, schema.Count, f"{file}: truncate_dim", weight_files.REMEDY)
    for key, value in (("default_prompt_name", default), ("similarity_fn_name", similarity)):
        schema.typed(value, str, f"{file}: {key}", weight_files.REMEDY)
    if default and default not in prompts:
        raise errors.UserError(f"{file}: default_prompt_name = {default!r} is not one of `prompts`")
    return text_encoding.Encoding(
        pooling=pooling,
        max_length=length,
        layers=tuple(layers),
        prompts={name: text or "" for name, text in prompts.items()},
        default_prompt=default,
        pools_prompt=pools_prompt,
        lower_case=lower_case,
        num_dims=num_dims,
        similarity=similarity,
    )


def _check_alone(folder: pathlib.Path, parts: list[Module]) -> None:
    if len(parts) > 1:
        raise errors.UserError(
            f"{folder / MODULES}: module 1, {parts[1].folder.name}, is of the class "
            f"{parts[1].kind}, which a CrossEncoder cannot have here; {_UNSUPPORTED}"
        )


def head_keys(folder: pathlib.Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keys of a CrossEncoder's config.json that version 6 stores in a file of its own."""
    stored = _object(folder / CONFIG)
    if stored.get("model_type") != cross_encoder.KIND:
        return {}
    name = stored.get(cross_encoder.ACTIVATION) or cross_encoder.name_in(content)
    return {cross_encoder.KEY: {cross_encoder.ACTIVATION: name or cross_encoder.DEFAULT}}


def _transformer(part: Module, longest: int) -> tuple[int, bool]:
    """Returns (the length to which texts are truncated, whether they are lower-cased)."""
    file = _transformer_config(part.folder)
    content = _object(file)
    task = content.get("transformer_task", "feature-extraction")
    text = (content.get("modality_config") or {}).get("text", {})
    output = text.get("method_output_name", "last_hidden_state") if isinstance(text, dict) else text
    if task != "feature-extraction" or output != "last_hidden_state":
        raise errors.UserError(
            f"{file}: transformer_task = {task!r} with the output {output!r} is not supported; "
            "must be 'feature-extraction' with 'last_hidden_state'"
        )
    return max_length(part.folder, longest), bool(content.get("do_lower_case", False))


def _transformer_config(folder: pathlib.Path) -> pathlib.Path:
    names = (name for name in _TRANSFORMER_CONFIGS if (folder / name).exists())
    return folder / next(names, _TRANSFORMER_CONFIGS[0])


def max_length(folder: pathlib.Path, longest: int) -> int:
    """Returns the length, in tokens, to which sentence-transformers truncates texts.

    folder: the folder with the Transformer. longest: the maximum length of the model. Raises
    UserError if the length in the folder is not a number above 0.
    """
    file = _transformer_config(folder)
    limit = _object(file).get("max_seq_length")
    if limit is None:
        limit = _object(folder / "tokenizer_config.json").get("model_max_length")
    if limit is not None and (type(limit) not in (int, float) or limit < 1):
        raise errors.UserError(f"{file}: max_seq_length = {limit!r} must be a number above 0")
    return int(min(longest, limit or longest))


def _pooling(part: Module, width: int) -> tuple[str, bool]:
    """Returns (the pooling, whether it includes the prompt)."""
    content, file = part.config(), part.folder / _MODULE_CONFIG
    modes = content.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLINGS.items() if content.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in _POOLINGS:
        raise errors.UserError(
            f"{file}: pooling {modes!r} of the module {part.folder.name} is not supported; must be "
            f"one of {', '.join(_POOLINGS)}"
        )
    stored = content.get("embedding_dimension", content.get("word_embedding_dimension", width))
    if stored != width:
        raise errors.UserError(
            f"{file}: pools vectors of size {stored!r}, but the model's have {width}; the files "
            "belong to different models"
        )
    return _POOLINGS[modes[0]], bool(content.get("include_prompt", True))


def _check_input(part: Module, content: Mapping[str, Any]) -> None:
    """Raises UserError if the module reads or writes something else than the vector of a text."""
    for key in ("module_input_name", "module_output_name"):
        if content.get(key) not in (None, "sentence_embedding"):
            raise errors.UserError(
                f"{part.folder / _MODULE_CONFIG}: {key} = {content[key]!r} of the module "
                f"{part.folder.name} is not supported; must be 'sentence_embedding'"
            )


def _dense(part: Module, width: int, with_params: bool) -> text_encoding.Dense:
    content, file = part.config(), part.folder / _MODULE_CONFIG
    _check_input(part, content)
    name = content.get("activation_function", _ACTIVATIONS["tanh"])
    prefix, _, class_name = str(name).rpartition(".")
    if not prefix.startswith("torch.") or class_name not in _CLASSES:
        raise errors.UserError(
            f"{file}: activation_function = {name!r} of the module {part.folder.name} is not "
            f"supported; must be one of {', '.join(_ACTIVATIONS.values())}"
        )
    if content.get("use_residual"):
        raise errors.UserError(
            f"{file}: use_residual of the module {part.folder.name} is not supported"
        )
    weights = part.folder / _WEIGHTS
    if not weights.exists():
        raise errors.UserError(
            f"{weights}: not found; save the model with a newer sentence-transformers, which "
            "writes safetensors"
        )
    shapes = weight_files.tensor_shapes(weights)
    kernel, bias = "linear.weight", "linear.bias"
    expected = {kernel, bias} if content.get("bias", True) else {kernel}
    shape, found = shapes.get(kernel, ()), [f"{n} {s}" for n, s in sorted(shapes.items())]
    if shapes.keys() != expected or len(shape) != 2 or shape[1] != width:
        raise errors.UserError(
            f"{weights}: must contain {' and '.join(sorted(expected))} for vectors of size "
            f"{width}, but has {', '.join(found) or 'nothing'}"
        )
    if with_params:
        arrays = weight_files.read_tensors(weights, sorted(expected))
        arrays = {key: array.astype(np.float32) for key, array in arrays.items()}
    else:
        arrays = {key: np.zeros(shapes[key], np.float32) for key in expected}
    return text_encoding.Dense(_CLASSES[class_name], arrays[kernel].T, arrays.get(bias))


def write(folder: pathlib.Path, encoding: text_encoding.Encoding, hidden_size: int) -> None:
    """Writes the files beside the model in `folder`, for sentence-transformers 2 to 6."""
    names = ["Transformer", "Pooling"]
    names += ["Normalize" if layer == text_encoding.NORMALIZE else "Dense"
              for layer in encoding.layers]  # fmt: skip
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(names[1:], 1))]
    lines = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    files.write_text(folder / MODULES, json.dumps(lines, indent=2) + "\n")
    files.write_json(
        folder / _TRANSFORMER_CONFIGS[0],
        {"max_seq_length": encoding.max_length, "do_lower_case": encoding.lower_case},
    )
    content: dict[str, Any] = {
        "model_type": _VECTORS,
        "prompts": dict(encoding.prompts),
        "default_prompt_name": encoding.default_prompt or None,
        "similarity_fn_name": encoding.similarity,
    }
    if encoding.num_dims:
        content["truncate_dim"] = encoding.num_dims
    files.write_json(folder / CONFIG, content)
    for path in paths[1:]:
        (folder / path).mkdir()
    theirs = {ours: name for name, ours in _POOLINGS.items()}[encoding.pooling]
    pooling: dict[str, Any] = {"word_embedding_dimension": hidden_size}
    pooling |= {key: mode == theirs for key, mode in _OLD_POOLINGS.items()}
    if not encoding.pools_prompt:
        pooling["include_prompt"] = False
    files.write_json(folder / paths[1] / _MODULE_CONFIG, pooling)
    for path, layer in zip(paths[2:], encoding.layers, strict=True):
        if isinstance(layer, text_encoding.Dense):
            _write_dense(folder / path, layer)
        else:
            files.write_json(folder / path / _MODULE_CONFIG, {})


def _write_dense(folder: pathlib.Path, layer: text_encoding.Dense) -> None:
    sizes = layer.kernel_DE.shape
    files.write_json(
        folder / _MODULE_CONFIG,
        {
            "in_features": sizes[0],
            "out_features": sizes[1],
            "bias": layer.bias_E is not None,
            "activation_function": _ACTIVATIONS[layer.activation],
        },
    )
    arrays = {"linear.weight": layer.kernel_DE.T}
    if layer.bias_E is not None:
        arrays["linear.bias"] = layer.bias_E
    weight_files.write_tensors(folder / _WEIGHTS, arrays)


def _object(file: pathlib.Path) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if there is no such file."""
    return schema.read_object(file, weight_files.REMEDY) if file.exists() else {}
