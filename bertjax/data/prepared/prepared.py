"""Prepares a corpus as the command `bertjax prepare` and the function `bertjax.prepare` do.

prepared = prepare(["books/*.jsonl"], "tok/", "prepared/", deduplicate="exact")
prepared.documents, prepared.tokens
prepared.warnings()
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import errors, html_tables
from bertjax.data.corpus import reader
from bertjax.data.prepared import beam as beam_lib
from bertjax.data.prepared import filters as filters_lib
from bertjax.data.prepared import parallel, store
from bertjax.data.prepared import prepare as prepare_lib

RUNNERS = ("local", "beam")
UNKNOWN_LIMIT = 0.01


@dataclasses.dataclass(frozen=True, repr=False)
class Prepared:
    """A folder of prepared data.

    documents, sentences, tokens: of both splits. heldout_documents, heldout_tokens: of the held-out
    split. unknown: the share of the tokens that are unknown to the tokenizer. text_bytes: bytes of
    the documents that no filter dropped. filtered: {reason: (documents, bytes) that were dropped}.
    skipped: {reason: number of cases that were left out}. manifest: all facts, as in the
    folder's manifest.json.
    """

    output: str
    documents: int
    sentences: int
    tokens: int
    heldout_documents: int
    heldout_tokens: int
    unknown: float
    text_bytes: int
    filtered: Mapping[str, tuple[int, int]]
    skipped: Mapping[str, int]
    manifest: Mapping[str, Any]

    def rows(self, read_note: str = "") -> list[tuple[str, str]]:
        """Returns (label, text) for each fact. read_note: is added to the size of the text."""
        rows = [
            (
                "documents",
                f"{self.documents:,}  sentences: {self.sentences:,}  tokens: {self.tokens:,}  "
                f"unknown: {self.unknown:.3%}",
            ),
            (
                "held out",
                f"{errors.count(self.heldout_documents, 'document')}, "
                f"{self.heldout_tokens:,} tokens",
            ),
            ("text", f"{self.text_bytes / 1e6:,.1f} MB{read_note}"),
        ]
        rows += [
            ("filtered", f"{reason}: {errors.count(documents, 'document')}, {size / 1e6:,.1f} MB")
            for reason, (documents, size) in self.filtered.items()
        ]
        return rows + ([("left out", reader.described(self.skipped))] if self.skipped else [])

    def warnings(self) -> list[str]:
        """Returns what is suspicious about the data."""
        lines = []
        if self.unknown > UNKNOWN_LIMIT:
            lines.append(
                f"{self.unknown:.1%} of the tokens are unknown to the tokenizer; "
                "was it trained on similar text?"
            )
        size_warning = store.too_small_to_rank(self.heldout_documents, self.heldout_tokens)
        if size_warning and self.heldout_documents:
            lines.append(f"held out: {size_warning}")
        return lines

    def lines(self, read_note: str = "") -> list[str]:
        """Returns the lines of the report, including warnings. read_note: as in `rows`."""
        facts = [f"{label}: {text}" for label, text in self.rows(read_note)]
        return facts + [f"warning: {line}" for line in self.warnings()]

    def __repr__(self) -> str:
        return "\n".join([*self.lines(), f"prepared: {self.output}"])

    def _repr_html_(self) -> str:
        """Returns the report as a table, for notebooks."""
        rows = [*self.rows(), *(("warning", line) for line in self.warnings())]
        return html_tables.table([], [*rows, ("prepared", self.output)])


def prepare(
    inputs: Sequence[str],
    tokenizer: str | os.PathLike,
    output: str | os.PathLike,
    *,
    workers: int | None = None,
    runner: str = RUNNERS[0],
    beam: Mapping[str, str] | None = None,
    keep_languages: Sequence[str] = (),
    language_field: str = filters_lib.LANGUAGE_FIELD,
    min_chars: int = 0,
    max_chars: int = 0,
    decontaminate: Sequence[str] = (),
    deduplicate: str = "none",
    **options: Any,
) -> Prepared:
    """Prepares a corpus; resumes if an earlier call was interrupted.

    runner: "local" (processes of this machine) or "beam" (Apache Beam), whose options are `beam`.
    keep_languages to deduplicate: see `filters.Filters`. workers, options: see `prepare.prepare`.
    Raises UserError if an argument or the input is bad, or if `output` contains other data.
    """
    if runner not in RUNNERS:
        raise errors.UserError(f"runner = {runner!r}: must be one of {', '.join(RUNNERS)}")
    if beam and runner != "beam":
        raise errors.UserError(f"--beam.{next(iter(beam))} needs --runner=beam")
    if workers is not None and workers < 1:
        raise errors.UserError(f"--workers={workers}: must be 1 or more")
    run = None
    if runner == "beam":
        run = beam_lib.runner(beam or {}, workers or parallel.cpus())
    manifest = prepare_lib.prepare(
        inputs,
        os.fspath(tokenizer),
        os.fspath(output),
        workers=workers,
        runner=run,
        filters=filters_lib.Filters(
            keep_languages=tuple(keep_languages),
            language_field=language_field,
            min_chars=min_chars,
            max_chars=max_chars,
            decontaminate=tuple(decontaminate),
            deduplicate=deduplicate,
        ),
        **options,
    )
    return of_manifest(os.fspath(output), manifest)


def of_manifest(output: str, manifest: Mapping[str, Any]) -> Prepared:
    """Returns the description of the folder `output` with this manifest."""
    train, heldout = manifest["splits"]["train"], manifest["splits"]["heldout"]
    totals = {key: train[key] + heldout[key] for key in ("documents", "sentences", "tokens")}
    skipped = manifest["skipped"] | {"empty documents": manifest["empty_documents"]}
    return Prepared(
        output,
        **totals,
        heldout_documents=heldout["documents"],
        heldout_tokens=heldout["tokens"],
        unknown=(train["unknown"] + heldout["unknown"]) / totals["tokens"],
        text_bytes=manifest["text_bytes"],
        filtered={
            reason: (count["documents"], count["bytes"])
            for reason, count in manifest.get("filtered", {}).items()
        },
        skipped={reason: count for reason, count in skipped.items() if count},
        manifest=manifest,
    )
