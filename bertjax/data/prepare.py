"""Text to the prepared dataset of `store`: once, in parallel, in bounded memory, restartable.

The corpus is cut into units of about `shard_bytes`; processes turn units into shards
(`prepare_unit`). A finished unit is never done again, whatever happened in between. The manifest is
written when all are finished: a folder with a manifest is whole.

What is written depends on the text, the tokenizer and the options, never on the number of workers
or on interruptions. A document is held out by the hash of its text: equal documents fall on the
same side, wherever they stand.

    prepare.prepare(["books/*.jsonl"], "tok/", "prepared/")

Memory: a worker holds one document and one batch of tokens, nothing that grows with the corpus.
Only a document that is one line of JSON, or one file of plain text, has to be held whole.
"""

import collections
import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from etils import epath

from bertjax import errors
from bertjax.data import corpus, parallel, prepare_unit, sentences, store, tokenizer

MAX_UNITS = 4096  # a larger corpus gets larger shards, not more files

_PLAN = "plan.json"
_COUNTS = ("documents", "sentences", "tokens", "records", "unknown")


def prepare(
    inputs: Sequence[str],
    tokenizer_path: str,
    output: str,
    *,
    workers: int | None = None,
    format: str = "auto",
    splitter: str = "rules",
    heldout_fraction: float = 0.01,
    text_field: str = "text",
    text_split: str = "file",
    on_error: str = "stop",
    shard_bytes: int = 16 << 20,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Prepares a corpus and returns the manifest; goes on where an interrupted call stopped.

    inputs: patterns of `corpus.find`. tokenizer_path: anything that `tokenizer.load` takes.
    workers: processes; None is one a CPU. splitter: a name in `sentences.SPLITTERS`.
    heldout_fraction: share of the documents that are kept for evaluation, at least one if not 0.
    format, text_field, text_split, on_error: see `corpus`.
    shard_bytes: source text of one train shard and its held-out shard.
    on_progress: called with (bytes done, bytes in all) of the sources.

    UserError at bad input, or if `output` holds data that was prepared in another way.
    """
    options = {
        "splitter": splitter,
        "heldout_fraction": heldout_fraction,
        "text_field": text_field,
        "text_split": text_split,
        "shard_bytes": shard_bytes,
    }
    _validate(options, workers, on_error)
    tok = tokenizer.load(tokenizer_path)
    missing: collections.Counter[str] = collections.Counter()
    sources = corpus.find(inputs, format=format, on_error=on_error, skipped=missing)
    plan = {
        "format": store.FORMAT,
        "version": store.VERSION,
        "tokenizer": {"kind": tok.kind, "size": tok.size, "fingerprint": tok.fingerprint},
        "token_dtype": store.token_dtype(tok.size).name,
        "options": options,
        "sources": [{"path": s.path, "size": s.size, "format": s.format} for s in sources],
    }
    folder = epath.Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise errors.UserError(f"{output}: not a folder to write to ({error.strerror})") from error
    with _locked(output):
        if (folder / store.MANIFEST).exists():
            return _existing(folder, plan, on_error)
        _begin(folder, plan)
        tok.save(os.fspath(folder / store.TOKENIZER))
        job = prepare_unit.Job(output, tokenizer_path, splitter, text_field, text_split, on_error)
        units = _units(sources, shard_bytes, text_split, int(heldout_fraction * 2**64))
        counts = _finish(job, units, workers or parallel.cpus(), on_progress)
        if heldout_fraction:
            counts = _hold_one_out(job, units, counts)
        manifest = plan | _totals(counts, missing)
        _check_documents(folder, manifest)
        prepare_unit.write_json(folder / store.MANIFEST, manifest)
        _clear(folder)
    return manifest


def _validate(options: dict[str, Any], workers: int | None, on_error: str) -> None:
    choices = {
        "splitter": (options["splitter"], tuple(sentences.SPLITTERS)),
        "text_split": (options["text_split"], corpus.TEXT_SPLITS),
        "on_error": (on_error, corpus.ON_ERROR),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise errors.UserError(f"{name} is {value!r}: use one of {', '.join(allowed)}")
    if not 0 <= options["heldout_fraction"] < 1:
        fraction = options["heldout_fraction"]
        raise errors.UserError(f"heldout_fraction is {fraction}: use 0 or more, less than 1")
    if options["shard_bytes"] < 1 or (workers is not None and workers < 1):
        raise errors.UserError("workers and shard_bytes are at least 1")


# --- the folder -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(output: str) -> Iterator[None]:
    """One preparation at a time in a local folder; the lock goes with the process."""
    if "://" in output:
        yield
        return
    handle = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise errors.UserError(f"{output}: another process is preparing data there") from error
    except OSError:
        pass  # a file system without locks: two calls would write the same bytes twice
    try:
        _remove_partials(output)
        yield
    finally:
        _remove_partials(output)
        os.close(handle)


def _remove_partials(output: str) -> None:
    for folder in (epath.Path(output), epath.Path(output) / prepare_unit.UNITS):
        for file in folder.glob(f".*{prepare_unit.PARTIAL}"):
            file.unlink(missing_ok=True)


def _existing(folder: epath.Path, plan: dict[str, Any], on_error: str) -> dict[str, Any]:
    manifest = store.read_manifest(folder)
    _check_same(folder, manifest, plan)
    if on_error == "stop" and manifest["skipped"]:
        raise errors.UserError(
            f"{folder}: was prepared with on_error=skip and left out {manifest['skipped']}; "
            "choose another --output or delete the folder"
        )
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            store.check_size(folder / shard["file"], shard["bytes"])
    _clear(folder)
    return manifest


def _begin(folder: epath.Path, plan: dict[str, Any]) -> None:
    """Writes the plan, or checks it against that of the call which was interrupted."""
    finished = list((folder / prepare_unit.UNITS).glob("*.json"))
    file = folder / _PLAN
    if finished and file.exists():
        _check_same(folder, json.loads(file.read_text()), plan)
    else:
        _clear(folder)
        (folder / prepare_unit.UNITS).mkdir(parents=True, exist_ok=True)
        prepare_unit.write_json(file, plan)


def _check_same(folder: epath.Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    differences = [f"other {key}" for key in new if key != "options" and old[key] != new[key]]
    for key, value in new["options"].items():
        if old["options"][key] != value:
            differences.append(f"{key}={old['options'][key]!r} instead of {value!r}")
    if differences:
        raise errors.UserError(
            f"{folder}: holds data prepared with {', '.join(differences)}; "
            "choose another --output or delete the folder"
        )


def _clear(folder: epath.Path) -> None:
    """Removes what only an unfinished preparation needs. The plan goes first: without it the
    counts mean nothing."""
    (folder / _PLAN).unlink(missing_ok=True)
    if (folder / prepare_unit.UNITS).exists():
        (folder / prepare_unit.UNITS).rmtree()


# --- the work -------------------------------------------------------------------------------------


def _units(
    sources: Sequence[corpus.Source], shard_bytes: int, text_split: str, threshold: int
) -> list[prepare_unit.Unit]:
    """Cuts large sources, groups small ones. Depends on the sources and `shard_bytes` only."""
    unit_bytes = max(shard_bytes, sum(source.size for source in sources) // MAX_UNITS)
    groups: list[list[corpus.Source]] = []
    room = 0
    for source in sources:
        for part in corpus.split(source, unit_bytes, text_split=text_split):
            if part.size > room:
                groups.append([])
                room = unit_bytes
            groups[-1].append(part)
            room -= part.size
    return [
        prepare_unit.Unit(index, len(groups), tuple(group), threshold)
        for index, group in enumerate(groups)
    ]


def _finish(
    job: prepare_unit.Job,
    units: Sequence[prepare_unit.Unit],
    workers: int,
    on_progress: Callable[[int, int], None],
) -> dict[int, dict[str, Any]]:
    """Does the units that are not done yet; the counts of all, by index."""
    counts = {unit.index: _counts(job, unit) for unit in units}
    todo = [unit for unit in units if counts[unit.index] is None]
    done = {unit.index: 0 if counts[unit.index] is None else unit.size for unit in units}
    total = sum(unit.size for unit in units)

    on_progress(sum(done.values()), total)

    def hear(unit: prepare_unit.Unit, amount: int) -> None:
        done[unit.index] = amount
        on_progress(sum(done.values()), total)

    work = parallel.run(
        todo, prepare_unit.make_work, (job,), processes=workers, on_progress=hear
    )
    with contextlib.closing(work):
        for unit, result in work:
            counts[unit.index] = result
    return counts


def _counts(job: prepare_unit.Job, unit: prepare_unit.Unit) -> dict[str, Any] | None:
    """The counts of a finished unit; None if it is still (or again) to be done."""
    try:
        counts = json.loads(prepare_unit.counts_file(job.output, unit.index).read_text())
        for shard in filter(None, counts["splits"].values()):
            store.check_size(epath.Path(job.output) / shard["file"], shard["bytes"])
    except (OSError, ValueError, errors.UserError):
        return None
    if job.on_error == "stop" and counts["skipped"]:
        return None
    return counts if counts["threshold"] >= unit.threshold else None


def _hold_one_out(
    job: prepare_unit.Job,
    units: Sequence[prepare_unit.Unit],
    counts: dict[int, dict[str, Any]],
) -> dict[int, dict[str, Any]]:
    """In a corpus so small that no hash is below the threshold, holds out the smallest one."""
    hashes = [c["smallest_hash"] for c in counts.values() if c["smallest_hash"] is not None]
    least = min(hashes, default=0)
    if least < units[0].threshold:
        return counts
    again = [
        dataclasses.replace(unit, threshold=least + 1)
        for unit in units
        if counts[unit.index]["smallest_hash"] == least
    ]
    return counts | _finish(job, again, 1, lambda done, total: None)


def _totals(
    counts: dict[int, dict[str, Any]], missing: collections.Counter[str]
) -> dict[str, Any]:
    ordered = [counts[index] for index in sorted(counts)]
    skipped = sum((collections.Counter(c["skipped"]) for c in ordered), start=missing)
    splits = {}
    for split in prepare_unit.SPLITS:
        shards = [c["splits"][split] for c in ordered if c["splits"][split]]
        sums = {key: sum(shard[key] for shard in shards) for key in _COUNTS}
        splits[split] = sums | {"shards": shards}
    read = sum(c["documents_read"] for c in ordered)
    return {
        "text_bytes": sum(c["text_bytes"] for c in ordered),
        "empty_documents": read - sum(split["documents"] for split in splits.values()),
        "skipped": dict(sorted(skipped.items())),
        "splits": splits,
    }


def _check_documents(folder: epath.Path, manifest: dict[str, Any]) -> None:
    """UserError, and an empty folder, if there is nothing to train on."""
    train, heldout = (manifest["splits"][split] for split in prepare_unit.SPLITS)
    if train["documents"]:
        return
    _clear(folder)
    for shard in heldout["shards"]:
        (folder / shard["file"]).unlink(missing_ok=True)
    if heldout["documents"]:
        raise errors.UserError(
            "the corpus is one document, held out for evaluation, and nothing is left to train on: "
            "give more documents, or --text_split=blank for plain text, or --heldout_fraction=0"
        )
    raise errors.UserError(
        f"there is no text in the input: {manifest['empty_documents']} empty documents, "
        f"skipped: {manifest['skipped'] or 'none'}"
    )
