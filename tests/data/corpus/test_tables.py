"""CSV and TSV corpora, and templates: the same documents in every format, in parts, bad rows."""

import collections
import csv
import gzip
import json
import os

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bertjax import errors
from bertjax.data.corpus import reader, templates

ROWS = [
    {"id": str(i), "title": f"T{i}", "text": f'No. {i}, "na\u00efve" \u6587;\n\nsecond, line'}
    for i in range(60)
]
TEXTS = [row["text"] for row in ROWS]


def _write(path, data: bytes) -> str:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return os.fspath(path)


def _csv(path, rows=ROWS) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return os.fspath(path)


def _tsv(path, rows=ROWS) -> str:
    lines = ["\t".join(rows[0])] + ["\t".join(row.values()).replace("\n", " ") for row in rows]
    return _write(path, "\n".join(lines).encode())


def _texts(sources, **options) -> list[str]:
    return [text for source in sources for text in reader.documents(source, **options)]


@pytest.mark.parametrize("unit_bytes", [1, 90, 1000, 10**6])
def test_quoted_cells_with_line_breaks_in_parts(tmp_path, unit_bytes):
    (source,) = reader.find([_csv(tmp_path / "a.csv")])
    parts = reader.split(source, unit_bytes)
    assert _texts(parts) == TEXTS and sum(part.size for part in parts) == source.size
    assert len(parts) > 1 or source.size <= unit_bytes
    (source,) = reader.find([_tsv(tmp_path / "a.tsv")])
    assert _texts(reader.split(source, unit_bytes)) == [t.replace("\n", " ") for t in TEXTS]


def test_compressed_tables_and_windows_ends(tmp_path):
    data = b"\xef\xbb\xbf" + open(_csv(tmp_path / "a.csv"), "rb").read()
    assert b"\r\n" in data
    (source,) = reader.find([_write(tmp_path / "a.csv.gz", data)])
    assert _texts([source]) == TEXTS
    parts = reader.split(source, 100)
    assert len(parts) > 1 and sorted(_texts(parts)) == sorted(TEXTS)


def test_a_cell_larger_than_the_limit_of_the_csv_module(tmp_path):
    long = "word, " * 50_000
    assert _texts(reader.find([_csv(tmp_path / "a.csv", [{"text": long}])])) == [long]


def test_tsv_has_no_quoting_and_blank_lines_are_no_rows(tmp_path):
    path = _write(tmp_path / "a.tsv", b'text\tn\r\n"one" two"\t1\r\n\r\n"three\t2')
    assert _texts(reader.find([path])) == ['"one" two"', '"three']
    path = _write(tmp_path / "a.csv", b'text,n\r\none "two",1\r\n\r\n"three\r\nfour",2')
    assert _texts(reader.find([path])) == ['one "two"', "three\r\nfour"]


BAD_ROWS = {
    b"one,two,three\n": "the number of cells is 3, but the header has 2",
    b'"one"two,x\n': "not valid CSV (",
    b"caf\xe9,x\n": "is not UTF-8",
}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_bad_row_is_named_with_its_line_or_skipped(tmp_path, bad, ending):
    good = b'"good\nbetter",x\n'
    path = _write(tmp_path / f"a.csv{ending}", b"text,other\n" + good * 30 + bad + good * 2)
    for sources in (found := reader.find([path])), reader.split(found[0], 100)[-2:]:
        with pytest.raises(errors.UserError) as caught:
            _texts(sources)
        assert f"{path} line 62: {BAD_ROWS[bad]}" in str(caught.value)
        assert "\n" not in str(caught.value)
    skipped = collections.Counter()
    assert _texts(found, on_error="skip", skipped=skipped) == ["good\nbetter"] * 32
    assert skipped == {"bad rows": 1}


def test_bytes_that_are_not_utf8_in_another_column_do_not_matter(tmp_path):
    path = _write(tmp_path / "a.csv", b"text,other\ngood,caf\xe9\n")
    assert _texts(reader.find([path])) == ["good"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"title,body\nA,b\n", r": has no column 'text' \(its columns: title, body\); give one"),
        (b"text,text\nA,b\n", ": has the column 'text' twice"),
        (b"\ntext\n", " line 1: is blank; the first line must name the columns"),
        (b'"text,\n', " line 1: a quote is never closed, so the rest of the file, 1 line, is one"),
        (b"title;text\nA;b\n", ": its columns are separated by semicolons; convert"),
        (b"title\ttext\nA\tb\n", ": its columns are separated by tabs; pass --format=tsv"),
        (b"", ": the file is empty"),
    ],
)
def test_a_header_without_the_column_is_named_or_skipped(tmp_path, content, message):
    good, path = _csv(tmp_path / "a.csv"), _write(tmp_path / "b.csv", content)
    with pytest.raises(errors.UserError, match=rf"b\.csv{message}"):
        reader.find([good, path])
    skipped = collections.Counter()
    assert len(reader.find([good, path], on_error="skip", skipped=skipped)) == 1
    assert skipped == {"unreadable or empty files": 1}


def test_an_open_quote_at_the_end_is_named(tmp_path):
    path = _write(tmp_path / "a.csv", b'text,n\none,1\n"two,2\nthree,3\n')
    with pytest.raises(errors.UserError, match=r"a\.csv line 3: .* the rest of the file, 2 lines,"):
        _texts(reader.find([path]))


# --- templates ------------------------------------------------------------------------------------


def test_a_template_gives_the_same_documents_in_every_format(tmp_path):
    rows = ROWS[:5] + [{"id": "5", "title": "", "text": "only text"}]
    lines = "".join(json.dumps({k: v or None for k, v in row.items()}) + "\n" for row in rows)
    table = {name: [row[name] or None for row in rows] for name in rows[0]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    paths = [
        _csv(tmp_path / "a.csv", rows),
        _write(tmp_path / "a.jsonl", lines.encode()),
        os.fspath(tmp_path / "a.parquet"),
    ]
    template = templates.unescaped(r"{title}\n{text} {{{id}}}\\n")
    expected = [f"{row['title']}\n{row['text']} {{{row['id']}}}\\n" for row in rows]
    for path in paths:
        sources = reader.find([path], text_template=template)
        assert _texts(sources, text_template=template) == expected, path


def test_a_document_whose_fields_are_all_empty_is_empty(tmp_path):
    lines = _write(tmp_path / "a.jsonl", b'{"a": null, "b": ""}\n{"a": null, "b": "x"}\n')
    table = _write(tmp_path / "a.csv", b"a,b\n,\n,x\n")
    tabs = _write(tmp_path / "a.tsv", b"a\tb\n\t\n\n\tx\n")
    for path in (lines, table, tabs):
        sources = reader.find([path], text_template="Title: {a}. {b}")
        assert _texts(sources, text_template="Title: {a}. {b}") == ["", "Title: . x"]


def test_a_field_that_is_missing_or_no_text_is_named(tmp_path):
    path = _write(tmp_path / "a.jsonl", b'{"a": "x"}\n{"a": "x", "b": 3}\n')
    sources = reader.find([path])
    with pytest.raises(errors.UserError, match=r"line 1: has no field 'b' \(its fields: a\); corr"):
        _texts(sources, text_template="{a} {b}")
    skipped = collections.Counter()
    assert not _texts(sources, text_template="{a} {b}", on_error="skip", skipped=skipped)
    assert skipped == {"bad JSON lines": 2}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{title", "is not a template (expected '}' before end of string)"),
        ("title}", "is not a template (Single '}' encountered"),
        ("title", "names no field; put the names in braces"),
        ("{}: {text}", "braces must contain the name of a field"),
        ("{text:>9}", "braces must contain the name of a field"),
        ("{text!r}", "braces must contain the name of a field"),
    ],
)
def test_what_is_no_template_is_refused(template, message):
    with pytest.raises(errors.UserError) as caught:
        templates.of("text", template)
    assert str(caught.value).startswith(f"--text_template={template!r}: {message}")
    assert "\n" not in str(caught.value)


def test_a_template_and_a_field_exclude_each_other():
    with pytest.raises(errors.UserError, match="cannot be used with --text_field=body"):
        templates.of("body", "{title}")
    assert templates.of("body", "").fields == ("body",)
