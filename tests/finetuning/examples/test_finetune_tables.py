"""Parquet and CSV tables for fine-tuning: the same examples as TSV and JSON lines; bad files."""

import json
import os
import random

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bertjax import errors
from bertjax.finetuning import split_files, tasks
from bertjax.finetuning.examples import readers


def _parquet(path, columns, features=None) -> str:
    """Writes a table; features: the metadata of Hugging Face's `datasets`."""
    table = pa.table(columns)
    if features is not None:
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    pq.write_table(table, path)
    return os.fspath(path)


def _jsonl(path, columns) -> str:
    rows = pa.table(columns).to_pylist()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return os.fspath(path)


def _read(name, path, split="train"):
    examples = tasks.read(tasks.find(name), os.fspath(path), split)
    return [example._replace(where="") for example in examples]


TABLES = {
    "classification": {
        "sentence": ["A, \u00e4.", 'B "b".'], "label": ["yes", "no"], "id": ["7", "8"]
    },
    "qnli": {"question": ["A?", "B?"], "sentence": ["A.", "B."], "label": [1, 0]},
    "stsb": {"sentence1": ["A", "B"], "sentence2": ["C", "D"], "score": [1.5, 4.0]},
    "ner": {"words": [["Ada", "spoke"], ["Hi"]], "tags": [["B-PER", "O"], ["O"]]},
    "multiple_choice": {"question": ["Who?"], "choices": [["Ada", "Bob", "Cy"]], "label": [2]},
    "translation": {"source": ["Hi.", "No."], "targets": [["Hola.", "Buenas."], ["No."]]},
    "rerank": {"query": ["A?"], "positive": ["B."], "negatives": [["C.", "D."]],
               "score": [[1.5, 2.0]]},
    "multi_label": {"text": ["A.", "B."], "labels": [["x", "y"], []]},
    "squad_v2": {
        "id": ["1", "2"],
        "question": ["Who?", "Why?"],
        "context": ["Ada spoke.", "Bob slept."],
        "answers": [
            {"text": ["Ada"], "answer_start": [0]}, {"text": [], "answer_start": []}
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_parquet_and_json_lines_give_the_same_examples(tmp_path, name):
    path = _parquet(tmp_path / "train.parquet", TABLES[name])
    examples = _read(name, path)
    expected = _read(name, _jsonl(tmp_path / "train.jsonl", TABLES[name]))
    assert [repr(e).partition("question 1")[0] for e in examples]
    assert examples == expected and len(examples) == len(next(iter(TABLES[name].values())))
    if not tasks.find(name).files:
        (tmp_path / "train.jsonl").unlink()
        assert split_files.find(tasks.find(name), os.fspath(tmp_path)) == {"train": path}


def test_csv_has_quotes_and_gives_the_same_examples(tmp_path):
    columns = TABLES["classification"]
    path = tmp_path / "train.csv"
    path.write_text('sentence,label,id\r\n"A, \u00e4.",yes,7\r\n"B ""b"".",no,8\r\n\r\n')
    assert _read("classification", path) == _read(
        "classification", _jsonl(tmp_path / "a.jsonl", columns)
    )
    found = split_files.find(tasks.find("classification"), os.fspath(tmp_path))
    assert found["train"].endswith(".csv")
    path.write_text('text,label\n"two\nlines",x\n"",y\n')
    with pytest.raises(errors.UserError, match=r"train\.csv:4: the text of 'text' is empty"):
        _read("classification", path)
    path.write_text('text,label\n"two\nlines",x\n')
    assert _read("classification", path)[0].texts == ("two\nlines",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\nA, b,x\n", ":2: the number of cells is 3, but the header has 2; commas "
         "separate cells, so a text with a comma must be quoted"),
        ('text,label\nA,x\n"B" b,x\n', ":3: not valid CSV ("),
        ('text,label\n"A,x\n', ":2: not valid CSV (a quote is never closed, so the rest of"),
        ("text,text\nA,x\n", ":1: the header has column 'text' twice"),
        ("text,label\nA,x\n,\n", ":3: the text of 'text' is empty"),
        ("title,label\nA,x\n", ":2: has no column 'sentence'; its columns are 'title', 'label'"),
    ],
)  # fmt: skip
def test_a_bad_csv_row_is_named(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(errors.UserError) as caught:
        _read("classification", path)
    assert f"{path}{message}" in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_of_classes_become_their_names(tmp_path):
    label = {"names": ["negative", "positive"], "_type": "ClassLabel"}
    columns = {"sentence": ["A.", "B.", "C."], "label": [1, 0, -1]}
    features = {"sentence": {"_type": "Value"}, "label": label}
    path = _parquet(tmp_path / "a.parquet", columns, features)
    assert [r.fields.get("label") for r in readers.records(path)] == ["positive", "negative", None]
    tags = {"names": ["O", "B-PER"], "_type": "ClassLabel"}
    words = {"words": [["Ada", "spoke"], ["Hi"]], "tags": [[1, 0], [0]]}
    expected = _read("ner", _parquet(tmp_path / "n.parquet", TABLES["ner"]))
    sequence, named_list = ({"feature": tags, "_type": kind} for kind in ("Sequence", "List"))
    for feature in (sequence, named_list, [tags]):
        assert _read("ner", _parquet(tmp_path / "b.parquet", words, {"tags": feature})) == expected
    with pytest.raises(errors.UserError, match="if tags are numbers, replace them with their"):
        _read("ner", _parquet(tmp_path / "c.parquet", words, {}))
    with pytest.raises(errors.UserError, match=r"row 2: .*'label' is null, or the class number -1"):
        _read("classification", path)
    columns["label"][0] = 2
    path = _parquet(tmp_path / "d.parquet", columns, {"label": label})
    with pytest.raises(errors.UserError, match=r"row 0: 'label' is 2, but the file names only the"):
        _read("classification", path)


def test_columns_of_bytes_are_ignored_and_missing_values_omitted(tmp_path):
    columns = {"image": [{"bytes": b"\xff" * 9, "path": "a"}] * 2, "raw": [b"\xff"] * 2}
    columns |= {"sentence": ["A.", "B."], "label": ["x", None]}
    path = _parquet(tmp_path / "a.parquet", columns)
    fields = [record.fields for record in readers.records(path)]
    assert fields == [{"sentence": "A.", "label": "x"}, {"sentence": "B."}]
    with pytest.raises(errors.UserError, match=r"row 1: has no 'label': column 'label' is null"):
        _read("classification", path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("half", "is an incomplete Parquet file"),
        ("empty", "the file is empty"),
        ("rows", "contains no rows"),
        ("column", " row 0: has no column 'sentence'; its columns are 'body', 'label'"),
        ("binary", " row 0: column 'sentence' contains bytes, not text or numbers: convert"),
        ("utf8", "contains text that is not UTF-8"),
    ],
)
def test_bad_parquet_is_named(tmp_path, how, message):
    body = {"column": pa.array(["A."]), "binary": pa.array([b"A."]), "rows": pa.array([], "string")}
    raw = pa.array([b"caf\xe9"])
    body["utf8"] = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    name = "sentence" if how in ("binary", "utf8", "rows") else "body"
    columns = {name: body.get(how, ["A."])}
    columns["label"] = ["x"] * len(columns[name])
    path = _parquet(tmp_path / "a.parquet", columns)
    data = open(path, "rb").read()
    if how in ("half", "empty"):
        (tmp_path / "a.parquet").write_bytes(data[: len(data) // 2] if how == "half" else b"")
    with pytest.raises(errors.UserError) as caught:
        _read("classification", path)
    assert message in str(caught.value) and path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_large_table_is_read_in_order(tmp_path):
    rng = random.Random(0)
    numbers = [rng.randrange(1000) for _ in range(3000)]
    columns = {"sentence": [f"No. {n}." for n in numbers], "label": [n % 3 for n in numbers]}
    path = _parquet(tmp_path / "a.parquet", columns)
    records = list(readers.records(path))
    assert [record.fields["sentence"] for record in records] == columns["sentence"]
    assert records[2999].where == f"{path} row 2999"
