"""Text to the prepared dataset of `store`: once, in parallel, in bounded memory, restartable.

The corpus is cut into units of about `shard_bytes`. A unit becomes one train shard and one held-out
shard; its counts are written last, so that a unit with counts is finished and is never done again.
The manifest is written when all units are finished: a folder with a manifest is whole.

What is written depends on the text, the tokenizer and the options, never on the number of workers or
on how often the work was interrupted. A document is held out by the hash of its text: equal documents
fall on the same side, wherever they stand.

    prepare.prepare(["books/*.jsonl"], "tok/", "prepared/")

Memory: a worker holds one document of the corpus and a batch of tokens, nothing that grows with the
corpus. Only a document that is one line (or, as plain text, one file) has to be held whole.
"""

import collections
import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax import errors
from bertjax.data import corpus, sentences, store, tokenizer, workers

SPLITS = ("train", "heldout")
MAX_UNITS = 4096  # larger corpora get larger shards, not more files
MAX_SENTENCE = 4096  # letters; a longer one is cut, so that no record is much larger than others

_PLAN = "plan.json"
_UNITS = "units"
_BATCH = 1 << 20  # letters that are tokenised at once
_HASHES = 1 << 64

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Options:
    """What decides the content of the prepared data, beside the text and the tokenizer."""

    splitter: str = "rules"
    heldout_fraction: float = 0.01
    shard_bytes: int = 16 << 20
    text_field: str = "text"
    text_split: str = "file"

    def __post_init__(self):
        choices = {"splitter": sentences.SPLITTERS, "text_split": corpus.TEXT_SPLITS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise errors.UserError(
                    f"{name}={getattr(self, name)!r}: use one of {', '.join(allowed)}"
                )
        if not 0 <= self.heldout_fraction < 1:
            raise errors.UserError(
                f"heldout_fraction={self.heldout_fraction}: use a number from 0 up to below 1"
            )
        if self.shard_bytes < 1:
            raise errors.UserError(f"shard_bytes={self.shard_bytes}: use a positive number")


@dataclasses.dataclass(frozen=True)
class Unit:
    """The work of one call: the sources that become train and held-out shard `index` of `count`."""

    index: int
    count: int
    sources: tuple[corpus.Source, ...]
    threshold: int  # documents with a smaller hash are held out

    def file(self, split: str) -> str:
        return f"{split}-{self.index:05d}-of-{self.count:05d}.array_record"

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)


def prepare(
    inputs: Sequence[str],
    tokenizer_path: str,
    output: str,
    *,
    workers_: int | None = None,
    format: str = "auto",
    on_error: str = "stop",
    on_progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    raise NotImplementedError
