"""Converts text to the prepared dataset of `store`, in parallel and in bounded memory.

The corpus is cut into units of about `shard_bytes`. Worker processes turn units into shards
(`prepare_unit`). A later call resumes an interrupted one and does not repeat finished units. The
manifest is written when all units are finished, so a folder with a manifest is complete.

The output depends on the text, the tokenizer and the options, never on the number of workers or on
interruptions. The hash of a document's text decides whether it is held out, so equal documents land
in the same split, wherever they are in the corpus.

    prepare.prepare(["books/*.jsonl"], "tok/", "prepared/")

A worker has one document and one batch of tokens in memory at a time, so the memory does not grow
with the corpus. NOTE: a whole line of JSON, or a whole file of plain text, is one document.
"""

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from etils import epath

from bertjax import errors, hub, paths, schema
from bertjax.data.corpus import languages, reader, sentences, templates
from bertjax.data.prepared import filters as filters_lib
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared import (
    overlap,
    parallel,
    prepare_duplicates,
    prepare_folder,
    prepare_unit,
    store,
)
from bertjax.data.tokenizers import tokenizer

SHARD_BY = ("size", "file")
MAX_UNITS = 4096  # a larger corpus gets larger shards, not more files

_COUNTS = ("documents", "sentences", "tokens", "records", "unknown")


def prepare(
    inputs: Sequence[str],
    tokenizer_path: str,
    output: str,
    *,
    workers: int | None = None,
    runner: parallel.Runner | None = None,
    format: str = "auto",
    splitter: str = "rules",
    language: str = languages.ENGLISH,
    heldout_fraction: float = 0.01,
    text_field: str = templates.DEFAULT_FIELD,
    text_template: str = "",
    text_split: str = "file",
    on_error: str = "stop",
    shard_by: str = "size",
    shard_bytes: int = 16 << 20,
    filters: filters_lib.Filters = filters_lib.NONE,
    on_begin: Callable[[dict[str, Any], tokenizer.Tokenizer, int], None] = lambda *_: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Prepares a corpus and returns the manifest; resumes if an earlier call was interrupted.

    inputs: patterns for `reader.find`. tokenizer_path: a file or folder for `tokenizer.load`,
    or the name of a model on the Hub.
    workers: number of processes; None means one per CPU. runner: the function that runs the work on
        the units; None: `parallel.run`. See `beam.runner`.
    splitter: a name in `sentences.SPLITTERS`.
    language: the language of the text, one of `languages.LANGUAGES`, for the sentence rules.
    heldout_fraction: share of the documents to hold out for evaluation. If it is not 0, at least
        one document is held out.
    format, text_field, text_template, text_split, on_error: see `reader`.
    shard_by: "size": a train shard and its held-out shard come from `shard_bytes` bytes of the
        sources. "file": they come from one file each, so that the shards do not depend on the
        format of the files.
    filters: which documents to leave out.
    on_begin: called before the work starts, with (first part of the manifest, tokenizer, number of
        workers).
    on_progress: called with (source bytes processed so far, total source bytes).

    Raises UserError if the input is bad, or if `output` contains data prepared from other inputs or
    with other options.
    """
    options = {
        "splitter": splitter,
        "language": language,
        "heldout_fraction": heldout_fraction,
        "text_field": text_field,
        "text_template": text_template,
        "text_split": text_split,
        "shard_by": shard_by,
        "shard_bytes": shard_bytes,
    }
    _validate(options, workers, on_error)
    filters.validate()
    if splitter == sentences.KEEPS_WHITE_SPACE:
        options["white_space"] = "kept"  # data that an earlier version prepared has single spaces
    if language != languages.ENGLISH:
        options["language_rules"] = languages.rules_version()
    tokenizer_path = os.fspath(hub.local(tokenizer_path, with_weights=False))
    tok = tokenizer.load(tokenizer_path)
    skipped: collections.Counter[str] = collections.Counter()
    sources = reader.find(
        inputs,
        format=format,
        text_field=text_field,
        text_template=text_template,
        language_field=filters.field,
        on_error=on_error,
        skipped=skipped,
    )
    options |= filters.options()
    runs = overlap.read(filters.decontaminate) if filters.decontaminate else None
    if runs is not None:
        options["decontaminate_digest"] = runs.digest
    plan = {
        "tokenizer": {"kind": tok.kind, "size": tok.size, "fingerprint": tok.fingerprint},
        "token_dtype": store.token_dtype(tok.size).name,
        "options": options,
        "sources": [{"path": s.path, "size": s.size, "format": s.format} for s in sources],
    }
    folder = paths.of(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise errors.UserError(
            f"{output}: is not a folder that can be written to ({error.strerror})"
        ) from error
    workers = workers or parallel.cpus()
    on_begin(plan, tok, workers)
    run = runner or functools.partial(parallel.run, processes=workers)
    job = prepare_unit.Job(
        output,
        os.fspath(folder / store.TOKENIZER),  # a copy that workers on other machines can read
        splitter,
        language,
        text_field,
        text_template,
        text_split,
        on_error,
        filters,
    )
    with prepare_folder.locked(output):
        if shard_by == "file":
            groups = _groups_by_file(sources)
        else:
            groups = _groups_by_size(sources, shard_bytes, text_split)
        threshold = int(heldout_fraction * 2**64)
        units = [
            prepare_unit.Unit(index, len(groups), tuple(group), threshold)
            for index, group in enumerate(groups)
        ]
        if (folder / manifest_lib.FILE).exists():
            return prepare_folder.existing(job, plan, sources, units, workers)
        prepare_folder.begin(job, plan, sources, units, workers)
        tok.save(os.fspath(folder / store.TOKENIZER))
        if runs is not None:
            overlap.save(prepare_unit.runs_file(output), runs)
        if filters.deduplicate != "none":
            on_progress = _find_duplicates(job, units, run, on_progress)
        counts = _finish(job, units, run, on_progress)
        if heldout_fraction:
            counts = _hold_one_out(job, units, counts)
        manifest = plan | _totals(counts, skipped)
        _check_documents(folder, manifest)
        schema.write(folder / manifest_lib.FILE, manifest, manifest_lib.FORM)
        prepare_folder.clear(folder)
    return manifest_lib.read(folder)


def _validate(options: dict[str, Any], workers: int | None, on_error: str) -> None:
    choices = {
        "splitter": (options["splitter"], tuple(sentences.SPLITTERS)),
        "text_split": (options["text_split"], reader.TEXT_SPLITS),
        "on_error": (on_error, reader.ON_ERROR),
        "shard_by": (options["shard_by"], SHARD_BY),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise errors.UserError(f"{name} = {value!r}: must be one of {', '.join(allowed)}")
    languages.splitter(options["splitter"], options["language"])
    templates.of(options["text_field"], options["text_template"])
    if not 0 <= options["heldout_fraction"] < 1:
        fraction = options["heldout_fraction"]
        raise errors.UserError(f"heldout_fraction = {fraction}: must be 0 or more and below 1")
    if options["shard_bytes"] < 1 or (workers is not None and workers < 1):
        raise errors.UserError("workers and shard_bytes must be 1 or more")


def _groups_by_file(sources: Sequence[reader.Source]) -> list[Sequence[reader.Source]]:
    """Returns the sources of each unit: one source or, of more than MAX_UNITS, several."""
    count = -(-len(sources) // MAX_UNITS)
    return [sources[i : i + count] for i in range(0, len(sources), count)]


def _groups_by_size(
    sources: Sequence[reader.Source], shard_bytes: int, text_split: str
) -> list[list[reader.Source]]:
    """Returns the sources of each unit, made by splitting large sources and grouping small ones.

    The result depends only on the arguments.
    """
    unit_bytes = max(shard_bytes, sum(source.size for source in sources) // MAX_UNITS)
    groups: list[list[reader.Source]] = []
    room = 0
    for source in sources:
        for part in reader.split(source, unit_bytes, text_split=text_split):
            if part.size > room:
                groups.append([])
                room = unit_bytes
            groups[-1].append(part)
            room -= part.size
    return groups


def _find_duplicates(
    job: prepare_unit.Job,
    units: Sequence[prepare_unit.Unit],
    run: parallel.Runner,
    on_progress: Callable[[int, int], None],
) -> Callable[[int, int], None]:
    """Writes the verdicts on all documents; returns the function for the progress of what follows.

    Each of the two passes over the documents is half of the whole.
    """
    total = sum(unit.size for unit in units)
    if not prepare_duplicates.decided(job, units):
        with futures.ThreadPoolExecutor() as pool:
            existing = list(pool.map(functools.partial(prepare_duplicates.texts, job), units))
        todo = [unit for unit, text in zip(units, existing, strict=True) if not text]
        _run(
            job, prepare_duplicates.make_work, units, todo, run,
            lambda done, _: on_progress(done // 2, total),
        )  # fmt: skip
        prepare_duplicates.decide(job, units)
    return lambda done, _: on_progress(total - total // 2 + done // 2, total)


def _finish(
    job: prepare_unit.Job,
    units: Sequence[prepare_unit.Unit],
    run: parallel.Runner,
    on_progress: Callable[[int, int], None],
) -> dict[int, dict[str, Any]]:
    """Runs the unfinished units; returns the counts of all units, by index."""
    counts = _existing_counts(job, units)
    todo = [unit for unit in units if counts[unit.index] is None]
    results = _run(job, prepare_unit.make_work, units, todo, run, on_progress)
    # A runner on other machines returns no results; they are in the files of the units.
    results |= _existing_counts(job, [unit for unit in todo if unit.index not in results])
    lost = [index for index, result in results.items() if result is None]
    if lost:
        raise errors.UserError(
            f"{job.output}: the files of {len(lost)} of {len(todo)} units are missing or damaged; "
            "run the same command again to prepare them"
        )
    return counts | results


def _existing_counts(
    job: prepare_unit.Job, units: Sequence[prepare_unit.Unit]
) -> dict[int, dict[str, Any] | None]:
    """Returns the counts of units by index; None for unfinished units."""
    with futures.ThreadPoolExecutor() as pool:
        counts = pool.map(functools.partial(prepare_folder.counts_of, job), units)
        return {unit.index: count for unit, count in zip(units, counts, strict=True)}


def _run(
    job: prepare_unit.Job,
    make_work: Callable[[prepare_unit.Job], parallel.Work],
    units: Sequence[prepare_unit.Unit],
    todo: Sequence[prepare_unit.Unit],
    run: parallel.Runner,
    on_progress: Callable[[int, int], None],
) -> dict[int, Any]:
    """Runs the work on the units `todo`, in parallel; returns their results, by index."""
    done = {unit.index: unit.size for unit in units} | {unit.index: 0 for unit in todo}
    total = sum(unit.size for unit in units)
    on_progress(sum(done.values()), total)

    def report(unit: prepare_unit.Unit, amount: int) -> None:
        done[unit.index] = amount
        on_progress(sum(done.values()), total)

    with contextlib.closing(run(todo, make_work, (job,), on_progress=report)) as work:
        results = {unit.index: result for unit, result in work}
    on_progress(total, total)
    return results


def _hold_one_out(
    job: prepare_unit.Job,
    units: Sequence[prepare_unit.Unit],
    counts: dict[int, dict[str, Any]],
) -> dict[int, dict[str, Any]]:
    """Holds out the document with the smallest hash if no hash is below the threshold.

    This happens only in a small corpus. Processes the units that contain this document again.
    Returns the counts of all units, with new counts for the units that were processed again.
    """
    hashes = [c["smallest_hash"] for c in counts.values() if c["smallest_hash"] is not None]
    smallest = min(hashes, default=0)
    if smallest < units[0].threshold:
        return counts
    repeated = [
        dataclasses.replace(unit, threshold=smallest + 1)
        for unit in units
        if counts[unit.index]["smallest_hash"] == smallest
    ]
    run = functools.partial(parallel.run, processes=1)
    return counts | _finish(job, repeated, run, lambda done, total: None)


def _totals(
    counts: dict[int, dict[str, Any]], skipped_files: collections.Counter[str]
) -> dict[str, Any]:
    ordered = [counts[index] for index in sorted(counts)]
    skipped = sum((collections.Counter(c["skipped"]) for c in ordered), start=skipped_files)
    splits = {}
    for split in prepare_unit.SPLITS:
        shards = [c["splits"][split] for c in ordered if c["splits"][split]]
        sums = {key: sum(shard[key] for shard in shards) for key in _COUNTS}
        splits[split] = sums | {"shards": shards}
    filtered = _filtered(ordered)
    num_left_out = sum(count["documents"] for count in filtered.values())
    num_kept = sum(split["documents"] for split in splits.values())
    num_read = sum(c["documents_read"] for c in ordered)
    return {
        "text_bytes": sum(c["text_bytes"] for c in ordered),
        "empty_documents": num_read - num_kept - num_left_out,
        "skipped": dict(sorted(skipped.items())),
        "splits": splits,
        **({"filtered": filtered} if filtered else {}),
        "texts": [c["text"] for c in ordered] if all(c["text"] for c in ordered) else [],
    }


def _filtered(counts: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns what the filters left out of all units, {reason: {"documents": , "bytes": }}."""
    reasons = counts[0].get("filtered", {}) if counts else {}
    return {
        reason: {
            key: sum(c["filtered"][reason][key] for c in counts) for key in ("documents", "bytes")
        }
        for reason in reasons
    }


def _check_documents(folder: epath.Path, manifest: dict[str, Any]) -> None:
    """If no document is left for training, removes all files except the tokenizer's and raises
    UserError."""
    train, heldout = (manifest["splits"][split] for split in prepare_unit.SPLITS)
    if train["documents"]:
        return
    prepare_folder.clear(folder)
    for shard in heldout["shards"]:
        (folder / shard["file"]).unlink(missing_ok=True)
    if heldout["documents"]:
        raise errors.UserError(
            "the corpus has one document, which is held out for evaluation, so there is no "
            "training data: give more documents, split plain text with --text_split=blank, or pass "
            "--heldout_fraction=0"
        )
    dropped = {
        reason: count["documents"] for reason, count in manifest.get("filtered", {}).items()
    }
    if any(dropped.values()):
        raise errors.UserError(
            f"the filters leave no document: {dropped}, {manifest['empty_documents']} empty "
            "documents; relax the filters"
        )
    raise errors.UserError(
        f"--input contains no text: {manifest['empty_documents']} empty documents, skipped: "
        f"{manifest['skipped'] or 'none'}"
    )
