"""Overlap: texts of test sets in every format are found in documents, and bad files are named."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bertjax import errors
from bertjax.data.corpus import words
from bertjax.data.prepared import overlap

QUESTION = "Why did the old sailor carry an apple to the small house by the river?"
CONTEXT = "It was a cold morning, and nobody had seen the red boat since the week before last."
ROW = {"question": QUESTION, "meta": {"contexts": ["short", CONTEXT]}, "label": 1}


def _write(path, form):
    if form == "jsonl":
        path.write_text("\n" + json.dumps(ROW) + "\n\n" + json.dumps({"question": "short"}) + "\n")
    elif form == "json":
        path.write_text(json.dumps({"data": [ROW]}, indent=1))
    elif form == "parquet":
        pq.write_table(pa.table({"a": [QUESTION, "short"], "b": [[CONTEXT], None]}), path)
    elif form == "txt":
        path.write_text(f"{QUESTION}\n\n{CONTEXT}\n")
    else:
        with open(path, "w", newline="") as file:
            rows = [["a", "label", "b"], [QUESTION, "1", CONTEXT]]
            if form == "csv":
                csv.writer(file).writerows(rows)
            else:
                file.writelines("\t".join(row) + "\n" for row in rows)


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet", "csv", "tsv", "txt"])
def test_all_texts_of_a_test_set_are_found(tmp_path, form):
    _write(tmp_path / f"a.{form}", form)
    runs = overlap.read([str(tmp_path / f"*.{form}")])
    start, end = CONTEXT.split()[:13], CONTEXT.split()[-13:]
    for part in (QUESTION, " ".join(start), " ".join(end).upper(), "He said: " + "\n".join(end)):
        assert runs.set_of(f"Before that. {part} And after.") == 0, part
    for part in (" ".join(start[:12]) + " other " + " ".join(end[1:]), "", "short", "no " * 20):
        assert runs.set_of(part) == -1, part
    overlap.save(tmp_path / "runs.npz", runs)
    loaded = overlap.load(tmp_path / "runs.npz")
    assert loaded.digest == runs.digest and loaded.set_of(QUESTION) == 0


def test_the_first_test_set_counts(tmp_path):
    (tmp_path / "a.txt").write_text(QUESTION)
    (tmp_path / "b.txt").write_text(f"{QUESTION}\n{CONTEXT}")
    patterns = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    runs = overlap.read(patterns)
    texts = (QUESTION, CONTEXT, f"{CONTEXT} {QUESTION}")
    assert [runs.set_of(text) for text in texts] == [0, 1, 0]
    assert [overlap.read(patterns[::-1]).set_of(text) for text in texts] == [0, 0, 0]
    orders = (patterns, patterns[:1], patterns[::-1])
    assert len({overlap.read(order).digest for order in orders}) == 3


def test_random_documents_overlap_exactly_if_they_share_a_run(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    draw = lambda count: rng.choice(list("abcd"), count).tolist()  # noqa: E731
    test = draw(400)
    (tmp_path / "a.txt").write_text(" ".join(test))
    monkeypatch.setattr(overlap, "RUN", 5)
    monkeypatch.setattr(words, "_PIECE", 7)
    runs = overlap.read([str(tmp_path / "a.txt")])
    known = {tuple(test[i : i + 5]) for i in range(396)}
    results = []
    for _ in range(200):
        text = draw(12)
        expected = any(tuple(text[i : i + 5]) in known for i in range(8))
        assert (runs.set_of(" ".join(text)) == 0) == expected
        results.append(expected)
    assert 20 < sum(results) < 200


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "few words"}\n', "a.jsonl: contains no text of 13 words"),
        ("a.jsonl", b'{"text": "x"}\n{"text": oops}\n', "a.jsonl line 2: not valid JSON"),
        ("a.jsonl", b'\n{"text": "x"}\n{"text": oops}\n', "a.jsonl line 3: not valid JSON"),
        ("a.json", b'\n{\n"a": 1,\n oops}', "a.json line 4: not valid JSON"),
        ("a.txt", b"", "a.txt: the file is empty"),
        ("a.txt", b"caf\xe9", "a.txt:1: is not UTF-8"),
        ("a.csv", b'a\n"open', "a.csv line 2: not valid CSV"),
        ("a.conll", b"a b", "a.conll: is no test set that can be read; give .txt, .jsonl"),
        ("a.parquet", b"", "a.parquet: the file is empty"),
        ("b.txt", b"x", "no such file"),
    ],
)
def test_bad_test_sets_are_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(errors.UserError, match=message) as caught:
        overlap.read([str(tmp_path / name.replace("b.txt", "none.txt"))])
    assert "\n" not in str(caught.value)
