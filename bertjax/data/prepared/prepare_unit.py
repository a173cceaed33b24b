"""Processes one unit of `prepare`: some text sources become one train and one held-out shard.

The shards are written under temporary names and renamed. The unit's counts are written last, so if
they exist, the shards are complete. The output depends on the unit and the job only, so a unit may
be repeated at any time.
"""

import collections
import contextlib
import dataclasses
import errno
import functools
import gc
import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from etils import epath

from bertjax import files, schema
from bertjax.data.corpus import languages, reader, sentences
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer

SPLITS = ("train", "heldout")
UNITS = "units"
MAX_SENTENCE = 4096  # characters; longer sentences are cut, so that records have similar sizes

_BATCH = 1 << 20  # characters that are tokenised in one call


@dataclasses.dataclass(frozen=True)
class Job:
    """The settings that all units of one preparation share."""

    output: str
    tokenizer_path: str
    splitter: str
    language: str
    text_field: str
    text_template: str
    text_split: str
    on_error: str


@dataclasses.dataclass(frozen=True)
class Unit:
    """The sources that become the train shard and the held-out shard number `index` of `count`.

    Documents whose hash is below `threshold` are held out.
    """

    index: int
    count: int
    sources: tuple[reader.Source, ...]
    threshold: int

    @property
    def size(self) -> int:
        """Bytes of the unit's sources, for progress."""
        return sum(source.size for source in self.sources)


def make_work(job: Job) -> Callable[[Unit, Callable[[int], None]], dict[str, Any]]:
    """Returns the function that processes a unit; loads the tokenizer once."""
    return functools.partial(_process_unit, job, tokenizer.load(job.tokenizer_path))


def counts_file(output: str, index: int) -> epath.Path:
    """Returns the path of the counts file, which exists if unit `index` is finished."""
    return epath.Path(output) / UNITS / f"{index:05d}.json"


def texts_digest(job: Job, unit: Unit, report: Callable[[int], None]) -> str:
    """Returns the digest of the documents of a unit, which the unit's counts file also contains.

    report: called with the number of bytes of the sources that have been read so far.
    """
    digest = hashlib.sha256()
    for text, position in _texts(job, unit, collections.Counter()):
        digest.update(_hash(text.encode("utf-8")))
        report(position)
    return digest.hexdigest()


def make_digest(job: Job) -> Callable[[Unit, Callable[[int], None]], str]:
    """Returns the function that computes `texts_digest` of a unit of the job."""
    return functools.partial(texts_digest, job)


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _process_unit(
    job: Job, tok: tokenizer.Tokenizer, unit: Unit, report: Callable[[int], None]
) -> dict[str, Any]:
    shards = {split: _Shard(job.output, split, unit, tok) for split in SPLITS}
    try:
        counts = _write_documents(job, tok, unit, shards, report)
        counts_file(job.output, unit.index).unlink(missing_ok=True)  # it may describe older shards
        counts["splits"] = {split: shards[split].publish() for split in SPLITS}
        schema.write(counts_file(job.output, unit.index), counts)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            "the disk is full; free space and run the same command again (finished parts are kept)",
            job.output,
        ) from error
    finally:
        for shard in shards.values():
            shard.discard()
    return counts


def _write_documents(
    job: Job,
    tok: tokenizer.Tokenizer,
    unit: Unit,
    shards: dict[str, "_Shard"],
    report: Callable[[int], None],
) -> dict[str, Any]:
    skipped: collections.Counter[str] = collections.Counter()
    split_sentences = languages.splitter(job.splitter, job.language)
    batch = _Batch(tok, shards)
    num_documents = text_bytes = 0
    smallest = None
    digest = hashlib.sha256()
    for text, position in _texts(job, unit, skipped):
        data = text.encode("utf-8")
        text_bytes += len(data)
        text_hash = _hash(data)
        del data
        digest.update(text_hash)
        number = int.from_bytes(text_hash, "little")
        has_text = False
        for piece in sentences.chopped(text, _BATCH):
            pieces = split_sentences(piece)
            if pieces:
                has_text = True
                document = unit.index << 32 | num_documents
                batch.add(pieces, document, number < unit.threshold, len(piece))
            if batch.letters >= _BATCH:
                batch.flush()
                report(position)
        if has_text:
            smallest = number if smallest is None else min(number, smallest)
        num_documents += 1
    batch.flush()
    report(unit.size)
    return {
        "threshold": unit.threshold,
        "smallest_hash": smallest,
        "documents_read": num_documents,
        "text_bytes": text_bytes,
        "skipped": dict(sorted(skipped.items())),
        "text": digest.hexdigest(),
    }


def _texts(
    job: Job, unit: Unit, skipped: collections.Counter[str]
) -> Iterator[tuple[str, int]]:
    offset = 0
    for source in unit.sources:
        for text, position in reader.read(
            source,
            text_field=job.text_field,
            text_template=job.text_template,
            text_split=job.text_split,
            on_error=job.on_error,
            skipped=skipped,
        ):
            yield text, offset + position
        offset += source.size


class _Batch:
    """Buffers sentences, tokenises them in one call and adds them to the shards."""

    def __init__(self, tok: tokenizer.Tokenizer, shards: dict[str, "_Shard"]):
        self._encode, self._shards = tok.encode_batch, shards
        self._separator = " " if tok.keeps_spaces() else ""  # put between sentences
        self._clear()

    def _clear(self) -> None:
        self._sentences: list[str] = []
        self._documents: list[tuple[int, bool, int]] = []  # id, held out, number of sentences
        self.letters = 0

    def add(self, pieces: list[str], document: int, held_out: bool, letters: int) -> None:
        if max(map(len, pieces)) > MAX_SENTENCE:
            pieces = sentences.clean(
                [part for piece in pieces for part in sentences.chopped(piece, MAX_SENTENCE)]
            )
        self._sentences += pieces[:1]
        self._sentences += [self._separator + sentence for sentence in pieces[1:]]
        self._documents.append((document, held_out, len(pieces)))
        self.letters += letters

    def flush(self) -> None:
        if not self._sentences:
            return
        with _no_garbage_collection():
            encoded = self._encode(self._sentences)
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            flat = itertools.chain.from_iterable(encoded)
            tokens = np.fromiter(flat, self._shards["train"].dtype, int(lengths.sum()))
            del encoded, flat
        ids, held_out, counts = zip(*self._documents, strict=True)
        ids = np.repeat(np.array(ids, np.uint64), counts)
        held_out = np.repeat(np.array(held_out), counts)
        for split, in_split in (("train", ~held_out), ("heldout", held_out)):
            with_tokens = in_split & (lengths > 0)  # a sentence of control characters has no tokens
            if with_tokens.any():
                split_tokens = tokens if in_split.all() else tokens[np.repeat(in_split, lengths)]
                self._shards[split].add(ids[with_tokens], lengths[with_tokens], split_tokens)
        self._clear()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disables the garbage collector, which would take a quarter of the time.

    It would search thousands of short-lived lists for reference cycles, but they have none.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Shard:
    """Writes a shard under a temporary name until `publish`; creates no file if nothing is added.
    """

    def __init__(self, output: str, split: str, unit: Unit, tok: tokenizer.Tokenizer):
        name = f"{split}-{unit.index:05d}-of-{unit.count:05d}.array_record"
        self._final = epath.Path(output) / name
        self._remote = "://" in output
        folder = tempfile.gettempdir() if self._remote else output
        self._partial = os.path.join(folder, f".{name}.{os.getpid()}{files.PARTIAL}")
        self._unknown_id, self._unknown = tok.specials.unk, 0
        self._writer: store.ShardWriter | None = None
        self.dtype = store.token_dtype(tok.size)

    def add(self, ids: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> None:
        if self._writer is None:
            self._writer = store.ShardWriter(self._partial, self.dtype)
        self._writer.add(ids, lengths, tokens)
        if self._unknown_id >= 0:
            self._unknown += int((tokens == self._unknown_id).sum())

    def publish(self) -> dict[str, Any] | None:
        """Moves the file to its final name and returns its manifest entry; None if it is empty."""
        if self._writer is None:
            self._final.unlink(missing_ok=True)
            return None
        self._writer.close()
        with open(self._partial, "rb") as file:
            os.fsync(file.fileno())
        entry = {
            "documents": self._writer.documents,
            "sentences": self._writer.sentences,
            "tokens": self._writer.tokens,
            "records": self._writer.records,
            "unknown": self._unknown,
            "file": self._final.name,
            "bytes": os.path.getsize(self._partial),
            "sha256": files.sha256(self._partial),
        }
        if self._remote:
            epath.Path(self._partial).copy(self._final, overwrite=True)
        else:
            os.replace(self._partial, self._final)
        return entry

    def discard(self) -> None:
        self._writer = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)
