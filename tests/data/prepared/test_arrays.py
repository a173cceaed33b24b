"""Named arrays: read whole or by name, by threads at the same time. And files with two writers."""

import threading
import zipfile
from concurrent import futures

import numpy as np
import pytest

from bertjax import files
from bertjax.data.prepared import arrays


def test_arrays_and_texts_come_back(tmp_path):
    content = {"a": np.arange(5, dtype=np.uint64), "text": "word", "none": np.zeros((0, 3))}
    arrays.write(tmp_path / "a.npz", content)
    again = arrays.read(tmp_path / "a.npz")
    assert again.keys() == content.keys() and str(again["text"]) == "word"
    for name in ("a", "none"):
        assert again[name].dtype == content[name].dtype and again[name].shape == content[name].shape
        np.testing.assert_array_equal(again[name], content[name])
    assert arrays.read(tmp_path / "a.npz", "a").keys() == {"a"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_threads_read_files_at_the_same_time(tmp_path, monkeypatch):
    arrays.write(tmp_path / "a.npz", {"a": np.arange(5)})
    threads, read = threading.Barrier(4, timeout=60), zipfile.ZipFile.read

    def read_with_the_others(file, name):
        threads.wait()  # fails if one thread at a time reads
        return read(file, name)

    monkeypatch.setattr(zipfile.ZipFile, "read", read_with_the_others)
    with futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: arrays.read(tmp_path / "a.npz"), range(4)))
    assert all(result["a"].tolist() == [0, 1, 2, 3, 4] for result in results)


def test_two_writers_of_a_shared_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a.json"
    with files.replacing(path, shared=True) as first:
        first.write_text("first")
        files.write_text(path, "second", shared=True)
        assert (path.read_text(), first.read_text()) == ("second", "first")
    assert path.read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    arrays.write(path, {"a": np.arange(100), "b": np.arange(100)})
    arrays.check(path)
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(100).tobytes()) + 8] ^= 1
    path.write_bytes(content)
    for read in (arrays.check, arrays.read):
        with pytest.raises(zipfile.BadZipFile):
            read(path)
    assert arrays.read(path, "b")["b"].tolist() == list(range(100))
