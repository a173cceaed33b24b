"""Locks the output folder of `prepare`, and checks which parts of it are finished and valid.

An interrupted call leaves the plan, the counts of the finished units and their shards. The next
call reuses them only if the plan and the text are the same and the files are undamaged.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax import errors, files, schema
from bertjax.data.corpus import reader
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared import parallel, prepare_duplicates, prepare_unit, store

_PLAN = "plan.json"
_SECOND = 10**9  # nanoseconds


@contextlib.contextmanager
def locked(output: str) -> Iterator[None]:
    """Locks a local folder while its data is prepared, see `files.locked`.

    Removes partial files at the start and at the end. Without a lock, at worst two calls write the
    same files.
    """
    if "://" in output:
        yield
        return
    with files.locked(output, "another process is writing prepared data to it"):
        try:
            _remove_partials(output)
            yield
        finally:
            _remove_partials(output)


def _remove_partials(output: str) -> None:
    for folder in (epath.Path(output), epath.Path(output) / prepare_unit.UNITS):
        for file in folder.glob(f".*{files.PARTIAL}"):
            file.unlink(missing_ok=True)


def existing(
    job: prepare_unit.Job,
    plan: dict[str, Any],
    sources: Sequence[reader.Source],
    units: Sequence[prepare_unit.Unit],
    workers: int,
) -> dict[str, Any]:
    """Returns the manifest of a finished folder.

    Raises UserError if this job would prepare different data, or if a shard has the wrong size.
    """
    folder, manifest = epath.Path(job.output), manifest_lib.read(job.output)
    _check_same(folder, manifest, plan)
    if job.on_error == "stop" and manifest["skipped"]:
        raise errors.UserError(
            f"{folder}: contains data that was prepared with on_error=skip, so skipped input is "
            f"missing from it: {manifest['skipped']}; choose another --output or delete the folder"
        )
    texts = dict(enumerate(manifest["texts"]))
    _check_texts(job, texts, units if texts else (), _possibly_changed(folder, sources), workers)
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            store.check_size(folder / shard["file"], shard["bytes"])
    clear(folder)
    return manifest


def begin(
    job: prepare_unit.Job,
    plan: dict[str, Any],
    sources: Sequence[reader.Source],
    units: Sequence[prepare_unit.Unit],
    workers: int,
) -> None:
    """Writes the plan of a new preparation, or checks the plan of an interrupted one.

    Raises UserError if the plan or the text has changed since the interrupted call.
    """
    folder = epath.Path(job.output)
    units_folder = folder / prepare_unit.UNITS
    finished = [*units_folder.glob("*.json"), *units_folder.glob("*.npz")]
    file = folder / _PLAN
    if finished and file.exists():
        remedy = "choose another --output or delete the folder"
        old = schema.read(file, manifest_lib.Plan, remedy, form=manifest_lib.FORM)
        _check_same(folder, dataclasses.asdict(old), plan)
        changed = _possibly_changed(folder, sources)
        texts = {unit.index: _text(job, unit) for unit in units if _reads(unit, changed)}
        finished_units = [unit for unit in units if texts.get(unit.index)]
        _check_texts(job, texts, finished_units, changed, workers)
    else:
        clear(folder)
        (folder / prepare_unit.UNITS).mkdir(parents=True, exist_ok=True)
        schema.write(file, plan, manifest_lib.FORM)


def _text(job: prepare_unit.Job, unit: prepare_unit.Unit) -> str:
    """Returns the digest of the texts of a unit when it was read before; "" if it was not."""
    counts = counts_of(job, unit)
    if counts is None and job.filters.deduplicate != "none":
        return prepare_duplicates.texts(job, unit)
    return counts["text"] if counts else ""


def _possibly_changed(folder: epath.Path, sources: Sequence[reader.Source]) -> set[str]:
    """Returns the paths of text files modified since the oldest file in `folder` was written.

    NOTE: file system clocks are coarse, so files modified up to a second before also count.
    """
    start_time = min(
        _modification_time(os.fspath(item)) for item in folder.iterdir() if not item.is_dir()
    )
    files = (source.path for source in sources if source.format not in ("tfds", "builtin"))
    return {path for path in files if _modification_time(path) > start_time - _SECOND}


def _reads(unit: prepare_unit.Unit, paths: set[str]) -> bool:
    return any(source.path in paths for source in unit.sources)


def _modification_time(path: str) -> int:
    """Returns when a file was last modified, in nanoseconds.

    For a local file this is the later of mtime and ctime, because a program can set mtime but not
    ctime.
    """
    if "://" in path:
        return int(epath.Path(path).stat().mtime * _SECOND)
    status = os.stat(path)
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _check_texts(
    job: prepare_unit.Job,
    texts: Mapping[int, str],
    units: Sequence[prepare_unit.Unit],
    changed: set[str],
    workers: int,
) -> None:
    """Raises UserError if the text of a unit has changed.

    texts: the digest of each unit's text, by index, from when it was prepared.
    changed: paths of files; only units that read one of them are checked.
    """
    affected = [unit for unit in units if _reads(unit, changed)]
    work = parallel.run(
        affected, prepare_unit.make_digest, (job,), processes=workers, on_progress=lambda *_: None
    )
    with contextlib.closing(work):
        for unit, digest in work:
            if digest != texts.get(unit.index):
                names = errors.several(dict.fromkeys(source.path for source in unit.sources), 3)
                raise errors.UserError(
                    f"{job.output}: contains data prepared from other sources: the text of {names} "
                    "has changed; choose another --output or delete the folder"
                )


def _check_same(folder: epath.Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    differences = [f"different {key}" for key in new if key != "options" and old[key] != new[key]]
    old_options = manifest_lib.EARLIER_OPTIONS | old["options"]
    for key in old_options | new["options"]:
        old_value, value = old_options.get(key), new["options"].get(key)
        if old_value != value:
            differences.append(f"{key}={old_value!r} instead of {value!r}")
    if differences:
        raise errors.UserError(
            f"{folder}: contains data that was prepared differently ({', '.join(differences)}); "
            "choose another --output or delete the folder"
        )


def clear(folder: epath.Path) -> None:
    """Removes the plan and the counts of units, which only an unfinished preparation needs.

    NOTE: the plan is removed first, because without a plan the counts are ignored.
    """
    (folder / _PLAN).unlink(missing_ok=True)
    if (folder / prepare_unit.UNITS).exists():
        (folder / prepare_unit.UNITS).rmtree()


def counts_of(job: prepare_unit.Job, unit: prepare_unit.Unit) -> dict[str, Any] | None:
    """Returns the counts of a finished unit; None if it is unfinished or its files are damaged.

    Also returns None if the unit skipped bad input but on_error is now "stop", or if its threshold
    for held-out documents was lower. For a remote shard only the size is compared, not the
    checksum, because object stores verify the bytes.
    """
    try:
        file = prepare_unit.counts_file(job.output, unit.index)
        counts = dataclasses.asdict(schema.read(file, manifest_lib.Unit, ""))
        for shard in filter(None, counts["splits"].values()):
            path = epath.Path(job.output) / shard["file"]
            store.check_size(path, shard["bytes"])
            if "://" not in job.output and files.sha256(path) != shard["sha256"]:
                return None
    except (OSError, errors.UserError):
        return None
    if job.on_error == "stop" and counts["skipped"]:
        return None
    return counts if counts["threshold"] >= unit.threshold else None
