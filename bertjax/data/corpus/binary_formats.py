"""Recognises well-known binary formats by a file's first bytes, where text is expected.

    binary_formats.check("train.parquet", head)     # UserError: ... is a Parquet file, ...

A match counts only if the bytes are not plain text, so that a text starting with "ORC" is accepted.
"""

from bertjax import errors

HEAD = 512  # bytes that `check` reads
_PANDAS = (
    "convert it to JSON lines, for example with pandas.{reader}(PATH).to_json('data.jsonl', "
    "orient='records', lines=True)"
)
_UNPACK = "unpack it and give the files inside"
_RENAME = "rename it to end in {suffix}, as in data.jsonl{suffix}"
ARROW_STREAM = "Arrow stream (`datasets` saves it)"
# (first bytes, the format's name, what to do)
_FORMATS = (
    (b"PAR1", "Parquet", "name it with the suffix .parquet, uncompressed, so that it is read as a "
     "table, or " + _PANDAS.format(reader="read_parquet")),
    (b"ARROW1", "Arrow (Feather)", _PANDAS.format(reader="read_feather")),
    (b"\xff\xff\xff\xff", ARROW_STREAM,
     "load it with datasets.load_from_disk and write it with to_json"),
    (b"ORC", "ORC", _PANDAS.format(reader="read_orc")),
    (b"Obj\x01", "Avro", "convert it to JSON lines"),
    (b"\x89HDF\r\n", "HDF5", _PANDAS.format(reader="read_hdf")),
    (b"SQLite format 3\0", "SQLite", "export its table as JSON lines"),
    (b"\x93NUMPY", "NumPy", "arrays are not read: write the text as JSON lines"),
    (b"\xd0\xcf\x11\xe0", "old Office", "save it as plain text, or a table as tab separated text"),
    (b"%PDF-", "PDF", "extract its text, for example with pdftotext"),
    (b"\x1f\x8b", "gzip", _RENAME.format(suffix=".gz")),
    (b"\x28\xb5\x2f\xfd", "Zstandard", _RENAME.format(suffix=".zst")),
    (b"BZh", "bzip2", "unpack it with bunzip2, or compress it as .gz or .zst"),
    (b"\xfd7zXZ\0", "xz", "unpack it with unxz, or compress it as .gz or .zst"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", _UNPACK),
    (b"PK\x03\x04", "ZIP", _UNPACK),
    (b"\xff\xfe", "UTF-16", "convert it, for example with iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "convert it, for example with iconv -f UTF-16 -t UTF-8"),
)  # fmt: skip
_PACKED = ("gzip", "Zstandard", "bzip2", "xz", "7-Zip", "ZIP", "tar")
_OFFICE = {
    b"xl/": ("Excel", _PANDAS.format(reader="read_excel")),
    b"word/": ("Word", "save it as plain text"),
}


def check(path: str, head: bytes, *, expected: str = "text") -> None:
    """Raises UserError if `head`, a file's first HEAD bytes, identifies a known binary format.

    expected: the format that the file must have; a file of this format is accepted.
    """
    match = _format(head)
    if match is not None and match[0] != expected:
        name, advice = match
        if expected != "text":
            advice = _UNPACK if name in _PACKED else "correct its suffix, or convert the file"
        raise errors.UserError(f"{path}: is a {name} file, but must be {expected}: {advice}")


def _format(head: bytes) -> tuple[str, str] | None:
    if head[257:262] == b"ustar":
        return "tar", _UNPACK
    for magic, name, advice in _FORMATS:
        if head.startswith(magic) and not _is_plain_text(head):
            office = (entry for part, entry in _OFFICE.items() if part in head)
            return next(office, (name, advice)) if name == "ZIP" else (name, advice)
    return None


def _is_plain_text(head: bytes) -> bool:
    """Returns whether the bytes are UTF-8 without control characters other than white space.

    The last character may be incomplete.
    """
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and error.reason == "unexpected end of data"
    return True
