"""Reads Arrow streams, which `save_to_disk` of Hugging Face's `datasets` writes, as records.

    for index, record in arrow.rows("train/data-00000-of-00001.arrow", lambda name: True):
        ...                                          # 0, {"text": "An ant.", "label": "positive"}

A stream consists of batches, of 1,000 rows by default, which are read one after the other. The
functions on columns also serve `parquet`.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from bertjax import errors
from bertjax.data.corpus import binary_formats, corpus_files

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a complete stream
_PIECE_ROWS = 1000  # rows converted at once


def columns(path: str) -> dict[str, bool]:
    """Returns {column: whether it contains bytes, such as images, which `rows` cannot read}."""
    with _opened(path) as stream:
        return {field.name: holds_bytes(field.type) for field in stream.schema}


def rows(path: str, reads: Callable[[str], bool]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (row number, {column: value}) of all rows.

    reads: whether to read a column; columns of bytes are never read. Numbers of classes become
    their names if the file has the metadata that `datasets` writes; -1 becomes None. Raises
    UserError if the file is empty, incomplete, damaged or not an Arrow stream.
    """
    with _opened(path) as stream:
        fields = [field for field in stream.schema if not holds_bytes(field.type)]
        names = [field.name for field in fields if reads(field.name)]
        classes = class_names(stream.schema.metadata or {})
        row = 0
        with damage(path):
            for batch in stream:
                for start in range(0, batch.num_rows, _PIECE_ROWS):
                    for values in batch.select(names).slice(start, _PIECE_ROWS).to_pylist():
                        yield row, with_names(values, classes, f"{path} row {row}")
                        row += 1


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Yields a `pyarrow.RecordBatchReader`."""
    from pyarrow import ipc  # slow to import, and rarely needed

    with corpus_files.opened_binary(path, binary_formats.ARROW_STREAM) as (raw, head):
        if not head.startswith(_END[:4]):
            raise errors.UserError(
                f"{path}: is not an {binary_formats.ARROW_STREAM}; correct its suffix, or convert "
                "the file"
            )
        raw.seek(-min(len(_END), len(head)), 2)
        if raw.read() != _END:
            raise errors.UserError(
                f"{path}: is incomplete: its end is missing; copy or download it again"
            )
        raw.seek(0)
        with damage(path):
            stream = ipc.open_stream(raw)
        yield stream


def with_names(values: dict[str, Any], classes: dict[str, list[str]], place: str) -> dict[str, Any]:
    """Returns a row with the names of classes instead of their numbers. classes: `class_names`."""
    if not classes:
        return values
    return {
        name: _named(value, classes.get(name), f"{place}: {name!r}")
        for name, value in values.items()
    }


def holds_bytes(kind: Any) -> bool:
    """Returns whether values of an Arrow type are bytes, or contain bytes."""
    from pyarrow import types  # slow to import, and rarely needed

    if types.is_nested(kind):
        return any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Returns {column: names of its classes} from the metadata of Hugging Face's `datasets`."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        items = features.items()
    except (KeyError, TypeError, ValueError, AttributeError):  # the metadata is optional
        return {}
    names = {}
    for name, feature in items:
        while isinstance(feature, list) and len(feature) == 1:  # a list, as earlier versions say it
            (feature,) = feature
        while isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
            feature = feature["feature"]
        if isinstance(feature, dict) and isinstance(feature.get("names"), list):
            names[name] = feature["names"]
    return names


def _named(value: Any, names: list[str] | None, place: str) -> Any:
    """Returns `value` with each number of a class replaced by its name."""
    if names is None or not isinstance(value, int | list):
        return value
    if isinstance(value, list):
        return [_named(part, names, place) for part in value]
    if value == -1:
        return None
    if not 0 <= value < len(names):
        raise errors.UserError(
            f"{place} is {value}, but the file names only the classes 0 to {len(names) - 1}"
        )
    return names[value]


@contextlib.contextmanager
def damage(place: str) -> Iterator[None]:
    """Raises UserError, naming the place, for an error of pyarrow in the body of `with`."""
    import pyarrow  # slow to import, and rarely needed

    try:
        yield
    except UnicodeDecodeError as error:
        raise errors.UserError(
            f"{place}: contains text that is not UTF-8; write the file again"
        ) from error
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk or of the network
        raise errors.UserError(
            f"{place}: corrupt ({errors.one_line(error)}); copy or download the file again"
        ) from error
