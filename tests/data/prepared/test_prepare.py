"""Prepare: the same bytes whatever the workers and interruptions, a fair split, named errors."""

import errno
import fcntl
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import tracemalloc

import pytest
from etils import epath

from bertjax import errors
from bertjax.data.corpus import sentences
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared import prepare, prepare_unit, store
from bertjax.data.tokenizers import tokenizer
from tests.helpers import buckets, corpora, preparing
from tests.helpers.preparing import TEXTS, UNIT

# The front door, with small units so that a small corpus has many.
# Ctrl-C is heard, as in a terminal, also where the tests run in the background.
DRIVER = f"""
import signal
import sys
from bertjax import __main__
from bertjax.data.prepared import prepare

prepare.prepare.__kwdefaults__["shard_bytes"] = {UNIT}
hear = prepare._finish

def loud(job, units, workers, on_progress):
    def report(done, total):
        print(done, total, flush=True)
    return hear(job, units, workers, report)

prepare._finish = loud
signal.signal(signal.SIGINT, signal.default_int_handler)
if __name__ == "__main__":
    sys.exit(__main__.main())
"""


@pytest.fixture(scope="module")
def tok_path(tmp_path_factory) -> str:
    return preparing.train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def corpus_path(tmp_path) -> str:
    return os.fspath(corpora.write_jsonl(tmp_path / "corpus.jsonl", TEXTS))


def _contents(folder) -> dict[str, bytes]:
    folder = pathlib.Path(folder)
    files = (path for path in folder.rglob("*") if path.is_file())
    return {os.fspath(path.relative_to(folder)): path.read_bytes() for path in files}


def _encoded(texts, tok_path) -> list[list[list[int]]]:
    encode = tokenizer.load(tok_path).encode_batch
    return [[list(ids) for ids in encode(sentences.rules(text))] for text in texts]


def test_every_sentence_of_every_document_is_there_in_one_split(tmp_path, corpus_path, tok_path):
    manifest = preparing.run(corpus_path, tok_path, tmp_path / "out", heldout_fraction=0.1)
    train, heldout = (
        preparing.documents(tmp_path / "out", split) for split in ("train", "heldout")
    )
    expected = _encoded(TEXTS, tok_path)
    kept_in_order = [document for document in expected if document in train]
    assert train == kept_in_order
    assert sorted(train + heldout) == sorted(expected)
    assert 15 <= len(heldout) <= 80
    counts = {key: 0 for key in ("documents", "sentences", "tokens")}
    for split, documents in (("train", train), ("heldout", heldout)):
        found = manifest["splits"][split]
        assert found["documents"] == len(documents)
        assert found["tokens"] == sum(len(s) for document in documents for s in document)
        assert len(found["shards"]) > 5
        for key in counts:
            assert found[key] == sum(shard[key] for shard in found["shards"])
        store.open_dataset(tmp_path / "out", split).verify()
    assert manifest["text_bytes"] == sum(map(len, TEXTS))
    assert manifest_lib.read(tmp_path / "out") == manifest
    saved = tokenizer.load(os.fspath(tmp_path / "out" / "tokenizer"))
    assert saved.fingerprint == manifest["tokenizer"]["fingerprint"]


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, corpus_path, tok_path):
    folders = [tmp_path / f"out{workers}" for workers in (1, 2, 3)]
    for workers, folder in enumerate(folders, start=1):
        preparing.run(corpus_path, tok_path, folder, workers=workers)
    one, two, three = map(_contents, folders)
    assert one == two == three
    assert not [name for name in one if "partial" in name or "units" in name or "plan" in name]


def test_the_split_follows_the_text_not_the_order_of_the_files(tmp_path, tok_path):
    twice = TEXTS[:100] + TEXTS[:50]  # duplicates, far apart
    for name, texts in (("a", twice), ("b", twice[::-1])):
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", texts)
        preparing.run(
            os.fspath(tmp_path / f"{name}.jsonl"), tok_path, tmp_path / name, heldout_fraction=0.2
        )
    sides = {
        (name, split): {json.dumps(d) for d in preparing.documents(tmp_path / name, split)}
        for name in "ab"
        for split in ("train", "heldout")
    }
    assert sides["a", "heldout"] == sides["b", "heldout"] and sides["a", "heldout"]
    assert sides["a", "train"] == sides["b", "train"]
    assert not sides["a", "heldout"] & sides["a", "train"]


def test_at_least_one_document_is_held_out_and_its_copies_with_it(tmp_path, corpus_path, tok_path):
    manifest = preparing.run(corpus_path, tok_path, tmp_path / "one", heldout_fraction=1e-12)
    assert manifest["splits"]["heldout"]["documents"] == 1
    assert manifest["splits"]["train"]["documents"] == len(TEXTS) - 1
    both = [corpus_path, os.fspath(corpora.write_jsonl(tmp_path / "again.jsonl", TEXTS))]
    manifest = preparing.run(both, tok_path, tmp_path / "two", heldout_fraction=1e-12, workers=2)
    assert manifest["splits"]["heldout"]["documents"] == 2
    first, second = preparing.documents(tmp_path / "two", "heldout")
    assert first == second == preparing.documents(tmp_path / "one", "heldout")[0]
    listed = {s["file"] for split in manifest["splits"].values() for s in split["shards"]}
    assert {path.name for path in (tmp_path / "two").glob("*.array_record")} == listed


def test_nothing_is_held_out_on_request(tmp_path, corpus_path, tok_path):
    manifest = preparing.run(corpus_path, tok_path, tmp_path / "out", heldout_fraction=0)
    assert manifest["splits"]["heldout"]["shards"] == []
    assert store.open_dataset(tmp_path / "out", "heldout").num_records == 0


def test_small_files_share_a_shard_and_empty_documents_are_counted(tmp_path, tok_path):
    for i, text in enumerate(TEXTS[:30] + [" \n\n"]):
        (tmp_path / f"{i:02d}.txt").write_text(text)
    manifest = preparing.run(os.fspath(tmp_path / "*.txt"), tok_path, tmp_path / "out")
    assert manifest["empty_documents"] == 1
    assert len(manifest["sources"]) == 31 and len(manifest["splits"]["train"]["shards"]) < 4
    (tmp_path / "same.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in TEXTS[:30]))
    preparing.run(os.fspath(tmp_path / "same.jsonl"), tok_path, tmp_path / "other")
    for split in ("train", "heldout"):
        assert preparing.documents(tmp_path / "out", split) == preparing.documents(
            tmp_path / "other", split
        )


# --- long text and memory -------------------------------------------------------------------------


FILLERS = ["word ", "A b. ", "line\n", "para\n\n", "x", "\u6587", "\u3002"]


@pytest.mark.parametrize("filler", FILLERS)
def test_chopped_text_is_whole_and_short(filler):
    text = filler * 5000
    pieces = list(sentences.chopped(text, 1000))
    assert "".join(pieces) == text and max(map(len, pieces)) <= 1000 and min(map(len, pieces))
    if filler[-1].isspace():
        assert all(piece[0].isspace() and not piece[-1].isspace() for piece in pieces[1:-1])


def test_a_document_longer_than_a_batch_is_one_document_of_equal_records(
    tmp_path, tok_path, monkeypatch
):
    monkeypatch.setattr(prepare_unit, "_BATCH", 5000)
    long = "\n\n".join(TEXTS)
    endless = " ".join(["the", "red", "boat"] * 20_000)  # one sentence of 60,000 words
    corpora.write_jsonl(tmp_path / "a.jsonl", [long, endless])
    preparing.run(os.fspath(tmp_path / "a.jsonl"), tok_path, tmp_path / "out", heldout_fraction=0)
    first, second = preparing.documents(tmp_path / "out", "train")
    assert first == _encoded([long], tok_path)[0]
    assert list(itertools.chain(*second)) == _encoded([endless], tok_path)[0][0]
    dataset = store.open_dataset(tmp_path / "out", "train")
    sizes = [len(record.tokens) for record in dataset.read(range(dataset.num_records))]
    full = [size for size in sizes if size >= store.RECORD_TOKENS]
    assert len(full) >= 5 and max(sizes) < store.RECORD_TOKENS + prepare_unit.MAX_SENTENCE


@pytest.mark.proof
def test_memory_does_not_grow_with_the_corpus(tmp_path, tok_path, monkeypatch):
    monkeypatch.setattr(prepare_unit, "_BATCH", 1 << 15)
    peaks = []
    for times in (2, 8):
        path = corpora.write_jsonl(tmp_path / f"{times}.jsonl", TEXTS * times)
        tracemalloc.start()
        preparing.run(
            os.fspath(path), tok_path, tmp_path / str(times), shard_bytes=1 << 30, splitter="lines"
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


# --- interruptions --------------------------------------------------------------------------------


def _start(tmp_path, *flags: str) -> subprocess.Popen:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    root = pathlib.Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        [sys.executable, driver, "prepare", *flags],
        env=os.environ | {"PYTHONPATH": os.fspath(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _interrupted(tmp_path, flags, reports: int, how) -> tuple[int, str]:
    """Runs until `reports` progress reports were heard, then `how(process)`. (exit code, stderr)"""
    process = _start(tmp_path, *flags)
    for _ in range(reports):
        assert process.stdout.readline(), process.stderr.read()
    how(process)
    _, stderr = process.communicate()  # ends when the last process has let go of the pipe
    return process.returncode, stderr


def _kill_all(process):
    os.killpg(process.pid, signal.SIGKILL)


def _kill_parent(process):
    os.kill(process.pid, signal.SIGKILL)


def _ctrl_c(process):
    os.killpg(process.pid, signal.SIGINT)


def _finished(folder) -> dict[str, int]:
    """Shards of finished units, with the time they were written."""
    shards = {}
    for file in (folder / prepare_unit.UNITS).glob("*.json"):
        for shard in filter(None, json.loads(file.read_text())["splits"].values()):
            shards[shard["file"]] = (folder / shard["file"]).stat().st_mtime_ns
    return shards


@pytest.mark.parametrize(
    ("how", "workers"), [(_kill_all, 1), (_kill_all, 2), (_kill_parent, 2), (_ctrl_c, 2)]
)
def test_killed_and_started_again_the_bytes_are_those_of_one_go(
    tmp_path, corpus_path, tok_path, how, workers
):
    preparing.run(corpus_path, tok_path, tmp_path / "whole")
    out = tmp_path / "out"
    flags = [f"--input={corpus_path}", f"--tokenizer={tok_path}", f"--output={out}"]
    flags.append(f"--workers={workers}")
    rng = random.Random(f"{how.__name__} {workers}")
    kept = {}
    for _ in range(2):
        code, stderr = _interrupted(tmp_path, flags, rng.randint(4, 6), how)
        assert code == (130 if how is _ctrl_c else -signal.SIGKILL), stderr
        assert "Traceback" not in stderr
        with pytest.raises(errors.UserError, match="not finished"):
            store.open_dataset(out, "train")
        finished = _finished(out)
        assert kept.items() <= finished.items()
        kept = finished
    if how is _ctrl_c:
        assert not list(out.rglob("*.partial"))
    process = _start(tmp_path, *flags)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert kept and {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert _contents(out) == _contents(tmp_path / "whole")


def test_a_unit_whose_shard_was_damaged_is_done_again(tmp_path, corpus_path, tok_path, monkeypatch):
    whole = preparing.run(corpus_path, tok_path, tmp_path / "whole")
    monkeypatch.setattr(prepare, "_totals", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        preparing.run(corpus_path, tok_path, tmp_path / "out")
    monkeypatch.undo()
    shard = tmp_path / "out" / whole["splits"]["train"]["shards"][3]["file"]
    data = shard.read_bytes()
    flipped = data[:40] + bytes([data[40] ^ 1]) + data[41:]
    for damaged in (data[:-1], flipped):
        shard.write_bytes(damaged)
        monkeypatch.setattr(prepare, "_totals", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            preparing.run(corpus_path, tok_path, tmp_path / "out")
        monkeypatch.undo()
    preparing.run(corpus_path, tok_path, tmp_path / "out")
    assert _contents(tmp_path / "out") == _contents(tmp_path / "whole")


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_one_line_and_nothing_finished_is_lost(
    tmp_path, corpus_path, tok_path, monkeypatch
):
    out = tmp_path / "out"
    real = store.array_record_module.ArrayRecordWriter

    def writer(path, options):
        os.symlink("/dev/full", path) if "train-00004" in path else None
        return real(path, options)

    monkeypatch.setattr(store.array_record_module, "ArrayRecordWriter", writer)
    with pytest.raises(OSError, match="the disk is full; free space") as caught:
        preparing.run(corpus_path, tok_path, out)
    assert caught.value.errno == errno.ENOSPC
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    assert not (out / "manifest.json").exists()
    kept = _finished(out)
    monkeypatch.undo()
    preparing.run(corpus_path, tok_path, out)
    assert kept and {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    preparing.run(corpus_path, tok_path, tmp_path / "whole")
    assert _contents(out) == _contents(tmp_path / "whole")


def test_a_bucket_is_read_and_written_like_a_folder(tmp_path, corpus_path, tok_path, monkeypatch):
    preparing.run(corpus_path, tok_path, tmp_path / "out")
    files = buckets.install(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    epath.Path("gs://bucket/in").mkdir(parents=True)
    remote = epath.Path("gs://bucket/in/corpus.jsonl")
    remote.write_bytes(pathlib.Path(corpus_path).read_bytes())
    for _ in range(2):
        preparing.run("gs://bucket/in/*.jsonl", tok_path, "gs://bucket/out")
    written = {name.removeprefix("bucket/out/") for name in files if "bucket/out/" in name}
    assert written == set(_contents(tmp_path / "out"))
    for split in ("train", "heldout"):
        store.open_dataset("gs://bucket/out", split).verify()
        assert preparing.documents("gs://bucket/out", split) == preparing.documents(
            tmp_path / "out", split
        )


def test_a_finished_folder_is_left_alone(tmp_path, corpus_path, tok_path):
    first = preparing.run(corpus_path, tok_path, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert preparing.run(corpus_path, tok_path, tmp_path / "out", workers=3) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize("finished", [True, False])
def test_other_options_tokenizer_or_sources_are_refused(
    tmp_path, corpus_path, tok_path, finished, monkeypatch
):
    out = tmp_path / "out"
    if finished:
        preparing.run(corpus_path, tok_path, out)
    else:
        monkeypatch.setattr(prepare, "_totals", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            preparing.run(corpus_path, tok_path, out)
        monkeypatch.undo()
    before = _contents(out)
    with pytest.raises(errors.UserError, match=r"out: .*splitter='rules' instead of 'lines'"):
        preparing.run(corpus_path, tok_path, out, splitter="lines")
    other = tmp_path / "other_tokenizer"
    tokenizer.train("wordpiece", TEXTS, 140).save(os.fspath(other))
    with pytest.raises(errors.UserError, match="different tokenizer"):
        preparing.run(corpus_path, os.fspath(other), out)
    old = pathlib.Path(corpus_path).read_bytes()
    at = old.index(b"e", len(old) // 2)
    pathlib.Path(corpus_path).write_bytes(old[:at] + b"a" + old[at + 1 :])  # of the same size
    os.utime(corpus_path, (0, 0))
    with pytest.raises(errors.UserError, match=r"other sources: the text of .*corpus\.jsonl has"):
        preparing.run(corpus_path, tok_path, out)
    corpora.write_jsonl(tmp_path / "corpus.jsonl", TEXTS[1:])
    with pytest.raises(errors.UserError, match="different sources"):
        preparing.run(corpus_path, tok_path, out)
    assert _contents(out) == before


def test_one_preparation_at_a_time(tmp_path, corpus_path, tok_path):
    (tmp_path / "out").mkdir()
    handle = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(errors.UserError, match="another process is writing"):
        preparing.run(corpus_path, tok_path, tmp_path / "out")
    os.close(handle)
    preparing.run(corpus_path, tok_path, tmp_path / "out")
