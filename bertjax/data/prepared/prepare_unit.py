"""Processes one unit of `prepare`: some text sources become one train and one held-out shard.

The shards are written under temporary names and renamed. The unit's counts are written last, so if
they exist, the shards are complete. The output depends on the unit and the job only. So a unit may
be repeated at any time, also while another process works on it or reads its files.
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

from bertjax import errors, files, schema
from bertjax.data.corpus import languages, reader, sentences, templates
from bertjax.data.prepared import arrays, overlap, store
from bertjax.data.prepared import filters as filters_lib
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
    filters: filters_lib.Filters


Judge = Callable[[templates.Document], int]  # see `filters.Filters.judge`


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
    """Returns the function that processes a unit; reads what all units share."""
    needs_judge = job.filters.reasons() and job.filters.deduplicate == "none"
    judge = make_judge(job) if needs_judge else None
    return functools.partial(_process_unit, job, tokenizer.load(job.tokenizer_path), judge)


def counts_file(output: str, index: int) -> epath.Path:
    """Returns the path of the counts file, which exists if unit `index` is finished."""
    return epath.Path(output) / UNITS / f"{index:05d}.json"


def runs_file(output: str) -> epath.Path:
    """Returns the path of the runs of words of the test sets (see `overlap`)."""
    return epath.Path(output) / UNITS / "overlap.npz"


def verdicts_file(output: str, index: int) -> epath.Path:
    """Returns the path of the verdicts on the documents of unit `index`."""
    return epath.Path(output) / UNITS / f"{index:05d}.verdicts.npz"


def make_judge(job: Job) -> Judge:
    """Returns the function that judges a document by itself; reads the runs of the test sets."""
    runs = overlap.load(runs_file(job.output)) if job.filters.decontaminate else None
    return job.filters.judge(runs)


def texts_digest(job: Job, unit: Unit, report: Callable[[int], None]) -> str:
    """Returns the digest of the documents of a unit, which the unit's counts file also contains.

    report: called with the number of bytes of the sources that have been read so far.
    """
    digest = hashlib.sha256()
    for document in documents(job, unit, collections.Counter()):
        update(digest, document)
        report(document.position)
    return digest.hexdigest()


def update(digest: Any, document: templates.Document) -> int:
    """Adds a document to the digest of its unit; returns the hash of its text."""
    text_hash = _hash(document.text.encode("utf-8"))
    digest.update(text_hash)
    if document.language:
        digest.update(_hash(document.language.encode("utf-8")))
    return int.from_bytes(text_hash, "little")


def make_digest(job: Job) -> Callable[[Unit, Callable[[int], None]], str]:
    """Returns the function that computes `texts_digest` of a unit of the job."""
    return functools.partial(texts_digest, job)


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _process_unit(
    job: Job,
    tok: tokenizer.Tokenizer,
    judge: Judge | None,
    unit: Unit,
    report: Callable[[int], None],
) -> dict[str, Any]:
    shards = {split: _Shard(job.output, split, unit, tok) for split in SPLITS}
    try:
        counts = _write_documents(job, tok, judge, unit, shards, report)
        counts["splits"] = {split: shards[split].finish() for split in SPLITS}
        file, text = counts_file(job.output, unit.index), schema.text(counts)
        if _content(file) != text.encode():
            file.unlink(missing_ok=True)  # it describes other shards
        for shard in shards.values():
            shard.publish()
        files.write_text(file, text, shared=True)
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


def _content(file: epath.Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _write_documents(
    job: Job,
    tok: tokenizer.Tokenizer,
    judge: Judge | None,
    unit: Unit,
    shards: dict[str, "_Shard"],
    report: Callable[[int], None],
) -> dict[str, Any]:
    skipped: collections.Counter[str] = collections.Counter()
    split_sentences = languages.splitter(job.splitter, job.language)
    batch = _Batch(tok, shards, job.splitter == sentences.KEEPS_WHITE_SPACE)
    verdicts = _Verdicts(job, unit, judge)
    num_documents = text_bytes = 0
    smallest = None
    digest = hashlib.sha256()
    for document in documents(job, unit, skipped):
        text, position = document.text, document.position
        number = update(digest, document)
        if verdicts.drops(document):
            num_documents += 1
            continue
        text_bytes += len(text.encode("utf-8"))
        has_text = False
        for piece in sentences.chopped(text, _BATCH):
            pieces = split_sentences(piece)
            if pieces:
                has_text = True
                document_id = unit.index << 32 | num_documents
                batch.add(pieces, document_id, number < unit.threshold, len(piece))
            if batch.letters >= _BATCH:
                batch.flush()
                report(position)
        if has_text:
            smallest = number if smallest is None else min(number, smallest)
        num_documents += 1
    batch.flush()
    report(unit.size)
    verdicts.check(digest.hexdigest())
    counts = {
        "threshold": unit.threshold,
        "smallest_hash": smallest,
        "documents_read": num_documents,
        "text_bytes": text_bytes,
        "skipped": dict(sorted(skipped.items())),
        "text": digest.hexdigest(),
    }
    return counts | ({"filtered": verdicts.counts} if verdicts.counts else {})


def documents(
    job: Job, unit: Unit, skipped: collections.Counter[str]
) -> Iterator[templates.Document]:
    """Yields the documents of a unit, with the bytes of the unit that have been read."""
    offset = 0
    for source in unit.sources:
        for document in reader.read(
            source,
            text_field=job.text_field,
            text_template=job.text_template,
            language_field=job.filters.field,
            text_split=job.text_split,
            on_error=job.on_error,
            skipped=skipped,
        ):
            yield document._replace(position=offset + document.position)
        offset += source.size


class _Verdicts:
    """Decides which documents of a unit are dropped, and counts them.

    judge: judges a document; None if all are kept, or if duplicates are dropped. Then another pass
    has written the verdicts to the unit's verdicts file.
    counts: {reason: {"documents": count, "bytes": of text}}.
    """

    def __init__(self, job: Job, unit: Unit, judge: Judge | None):
        self._reasons = job.filters.reasons()
        self.counts = {reason: {"documents": 0, "bytes": 0} for reason in self._reasons}
        self._place = f"{job.output}: unit {unit.index}"
        self._stored: Iterator[int] | None = None
        self._judge = judge
        if job.filters.deduplicate != "none":
            content = arrays.read(verdicts_file(job.output, unit.index))
            self._stored = iter(content["verdicts"].tolist())
            self._text = str(content["text"])

    def drops(self, document: templates.Document) -> bool:
        """Returns whether the next document is dropped; counts it if so."""
        if self._stored is not None:
            verdict = next(self._stored, filters_lib.KEPT)
        else:
            verdict = filters_lib.KEPT if self._judge is None else self._judge(document)
        if verdict == filters_lib.KEPT:
            return False
        count = self.counts[self._reasons[verdict - 1]]
        count["documents"] += 1
        count["bytes"] += len(document.text.encode("utf-8"))
        return True

    def check(self, text: str) -> None:
        """Raises UserError if the verdicts are on other documents than those of a digest."""
        if self._stored is not None and self._text != text:
            raise errors.UserError(
                f"{self._place}: its text has changed since its duplicates were found; delete the "
                "folder and prepare the data again"
            )


class _Batch:
    """Buffers sentences, tokenises them in one call and adds them to the shards.

    whole: whether the sentences contain all white space of their document.
    """

    def __init__(self, tok: tokenizer.Tokenizer, shards: dict[str, "_Shard"], whole: bool):
        self._encode, self._shards, self._whole = tok.encode_batch, shards, whole
        self._needs_spaces = tok.keeps_spaces() and not whole
        self._clear()

    def _clear(self) -> None:
        self._sentences: list[str] = []
        self._documents: list[tuple[int, bool, int]] = []  # id, held out, number of sentences
        self.letters = 0

    def add(self, pieces: list[str], document: int, held_out: bool, letters: int) -> None:
        if max(map(len, pieces)) > MAX_SENTENCE:
            pieces = [part for piece in pieces for part in sentences.chopped(piece, MAX_SENTENCE)]
            if not self._whole:
                pieces = sentences.clean(pieces)
        self._sentences += sentences.spaced(pieces) if self._needs_spaces else pieces
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

    Other processes may write and publish the same shard at the same time.
    """

    def __init__(self, output: str, split: str, unit: Unit, tok: tokenizer.Tokenizer):
        name = f"{split}-{unit.index:05d}-of-{unit.count:05d}.array_record"
        self._final = epath.Path(output) / name
        self._remote = "://" in output
        folder = tempfile.gettempdir() if self._remote else output
        self._partial = os.path.join(folder, files.unique_partial(name))
        self._unknown_id, self._unknown = tok.specials.unk, 0
        self._writer: store.ShardWriter | None = None
        self.dtype = store.token_dtype(tok.size)

    def add(self, ids: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> None:
        if self._writer is None:
            self._writer = store.ShardWriter(self._partial, self.dtype)
        self._writer.add(ids, lengths, tokens)
        if self._unknown_id >= 0:
            self._unknown += int((tokens == self._unknown_id).sum())

    def finish(self) -> dict[str, Any] | None:
        """Completes the file and returns its manifest entry; None if nothing was added."""
        if self._writer is None:
            return None
        self._writer.close()
        with open(self._partial, "rb") as file:
            os.fsync(file.fileno())
        return {
            "documents": self._writer.documents,
            "sentences": self._writer.sentences,
            "tokens": self._writer.tokens,
            "records": self._writer.records,
            "unknown": self._unknown,
            "file": self._final.name,
            "bytes": os.path.getsize(self._partial),
            "sha256": files.sha256(self._partial),
        }

    def publish(self) -> None:
        """Moves the finished file to its final name; removes an older file if nothing was added."""
        if self._writer is None:
            self._final.unlink(missing_ok=True)
        elif self._remote:
            epath.Path(self._partial).copy(self._final, overwrite=True)
        else:
            os.replace(self._partial, self._final)

    def discard(self) -> None:
        self._writer = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)
