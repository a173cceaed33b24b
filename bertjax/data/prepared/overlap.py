"""Finds documents that contain text of test sets, so that a model is not trained on its tests.

A document overlaps with a test set if they have a run of 13 words in common, without case and
punctuation, as in GPT-3 (arXiv 2005.14165, appendix C). GPT-3 cut the surroundings of a match out
of a document; here the whole document is left out. Texts of fewer than 13 words cannot be found.

    runs = overlap.read(["squad/*.json", "test.tsv"])
    runs.set_of("Some text ...")            # the number of the first test set that overlaps, or -1

All texts of a test set count, whatever the names of their fields or columns.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertjax import errors
from bertjax.data.corpus import corpus_files, parquet, reader, tables, words
from bertjax.data.prepared import arrays

RUN = 13  # words


@dataclasses.dataclass(frozen=True)
class Runs:
    """The runs of words of test sets.

    hashes: uint64[N], sorted, each once. sets: uint16[N], the number of the first test set with it.
    """

    hashes: np.ndarray
    sets: np.ndarray

    def set_of(self, text: str) -> int:
        """Returns the smallest number of a test set with which a text overlaps; -1: none."""
        number = np.iinfo(np.uint16).max
        for runs in words.runs(text, RUN):
            places = np.minimum(np.searchsorted(self.hashes, runs), len(self.hashes) - 1)
            equal = self.hashes[places] == runs
            if equal.any():
                number = min(number, int(self.sets[places[equal]].min()))
        return -1 if number == np.iinfo(np.uint16).max else number

    @property
    def digest(self) -> str:
        """A digest of the runs, which changes if the test sets change."""
        return hashlib.sha256(self.hashes.tobytes() + self.sets.tobytes()).hexdigest()


def read(patterns: Sequence[str]) -> Runs:
    """Returns the runs of test sets.

    patterns: one for each test set; the files that match it belong to it. Raises UserError if no
    file matches, if a file cannot be read, or if a file contains no text of RUN words.
    """
    hashes, sets = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint16)]
    for number, pattern in enumerate(patterns):
        for path in corpus_files.expand(pattern, lambda path: bool(reader.known_format(path))):
            runs = [run for text in _texts(path) for run in words.runs(text, RUN)]
            if not runs:
                raise errors.UserError(
                    f"{path}: contains no text of {RUN} words, so no overlap with it can be found; "
                    "remove it from --decontaminate"
                )
            hashes.append(np.unique(np.concatenate(runs)))
            sets.append(np.full(len(hashes[-1]), number, np.uint16))
    unique, places = np.unique(np.concatenate(hashes), return_index=True)
    return Runs(unique, np.concatenate(sets)[places])


def save(path: str | os.PathLike, runs: Runs) -> None:
    """Writes the runs to a file, atomically."""
    arrays.write(path, {"hashes": runs.hashes, "sets": runs.sets})


def load(path: str | os.PathLike) -> Runs:
    """Reads a file that `save` wrote."""
    content = arrays.read(path)
    return Runs(content["hashes"], content["sets"])


def _texts(path: str) -> Iterator[str]:
    """Yields all texts of a file. Raises UserError if it cannot be read."""
    form = reader.known_format(path)
    if form == "parquet":
        for _, row in parquet.rows(path, lambda _: True):
            yield from _strings(row)
    elif form in ("jsonl", *tables.FORMATS, "txt"):
        lines = (f"{line}\n" for _, line in corpus_files.text_lines(path))
        if form == "txt":
            yield "".join(lines)
        elif form == "jsonl":
            yield from _json_texts(path, list(lines))
        else:
            for row in tables.rows(_positioned(lines), form):
                if row.problem:
                    raise errors.UserError(
                        f"{path} line {row.number + 1}: not valid CSV ({row.problem}); correct it"
                    )
                yield from row.cells
    else:
        raise errors.UserError(
            f"{path}: is no test set that can be read; give .txt, .jsonl, .json, .csv, .tsv or "
            ".parquet to --decontaminate"
        )


def _json_texts(path: str, lines: list[str]) -> Iterator[str]:
    """Yields the texts of JSON lines or, if the first line is not JSON by itself, of one value.

    Blank lines do not count.
    """
    try:
        json.loads(next((line for line in lines if not line.isspace()), ""))
    except ValueError:
        lines = ["".join(lines)]
    for number, line in enumerate(lines, 1):
        if not line.isspace():
            try:
                yield from _strings(json.loads(line))
            except (ValueError, RecursionError) as error:
                place = number + getattr(error, "lineno", 1) - 1  # one value may have many lines
                raise errors.UserError(
                    f"{path} line {place}: not valid JSON ({errors.one_line(error)}); correct it"
                ) from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _positioned(lines: Iterator[str]) -> Iterator[tuple[int, str, int]]:
    for number, line in enumerate(lines):
        yield number, line, 0
