"""Writes the vectors of many texts to a file, in bounded memory. A killed run can be resumed.

    job = embedding.Job(encode, output, about)
    job.run(lambda: texts_of(file))

Texts are read in windows of WINDOW texts. A window is sorted by length and encoded, and its vectors
are appended to a file in a hidden folder beside the output. Then the number of finished texts is
saved. A resumed run skips the finished windows. Windows begin at the same texts in every run, so
the vectors are bit-identical to those of a run that was not interrupted (on the same devices).
"""

import dataclasses
import itertools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bertjax import errors, files, schema
from bertjax.inference import text_vectors, vector_files

WINDOW = 8192
_FORM = schema.Form("bertjax-embedding", 1)
_STATE, _VECTORS, _PARQUET = "state.json", "vectors.npy", "vectors.parquet"
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class _State:
    """The finished part of a run. run, model: as in `vector_files.About`."""

    run: str
    model: str
    num_texts: schema.Count
    num_truncated: schema.Count
    num_empty: schema.Count


class Done(NamedTuple):
    """Numbers of a finished job: of all texts, and of those that this process encoded."""

    num_texts: int
    num_new: int
    num_truncated: int
    num_empty: int


class Job:
    """Encodes texts to the file `output`, or resumes to do so.

    about: what to store with the vectors; its num_texts is not used. Its `run` and `model` must be
    equal for a resumed run; otherwise the vectors of the earlier run are discarded.
    """

    def __init__(
        self, encode: text_vectors.Encoder, output: pathlib.Path, about: vector_files.About
    ):
        self._encode, self._output, self._about = encode, output, about
        self._folder = output.with_name(f".{output.name}{files.PARTIAL}")
        self._row_bytes = about.num_dims * _FLOAT_BYTES

    def finished(self) -> vector_files.About | None:
        """Returns what is stored with the output if this run has written it; else None."""
        if not self._output.exists():
            return None
        try:
            stored = vector_files.about(self._output)
        except errors.UserError:  # not written by bertjax, or damaged: it is replaced
            return None
        if (stored.run, stored.model) != (self._about.run, self._about.model):
            return None
        shutil.rmtree(self._folder, ignore_errors=True)  # if it was killed while removing it
        return stored

    def run(
        self,
        texts: Callable[[], Iterable[str]],
        on_progress: Callable[[int, int | None], None] = lambda done, total: None,
    ) -> Done:
        """Encodes the texts and writes the output.

        texts: called to read the texts from the first; for a Parquet file they are read twice.
        on_progress: called with (number of finished texts, None) after each window.
        Raises UserError if the folder cannot be written.
        """
        state = self._resumed()
        first = state.num_texts
        file = self._folder / _VECTORS
        with open(file, "r+b") as stream:
            stream.truncate(vector_files.HEADER_BYTES + first * self._row_bytes)
            stream.seek(0, os.SEEK_END)
            for window in _windows(itertools.islice(texts(), first, None)):
                encoded = self._encode(window)
                stream.write(np.ascontiguousarray(encoded.vectors_RE, "<f4"))
                stream.flush()
                os.fsync(stream.fileno())  # before the state says so
                state = dataclasses.replace(
                    state,
                    num_texts=state.num_texts + len(window),
                    num_truncated=state.num_truncated + encoded.num_truncated,
                    num_empty=state.num_empty + sum(not text.strip() for text in window),
                )
                self._save(state)
                on_progress(state.num_texts, None)
            stream.seek(0)
            stream.write(vector_files.npy_header(state.num_texts, self._about.num_dims))
        about = dataclasses.replace(self._about, num_texts=state.num_texts)
        if self._output.suffix == ".npy":
            vector_files.finish_npy(file, self._output, about)
        else:
            vectors_NE = np.load(file, mmap_mode="r")
            partial = self._folder / _PARQUET
            vector_files.write_parquet(partial, self._output, vectors_NE, texts(), about)
        shutil.rmtree(self._folder)
        numbers = state.num_texts, state.num_texts - first, state.num_truncated, state.num_empty
        return Done(*numbers)

    def _resumed(self) -> _State:
        """Returns the state of the earlier run, or that of a new one, whose files it makes."""
        file = self._folder / _STATE
        fresh = _State(self._about.run, self._about.model, 0, 0, 0)
        if file.exists():
            state = schema.read(file, _State, f"remove {self._folder}", form=_FORM)
            vectors = self._folder / _VECTORS
            size = vector_files.HEADER_BYTES + state.num_texts * self._row_bytes
            same = (state.run, state.model) == (fresh.run, fresh.model)
            if same and vectors.exists() and vectors.stat().st_size >= size:
                if state.num_texts:
                    errors.tell(f"resuming after {state.num_texts:,} texts")
                return state
            errors.tell(
                f"discarding {state.num_texts:,} vectors of an earlier run with another model, "
                "data or options"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / _VECTORS).write_bytes(b"\0" * vector_files.HEADER_BYTES)
        except OSError as error:
            raise errors.UserError(
                f"{self._output}: cannot be written ({error.strerror}); give another --output"
            ) from error
        self._save(fresh)
        return fresh

    def _save(self, state: _State) -> None:
        schema.write(self._folder / _STATE, dataclasses.asdict(state), _FORM)


def _windows(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while window := list(itertools.islice(iterator, WINDOW)):
        yield window
