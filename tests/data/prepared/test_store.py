"""Prepared records on disk: packed at sentences, equal in size, checked when they are read."""

import concurrent.futures
import errno
import hashlib
import itertools
import json
import multiprocessing
import pathlib
import pickle

import numpy as np
import pytest

from bertjax import errors
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared import store


def _sentences(seed: int, documents: int, longest: int = 60):
    """ids[S], lengths[S], tokens[T] of some random documents."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, documents)
    lengths = rng.integers(1, longest, counts.sum())
    ids = np.repeat(np.arange(documents, dtype=np.uint64) << np.uint64(20), counts)
    return ids, lengths, rng.integers(0, 30000, lengths.sum()).astype(np.uint16)


def _write_shard(path: pathlib.Path, seed: int, documents: int, batches: int = 3) -> dict:
    ids, lengths, tokens = _sentences(seed, documents)
    writer = store.ShardWriter(path, np.dtype("<u2"))
    cuts = [len(ids) * i // batches for i in range(batches + 1)]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    for a, b in itertools.pairwise(cuts):
        writer.add(ids[a:b], lengths[a:b], tokens[ends[a] : ends[b]])
    writer.close()
    return {
        "file": path.name,
        "records": writer.records,
        "documents": writer.documents,
        "sentences": writer.sentences,
        "tokens": writer.tokens,
        "unknown": 0,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


FINGERPRINT = "f00d" * 16


@pytest.fixture
def folder(tmp_path):
    """A prepared folder of two shards with 300 and 200 documents."""
    shards = [
        _write_shard(tmp_path / f"train-{i:05d}-of-00002.array_record", seed, documents)
        for i, (seed, documents) in enumerate([(0, 300), (1, 200)])
    ]
    keys = ("records", "documents", "sentences", "tokens", "unknown")
    train = {key: sum(shard[key] for shard in shards) for key in keys} | {"shards": shards}
    content = {
        "tokenizer": {"kind": "wordpiece", "size": 30_000, "fingerprint": FINGERPRINT},
        "token_dtype": "uint16",
        "options": {},
        "sources": [],
        "text_bytes": 1,
        "empty_documents": 0,
        "skipped": {},
        "splits": {"train": train, "heldout": dict.fromkeys(keys, 0) | {"shards": []}},
    }
    # As earlier versions wrote it, without a checksum: the tests change it.
    (tmp_path / manifest_lib.FILE).write_text(json.dumps(vars(manifest_lib.FORM) | content))
    return tmp_path


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_record_survives_the_round_trip(dtype):
    arrays = (
        np.array([7, 1 << 40], np.uint64),
        np.array([2, 1]),
        np.array([3, 1, 2]),
        np.array([5, 0, 65535, 2, 9, 11], dtype),
    )
    record = store.decode_record(store.encode_record(*arrays))
    for name, expected in zip(
        ("document_ids", "sentences_per_document", "tokens_per_sentence", "tokens"),
        arrays,
        strict=True,
    ):
        np.testing.assert_array_equal(getattr(record, name), expected)
    assert record.tokens.dtype == dtype and record.document_ids.flags.aligned


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0" * len(data),
        lambda data: data[:24] + b"\xff" * 40 + data[64:],
    ],
)
def test_damaged_bytes_are_no_record(damage):
    ids, lengths, tokens = _sentences(0, 5)
    data = store.encode_record(np.arange(1, dtype=np.uint64), [len(ids)], lengths, tokens)
    store.decode_record(data)
    with pytest.raises(ValueError, match="record"):
        store.decode_record(damage(data))


@pytest.mark.parametrize(("size", "dtype"), [(30522, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_the_token_dtype_holds_every_id(size, dtype):
    assert store.token_dtype(size) == dtype
    assert size - 1 <= np.iinfo(store.token_dtype(size)).max


def test_records_hold_all_sentences_in_order_and_have_nearly_equal_size(folder):
    dataset = store.open_dataset(folder, "train")
    records = dataset.read(range(dataset.num_records))
    parts = [_sentences(0, 300), _sentences(1, 200)]
    for field, axis in (("tokens_per_sentence", 1), ("tokens", 2)):
        found = np.concatenate([getattr(record, field) for record in records])
        np.testing.assert_array_equal(found, np.concatenate([part[axis] for part in parts]))
    ids = [np.repeat(record.document_ids, record.sentences_per_document) for record in records]
    np.testing.assert_array_equal(np.concatenate(ids), np.concatenate([p[0] for p in parts]))
    sizes = np.array([len(record.tokens) for record in records])
    last = np.cumsum([shard["records"] for shard in dataset.manifest["splits"]["train"]["shards"]])
    full = np.delete(sizes, last - 1)
    assert len(full) > 20 and (full >= store.RECORD_TOKENS).all()
    assert (full < store.RECORD_TOKENS + 60).all() and (sizes[last - 1] < full.max()).all()
    assert dataset.num_tokens == sizes.sum() and dataset.num_documents == 500


def test_the_bytes_of_a_shard_do_not_depend_on_how_it_was_fed(tmp_path):
    one = _write_shard(tmp_path / "a", seed=3, documents=80, batches=1)
    many = _write_shard(tmp_path / "b", seed=3, documents=80, batches=17)
    assert one | {"file": ""} == many | {"file": ""}


def test_records_come_in_the_order_asked_for_also_across_threads_and_processes(folder):
    dataset = store.open_dataset(folder, "train")
    order = np.random.default_rng(0).permutation(dataset.num_records).tolist()
    everything = [record.tokens.tobytes() for record in dataset.read(range(len(order)))]
    expected = [everything[i] for i in order]
    assert [r.tokens.tobytes() for r in dataset.read(order + order)] == expected + expected
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: dataset.read([i])[0].tokens.tobytes(), order))
    assert found == expected
    clone = pickle.loads(pickle.dumps(dataset))
    assert [r.tokens.tobytes() for r in clone.read(order)] == expected


def _digest(dataset, index):
    return hashlib.sha256(dataset.read([index])[0].tokens.tobytes()).hexdigest()


def test_a_dataset_travels_to_a_spawned_process(folder):
    dataset = store.open_dataset(folder, "train")
    expected = _digest(dataset, 5)  # the reader of this process is open now
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(_digest, dataset, 5).result() == expected


def test_few_open_readers_give_the_same_records(folder, monkeypatch):
    dataset = store.open_dataset(folder, "train")
    expected = [_digest(dataset, i) for i in (0, dataset.num_records - 1)]
    monkeypatch.setattr(store, "MAX_OPEN_SHARDS", 1)
    few = store.open_dataset(folder, "train")
    for _ in range(3):
        assert [_digest(few, i) for i in (0, few.num_records - 1)] == expected


def test_an_index_outside_is_an_index_error(folder):
    dataset = store.open_dataset(folder, "train")
    for index in (-1, dataset.num_records):
        with pytest.raises(IndexError):
            dataset.read([index])


def test_a_corrupt_record_is_named_and_the_others_are_read(folder):
    file = folder / "train-00001-of-00002.array_record"
    data = bytearray(file.read_bytes())
    data[70_000:70_100] = b"x" * 100
    file.write_bytes(data)
    dataset = store.open_dataset(folder, "train")
    bad = []
    for index in range(dataset.num_records):
        try:
            dataset.read([index])
        except errors.UserError as error:
            bad.append(str(error))
    assert len(bad) == 1 and "train-00001-of-00002.array_record: record " in bad[0]
    with pytest.raises(errors.UserError, match=r"train-00001-of-00002\.array_record: record \d+"):
        dataset.read(range(dataset.num_records))
    with pytest.raises(errors.UserError, match=r"train-00001-of-00002.*checksum"):
        dataset.verify()


def _truncate(folder, manifest):
    file = folder / "train-00000-of-00002.array_record"
    file.write_bytes(file.read_bytes()[:-1])
    return "train-00000-of-00002.array_record: .* bytes, but the manifest lists"


def _remove_shard(folder, manifest):
    (folder / "train-00001-of-00002.array_record").unlink()
    return "train-00001-of-00002.array_record: not found"


def _hollow(folder, manifest):
    """Same size, but no index at the end: found when it is opened."""
    file = folder / "train-00000-of-00002.array_record"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[: size // 2].ljust(size, b"\0"))
    return "train-00000-of-00002.array_record: "


def _no_manifest(folder, manifest):
    (folder / "manifest.json").unlink()
    return r"manifest\.json: not found.*bertjax prepare"


def _half_manifest(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest)[:50])
    return r"manifest\.json: line 1 is not JSON"


def _other_version(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    return r"manifest\.json: has version 99 of bertjax-prepared, .* reads version 1"


def _other_json(folder, manifest):
    (folder / "manifest.json").write_text('{"a": 1}')
    return r"manifest\.json: its format must be bertjax-prepared"


DAMAGES = [
    _truncate, _remove_shard, _hollow, _no_manifest, _half_manifest, _other_version, _other_json
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_one_line_that_names_the_file(folder, damage):
    message = damage(folder, json.loads((folder / "manifest.json").read_text()))
    with pytest.raises(errors.UserError, match=message) as caught:
        store.open_dataset(folder, "train").read([0])
    assert "\n" not in str(caught.value)


def test_an_unknown_split_is_refused(folder):
    with pytest.raises(errors.UserError, match=r"no split 'test'.*train"):
        store.open_dataset(folder, "test")


def test_fingerprints_tell_datasets_apart(folder):
    dataset = store.open_dataset(folder, "train")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    other = store.open_dataset(folder, "train")
    assert dataset.fingerprint != other.fingerprint
    assert dataset.tokenizer_fingerprint == other.tokenizer_fingerprint == FINGERPRINT


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_an_oserror_with_its_errno():
    ids, lengths, tokens = _sentences(0, 2000)
    writer = store.ShardWriter("/dev/full", np.dtype("<u2"))
    with pytest.raises(OSError, match="No space left") as caught:
        writer.add(ids, lengths, tokens)
        writer.close()
    assert caught.value.errno == errno.ENOSPC
