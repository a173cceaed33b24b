"""Finds the duplicates of a corpus before its units are processed: a pass over all documents.

    units/00003.keys.npz        the keys of the documents of a unit (see `duplicates`)
    units/00003.verdicts.npz    which of the documents to drop; written when all keys are there

Keys are computed unit by unit, in parallel, and only for documents that the other filters keep. So
the first such document of a group is kept, in the order of the shards. `decide` reads one key of
all documents at a time and needs about 50 bytes of memory for each document. The files take 12
bytes for each document, or 124 with near duplicates.
"""

import collections
import functools
import hashlib
import zipfile
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np
from etils import epath

from bertjax.data.prepared import arrays, duplicates, prepare_unit
from bertjax.data.prepared import filters as filters_lib

_REPORT_BYTES = 1 << 20
_THREADS = 16  # that open and write files, which may be remote


def keys_file(output: str, index: int) -> epath.Path:
    """Returns the path of the keys of the documents of unit `index`."""
    return epath.Path(output) / prepare_unit.UNITS / f"{index:05d}.keys.npz"


def make_work(
    job: prepare_unit.Job,
) -> Callable[[prepare_unit.Unit, Callable[[int], None]], str]:
    """Returns the function that writes the keys file of a unit and returns its texts' digest."""
    return functools.partial(_write_keys, job, prepare_unit.make_judge(job))


def _write_keys(
    job: prepare_unit.Job,
    judge: Callable[[Any], int],
    unit: prepare_unit.Unit,
    report: Callable[[int], None],
) -> str:
    digest = hashlib.sha256()
    verdicts: list[int] = []
    rows: list[np.ndarray] = []
    near = job.filters.deduplicate == "near"
    num_keys = duplicates.num_keys(job.filters.deduplicate)
    reported = 0
    for document in prepare_unit.documents(job, unit, collections.Counter()):
        prepare_unit.update(digest, document)
        verdicts.append(judge(document))
        if verdicts[-1] == filters_lib.KEPT:
            if document.text.strip():
                rows.append(duplicates.keys_of(document.text, near=near))
            else:  # a key of its own: documents without text are not duplicates
                rows.append(np.full(num_keys, unit.index << 32 | len(verdicts), np.uint64))
        if document.position - reported > _REPORT_BYTES:
            reported = document.position
            report(reported)
    keys = np.stack(rows) if rows else np.zeros((0, num_keys), np.uint64)
    columns = {_column(i): keys[:, i] for i in range(num_keys)}
    _save(keys_file(job.output, unit.index), digest.hexdigest(), verdicts, columns)
    report(unit.size)
    return digest.hexdigest()


def texts(job: prepare_unit.Job, unit: prepare_unit.Unit) -> str:
    """Returns the digest of the texts of a unit whose keys file is complete, else ""."""
    return _text(keys_file(job.output, unit.index))


def _text(path: epath.Path) -> str:
    """Returns the digest of the texts in a file that `_save` wrote; "" if it is damaged."""
    try:
        arrays.check(path)
        return str(arrays.read(path, "text")["text"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return ""


def decided(job: prepare_unit.Job, units: Sequence[prepare_unit.Unit]) -> bool:
    """Returns whether the verdicts on the documents of all units are there."""
    paths = [prepare_unit.verdicts_file(job.output, unit.index) for unit in units]
    with futures.ThreadPoolExecutor(_THREADS) as pool:
        return all(pool.map(_text, paths))


def decide(job: prepare_unit.Job, units: Sequence[prepare_unit.Unit]) -> None:
    """Writes the verdicts on the documents of all units. Their keys must be there."""
    reasons = job.filters.reasons()
    keys, counts = _keys(job, units, 0)
    first = duplicates.first_copies(len(keys), [keys])
    verdicts = np.full(len(first), filters_lib.KEPT, np.uint16)
    verdicts[first < np.arange(len(first))] = 1 + reasons.index("exact_duplicate")
    if job.filters.deduplicate == "near":
        del keys
        others = (_keys(job, units, i)[0] for i in range(1, duplicates.num_keys("near")))
        first = duplicates.first_copies(len(first), others, first)
        near = (first < np.arange(len(first))) & (verdicts == filters_lib.KEPT)
        verdicts[near] = 1 + reasons.index("near_duplicate")
    parts = np.split(verdicts, np.cumsum(counts)[:-1])
    with futures.ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(functools.partial(_write_verdicts, job), units, parts))


def _write_verdicts(
    job: prepare_unit.Job, unit: prepare_unit.Unit, duplicate_verdicts: np.ndarray
) -> None:
    content = arrays.read(keys_file(job.output, unit.index), "verdicts", "text")
    verdicts, text = content["verdicts"], str(content["text"])
    verdicts[verdicts == filters_lib.KEPT] = duplicate_verdicts
    _save(prepare_unit.verdicts_file(job.output, unit.index), text, verdicts, {})


def _keys(
    job: prepare_unit.Job, units: Sequence[prepare_unit.Unit], number: int
) -> tuple[np.ndarray, list[int]]:
    """Returns key `number` of the documents of all units, in order, and each unit's count."""
    name = _column(number)

    def read(unit: prepare_unit.Unit) -> np.ndarray:
        return arrays.read(keys_file(job.output, unit.index), name)[name]

    with futures.ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(read, units))
    return np.concatenate(parts), [len(part) for part in parts]


def _column(number: int) -> str:
    return f"key_{number:02d}"


def _save(
    path: epath.Path, text: str, verdicts: Sequence[int], columns: dict[str, np.ndarray]
) -> None:
    arrays.write(path, {"text": text, "verdicts": np.asarray(verdicts, np.uint16), **columns})
