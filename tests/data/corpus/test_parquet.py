"""Parquet corpora: the columns that are needed, parts of row groups, bounded memory, bad files."""

import collections
import gzip
import itertools
import os
import random

import pyarrow as pa
import pytest
from etils import epath
from pyarrow import parquet as pq

from bertjax import errors
from bertjax.data.corpus import corpus_files, parquet, reader, templates
from tests.helpers import buckets

TEXTS = [f"Document {i}: na\u00efve \u6587.\nIts second line." for i in range(97)]


def _write(path, columns=None, **options) -> str:
    columns = {"id": range(97), "text": TEXTS} if columns is None else columns
    pq.write_table(pa.table(columns), os.fspath(path), **options)
    return os.fspath(path)


def _texts(sources, **options) -> list[str]:
    return [text for source in sources for text in reader.documents(source, **options)]


@pytest.mark.parametrize("group", [1, 10, 97])
@pytest.mark.parametrize("unit_bytes", [1, 60, 700, 3000, 10**6])
def test_parts_are_row_groups_or_rows_of_large_ones(tmp_path, group, unit_bytes):
    path = _write(tmp_path / "a.parquet", row_group_size=group, compression="zstd")
    (source,) = reader.find([path])
    parts = reader.split(source, unit_bytes)
    assert _texts(parts) == _texts([source]) == TEXTS
    assert [part.stop for part in parts[:-1]] == [part.start for part in parts[1:]]
    if len(parts) > 1:
        assert sum(part.size for part in parts) == source.size
        edges = {*range(0, 97, group), 97}
        divided = [part for part in parts if not {part.start, part.stop} <= edges]
        assert all(part.start // group == (part.stop - 1) // group for part in divided)
        assert len(parts) <= -(-97 // group) * parquet._MAX_PARTS
    sizes = [part.size for part in parts]
    if source.size > 2 * unit_bytes > 0 and unit_bytes >= 700 and group < 97:
        assert max(sizes) <= unit_bytes
        assert all(a + b > unit_bytes for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), "string")]
)
def test_columns_of_every_text_type(tmp_path, kind):
    texts = ["one", None, "two", "one"]
    path = _write(tmp_path / "a.parquet", {"text": pa.array(texts).cast(kind)})
    assert _texts(reader.find([path])) == ["one", "", "two", "one"]


def test_only_the_column_is_read(tmp_path):
    path = _write(tmp_path / "a.parquet", {"image": [b"\xff" * 5000] * 97, "text": TEXTS})
    sources = reader.find([path])
    data = bytearray(open(path, "rb").read())
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    first = column.dictionary_page_offset or column.data_page_offset
    data[first : first + column.total_compressed_size] = bytes(column.total_compressed_size)
    (tmp_path / "a.parquet").write_bytes(data)
    assert _texts(sources) == TEXTS


def test_a_column_name_with_a_dot_is_not_a_path(tmp_path):
    path = _write(tmp_path / "a.parquet", {"a": [{"b": "x"}], "a.c": ["y"], "text": ["z"]})
    assert _texts(reader.find([path], text_field="a.c"), text_field="a.c") == ["y"]


def test_memory_is_that_of_a_batch_not_of_the_row_group(tmp_path):
    letters = "".join(random.Random(0).choices("abcdefghij ", k=30_000))
    texts = [letters[i:] + letters[:i] for i in range(600)]  # 18 MB in one row group
    path = _write(tmp_path / "a.parquet", {"text": texts}, write_batch_size=20)
    sizes = [len(texts), sum(map(len, texts))]
    del texts
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    pa.set_memory_pool(counting := pa.proxy_memory_pool(pool))
    try:
        (source,) = reader.find([path])
        assert len(list(reader.documents(source))) == sizes[0]
    finally:
        pa.set_memory_pool(pool)
    assert counting.max_memory() < sizes[1] / 2 and pool.bytes_allocated() <= before


def test_remote_files_are_read_in_parts(monkeypatch, tmp_path):
    buckets.install(monkeypatch)
    epath.Path("gs://bucket/a").mkdir(parents=True)
    data = open(_write(tmp_path / "a.parquet", row_group_size=10), "rb").read()
    for name in ("a", "b"):
        (epath.Path("gs://bucket/a") / f"{name}.parquet").write_bytes(data)
    sources = reader.find(["gs://bucket/a/*.parquet"])
    assert [source.format for source in sources] == ["parquet"] * 2
    assert _texts(reader.split(sources[1], 500)) == TEXTS


def test_progress_reaches_the_size_of_each_part(tmp_path):
    (source,) = reader.find([_write(tmp_path / "a.parquet", row_group_size=40)])
    for part in reader.split(source, source.size // 4):
        rows = reader.read(
            part, text_field="text", text_split="file", on_error="stop", skipped=None
        )
        positions = [document.position for document in rows]
        assert positions == sorted(positions) and positions[-1] == part.size


# --- bad input ------------------------------------------------------------------------------------

COLUMNS = {
    "text": [1, 2],
    "raw": [b"a", b"b"],
    "pages": [["a"], ["b"]],
    "meta": [{"text": "a"}] * 2,
    "body": ["a", "b"],
    "title": ["c", "d"],
}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("content", "has no column 'content' (its columns: text, raw, pages, meta, body, title); "
         "give one of them as --text_field"),
        ("text", "column 'text' is of type int64, but must be text (the file's text columns: body, "
         "title); give one of them as --text_field"),
        ("raw", "column 'raw' is of type binary, but must be text"),
        ("pages", "column 'pages' is of type list<element: string>, but must be text"),
        ("meta", "column 'meta' is of type struct<text: string>, but must be text"),
        ("meta.text", "has no column 'meta.text'"),
    ],
)  # fmt: skip
def test_a_column_that_is_no_text_is_named(tmp_path, field, message):
    path = _write(tmp_path / "a.parquet", COLUMNS)
    with pytest.raises(errors.UserError) as caught:
        reader.find([path], text_field=field)
    assert f"{path}: {message}" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(errors.UserError, match="; correct --text_template"):
        reader.find([path], text_template=f"{{body}} {{{field}}}")


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(errors.UserError, match="has the column 'text' twice"):
        reader.find([os.fspath(tmp_path / "a.parquet")])


def _damaged(data: bytes, how: str) -> bytes:
    if how == "footer":
        return data[:-60] + bytes(40) + data[-20:]
    cut = {"half": data[: len(data) // 2], "magic": data[:4], "empty": b"", "text": b"text " * 99}
    return cut[how]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("half", "is an incomplete Parquet file: its end is missing; copy or download"),
        ("magic", "is an incomplete Parquet file"),
        ("footer", "corrupt (.*); copy or download the file again"),
        ("empty", "the file is empty"),
        ("text", "is not a Parquet file; if it is text, pass --format"),
        ("rows", "contains no rows; remove the file"),
    ],
)
def test_files_that_are_no_parquet_are_named_or_skipped(tmp_path, how, message):
    good, path = _write(tmp_path / "a.parquet"), tmp_path / "b.parquet"
    if how == "rows":
        _write(path, {"text": pa.array([], "string")})
    else:
        path.write_bytes(_damaged(open(good, "rb").read(), how))
    with pytest.raises(errors.UserError, match=rf"b\.parquet: {message}") as caught:
        reader.find([os.fspath(tmp_path)])
    assert "\n" not in str(caught.value)
    skipped = collections.Counter()
    sources = reader.find([os.fspath(tmp_path)], on_error="skip", skipped=skipped)
    assert skipped == {"unreadable or empty files": 1} and _texts(sources) == TEXTS


def test_a_packed_parquet_file_must_be_unpacked(tmp_path):
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(open(_write(tmp_path / "a.parquet"), "rb").read()))
    with pytest.raises(errors.UserError, match="is a gzip file, but must be Parquet: unpack it"):
        reader.find([os.fspath(path)])


def test_a_parquet_file_with_another_suffix_is_read_by_its_format(tmp_path):
    path = _write(tmp_path / "part-0001")
    assert _texts(reader.find([path], format="parquet")) == TEXTS
    with pytest.raises(errors.UserError, match=r"is a Parquet file, but must be text: name it wi"):
        reader.find([path])


def test_a_damaged_row_group_is_named_or_skipped(tmp_path):
    path = tmp_path / "a.parquet"
    _write(path, row_group_size=40, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(b"Document 50")] ^= 1
    path.write_bytes(data)
    (source,) = reader.find([os.fspath(path)])
    with pytest.raises(errors.UserError, match=r"a\.parquet row group 1: corrupt \(.*copy or down"):
        _texts([source])
    skipped = collections.Counter()
    kept = _texts([source], on_error="skip", skipped=skipped)
    assert kept == TEXTS[:40] + TEXTS[80:] and skipped == {"unreadable row groups": 1}


def test_text_that_is_not_utf8_is_named_with_its_row(tmp_path):
    raw = pa.array([b"good", b"caf\xe9", b"good"])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    path = _write(tmp_path / "a.parquet", {"text": text})
    sources = reader.find([path])
    with pytest.raises(errors.UserError, match=r"a\.parquet row 1: is not UTF-8"):
        _texts(sources)
    skipped = collections.Counter()
    assert _texts(sources, on_error="skip", skipped=skipped) == ["good", "good"]
    assert skipped == {"bad rows": 1}


def test_a_document_above_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_files, "MAX_DOCUMENT", 1000)
    path = _write(tmp_path / "a.parquet", {"text": ["x" * 900, "x" * 1100]})
    with pytest.raises(errors.UserError, match=r"a\.parquet row 1: the document has more than"):
        _texts(reader.find([path]))


def test_a_file_that_goes_away_is_named_or_skipped(tmp_path):
    sources = reader.find([_write(tmp_path / "a.parquet")])
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(errors.UserError, match=r"a\.parquet: cannot be read \(No such file"):
        _texts(sources)
    skipped = collections.Counter()
    assert _texts(sources, on_error="skip", skipped=skipped) == []
    assert skipped == {"unreadable or empty files": 1}


def test_no_damage_of_a_file_is_more_than_one_line(tmp_path):
    """Single bytes changed anywhere: the file is refused in one line, or gives other text."""
    path = tmp_path / "a.parquet"
    _write(path, {"id": range(9), "text": TEXTS[:9]}, row_group_size=4)
    whole, rng = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            _texts(reader.find([os.fspath(path)]))
        except errors.UserError as error:
            refused += 1
            assert "a.parquet" in str(error) and "\n" not in str(error)
    assert refused > 30


def test_a_template_reads_each_of_its_columns_once(tmp_path):
    columns = {"title": ["A", None, None], "text": ["one", "two", None], "n": [1, 2, 3]}
    path = _write(tmp_path / "a.parquet", columns)
    template = "{title}: {text} ({title})"
    sources = reader.find([path], text_template=template)
    assert _texts(sources, text_template=template) == ["A: one (A)", ": two ()", ""]
    assert templates.of("text", template).fields == ("title", "text", "title")


def test_a_file_that_has_lost_rows_is_named(tmp_path):
    path = _write(tmp_path / "a.parquet")
    sources = reader.find([path])
    _write(tmp_path / "a.parquet", {"text": TEXTS[:90]})
    with pytest.raises(errors.UserError, match=r"corrupt \(ends after 90 of 97 rows\); copy or do"):
        _texts(sources)
