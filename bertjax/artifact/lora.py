"""The matrices of LoRA in an artifact, so that they can be exported apart from the base model.

The parameters of an artifact contain alpha / rank * A B already. `Lora` keeps A and B as well:

    artifact/lora.safetensors      "encoder/layers/attention/query/kernel/lora_a" and so on
    artifact/config.json           "lora": rank, alpha, heads and the checksum of this file
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from bertjax import errors, files, schema
from bertjax.artifact import weight_files

FILE = "lora.safetensors"
A, B = "lora_a", "lora_b"  # the last parts of the paths, after that of the kernel


@dataclasses.dataclass(frozen=True)
class Content(schema.Open):
    """The key "lora" of an artifact's config.json."""

    rank: int
    alpha: float
    heads: list[str]
    sha256: schema.Sha256


@dataclasses.dataclass(frozen=True)
class Lora:
    """The trained matrices, on the host.

    rank, alpha: A B is scaled by alpha / rank. heads: the first parts of the paths of the other
    trained parameters, such as "classifier". matrices: {path: array}; KERNEL/lora_a is [layers, in,
    rank] and KERNEL/lora_b [layers, rank, out], with the axes of heads flattened.
    """

    rank: int
    alpha: float
    heads: tuple[str, ...]
    matrices: Mapping[str, Any]


def write(lora: Lora, folder: pathlib.Path) -> dict[str, Any]:
    """Writes the file of the matrices to an artifact's folder; returns the content of "lora"."""
    weight_files.write_tensors(folder / FILE, lora.matrices)
    digest = files.sha256(folder / FILE)
    return dataclasses.asdict(Content(lora.rank, lora.alpha, list(lora.heads), digest))


def read(content: Content, folder: pathlib.Path) -> Lora:
    """Returns the matrices in an artifact's folder. Raises UserError if the file is damaged."""
    file = folder / FILE
    names = list(weight_files.tensor_shapes(file))
    if files.sha256(file) != content.sha256:
        raise errors.UserError(
            f"{file}: its checksum differs from that in config.json; the file is corrupt; "
            f"{weight_files.REMEDY}"
        )
    matrices = weight_files.read_tensors(file, names)
    return Lora(content.rank, content.alpha, tuple(content.heads), matrices)
