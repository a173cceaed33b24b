"""What is given as text and is none: binary files, devices, pipes, documents without an end."""

import gzip
import json
import os
import pathlib

import pytest
import zstandard

from bertjax import errors
from bertjax.data.corpus import corpus_files, reader


def _write(path: pathlib.Path, data: bytes) -> str:
    packed = {".gz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(packed[path.suffix](data) if path.suffix in packed else data)
    return os.fspath(path)


BINARY = {
    "Parquet": b"PAR1\x15\x04\x15\x0c",
    "Excel": b"PK\x03\x04\x14\x00\x06\x00[Content_Types].xml...xl/workbook.xml",
    "ZIP": b"PK\x03\x04\x14\x00a.txt",
    "gzip": gzip.compress(b"text"),
    "Zstandard": b"\x28\xb5\x2f\xfd\x04\x00",
    "Arrow": b"ARROW1\x00\x00\xff\xff\xff\xff",
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "UTF-16": "text".encode("utf-16"),
    "tar": b"a.txt".ljust(257, b"\0") + b"ustar\x00",
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("file", ["a.txt", "a.jsonl", "a.txt.gz", "a.parquet"])
def test_a_binary_format_is_named_with_what_to_do(tmp_path, name, file):
    path = _write(tmp_path / file, BINARY[name])
    message = "is an? {name}.* file, but must be"
    if (file, name) == ("a.parquet", "Parquet"):  # the right format, but only its first bytes
        message = "is an incomplete {name} file: its end is missing"
    with pytest.raises(errors.UserError, match=f"{file}: {message.format(name=name)}"):
        reader.find([path])
    with pytest.raises(errors.UserError, match=rf"is an? {name}.* file, but must be text"):
        list(corpus_files.text_lines(path))


def test_text_that_begins_like_a_binary_format_is_read(tmp_path):
    text = "ORC, PAR1 and %PDF- are first bytes \u2013 also here: \u00e4" * 9
    path = _write(tmp_path / "a.txt", text.encode())
    assert list(reader.documents(reader.find([path])[0])) == [text]


@pytest.mark.parametrize("name", ["pipe.txt", "zero.jsonl"])
def test_devices_and_pipes_are_refused_before_they_are_opened(tmp_path, name):
    path = tmp_path / name
    if name == "pipe.txt":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(errors.UserError, match=rf"{name}: is a device or a pipe"):
        reader.find([str(path)])
    with pytest.raises(errors.UserError, match=r"is a device or a pipe"):
        next(corpus_files.text_lines(str(path)))


def _line(size):
    return json.dumps({"text": "x" * size}).encode() + b"\n"


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "file", "blank"])
def test_a_document_above_the_limit_is_refused_not_held(tmp_path, monkeypatch, ending, kind):
    """As a line of 3 GB in a gzip file of 3 MB is."""
    monkeypatch.setattr(corpus_files, "MAX_DOCUMENT", 1000)
    name, text_split = ("a.jsonl", "file") if kind == "jsonl" else ("a.txt", kind)
    whole = _line(900) if kind == "jsonl" else b"x" * 900 + b"\n\n"
    long = _line(5000) if kind == "jsonl" else (b"x" * 500 + b"\n") * 9
    path = _write(tmp_path / (name + ending), whole + long)
    documents = reader.documents(reader.find([path])[0], text_split=text_split)
    with pytest.raises(errors.UserError, match=rf"{name}.*: the document has more than"):
        list(documents)
