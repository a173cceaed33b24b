"""Schemas of the manifest of prepared data and of the files of an unfinished preparation.

    manifest.json     the contents of a finished folder; only a finished folder has this file
    plan.json         the first part of the manifest, while the data is being prepared
    units/00003.json  the counts and shards of a finished unit; `prepare` adds up the counts
"""

import dataclasses
import os
from typing import Any, Literal

from bertjax import errors, paths, schema

FILE = "manifest.json"
# Values of options that earlier manifests lack.
EARLIER_OPTIONS = {"language": "en", "text_template": "", "shard_by": "size"}
FORM = schema.Form("bertjax-prepared", 1)
_REMEDY = "delete the folder and prepare the data again"


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of the data. kind: the kind of its model. size: its vocabulary size."""

    kind: str
    size: schema.Count
    fingerprint: schema.Sha256


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or dataset of text. size: bytes, see `reader.Source`."""

    path: str
    size: schema.Count
    format: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tokenizer, options and sources of a preparation."""

    tokenizer: Tokenizer
    token_dtype: Literal["uint16", "uint32"]
    options: dict[str, str | bool | int | float]
    sources: list[Source]


@dataclasses.dataclass(frozen=True)
class Counts:
    """The contents of a shard or of a split. unknown: number of unknown tokens."""

    documents: schema.Count
    sentences: schema.Count
    tokens: schema.Count
    records: schema.Count
    unknown: schema.Count


@dataclasses.dataclass(frozen=True)
class Shard(Counts):
    """A file of records. bytes, sha256: the size and the checksum of the file."""

    file: schema.FileName
    bytes: schema.Count
    sha256: schema.Sha256


@dataclasses.dataclass(frozen=True)
class Split(Counts):
    """A split: its shards, and the sums of their counts."""

    shards: list[Shard]


@dataclasses.dataclass(frozen=True)
class Splits:
    """The two splits. heldout has no shards if nothing is held out."""

    train: Split
    heldout: Split


@dataclasses.dataclass(frozen=True)
class Filtered:
    """Documents that a filter dropped. bytes: of their text."""

    documents: schema.Count
    bytes: schema.Count


@dataclasses.dataclass(frozen=True)
class Manifest(Plan):
    """The manifest.

    text_bytes: of the documents that no filter dropped. filtered: {reason: what was dropped}; empty
    if no filter is on. texts: a digest of each unit's documents; empty in folders of earlier
    versions.
    """

    text_bytes: schema.Count
    empty_documents: schema.Count
    skipped: dict[str, schema.Count]
    splits: Splits
    filtered: dict[str, Filtered] = dataclasses.field(default_factory=dict)
    texts: list[schema.Sha256] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class UnitShards:
    """The shards of a unit; None for a split without documents."""

    train: Shard | None
    heldout: Shard | None


@dataclasses.dataclass(frozen=True)
class Unit:
    """The counts and shards of a finished unit.

    threshold: documents with a hash below it are held out.
    smallest_hash: the smallest hash of the unit's documents; None if it has no document with text.
    filtered, text_bytes: as in `Manifest`. text: a digest of the unit's documents; "" if written
        by an earlier version.
    """

    threshold: int
    smallest_hash: int | None
    documents_read: schema.Count
    text_bytes: schema.Count
    skipped: dict[str, schema.Count]
    splits: UnitShards
    filtered: dict[str, Filtered] = dataclasses.field(default_factory=dict)
    text: str = ""


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the manifest of a prepared folder. Raises UserError if it is absent or damaged."""
    file = paths.of(path) / FILE
    if not file.exists():
        raise errors.UserError(
            f"{file}: not found; {path} is not a prepared folder, or its preparation was not "
            "finished: run `bertjax prepare` (again)"
        )
    manifest = schema.read(file, Manifest, _REMEDY, form=FORM)
    for name, split in vars(manifest.splits).items():
        for field in dataclasses.fields(Counts):
            total = sum(getattr(shard, field.name) for shard in split.shards)
            if getattr(split, field.name) != total:
                raise errors.UserError(
                    f"{file}: splits.{name}.{field.name} = {getattr(split, field.name)}: must be "
                    f"{total}, the sum over its shards; {_REMEDY}"
                )
    return vars(FORM) | dataclasses.asdict(manifest)
