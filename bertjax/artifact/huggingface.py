"""Reads and writes Hugging Face folders, without torch or transformers.

Here "their" refers to Hugging Face tensors and "our" to bertjax parameters. Each line of a family's
`HF_NAMES` has our path, their name and the name of the conversion. If their tensor concatenates
several of our arrays, the line also has (index of our array, number of arrays, axis of their
tensor).

Our arrays under "/layers/" contain all layers; their tensors contain one layer each. In their name
"{}" is the index of the layer and "{+1}" the index of the next layer. If the name contains "|", the
part after the "|" is the name for the last layer. The family also defines

    HF_CONFIG, HF_MODEL_TYPES    see `hf_config`
    HF_TIED       {their tensor: the tensor that it duplicates}
    HF_SKIPPED    patterns of names of tensors that are not read
    HF_PREFIX     prefix of the names; absent in files that contain only the body, without heads
    HF_RENAMED    {start of a name in other files: start of the name in HF_NAMES} (optional)
    HF_DROPPED    prefixes of our paths that `write` omits (optional)

`read` raises an error for a tensor that is not used, tied or skipped.

    model = huggingface.read("bert-base-uncased/")
    huggingface.write(model, "bert-hf/")
"""

import dataclasses
import fnmatch
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax import errors, files, plugins
from bertjax.artifact import (
    artifact,
    cross_encoder,
    hf_config,
    hf_tasks,
    hf_weights,
    model_card,
    sentence_folder,
    text_encoding,
    weight_files,
)
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.models.common import layers

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = hf_weights.WEIGHTS

_OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}  # in layer norms converted from TensorFlow

# The conversions in HF_NAMES, from our arrays to their tensors. Their kernels are [out, in], but
# [in, out] for "conv*"; ours are [in, out] with separate axes for heads. Their vocabulary has no
# padding rows.
TO_THEIRS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "same": lambda array, vocab_size: array,
    "transpose": lambda array, vocab_size: array.T,
    "heads_out": lambda array, vocab_size: array.reshape(array.shape[0], -1).T,
    "heads_in": lambda array, vocab_size: array.reshape(-1, array.shape[-1]).T,
    "heads": lambda array, vocab_size: array.reshape(-1),
    "conv": lambda array, vocab_size: array,
    "conv_out": lambda array, vocab_size: array.reshape(array.shape[0], -1),
    "conv_in": lambda array, vocab_size: array.reshape(-1, array.shape[-1]),
    "vocab_rows": lambda array, vocab_size: array[:vocab_size],
    "vocab_columns": lambda array, vocab_size: array[:, :vocab_size].T,
}
# The inverse conversions, from their tensors to our arrays of a given shape.
TO_OURS: dict[str, Callable[[np.ndarray, tuple[int, ...]], np.ndarray]] = {
    "same": lambda array, shape: array,
    "transpose": lambda array, shape: array.T,
    "heads_out": lambda array, shape: array.T.reshape(shape),
    "heads_in": lambda array, shape: array.T.reshape(shape),
    "heads": lambda array, shape: array.reshape(shape),
    "conv": lambda array, shape: array,
    "conv_out": lambda array, shape: array.reshape(shape),
    "conv_in": lambda array, shape: array.reshape(shape),
    "vocab_rows": lambda array, shape: _padded(array, shape),
    "vocab_columns": lambda array, shape: _padded(array.T, shape),
}


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.pad(array, [(0, new - old) for new, old in zip(shape, array.shape, strict=True)])


class Line(NamedTuple):
    """One line of HF_NAMES; the module docstring explains the fields."""

    ours: str
    theirs: str
    conversion: str
    part: tuple[int, int, int] = (0, 1, 0)

    def names(self, array: Any) -> Iterator[tuple[str, Any]]:
        """Yields (Hugging Face name, array in our layout) per layer; once if not stacked."""
        if "{" not in self.theirs:
            yield self.theirs, array
            return
        name, _, last = self.theirs.partition("|")
        for layer, single in enumerate(array):
            is_last = last and layer == len(array) - 1
            yield last if is_last else name.replace("{+1}", str(layer + 1)).format(layer), single


def write(
    model: artifact.Artifact,
    folder: str | os.PathLike,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Writes a folder that transformers 4.57 and 5 can load; replaces an earlier folder.

    If the model was trained for text vectors, sentence-transformers can load the folder, too.
    scores: {split: {name: score}}, for the model card README.md.

    Raises UserError if transformers has no class for the model (see `hf_tasks.ending_of`), or if
    the family has no tables for Hugging Face.
    """
    module = plugins.family(model.family)
    if not hasattr(module, "HF_CONFIG"):
        raise errors.UserError(
            f"{model.family} has no tables for Hugging Face (HF_CONFIG, HF_NAMES): export it with "
            "--format=artifact"
        )
    ending = hf_tasks.ending_of(model)
    # A model saved before a field was introduced gets that field's default.
    fields = layers.fields_of(plugins.model(model.family, model.fields).config)
    model = dataclasses.replace(model, fields=fields)
    config = hf_config.of_model(module, model, ending)
    params, vocab_size = jax.device_get(model.params), model.fields["vocab_size"]
    tensors = to_tensors(module, params, vocab_size, ending)
    repeated = module.HF_CONFIG.get("repeated", lambda fields: ())
    tensors |= {name: tensors[module.HF_TIED[name]] for name in repeated(model.fields)}
    encoding = text_encoding.of(model)
    with files.new_folder(folder) as new:
        weight_files.write_tensors(new / WEIGHTS, tensors)
        files.write_json(new / CONFIG, config)
        generation = hf_tasks.generation_config(model, config)
        if generation:
            files.write_json(new / GENERATION, generation)
        save_tokenizer(model, new)
        if encoding is not None:
            sentence_folder.write(new, encoding, model.fields["hidden_size"])
        card = model_card.text(model, encoding, ending, config, scores or {})
        files.write_text(new / model_card.FILE, card)


def save_tokenizer(model: artifact.Artifact, folder: pathlib.Path) -> None:
    """Writes the tokenizer's files for transformers, which then prepares texts as bertjax does."""
    model.tokenizer.save(
        folder,
        kind=plugins.family(model.family).KIND,
        token_types=artifact.has_token_types(model.fields),
        max_length=hf_tasks.max_length(model),
        ends=hf_tasks.ends(model),
        exported=True,
    )


def read(folder: str | os.PathLike, *, with_params: bool = True) -> artifact.Artifact:
    """Returns the model in a Hugging Face folder, with float32 parameters.

    If not `with_params`, `params` contains only shapes. If the class in config.json is for a task,
    the heads are those of the class; otherwise they are the heads whose tensors are present. Raises
    UserError naming the file, key or tensor that is missing, damaged or not supported.
    """
    parts = sentence_folder.modules(pathlib.Path(folder))
    top = pathlib.Path(folder)
    folder = parts[0].folder if parts else top
    content, family = hf_config.read(folder / CONFIG)
    content |= sentence_folder.head_keys(top, content) if parts else {}
    module = plugins.family(family)
    shapes, file_of = {}, {}
    for file in hf_weights.find(folder):
        file_shapes = hf_weights.shapes(file)
        shapes |= file_shapes
        file_of |= dict.fromkeys(file_shapes, file)
    ending = hf_tasks.ending_in(module, content)
    fields = hf_config.fields(module, content, ending, shapes, folder / CONFIG)
    vocab_size = fields["vocab_size"]
    fields["heads"], table = _likeliest_heads(
        module, family, fields, shapes, ending, folder / CONFIG
    )
    stored = _match(module, shapes, table, ending, folder)
    if not ending:
        present_heads = {_head(table[name][0]) for name in stored if name in table}
        known_heads = {_head(path) for path, _ in table.values()}
        fields["heads"] = tuple(
            h for h in fields["heads"] if h in present_heads or h not in known_heads
        )
    abstract = artifact.abstract_params(family, fields, folder)
    for name, (_, shape) in _tensor_table(module, abstract, vocab_size, ending).items():
        if name not in stored:
            raise errors.UserError(
                f"{folder}: its weights do not contain {name}; {weight_files.REMEDY}"
            )
        if shapes[stored[name]] != shape:
            raise errors.UserError(
                f"{folder}: {stored[name]} has shape {shapes[stored[name]]}, but {shape} is "
                f"required by {CONFIG}; the files belong to different models"
            )
    tokenizer = tokenizer_lib.load(folder)
    artifact.check_tokenizer(tokenizer, vocab_size, folder)
    params = abstract
    if with_params:
        tensors = hf_weights.read(file_of, stored)
        _check_tied(module, table, tensors, folder)
        params = from_tensors(module, abstract, tensors, ending)
    encoding = None
    if parts:
        encoding = sentence_folder.read(top, parts, fields, with_params=with_params)
    longest = fields["max_length"]
    if cross_encoder.name_in(content) is not None:
        longest = sentence_folder.max_length(folder, longest)
    task = hf_tasks.read(content, ending, longest, folder / CONFIG)
    if encoding is not None and task is not None:
        # Another program may have changed how texts are encoded, and left the task.
        if not text_encoding.agrees(encoding, task):
            task = None
    return artifact.Artifact(
        family,
        fields,
        params,
        tokenizer,
        encoding=encoding,
        task=task,
        objective=hf_tasks.objective(content, folder / CONFIG),
        origin="Hugging Face folder",
    )


def to_tensors(
    module: ModuleType, params: Any, vocab_size: int, ending: str = ""
) -> dict[str, np.ndarray]:
    """Converts our parameters, on the host, to Hugging Face tensors. Returns {name: tensor}.

    ending: the end of the class name, as returned by `hf_tasks.ending_of`.
    """
    lines, tensors = table_lines(module, ending), {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for path, array in artifact.flatten(params).items():
        if path.startswith(_dropped_prefixes(module)):
            continue
        line = lines[path]
        index, count, axis = line.part
        for name, single in line.names(array):
            tensors[name] = theirs = TO_THEIRS[line.conversion](single, vocab_size)
            if count > 1:
                group = parts.setdefault(name, {})
                group[index] = theirs
                tensors[name] = np.concatenate([group[i] for i in sorted(group)], axis)
    prefix = module.HF_PREFIX
    if prefix and all(name.startswith(prefix) for name in tensors):
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def from_tensors(
    module: ModuleType, abstract: Any, tensors: Mapping[str, np.ndarray], ending: str = ""
) -> Any:
    """Converts Hugging Face tensors, {full name: tensor}, to parameters shaped like `abstract`."""
    lines, flat = table_lines(module, ending), {}
    for path, leaf in artifact.flatten(abstract).items():
        line = lines[path]
        index, count, axis = line.part
        flat[path] = np.empty(leaf.shape, np.float32)
        for name, single in line.names(flat[path]):
            theirs = np.split(tensors[name], count, axis)[index]
            single[...] = TO_OURS[line.conversion](theirs, single.shape)
    return artifact.unflatten(flat)


def dropped(model: artifact.Artifact) -> list[str]:
    """Returns the paths of the parameters that `write` omits, since transformers lacks them."""
    prefixes = _dropped_prefixes(plugins.family(model.family))
    return [path for path in artifact.flatten(model.params) if path.startswith(prefixes)]


def _dropped_prefixes(module: ModuleType) -> tuple[str, ...]:
    return getattr(module, "HF_DROPPED", ())


def table_lines(module: ModuleType, ending: str) -> dict[str, Line]:
    """Returns {our path: its line} of HF_NAMES and of the head of the class with this ending."""
    return {line[0]: Line(*line) for line in (*module.HF_NAMES, *hf_tasks.lines(module, ending))}


def _head(path: str) -> str:
    """Returns the head that a parameter belongs to: "mlm" for "mlm_head/bias"."""
    return path.split("/")[0].removesuffix("_head")


def _tensor_table(
    module: ModuleType, abstract: Any, vocab_size: int, ending: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns {tensor name: (our path, tensor shape)} for the tensors of these parameters.

    If a tensor concatenates several of our arrays, the path is that of the last array.
    """
    lines, table = table_lines(module, ending), {}
    for path, leaf in artifact.flatten(abstract).items():
        line = lines[path]
        _, count, axis = line.part
        for name, single in line.names(np.broadcast_to(np.float32(0), leaf.shape)):
            shape = list(TO_THEIRS[line.conversion](single, vocab_size).shape)
            shape[axis] *= count
            table[name] = path, tuple(shape)
    return table


def _likeliest_heads(
    module: ModuleType,
    family: str,
    fields: dict[str, Any],
    sources: Iterable[str],
    ending: str,
    file: pathlib.Path,
) -> tuple[tuple[str, ...], dict[str, tuple[str, tuple[int, ...]]]]:
    """Returns the heads that match the most tensor names, and `_tensor_table` for these heads.

    The sets of heads to choose from are "import_heads" in the family's HF_CONFIG. Without this
    entry, and for a class for a task, the only choice is `fields["heads"]`.
    """
    choices = module.HF_CONFIG.get("import_heads", (fields["heads"],))
    if ending:
        choices = (fields["heads"],)
    candidates = []
    for heads in choices:
        abstract = artifact.abstract_params(family, {**fields, "heads": heads}, file)
        table = _tensor_table(module, abstract, fields["vocab_size"], ending)
        full_names = {*sources, *(module.HF_PREFIX + name for name in sources)}
        candidates.append((len(full_names & table.keys()), heads, table))
    _, heads, table = max(candidates, key=lambda choice: choice[0])
    return heads, table


def _match(
    module: ModuleType,
    sources: Iterable[str],
    table: Mapping[str, Any],
    ending: str,
    folder: pathlib.Path,
) -> dict[str, str]:
    """Returns {full name: name in the files} for the tensors that are used, including tied tensors.

    Raises UserError if a tensor is not in the table, tied or skipped.
    """
    known = {*table, *module.HF_TIED}
    renamed = getattr(module, "HF_RENAMED", {})
    # Older folders of task classes contain a pooler that the class does not use.
    unread_patterns = (f"{module.HF_PREFIX}pooler.*",) if ending else ()

    def skipped(name: str) -> bool:
        patterns = (*module.HF_SKIPPED, *unread_patterns)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    stored: dict[str, str] = {}
    unknown = []
    for source in sorted(sources):
        stem, _, end = source.rpartition(".")
        name = f"{stem}.{_OLD_ENDINGS.get(end, end)}"
        for old, new in renamed.items():
            name = new + name.removeprefix(old) if name.startswith(old) else name
        full_name = name if name in known or skipped(name) else module.HF_PREFIX + name
        if full_name in known:
            stored[full_name] = source
        elif not skipped(full_name):
            unknown.append(source)
    if unknown:
        raise errors.UserError(
            f"{folder}: contains {errors.several(unknown, 3)}, which is not in the model that "
            f"{CONFIG} describes; save it from transformers without that part"
        )
    for copy, name in _tied(module, table):
        if name not in stored and copy in stored:
            stored[name] = stored[copy]
    return stored


def _tied(module: ModuleType, table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the pairs in HF_TIED, except tensors that are separate parameters in our model."""
    return [(copy, name) for copy, name in module.HF_TIED.items() if copy not in table]


def _check_tied(
    module: ModuleType,
    table: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    folder: pathlib.Path,
) -> None:
    for copy, name in _tied(module, table):
        if copy in tensors and not np.array_equal(tensors[copy], tensors[name]):
            raise errors.UserError(
                f"{folder}: {copy} differs from {name}; models whose output embeddings are not "
                "tied to the input embeddings are not supported"
            )
