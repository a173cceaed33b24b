"""Reads T5X checkpoints.

A checkpoint is a msgpack file. Large arrays may be stored in folders beside it. The layers may be
saved one by one (layers_0, layers_1, ...) or as arrays that stack all layers on axis 1. T5X does
not save the tokenizer: copy the tokenizer's file into the folder.

    model = t5x.read("t5_1_1_base/checkpoint_1000000")
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorstore

from bertjax import errors
from bertjax.artifact import artifact, weight_files
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.models import t5
from bertjax.models.common import layers

FILE = "checkpoint"  # the name of the msgpack file in the folder

# {our name: T5X name}. _ENCODER and _DECODER: the parts of a layer, except the MLP. _MLP_KERNELS:
# the kernels of a layer's MLP. _OTHERS: the parameters outside the layers.
_ENCODER = {
    "attention": "attention",
    "attention_norm": "pre_attention_layer_norm",
    "mlp_norm": "pre_mlp_layer_norm",
}
_DECODER = {
    "attention": "self_attention",
    "attention_norm": "pre_self_attention_layer_norm",
    "cross_attention": "encoder_decoder_attention",
    "cross_attention_norm": "pre_cross_attention_layer_norm",
    "mlp_norm": "pre_mlp_layer_norm",
}
_MLP_KERNELS = {
    "mlp/wi/kernel": "mlp/wi/kernel",
    "mlp/wo/kernel": "mlp/wo/kernel",
    "gated_mlp/wi/kernel": "mlp/wi_0/kernel",
    "gated_mlp/wi_gate/kernel": "mlp/wi_1/kernel",
    "gated_mlp/wo/kernel": "mlp/wo/kernel",
}
_OTHERS = {
    "embeddings/word/embedding": "token_embedder/embedding",
    "encoder/relative_bias/embedding": "encoder/relpos_bias/rel_embedding",
    "decoder/relative_bias/embedding": "decoder/relpos_bias/rel_embedding",
    "encoder/final_norm/scale": "encoder/encoder_norm/scale",
    "decoder/final_norm/scale": "decoder/decoder_norm/scale",
    "lm_head/kernel": "decoder/logits_dense/kernel",
}


def read(folder: str | os.PathLike, *, with_params: bool = True) -> artifact.Artifact:
    """Returns the model in the folder of a T5X checkpoint.

    The folder must also contain a tokenizer file, such as spiece.model. Raises UserError naming the
    file if a file is damaged or missing, or if the checkpoint is not a T5 model.
    """
    fields, params = read_checkpoint(pathlib.Path(folder) / FILE)
    tokenizer = tokenizer_lib.load(os.fspath(folder))
    artifact.check_tokenizer(tokenizer, fields["vocab_size"], folder)
    if not with_params:
        params = artifact.abstract_params("t5", fields, folder)
    return artifact.Artifact("t5", fields, params, tokenizer, origin="T5X checkpoint")


def read_checkpoint(file: pathlib.Path) -> tuple[dict[str, Any], Any]:
    """Reads a msgpack file and the array folders beside it.

    Returns (fields of the family t5, nested dict of float32 parameters). The file does not record
    the activation; it is assumed to be gelu_tanh in gated MLPs and relu in others. Raises UserError
    if the file is not a complete T5 model.
    """
    try:
        theirs = _stack_layers(_read_arrays(file), file)
        fields = _fields(theirs, file)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise errors.UserError(
            f"{file}: its arrays are not those of a T5 model ({error!r:.80}); {weight_files.REMEDY}"
        ) from error
    flat = {}
    for ours, leaf in artifact.flatten(artifact.abstract_params("t5", fields, file)).items():
        name = _their_name(ours)
        if name not in theirs:
            raise errors.UserError(f"{file}: does not contain {name}; {weight_files.REMEDY}")
        flat[ours] = _to_ours(theirs.pop(name), leaf.shape, ours, f"{file}: {name}")
    if theirs:
        raise errors.UserError(f"{file}: contains unknown arrays: {', '.join(theirs)}")
    return fields, artifact.unflatten(flat)


def _read_arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns {T5X path: float32 array} for all parameters."""
    state = weight_files.read_msgpack(file)
    try:
        target = state["optimizer"]["target"]
    except (KeyError, TypeError) as error:
        raise errors.UserError(
            f"{file}: contains no optimizer/target, so it is not a checkpoint of T5X"
        ) from error
    arrays: dict[str, np.ndarray] = {}

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, Mapping) and "driver" in node:
            node = _tensorstore(node, file)
        if isinstance(node, Mapping):
            for name, inner in node.items():
                walk(inner, f"{prefix}/{name}" if prefix else name)
        else:
            arrays[prefix] = np.asarray(node, np.float32)

    walk(target, "")
    return arrays


def _tensorstore(spec: Mapping[str, Any], file: pathlib.Path) -> np.ndarray:
    """Reads the array that `spec` describes from its folder beside the file.

    Always reads from the local disk, even if the spec names other storage, such as a bucket.
    """
    folder = file.parent / spec["kvstore"]["path"]
    store = {"driver": spec["driver"], "kvstore": {"driver": "file", "path": f"{folder}/"}}
    try:
        return tensorstore.open(store, open=True, read=True).result().read().result()
    except ValueError as error:
        raise errors.UserError(f"{folder}: cannot be read; {weight_files.REMEDY}") from error


def _stack_layers(arrays: dict[str, np.ndarray], file: pathlib.Path) -> dict[str, np.ndarray]:
    """Stacks the arrays of the layers.

    Returns {name: array}. The array of all layers of a stack (encoder or decoder) is named
    "STACK/layers/NAME" and has shape [layers, ...]; other arrays are unchanged.
    """
    stacked: dict[str, np.ndarray] = {}
    by_layer: dict[str, dict[int, np.ndarray]] = {}
    for name, array in arrays.items():
        stack, _, rest = name.partition("/")
        part, _, inner = rest.partition("/")
        if part == stack:  # scanned
            stacked[f"{stack}/layers/{inner}"] = np.moveaxis(array, 1, 0)
        elif part.startswith("layers_"):
            index = int(part.removeprefix("layers_"))
            by_layer.setdefault(f"{stack}/layers/{inner}", {})[index] = array
        else:
            stacked[name] = array
    for name, layers_by_index in by_layer.items():
        if set(layers_by_index) != set(range(len(layers_by_index))):
            raise errors.UserError(
                f"{file}: contains {name} only for the layers {sorted(layers_by_index)}"
            )
        stacked[name] = np.stack([layers_by_index[i] for i in range(len(layers_by_index))])
    return stacked


def _fields(theirs: dict[str, np.ndarray], file: pathlib.Path) -> dict[str, Any]:
    try:
        bias = theirs["encoder/relpos_bias/rel_embedding"]
        query = theirs["encoder/layers/attention/query/kernel"]
        table = theirs["token_embedder/embedding"]
        gated = "encoder/layers/mlp/wi_0/kernel" in theirs
        wo = theirs["encoder/layers/mlp/wo/kernel"]
        decoder = theirs["decoder/layers/mlp/wo/kernel"]
    except KeyError as error:
        raise errors.UserError(
            f"{file}: does not contain {error.args[0]}, so it is not a T5 model"
        ) from error
    config = t5.Config(
        vocab_size=table.shape[0],
        hidden_size=table.shape[1],
        num_layers=len(query),
        num_decoder_layers=len(decoder),
        num_heads=bias.shape[0],
        head_dim=query[0].size // table.shape[1] // bias.shape[0],
        intermediate_size=wo.shape[1],
        relative_buckets=bias.shape[1],
        activation="gelu_tanh" if gated else "relu",
        gated=gated,
        tied_embeddings="decoder/logits_dense/kernel" not in theirs,
    )
    return layers.fields_of(config)


def _their_name(ours: str) -> str:
    stack, separator, rest = ours.partition("/layers/")
    if not separator:
        return _OTHERS[ours]
    if rest in _MLP_KERNELS:
        return f"{stack}/layers/{_MLP_KERNELS[rest]}"
    part, _, leaf = rest.partition("/")
    return f"{stack}/layers/{(_ENCODER if stack == 'encoder' else _DECODER)[part]}/{leaf}"


def _to_ours(array: np.ndarray, shape: tuple[int, ...], ours: str, where: str) -> np.ndarray:
    if ours.endswith("relative_bias/embedding"):
        array = array.T
    elif ours == "embeddings/word/embedding":
        array = np.pad(array, ((0, shape[0] - len(array)), (0, 0)))
    elif ours == "lm_head/kernel":
        array = np.pad(array, ((0, 0), (0, shape[1] - array.shape[1])))
    if array.size != np.prod(shape):
        raise errors.UserError(f"{where} has shape {array.shape}, which does not match {shape}")
    return array.reshape(shape)  # T5X may merge the axes heads and head_dim
