"""The prepared dataset on disk: ArrayRecord shards of token records, and the manifest listing them.

A record holds about RECORD_TOKENS tokens of one or more documents. A document that continues in
the next record is cut between sentences; its parts have the same document id. All records but the
last of a shard have nearly equal size: each ends with the sentence that reaches RECORD_TOKENS.

    prepared/manifest.json  tokenizer/  train-00000-of-00007.array_record  heldout-00000-of-00007...

    dataset = store.open_dataset("prepared/", "train")
    records = dataset.read([3, 1, 4])          # indices count the records of all shards in order
    records[0].tokens                          # uint16[T], or uint32[T] for a large vocabulary

Folders are local or gs://. Remote shards are copied to a local cache before they are read.
"""

import bisect
import collections
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module
from etils import epath

from bertjax import errors, files
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.tokenizers import tokenizer as tokenizer_lib

TOKENIZER = "tokenizer"
RECORD_TOKENS = 8192
MAX_OPEN_SHARDS = 256
RANKING_DOCUMENTS, RANKING_TOKENS = 30, 20_000  # minimum held-out data, see `too_small_to_rank`

_MAGIC = 0x31544A42  # "BJT1", little endian
_HEADER_BYTES = 24  # a multiple of 8, so that the arrays after it are aligned
_WRITER_OPTIONS = "group_size:1,zstd:1"  # one record per chunk: only requested records are read
_READER_OPTIONS = "readahead_buffer_size:0"


@dataclasses.dataclass(frozen=True)
class Record:
    """D documents (or parts of documents) with S sentences and T tokens in all, back to back.

    document_ids: uint64[D]. sentences_per_document: uint32[D] with sum S.
    tokens_per_sentence: uint32[S] with sum T, all > 0. tokens: uint16[T] or uint32[T].
    """

    document_ids: np.ndarray
    sentences_per_document: np.ndarray
    tokens_per_sentence: np.ndarray
    tokens: np.ndarray


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns uint16 if it can represent every id of the vocabulary, else uint32."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def encode_record(
    document_ids: np.ndarray,
    sentences_per_document: np.ndarray,
    tokens_per_sentence: np.ndarray,
    tokens: np.ndarray,
) -> bytes:
    """Encodes four arrays (see Record): a uint32[6] header, then the arrays, little endian."""
    counts = [len(document_ids), len(tokens_per_sentence), len(tokens)]
    parts = (
        np.array([_MAGIC, tokens.dtype.itemsize, *counts, 0], "<u4"),
        np.asarray(document_ids, "<u8"),
        np.asarray(sentences_per_document, "<u4"),
        np.asarray(tokens_per_sentence, "<u4"),
        np.asarray(tokens, f"<u{tokens.dtype.itemsize}"),
    )
    return b"".join(part.tobytes() for part in parts)


def decode_record(data: bytes) -> Record:
    """Decodes a record that `encode_record` wrote, without copying the arrays.

    Raises ValueError if the record is damaged.
    """
    if len(data) < _HEADER_BYTES:
        raise ValueError("these bytes are not a token record")
    header = np.frombuffer(data, "<u4", count=6).tolist()
    magic, itemsize, documents, sentences, tokens, _ = header
    if magic != _MAGIC or itemsize not in (2, 4):
        raise ValueError("these bytes are not a token record")
    if len(data) != _HEADER_BYTES + 12 * documents + 4 * sentences + itemsize * tokens:
        raise ValueError("the length of the record differs from that in its header")
    offset = _HEADER_BYTES
    arrays = []
    for dtype, count in (
        ("<u8", documents), ("<u4", documents), ("<u4", sentences), (f"<u{itemsize}", tokens)
    ):
        arrays.append(np.frombuffer(data, dtype, count, offset))
        offset += arrays[-1].nbytes
    record = Record(*arrays)
    if (
        int(record.sentences_per_document.sum(dtype=np.int64)) != sentences
        or int(record.tokens_per_sentence.sum(dtype=np.int64)) != tokens
        or not record.tokens_per_sentence.all()
    ):
        raise ValueError("the record's sentence lengths do not add up")
    return record


class ShardWriter:
    """Packs sentences into records and records into one ArrayRecord file.

    NOTE: the file is complete only after `close()`; do not publish it before.
    Raises OSError (ENOSPC) if the disk is full.
    """

    def __init__(self, path: str | os.PathLike, dtype: np.dtype):
        self._dtype = dtype
        self._writer = array_record_module.ArrayRecordWriter(os.fspath(path), _WRITER_OPTIONS)
        # The sentences of the record that is not full yet:
        self._ids = np.zeros(0, np.uint64)  # [S]
        self._lengths = np.zeros(0, np.int64)  # [S]
        self._tokens = np.zeros(0, dtype)  # [T]
        self._last_id: int | None = None
        self.records = self.documents = self.sentences = self.tokens = 0

    def add(self, document_ids: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> None:
        """Appends S sentences.

        document_ids: uint64[S]. lengths: int[S], tokens in each sentence, all > 0. tokens: [T].
        The sentences of a document must be consecutive. The next call may continue the last
        document.
        """
        ids = np.concatenate([self._ids, document_ids])
        lengths = np.concatenate([self._lengths, lengths])
        tokens = np.concatenate([self._tokens, tokens.astype(self._dtype, copy=False)])
        ends = np.cumsum(lengths)
        sentence = token = 0
        while sentence < len(ends) and ends[-1] - token >= RECORD_TOKENS:
            stop = int(np.searchsorted(ends, token + RECORD_TOKENS)) + 1
            token_stop = int(ends[stop - 1])
            self._write(ids[sentence:stop], lengths[sentence:stop], tokens[token:token_stop])
            sentence, token = stop, token_stop
        # These are copies, because a view would keep the whole batch in memory.
        self._ids, self._lengths = ids[sentence:].copy(), lengths[sentence:].copy()
        self._tokens = tokens[token:].copy()

    def _write(self, ids: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> None:
        first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        counts = np.diff(first, append=len(ids))
        data = encode_record(ids[first], counts, lengths, tokens)
        with _disk_errors():
            self._writer.write(data)
        self.records += 1
        self.sentences += len(lengths)
        self.tokens += len(tokens)
        self.documents += len(first) - int(ids[0] == self._last_id)
        self._last_id = int(ids[-1])

    def close(self) -> None:
        """Writes the last record, which is shorter, and ArrayRecord's index; closes the file."""
        if len(self._lengths):
            self._write(self._ids, self._lengths, self._tokens)
            self._lengths = self._lengths[:0]
        with _disk_errors():
            self._writer.close()


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Converts RuntimeError, the only type of error that ArrayRecord raises, to OSError.

    The errno is ENOSPC if the disk is full, EDQUOT if the quota is exceeded, else EIO.
    """
    try:
        yield
    except RuntimeError as error:
        reasons = {"No space left": errno.ENOSPC, "quota": errno.EDQUOT}
        codes = [code for text, code in reasons.items() if text in str(error)]
        raise OSError((codes or [errno.EIO])[0], str(error)) from error


class Dataset:
    """One split of a prepared folder, read by record index. Picklable; thread safe.

    Attributes: manifest (dict), split, num_records, num_documents, num_sentences, num_tokens,
    path, tokenizer_path (str), tokenizer_fingerprint, fingerprint (of the tokenizer and this
    split's bytes).
    """

    def __init__(self, path: str, manifest: dict[str, Any], split: str):
        self.path, self.manifest, self.split = path, manifest, split
        counts = manifest["splits"][split]
        self.num_records: int = counts["records"]
        self.num_documents: int = counts["documents"]
        self.num_sentences: int = counts["sentences"]
        self.num_tokens: int = counts["tokens"]
        self.tokenizer_path = os.fspath(epath.Path(path) / TOKENIZER)
        self.tokenizer_fingerprint: str = manifest["tokenizer"]["fingerprint"]
        self._shards: list[dict[str, Any]] = counts["shards"]
        sizes = (shard["records"] for shard in self._shards)
        self._starts = list(itertools.accumulate(sizes, initial=0))  # first record of each shard
        digest = hashlib.sha256(self.tokenizer_fingerprint.encode())
        for shard in self._shards:
            digest.update(shard["sha256"].encode())
        self.fingerprint = digest.hexdigest()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._readers: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "manifest": self.manifest, "split": self.split}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def __len__(self) -> int:
        return self.num_records

    def load_tokenizer(self) -> tokenizer_lib.Tokenizer:
        """Returns the tokenizer of the data. Raises UserError if the folder has a different one."""
        tokenizer = tokenizer_lib.load(self.tokenizer_path)
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise errors.UserError(
                f"{self.tokenizer_path}: is not the tokenizer that the data was prepared with "
                f"(fingerprint {tokenizer.fingerprint[:12]}, not "
                f"{self.tokenizer_fingerprint[:12]}); restore the right files"
            )
        return tokenizer

    def read(self, record_indices: Sequence[int]) -> list[Record]:
        """Returns the records in the given order.

        Raises UserError, naming the shard and the record, if a record is corrupt, and IndexError if
        an index is out of range.
        """
        requests = collections.defaultdict(list)  # {shard: [(index in the result, record)]}
        for place, index in enumerate(record_indices):
            index = int(index)
            if not 0 <= index < self.num_records:
                raise IndexError(f"record {index} of {self.num_records}")
            shard = bisect.bisect_right(self._starts, index) - 1
            requests[shard].append((place, index - self._starts[shard]))
        records: list[Any] = [None] * len(record_indices)
        for shard, places in requests.items():
            for (place, _), record in zip(places, self._read(shard, places), strict=True):
                records[place] = record
        return records

    def _read(self, shard: int, places: list[tuple[int, int]]) -> list[Record]:
        reader = self._reader(shard)
        indices = [index for _, index in places]
        try:
            return [decode_record(data) for data in reader.read(indices)]
        except (RuntimeError, ValueError):
            pass
        for index in indices:  # read one by one, to find the corrupt record
            try:
                decode_record(reader.read([index])[0])
            except (RuntimeError, ValueError) as error:
                raise errors.UserError(
                    f"{self._path(shard)}: record {index} is corrupt ({error}); "
                    "delete the folder and prepare the data again"
                ) from error
        raise errors.UserError(
            f"{self._path(shard)}: two reads of the same records differ; check the disk"
        )

    def _path(self, shard: int) -> str:
        return os.fspath(epath.Path(self.path) / self._shards[shard]["file"])

    def _reader(self, shard: int) -> Any:
        if self._process != os.getpid():  # forked: processes must not share file handles
            self._reset()
        with self._lock:
            if shard not in self._readers:
                self._readers[shard] = self._open(shard)
            self._readers.move_to_end(shard)
            if len(self._readers) > MAX_OPEN_SHARDS:
                # The reader is not closed here, because another thread may still use it. It is
                # closed when the last reference to it is dropped.
                self._readers.popitem(last=False)
            return self._readers[shard]

    def _open(self, shard: int) -> Any:
        path, expected = self._path(shard), self._shards[shard]["records"]
        local = _localise(path, self._shards[shard]["sha256"])
        try:
            reader = array_record_module.ArrayRecordReader(
                local, options=_READER_OPTIONS, file_reader_buffer_size=1 << 15
            )
            count = reader.num_records() if reader.ok() else 0
        except RuntimeError as error:
            raise errors.UserError(f"{path}: cannot be read as ArrayRecord ({error})") from error
        if count != expected:
            raise errors.UserError(
                f"{path}: contains {count} records, but the manifest lists {expected}; it is "
                "truncated or corrupt: delete the folder and prepare the data again"
            )
        return reader

    def verify(self) -> None:
        """Raises UserError if the checksum of a shard differs from that in the manifest."""
        for shard, entry in enumerate(self._shards):
            if files.sha256(self._path(shard)) != entry["sha256"]:
                raise errors.UserError(
                    f"{self._path(shard)}: its checksum differs from the manifest's; the file is "
                    "corrupt: delete the folder and prepare the data again"
                )


def open_dataset(path: str | os.PathLike, split: str) -> Dataset:
    """Opens `split` ("train" or "heldout") of a prepared folder; checks that every shard exists.

    Raises UserError if the folder has no manifest (preparing was not finished), if the manifest is
    invalid, or if a shard is missing or has the wrong size.
    """
    manifest = manifest_lib.read(path)
    if split not in manifest["splits"]:
        raise errors.UserError(
            f"{path}: contains no split {split!r}, only {list(manifest['splits'])}"
        )
    for shard in manifest["splits"][split]["shards"]:
        check_size(epath.Path(path) / shard["file"], shard["bytes"])
    return Dataset(os.fspath(path), manifest, split)


def open_heldout(path: str | os.PathLike) -> Dataset:
    """Opens the held-out split for scoring, or the train split if nothing was held out."""
    heldout = open_dataset(path, "heldout")
    return heldout if heldout.num_records else open_dataset(path, "train")


def too_small_to_rank(documents: int, tokens: int) -> str | None:
    """Returns why a held-out split of this size cannot rank models; None if it can.

    This is a rule of thumb. Suppose that the loss of a predicted token has a standard deviation of
    2.5 nats, and that 15% of RANKING_TOKENS tokens are predicted. Then the mean loss has a standard
    error of about 0.05 nats. Since tokens of one document are not independent, RANKING_DOCUMENTS
    documents are needed too.
    """
    if documents >= RANKING_DOCUMENTS and tokens >= RANKING_TOKENS:
        return None
    amount = errors.count(documents, "document")
    verdict = "is too little" if documents == 1 else "are too few"
    return (
        f"{amount} with {tokens:,} tokens in total {verdict} to rank models by small "
        f"differences in loss, which needs about {RANKING_DOCUMENTS} documents and "
        f"{RANKING_TOKENS:,} "
        "tokens: hold out more with `bertjax prepare --heldout_fraction`"
    )


def check_size(file: epath.Path, size: int) -> None:
    """Raises UserError unless the file exists and has `size` bytes."""
    try:
        actual = file.stat().length
    except OSError as error:
        raise errors.UserError(f"{file}: not found, but the manifest lists it") from error
    if actual != size:
        raise errors.UserError(
            f"{file}: has {actual} bytes, but the manifest lists {size}; it is truncated or "
            "corrupt: delete the folder and prepare the data again"
        )


def _localise(path: str, digest: str) -> str:
    """Returns a path on the local disk. A remote file is copied once, to a cache of files named by
    their checksums."""
    if "://" not in path:
        return path
    cache = epath.Path(tempfile.gettempdir()) / f"bertjax-cache-{os.getuid()}"
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    local = cache / f"{digest}.array_record"
    if not local.exists():
        partial = cache / f"{digest}.{os.getpid()}-{threading.get_ident()}"
        epath.Path(path).copy(partial)
        if files.sha256(partial) != digest:
            partial.unlink()
            raise errors.UserError(
                f"{path}: its checksum differs from the manifest's; prepare it again"
            )
        os.replace(partial, local)
    return os.fspath(local)
