"""Opens ArrayRecord files and TFDS datasets, whose records are read by index.

Only `reader`, `finetuning.examples.readers` and `finetuning.tasks` use this module.
"""

import functools
from collections.abc import Sequence
from typing import Any

from array_record.python import array_record_module

from bertjax import errors


@functools.lru_cache(maxsize=4)
def opened(path: str) -> Sequence[Any]:
    """Opens an ArrayRecord file or a dataset "tfds:NAME/CONFIG:SPLIT" as a sequence of records.

    The records of an ArrayRecord file are bytes, those of a dataset are dicts of features.
    Raises UserError if the file or dataset cannot be read or is empty.
    """
    records = _tfds(path) if path.startswith("tfds:") else _ArrayRecord(path)
    if not len(records):
        raise errors.UserError(
            f"{path}: contains no record: it is empty, truncated or not ArrayRecord"
        )
    return records


class _ArrayRecord:
    def __init__(self, path: str):
        self._path = path
        if "://" in path:
            raise errors.UserError(
                f"{path}: ArrayRecord can only be read from local disks; copy it"
            )
        try:
            options = "readahead_buffer_size:0"
            self._reader = array_record_module.ArrayRecordReader(path, options=options)
            self._length = self._reader.num_records() if self._reader.ok() else 0
        except RuntimeError as error:
            raise errors.UserError(
                f"{path}: is not a readable ArrayRecord file ({error})"
            ) from error

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        try:
            return self._reader.read([index])[0]
        except RuntimeError as error:
            raise errors.UserError(f"{self._path} record {index}: corrupt ({error})") from error


def _tfds(path: str) -> Any:
    import tensorflow_datasets as tfds  # slow to import, and rarely needed

    name, _, split = path.removeprefix("tfds:").partition(":")
    try:
        return tfds.data_source(name, split=split or "train")
    except Exception as error:  # TFDS raises many types
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise errors.UserError(
            f"{path}: cannot be read ({reason}); without TensorFlow, TFDS reads only data sets "
            "built with file_format=array_record in $TFDS_DATA_DIR"
        ) from error


def tfds_bytes(path: str) -> int:
    """Estimates the bytes of a TFDS split, from the mean size of the examples in all splits."""
    data = opened(path)
    info = data.dataset_info
    examples = info.splits.total_num_examples
    return len(data) * max(1, info.dataset_size // examples) if examples else 1000 * len(data)
