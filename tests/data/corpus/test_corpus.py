"""Reading text: every container gives the same documents, whole or in parts; bad input is named."""

import collections
import gzip
import io
import json
import os
import pathlib

import numpy as np
import pytest
import zstandard
from array_record.python import array_record_module
from etils import epath

from bertjax import errors
from bertjax.data.corpus import builtin, reader
from tests.helpers import buckets

TEXTS = [f"Document {i}: na\u00efve \u6587 \U0001f600.\nIts second line." for i in range(97)]


def _jsonl(texts) -> bytes:
    return "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)).encode()


def _blocks(texts) -> bytes:
    return "\n\n".join(texts).encode()


def _zstd(data: bytes) -> bytes:
    """Two frames, as `cat a.zst b.zst` makes them."""
    half = len(data) // 2
    return b"".join(zstandard.compress(part) for part in (data[:half], data[half:]))


def _write(path: pathlib.Path, data: bytes) -> str:
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = _zstd(data)
    path.write_bytes(data)
    return os.fspath(path)


def _arrayrecord(path: pathlib.Path, records: list[bytes]) -> str:
    writer = array_record_module.ArrayRecordWriter(os.fspath(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return os.fspath(path)


def _texts(sources, **options) -> list[str]:
    return [text for source in sources for text in reader.documents(source, **options)]


def _containers(tmp_path: pathlib.Path):
    """(path, format, reading options) of TEXTS in every container."""
    for ending in ("", ".gz", ".zst"):
        yield _write(tmp_path / f"a.jsonl{ending}", _jsonl(TEXTS)), "auto", {}
        path = _write(tmp_path / f"a.txt{ending}", _blocks(TEXTS))
        yield path, "auto", {"text_split": "blank"}
    records = [text.encode() for text in TEXTS]
    yield _arrayrecord(tmp_path / "a.arrayrecord", records), "auto", {}
    rows = _jsonl(TEXTS).splitlines()
    yield _arrayrecord(tmp_path / "b.array_record", rows), "arrayrecord_jsonl", {}


def test_every_container_gives_the_same_documents(tmp_path):
    for path, form, options in _containers(tmp_path):
        assert _texts(reader.find([path], format=form), **options) == TEXTS, path


@pytest.mark.parametrize("unit_bytes", [1, 20, 100, 300])
def test_the_parts_of_a_source_give_each_document_once(tmp_path, unit_bytes):
    for path, form, options in _containers(tmp_path):
        (source,) = reader.find([path], format=form)
        text_split = options.get("text_split", "file")
        parts = reader.split(source, unit_bytes, text_split=text_split)
        assert len(parts) > 1, path
        together = _texts(parts, **options)
        if any(part.stride != (0, 1) for part in parts):
            assert collections.Counter(together) == collections.Counter(TEXTS), path
        else:
            assert together == TEXTS, path
        assert source.size * 0.8 <= sum(part.size for part in parts) <= source.size, path


def test_a_source_below_the_unit_and_a_file_that_is_one_document_stay_whole(tmp_path):
    (lines,) = reader.find([_write(tmp_path / "a.jsonl", _jsonl(TEXTS))])
    assert reader.split(lines, lines.size) == [lines]
    (text,) = reader.find([_write(tmp_path / "a.txt", _blocks(TEXTS))])
    assert reader.split(text, 10) == [text]
    assert _texts([text]) == ["\n\n".join(TEXTS)]


def test_blank_lines_windows_ends_and_byte_order_marks_are_no_text(tmp_path):
    text = _write(tmp_path / "a.txt", b"\xef\xbb\xbf\r\n \t\r\none\r\ntwo\r\n\r\n\r\nthree")
    assert _texts(reader.find([text]), text_split="blank") == ["one\ntwo", "three"]
    lines = _write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "one"}\r\n\r\n {"text": "two"}')
    assert _texts(reader.find([lines])) == ["one", "two"]


def test_a_very_long_line_is_one_document_however_the_file_is_cut(tmp_path):
    texts = ["a" * 3_000_000, "b", "c" * 1_500_000]
    (source,) = reader.find([_write(tmp_path / "a.jsonl", _jsonl(texts))])
    assert _texts(reader.split(source, 400_000)) == texts


def test_progress_grows_to_the_size_of_the_source(tmp_path):
    for path, form, options in _containers(tmp_path):
        (source,) = reader.find([path], format=form)
        options = {"text_field": "text", "text_split": "file"} | options
        rows = reader.read(source, **options, on_error="stop", skipped=None)
        positions = [document.position for document in rows]
        assert positions == sorted(positions) and 0 < positions[-1] <= source.size, path
        assert positions[-1] > 0.9 * source.size, path


# --- finding --------------------------------------------------------------------------------------


def test_files_are_found_by_glob_folder_and_name_once_and_sorted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ("b.jsonl", "a.jsonl", "sub/c.txt", "sub/deep/d.json.gz", "sub/notes.md", "[x].txt")
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, b'{"text": "x"}\n')

    def names(*inputs):
        return [source.path for source in reader.find(inputs)]

    assert names("*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names("b.jsonl", "*.jsonl") == ["b.jsonl", "a.jsonl"]
    assert names("sub") == ["sub/c.txt", "sub/deep/d.json.gz"]
    assert names("**/*.txt") == ["[x].txt", "sub/c.txt"]
    assert names("[x].txt") == ["[x].txt"]
    assert [source.format for source in reader.find(["sub"])] == ["txt", "jsonl"]


def test_remote_files_are_found_and_read(monkeypatch):
    buckets.install(monkeypatch)
    epath.Path("gs://bucket/books").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl", "c.txt.gz"):
        data = _jsonl([name])
        path = epath.Path("gs://bucket/books") / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    sources = reader.find(["gs://bucket/books/*.jsonl"])
    assert [source.path for source in sources] == [
        "gs://bucket/books/a.jsonl",
        "gs://bucket/books/b.jsonl",
    ]
    assert _texts(reader.split(sources[0], 10)) == ["a.jsonl"]
    assert len(reader.find(["gs://bucket/books"])) == 3
    assert _texts(reader.find(["gs://bucket/books/c.txt.gz"])) == [_jsonl(["c.txt.gz"]).decode()]
    with pytest.raises(errors.UserError, match=r"gs://bucket/books/d\.txt: no such file"):
        reader.find(["gs://bucket/books/d.txt"])


def test_builtin_is_a_source(monkeypatch):
    monkeypatch.setattr(builtin, "documents", lambda: iter(["one", "two"]))
    (source,) = reader.find(["builtin"])
    assert _texts(reader.split(source, 1)) == ["one", "two"]


# --- bad input ------------------------------------------------------------------------------------

GOOD = b'{"text": "good"}\n'
BAD_LINES = {
    b'{"text": "cut off\n': "not valid JSON",
    b'{"body": "x", "id": 1}\n': "has no field 'text' (its fields: body, id)",
    b'{"text": 3}\n': "field 'text' must be a string, but is 3",
    b'["text"]\n': "is a JSON list",
    b'{"text": "caf\xe9"}\n': "is not UTF-8",
    b'{"text": "\\ud800"}\n': "contains an unpaired surrogate",
    b"[" * 100_000 + b"\n": "not valid JSON",
}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_line_is_named_with_its_file_and_number_or_skipped(tmp_path, bad, ending, capsys):
    path = _write(tmp_path / f"a.jsonl{ending}", GOOD * 5 + bad + GOOD * 2)
    sources = reader.find([path])
    with pytest.raises(errors.UserError) as caught:
        _texts(sources)
    assert f"{path} line 6: {BAD_LINES[bad]}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; or leave it out with --on_error=skip")
    skipped = collections.Counter()
    assert _texts(sources, on_error="skip", skipped=skipped) == ["good"] * 7
    assert skipped == {"bad JSON lines": 1} and reader.described(skipped) == "1 bad JSON line"
    assert f"bertjax: skipped: {path} line 6: {BAD_LINES[bad]}" in capsys.readouterr().err


def test_a_null_is_an_empty_document(tmp_path):
    path = _write(tmp_path / "a.jsonl", GOOD + b'{"text": null}\n' + GOOD)
    assert _texts(reader.find([path])) == ["good", "", "good"]


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path, capsys):
    _write(tmp_path / "a.jsonl", GOOD)
    for name in ("wiki_00", "wiki_01.bz2"):
        _write(tmp_path / name, GOOD)
    assert len(reader.find([os.fspath(tmp_path)])) == 1
    told = capsys.readouterr().err
    assert "left out 2 files whose suffix is no known format: wiki_00, wiki_01.bz2; to read" in told
    assert len(reader.find([f"{tmp_path}/wiki_0*"], format="jsonl")) == 2
    assert not capsys.readouterr().err


def test_the_line_number_counts_from_the_top_of_the_file_in_every_part(tmp_path):
    path = _write(tmp_path / "a.jsonl", GOOD * 40 + b"oops\n" + GOOD * 40)
    (source,) = reader.find([path])
    parts = reader.split(source, 100)
    assert len(parts) > 5
    with pytest.raises(errors.UserError, match=r"a\.jsonl line 41: "):
        _texts(parts)


@pytest.mark.parametrize("text_split", reader.TEXT_SPLITS)
def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path, text_split):
    path = _write(tmp_path / "a.txt", b"one\n\ntwo\nthr\xe9e\n\nfour")
    with pytest.raises(errors.UserError, match=r"a\.txt line 4: is not UTF-8"):
        _texts(reader.find([path]), text_split=text_split)
    skipped = collections.Counter()
    kept = _texts(reader.find([path]), text_split=text_split, on_error="skip", skipped=skipped)
    assert kept == ([] if text_split == "file" else ["one", "four"])
    assert skipped.total() == 1


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.txt.gz", "a.txt.zst"])
@pytest.mark.parametrize("text_split", reader.TEXT_SPLITS)
def test_a_truncated_or_foreign_compressed_file_is_named_or_skipped(tmp_path, name, text_split):
    whole = pathlib.Path(_write(tmp_path / name, _jsonl(TEXTS)))
    for data in (whole.read_bytes()[:-40], b"this is not compressed at all\n"):
        if name.endswith(".zst") and data.startswith(b"this"):
            data = b"\x00" + data
        whole.write_bytes(data)
        sources = reader.find([os.fspath(whole)])
        with pytest.raises(errors.UserError, match=f"{name}: truncated or corrupt"):
            _texts(sources, text_split=text_split)
        skipped = collections.Counter()
        _texts(sources, text_split=text_split, on_error="skip", skipped=skipped)
        assert skipped["unreadable or empty files"] == 1


def test_empty_missing_and_unreadable_files(tmp_path):
    good, empty = _write(tmp_path / "a.jsonl", GOOD), tmp_path / "b.jsonl"
    empty.touch()
    with pytest.raises(errors.UserError, match=r"b\.jsonl: the file is empty"):
        reader.find([good, os.fspath(empty)])
    skipped = collections.Counter()
    found = reader.find([good, os.fspath(empty)], on_error="skip", skipped=skipped)
    assert [source.path for source in found] == [good] and skipped.total() == 1
    with pytest.raises(errors.UserError, match=r"b\.jsonl: nothing can be read"):
        reader.find([os.fspath(empty)], on_error="skip")
    with pytest.raises(errors.UserError, match=r"nope-.*: no such file"):
        reader.find([os.fspath(tmp_path / "nope-*.txt")])
    with pytest.raises(errors.UserError, match="the suffix is unknown; pass --format="):
        reader.find([_write(tmp_path / "a.dat", GOOD)])
    (tmp_path / "sub").mkdir()
    with pytest.raises(errors.UserError, match="no file with a known suffix"):
        reader.find([os.fspath(tmp_path / "sub")])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    _write(path, GOOD)
    path.chmod(0)
    with pytest.raises(errors.UserError, match=r"a\.jsonl: cannot be read \(Permission denied\)"):
        reader.find([os.fspath(path)])


def test_a_file_that_goes_away_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    sources = reader.find([_write(path, GOOD)])
    path.unlink()
    with pytest.raises(errors.UserError, match=r"a\.jsonl: cannot be read \(No such file"):
        _texts(sources)


def test_bad_array_records_are_named_or_skipped(tmp_path):
    path = _arrayrecord(tmp_path / "a.arrayrecord", [b"good", b"caf\xe9", b"good"])
    sources = reader.find([path])
    with pytest.raises(errors.UserError, match=r"a\.arrayrecord record 1: is not UTF-8"):
        _texts(sources)
    skipped = collections.Counter()
    assert _texts(sources, on_error="skip", skipped=skipped) == ["good", "good"]
    assert skipped == {"bad records": 1}
    other = _write(tmp_path / "b.arrayrecord", b"this is no ArrayRecord file" * 10_000)
    with pytest.raises(errors.UserError, match=r"b\.arrayrecord: "):
        reader.find([other])


# --- TFDS -----------------------------------------------------------------------------------------


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch):
    """A TFDS dataset "tales/small" of 20 and 3 examples, built without TensorFlow."""
    tfds = pytest.importorskip("tensorflow_datasets")

    # Not registered: it is then found by its files, as a dataset that others have built.
    with tfds.core.registered.skip_registration():

        class Tales(tfds.core.GeneratorBasedBuilder):
            code_path = None  # it has no checksum files beside its code
            VERSION = tfds.core.Version("1.0.0")
            BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="small", version="1.0.0"),)

            def _info(self):
                features = tfds.features.FeaturesDict(
                    {"text": tfds.features.Text(), "pages": tfds.features.Scalar(np.int64)}
                )
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, manager):
                return {"train": self._generate_examples(20), "test": self._generate_examples(3)}

            def _generate_examples(self, count):
                for i in range(count):
                    yield i, {"text": f"Tale {i}: caf\u00e9.", "pages": i}

    folder = tmp_path / "tfds"
    builder = Tales(config="small", data_dir=folder, file_format="array_record")
    with monkeypatch.context() as quiet:
        quiet.setattr("sys.stderr", io.StringIO())
        builder.download_and_prepare()
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", os.fspath(folder))
    reader.indexed.opened.cache_clear()
    yield folder
    reader.indexed.opened.cache_clear()


def test_tfds_is_read_without_tensorflow(tfds_folder):
    import sys

    (source,) = reader.find(["tfds:tales/small:train"])
    expected = {f"Tale {i}: caf\u00e9." for i in range(20)}
    assert set(_texts([source])) == expected
    parts = reader.split(source, 100)
    assert len(parts) > 2 and _texts(parts) == _texts([source])
    assert len(_texts(reader.find(["tfds:tales/small:train[:50%]"]))) == 10
    assert len(_texts(reader.find(["tfds:tales/small:test"]))) == 3
    assert "tensorflow" not in sys.modules


def test_tfds_errors_are_one_line(tfds_folder):
    with pytest.raises(errors.UserError, match="tfds:no_such_thing: cannot be read") as caught:
        reader.find(["tfds:no_such_thing"])
    assert "\n" not in str(caught.value)
    (source,) = reader.find(["tfds:tales/small:test"])
    with pytest.raises(errors.UserError, match=r"test record 0: has no field 'body' \(its"):
        _texts([source], text_field="body")
    with pytest.raises(errors.UserError, match="field 'pages' must be a string"):
        _texts([source], text_field="pages")


def test_mocked_tfds_runs_the_same_code():
    tfds = pytest.importorskip("tensorflow_datasets")
    reader.indexed.opened.cache_clear()
    with tfds.testing.mock_data(num_examples=5):
        (source,) = reader.find(["tfds:ag_news_subset:train"])
        assert len(_texts([source], text_field="description")) == 5
    reader.indexed.opened.cache_clear()
