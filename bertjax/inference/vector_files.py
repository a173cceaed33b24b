"""Files of text vectors: NumPy's .npy, or .parquet with the columns `text` and `vector`.

Vectors of different models cannot be compared. So a file names the model that computed it: a
Parquet file in its metadata, and FILE.npy in FILE.npy.json beside it.

    about = vector_files.About(model=bert.vectors_fingerprint(), ...)
    vector_files.read("vectors.npy", about.model)       # float32[N, E], mapped from the disk

Shapes: N texts, E dimensions of a vector.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from bertjax import errors, files, schema

FORM = schema.Form("bertjax-vectors", 1)
SUFFIXES = (".npy", ".parquet")
HEADER_BYTES = 128  # of a .npy file: more than its header needs, so that it can be written last
_KEY = b"bertjax"  # in the metadata of a Parquet file
_REMEDY = "write the vectors again with `bertjax embed`"
_ROWS = 4096  # of a row group


@dataclasses.dataclass(frozen=True)
class About:
    """What is stored with vectors.

    model: the model's `vectors_fingerprint`. path: where the model was. num_texts,
    num_dims: the shape of the vectors. encoding: the pooling and what follows, in words. prompt:
    the text in front of every text. run: a digest of the data and of the options.
    """

    model: str
    path: str
    num_texts: schema.Count
    num_dims: schema.Count
    encoding: str
    prompt: str
    run: str


def check_name(path: str | os.PathLike) -> pathlib.Path:
    """Returns the local path of a file of vectors. Raises UserError for another suffix."""
    file = files.local(path)
    if file.suffix not in SUFFIXES:
        raise errors.UserError(f"{path}: must end in {' or '.join(SUFFIXES)}")
    return file


def _about_file(file: pathlib.Path) -> pathlib.Path:
    return file.with_name(f"{file.name}.json")


def about(path: str | os.PathLike) -> About:
    """Returns what is stored with the vectors. Raises UserError if bertjax did not write them."""
    file = check_name(path)
    if not file.exists():
        raise errors.UserError(f"{path}: not found; {_REMEDY}")
    if file.suffix == ".npy":
        beside = _about_file(file)
        if not beside.exists():
            raise errors.UserError(
                f"{beside}: not found, but it names the model of {file.name}; copy it, too, or "
                f"{_REMEDY}"
            )
        return schema.read(beside, About, _REMEDY, form=FORM)
    data = (_parquet(file).schema_arrow.metadata or {}).get(_KEY)
    if data is None:
        raise errors.UserError(f"{path}: does not name the model of its vectors; {_REMEDY}")
    return schema.typed(schema.parse(data, path, _REMEDY), About, path, _REMEDY)


def read(path: str | os.PathLike, model: str, label: str = "the model") -> np.ndarray:
    """Returns the vectors in a file: float32[N, E]; those in a .npy file are mapped from the disk.

    model: the `vectors_fingerprint` of the model that the vectors must come from. label:
    its name in the message. Raises UserError if they come from another one, or if the file is
    damaged.
    """
    stored, file = about(path), check_name(path)
    if stored.model != model:
        raise errors.UserError(
            f"{path}: contains vectors of another model ({stored.path}, with the fingerprint "
            f"{stored.model[:12]}; that of {label} is {model[:12]}); {_REMEDY}"
        )
    shape = stored.num_texts, stored.num_dims
    try:
        if file.suffix == ".npy":
            vectors_NE = np.load(file, mmap_mode="r")
        else:
            column = _parquet(file).read(columns=["vector"]).column("vector").combine_chunks()
            vectors_NE = column.flatten().to_numpy().reshape(shape)
    except (ValueError, OSError, EOFError) as error:
        raise errors.UserError(f"{path}: is damaged ({error}); {_REMEDY}") from error
    if vectors_NE.shape != shape or vectors_NE.dtype != np.float32:
        raise errors.UserError(
            f"{path}: has an array of shape {vectors_NE.shape} and type {vectors_NE.dtype}, but "
            f"{shape} and float32 were written; {_REMEDY}"
        )
    return vectors_NE


def npy_header(num_texts: int, num_dims: int) -> bytes:
    """Returns the first HEADER_BYTES bytes of a .npy file of float32 vectors.

    Written by hand, since NumPy pads the header to a length that depends on the shape.
    """
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_texts}, {num_dims}), }}"
    size = HEADER_BYTES - 10
    body = text.ljust(size - 1).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + body


def finish_npy(partial: pathlib.Path, output: pathlib.Path, stored: About) -> None:
    """Moves a complete .npy file from `partial` to `output`, with the file that names its model.

    NOTE: the order matters. A file of vectors never stands beside the name of another model.
    """
    output.unlink(missing_ok=True)
    schema.write(_about_file(output), dataclasses.asdict(stored), FORM)
    partial.replace(output)


def write_parquet(
    partial: pathlib.Path,
    output: pathlib.Path,
    vectors_NE: np.ndarray,
    texts: Iterable[str],
    stored: About,
) -> None:
    """Writes texts and vectors to `partial`, row group by row group, and moves it to `output`."""
    import pyarrow as pa  # slow to import
    from pyarrow import parquet

    kind = pa.list_(pa.float32(), stored.num_dims)
    metadata = {_KEY: json.dumps(dataclasses.asdict(stored)).encode()}
    form = pa.schema([("text", pa.string()), ("vector", kind)], metadata=metadata)
    iterator = iter(texts)
    with parquet.ParquetWriter(partial, form) as writer:
        for start in range(0, len(vectors_NE), _ROWS):
            block = np.ascontiguousarray(vectors_NE[start : start + _ROWS])
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), stored.num_dims)
            column = pa.array([next(iterator) for _ in block], pa.string())
            writer.write_table(pa.Table.from_arrays([column, vectors], schema=form))
    partial.replace(output)


def _parquet(file: pathlib.Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:100]
        raise errors.UserError(f"{file}: is not a Parquet file ({reason}); {_REMEDY}") from error
