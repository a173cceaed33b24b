"""Exports the predict function of a model as a StableHLO program that runs without bertjax.

    stablehlo.write(loading.load("out/"), "served/")

The folder contains

    program.bin        the function, serialized by `jax.export`, for any batch size and length
    params.npz         its parameters, as NumPy arrays
    description.json   inputs, outputs, labels, platforms, and the tokenizer's limits
    tokenizer/         the tokenizer in every form of its kind, such as tokenizer.json

The parameters are beside the program, so that its size does not depend on the model's (the format
of `jax.export` ends at 2 GB), and so that they are copied to the device once. To run it, only jax,
numpy and flatbuffers are needed:

    program = jax.export.deserialize(pathlib.Path("served/program.bin").read_bytes())
    params = jax.device_put(dict(np.load("served/params.npz")))
    outputs = jax.jit(program.call)(params, {"input_ids": ids, "attention_mask": mask, ...})

jax keeps a program loadable for six months: a program is read by the version of jax that wrote it
and by later ones.
"""

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bertjax import errors, files, plugins
from bertjax.artifact import artifact, hf_tasks
from bertjax.finetuning import projection, rows, task_types
from bertjax.finetuning.task_types import base
from bertjax.models.common import heads, layers

PROGRAM, PARAMS, DESCRIPTION, TOKENIZER = (
    "program.bin", "params.npz", "description.json", "tokenizer"
)  # fmt: skip
PLATFORMS = ("cpu", "tpu", "cuda", "rocm")  # names of `jax.export`
DEFAULT_PLATFORMS = ("cpu", "tpu", "cuda")
VERSION = 1  # of the folder's layout
_VECTOR_NOTE = "the mean of the last hidden states of all tokens, special tokens included"


def write(
    model: artifact.Artifact,
    folder: str | os.PathLike,
    platforms: Sequence[str] = DEFAULT_PLATFORMS,
    dtype: str = "float32",
) -> None:
    """Writes the folder; replaces an earlier export.

    platforms: the platforms that the program can run on. dtype: of the activations; the parameters
    are float32. Raises UserError for a model without a predict function that can be exported, for
    an unknown platform, and if the package flatbuffers is missing.
    """
    for name in platforms:
        if name not in PLATFORMS:
            raise errors.UserError(f"--platforms={name}: must be among {', '.join(PLATFORMS)}")
    if importlib.util.find_spec("flatbuffers") is None:
        raise errors.UserError(
            "--format=stablehlo needs the package flatbuffers: pip install flatbuffers"
        )
    task_type = None if model.task is None else task_types.of_artifact(model)
    notes = _output_notes(model, task_type)
    if task_type is not None:
        model = dataclasses.replace(
            model, params=projection.joined(model.params, task_type, model)
        )
    params = {path: np.asarray(x) for path, x in artifact.flatten(model.params).items()}
    absent = rows.absent(model.fields)
    inputs = [name for name in rows.INPUTS if name not in absent]
    longest = model.fields["max_length"] - len(task_type.prompt_ids if task_type else ())
    exported = _export(_function(model, task_type, dtype), params, inputs, longest, platforms)
    with files.new_folder(folder) as new:
        (new / PROGRAM).write_bytes(exported.serialize())
        np.savez(new / PARAMS, **params)
        model.tokenizer.save(
            os.fspath(new / TOKENIZER),
            kind=plugins.family(model.family).KIND,
            token_types=artifact.has_token_types(model.fields),
            max_length=min(hf_tasks.max_length(model), longest),
            ends=hf_tasks.ends(model),
        )
        names = sorted(path.name for path in (new / TOKENIZER).iterdir())
        content = _description(model, task_type, exported, inputs, longest, dtype, notes)
        content["tokenizer"] = {
            "folder": TOKENIZER,
            "files": names,
            "max_length": min(hf_tasks.max_length(model), longest),
        }
        files.write_json(new / DESCRIPTION, content)


def _output_notes(
    model: artifact.Artifact, task_type: base.TaskType | None
) -> Mapping[str, str]:
    """Returns {output: its meaning}. Raises UserError if the model cannot be exported."""
    if task_type is not None and task_type.output_notes:
        return task_type.output_notes
    if task_type is None and model.encoding is not None:
        raise errors.UserError(
            "--format=stablehlo cannot export a model with modules of sentence-transformers: "
            "fine-tune it with --task=embeddings first, or export it with --format=hf"
        )
    if task_type is None and plugins.family(model.family).KIND == "encoder":
        return {"vectors": _VECTOR_NOTE}
    described = f"a model for {task_type.name}" if task_type else f"a {model.family}"
    supported = [name for name in task_types.names() if task_types.load(name).output_notes]
    raise errors.UserError(
        f"--format=stablehlo cannot export {described}: its predictions need more than one call of "
        f"the model, or it is not fine-tuned; exported are encoders, and models fine-tuned for "
        f"{', '.join(supported)}"
    )


def _function(
    model: artifact.Artifact, task_type: base.TaskType | None, dtype: str
) -> Callable[[Mapping[str, jax.Array], Mapping[str, jax.Array]], dict[str, jax.Array]]:
    """Returns the function of ({path: parameter}, inputs) that computes the outputs."""
    module = plugins.model(model.family, model.fields, layers.Compute(dtype=dtype, attention="xla"))

    def predict(
        params: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        variables = {"params": artifact.unflatten(params)}
        apply = functools.partial(module.apply, variables, deterministic=True)
        if task_type is None:
            states_BLD = apply(**inputs)["last_hidden_state"]
            return {"vectors": heads.pool(states_BLD, inputs["attention_mask"], "mean")}
        return task_type.single_outputs(task_type.prompted(apply), dict(inputs))

    return predict


def _export(
    function: Callable[..., Any],
    params: Mapping[str, np.ndarray],
    inputs: Sequence[str],
    longest: int,
    platforms: Sequence[str],
) -> export.Exported:
    """Returns the program for any batch size, and lengths up to `longest`."""
    shape = export.symbolic_shape(
        "batch, length", constraints=["batch >= 1", "length >= 1", f"length <= {longest}"]
    )
    abstract_params = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in params.items()}
    abstract_inputs = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in inputs}
    return export.export(jax.jit(function), platforms=tuple(platforms))(
        abstract_params, abstract_inputs
    )


def _description(
    model: artifact.Artifact,
    task_type: base.TaskType | None,
    exported: export.Exported,
    inputs: Sequence[str],
    longest: int,
    dtype: str,
    notes: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the content of description.json, without the tokenizer."""
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return {
        "version": VERSION,
        "program": PROGRAM,
        "params": PARAMS,
        "parameters": artifact.num_params(model.params, model.fields["vocab_size"]),
        "jax": jax.__version__,
        "platforms": list(exported.platforms),
        "dtype": dtype,
        "family": model.family,
        "task": None
        if task_type is None
        else {
            "name": task_type.task,
            "kind": task_type.name,
            "config": model.task["config"],
            "texts": task_type.num_texts,  # 0: one or two
        },
        "labels": [] if task_type is None else list(task_type.labels),
        "max_length": longest,
        "inputs": {
            name: {"shape": ["batch", "length"], "dtype": "int32", "meaning": _INPUT_NOTES[name]}
            for name in inputs
        },
        "outputs": {
            name: {
                "shape": [x if isinstance(x, int) else str(x) for x in outputs[name].shape],
                "dtype": str(outputs[name].dtype),
                "meaning": note,
            }
            for name, note in notes.items()
        },
    }


_INPUT_NOTES = {
    "input_ids": "ids of the tokens, special tokens included; any id at padding",
    "attention_mask": "1 for a token, 0 for padding, which is at the end of a row",
    "token_type_ids": "0 for the tokens of the first text, 1 for those of the second",
}
