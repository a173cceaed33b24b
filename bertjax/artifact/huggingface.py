"""The Hugging Face folder, both ways, without torch or transformers.

Which tensor is which is the family's own knowledge: `HF_NAMES` lists our path, their name and the
way between the two arrays; `HF_CONFIG`, `HF_TIED`, `HF_SKIPPED` and `HF_PREFIX` say the rest. Every
tensor of a file is used, listed as skipped, or an error: nothing is dropped in silence.

    model = huggingface.read("bert-base-uncased/")
    huggingface.write(model, "bert-hf/")
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import jax
import numpy as np

from bertjax import build, errors
from bertjax.artifact import artifact, files
from bertjax.data import tokenizer as tokenizer_lib

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

ACTIVATIONS = {  # theirs -> ours; the first of two that mean the same is the one we write
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}
_OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}  # of layer norms converted from TensorFlow

# The ways of HF_NAMES, theirs out of ours. Their linear maps are [out, in], ours [in, out] with the
# heads as axes of their own; their vocabulary has no padding rows.
TO_THEIRS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "same": lambda array, vocab_size: array,
    "transpose": lambda array, vocab_size: array.T,
    "heads_out": lambda array, vocab_size: array.reshape(array.shape[0], -1).T,
    "heads_in": lambda array, vocab_size: array.reshape(-1, array.shape[-1]).T,
    "heads": lambda array, vocab_size: array.reshape(-1),
    "vocab_rows": lambda array, vocab_size: array[:vocab_size],
}
# And back, given our shape.
TO_OURS: dict[str, Callable[[np.ndarray, tuple[int, ...]], np.ndarray]] = {
    "same": lambda array, shape: array,
    "transpose": lambda array, shape: array.T,
    "heads_out": lambda array, shape: array.T.reshape(shape),
    "heads_in": lambda array, shape: array.T.reshape(shape),
    "heads": lambda array, shape: array.reshape(shape),
    "vocab_rows": lambda array, shape: np.pad(
        array, [(0, shape[0] - array.shape[0])] + [(0, 0)] * (array.ndim - 1)
    ),
}


def write(model: artifact.Artifact, folder: str | os.PathLike) -> None:
    """Writes a folder that transformers loads, 4.57 and 5; an earlier one there is replaced."""
    module = build.family(model.family)
    tensors = to_tensors(module, jax.device_get(model.params), model.fields["vocab_size"])
    with files.new_folder(folder) as new:
        files.write_tensors(new / WEIGHTS, tensors)
        files.write_json(new / CONFIG, _to_config(module, model))
        model.tokenizer.save(new, max_length=model.fields["max_length"])


def read(folder: str | os.PathLike, *, with_params: bool = True) -> artifact.Artifact:
    """The model in a Hugging Face folder; parameters become float32.

    Its heads are those whose tensors are there. Raises UserError naming the file, key or tensor
    that is absent, damaged or not supported.
    """
    folder = pathlib.Path(folder)
    family, fields = _from_config(folder / CONFIG)
    module = build.family(family)
    vocab_size = fields["vocab_size"]
    shapes, where = {}, {}
    for file in _weight_files(folder):
        found = files.tensor_shapes(file)
        shapes |= found
        where |= dict.fromkeys(found, file)
    table = _table(module, artifact.abstract_params(family, fields, folder / CONFIG), vocab_size)
    stored = _match(module, shapes, table, folder)
    present = {_head(table[name][0]) for name in stored if name in table}
    fields["heads"] = tuple(head for head in fields["heads"] if head in present)
    abstract = artifact.abstract_params(family, fields, folder)
    for name, (_, shape) in _table(module, abstract, vocab_size).items():
        if name not in stored:
            raise errors.UserError(f"{folder}: its weights lack {name}; {files.AGAIN}")
        if shapes[stored[name]] != shape:
            raise errors.UserError(
                f"{folder}: {stored[name]} has shape {shapes[stored[name]]}, {CONFIG} makes it "
                f"{shape}; the files are not of one model"
            )
    tokenizer = tokenizer_lib.load(folder)
    artifact.check_tokenizer(tokenizer, vocab_size, folder)
    params = abstract
    if with_params:
        tensors = _read(where, stored)
        _check_tied(module, tensors, folder)
        params = from_tensors(module, abstract, tensors)
    return artifact.Artifact(family, fields, params, tokenizer, origin="Hugging Face folder")


def to_tensors(module: ModuleType, params: Any, vocab_size: int) -> dict[str, np.ndarray]:
    """Their tensors by name out of our parameters on the host."""
    tensors = {}
    for path, array in artifact.flatten(params).items():
        name, way = _line(module, path)
        for layer, part in enumerate(array if "{}" in name else [array]):
            tensors[name.format(layer)] = TO_THEIRS[way](part, vocab_size)
    prefix = module.HF_PREFIX
    if all(name.startswith(prefix) for name in tensors):
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def from_tensors(module: ModuleType, abstract: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    """Our parameters, of the shapes in `abstract`, out of their tensors by full name."""
    flat = {}
    for path, leaf in artifact.flatten(abstract).items():
        name, way = _line(module, path)
        flat[path] = np.empty(leaf.shape, np.float32)
        for layer, part in enumerate(flat[path] if "{}" in name else [flat[path]]):
            part[...] = TO_OURS[way](tensors[name.format(layer)], part.shape)
    return artifact.unflatten(flat)


def _line(module: ModuleType, path: str) -> tuple[str, str]:
    return next((name, way) for ours, name, way in module.HF_NAMES if ours == path)


def _head(path: str) -> str:
    """The head that a parameter belongs to: "mlm_head/bias" -> "mlm", "pooler/..." -> "pooler"."""
    return path.split("/")[0].removesuffix("_head")


def _table(
    module: ModuleType, abstract: Any, vocab_size: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Their name -> (our path, their shape) of every tensor that these parameters make."""
    table = {}
    for path, leaf in artifact.flatten(abstract).items():
        name, way = _line(module, path)
        blank = np.broadcast_to(np.float32(0), leaf.shape)
        for layer, part in enumerate(blank if "{}" in name else [blank]):
            table[name.format(layer)] = path, TO_THEIRS[way](part, vocab_size).shape
    return table


def _to_config(module: ModuleType, model: artifact.Artifact) -> dict[str, Any]:
    spec = module.HF_CONFIG
    fields = {theirs: model.fields[ours] for theirs, ours in spec["fields"].items()}
    if "hidden_act" in fields:
        wanted = fields["hidden_act"]
        fields["hidden_act"] = next(t for t, ours in ACTIVATIONS.items() if ours == wanted)
    pad = model.tokenizer.specials.pad
    return {
        "architectures": [spec["architectures"][tuple(model.fields["heads"])]],
        "model_type": spec["model_type"],
        **fields,
        **spec["fixed"],
        "tie_word_embeddings": True,
        "pad_token_id": pad if pad >= 0 else None,
        "torch_dtype": "float32",
    }


def _from_config(file: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """The family, and the fields of its Config with every head there may be."""
    content = files.read_json(file)
    family = str(content.get("model_type"))
    try:
        module = build.family(family)
    except errors.UserError as error:
        raise errors.UserError(f"{file}: model_type {family!r} is no family: {error}") from error
    for key, value in module.HF_CONFIG["fixed"].items():
        if content.get(key, value) != value:
            raise errors.UserError(
                f"{file}: {key} = {content[key]!r} is not supported, only {value!r} is"
            )
    default = module.Config()
    fields: dict[str, Any] = {"heads": default.heads}
    for key, ours in module.HF_CONFIG["fields"].items():
        usual = getattr(default, ours)
        if key not in content:  # as they do: a key that is absent has its usual value
            fields[ours] = usual
            continue
        value = content[key]
        if key == "hidden_act":
            if value not in ACTIVATIONS:
                raise errors.UserError(
                    f"{file}: hidden_act {value!r} is not supported, only {', '.join(ACTIVATIONS)}"
                )
            value = ACTIVATIONS[value]
        if type(usual) is float and type(value) is int:
            value = float(value)
        if type(value) is not type(usual):
            raise errors.UserError(f"{file}: {key} = {value!r} must be like {usual!r}")
        fields[ours] = value
    return family, fields


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        shards = files.read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(_is_name(name) for name in shards.values()):
            raise errors.UserError(f"{folder / INDEX}: has no weight_map of files; {files.AGAIN}")
        return [folder / shard for shard in sorted(set(shards.values()))]
    for name in PICKLES:
        if (folder / name).is_file():
            raise errors.UserError(
                f"{folder / name}: pickled weights are not read; convert them to {WEIGHTS} with "
                "transformers: BertForPreTraining.from_pretrained(folder).save_pretrained(folder)"
            )
    raise errors.UserError(f"{folder}: has no {WEIGHTS} and no {INDEX}; {files.AGAIN}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value == os.path.basename(value)


def _match(
    module: ModuleType, sources: Iterable[str], table: Mapping[str, Any], folder: pathlib.Path
) -> dict[str, str]:
    """Full name -> name in the files, tied tensors included. UserError for names nobody knows."""
    known = {*table, *module.HF_TIED, *module.HF_SKIPPED}
    stored: dict[str, str] = {}
    unknown = []
    for source in sorted(sources):
        stem, _, end = source.rpartition(".")
        name = f"{stem}.{_OLD_ENDINGS.get(end, end)}"
        full = name if name in known else module.HF_PREFIX + name
        if full not in known:
            unknown.append(source)
        elif full not in module.HF_SKIPPED:
            stored[full] = source
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise errors.UserError(
            f"{folder}: does not know what to do with {', '.join(unknown[:3])}{more}: not in the "
            f"model that {CONFIG} describes; save it from transformers without that part"
        )
    for again, name in module.HF_TIED.items():
        if name not in stored and again in stored:
            stored[name] = stored[again]
    return stored


def _read(where: Mapping[str, pathlib.Path], stored: Mapping[str, str]) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(set(where.values())):
        sources = {source for source in stored.values() if where[source] == file}
        tensors |= files.read_tensors(file, sorted(sources))
    return {name: tensors[source] for name, source in stored.items()}


def _check_tied(
    module: ModuleType, tensors: Mapping[str, np.ndarray], folder: pathlib.Path
) -> None:
    for again, name in module.HF_TIED.items():
        if again in tensors and not np.array_equal(tensors[again], tensors[name]):
            raise errors.UserError(
                f"{folder}: {again} differs from {name}; models whose output embeddings are not "
                "tied to the input embeddings are not supported"
            )
