"""Queries with candidates: the forms of files, teachers' scores, and bad input."""

import json

import pytest

from bertjax import errors
from bertjax.finetuning import tasks
from bertjax.finetuning.examples import splits

TASK = tasks.find("rerank")


def read(tmp_path, lines, name="a.tsv", split="test"):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (tmp_path / name).write_text("\n".join(texts) + "\n")
    return tasks.read(TASK, str(tmp_path / name), split)


@pytest.mark.parametrize(
    ("name", "lines", "documents", "labels", "teacher"),
    [
        ("a.tsv", ["query\tdocument\tlabel", "q\tx\t0.5"], ("x",), (0.5,), None),
        ("a.tsv", ["query\tpassage", "q\tx"], ("x",), None, None),
        ("a.tsv", ["query\tpositive", "q\tx"], ("x",), (1,), None),
        ("a.tsv", ["query\tpositive\tnegative", "q\tx\ty"], ("x", "y"), (1, 0), None),
        ("a.tsv", ["anchor\tpositive\tnegative_1\tnegative_2", "q\tx\ty\t"], ("x", "y"), (1, 0),
         None),
        ("a.tsv", ["query\tpositive\tnegative\tscore", "q\tx\ty\t3.5"], ("x", "y"), (1, 0),
         (0, -3.5)),
        ("a.tsv", ["query\tpositive\tnegative\tscores", "q\tx\ty\t9.5, 2"], ("x", "y"), (1, 0),
         (9.5, 2)),
        ("a.jsonl", [{"query": "q", "positive": "x", "negatives": ["y", "z"], "score": [1, 2]}],
         ("x", "y", "z"), (1, 0, 0), (0, -1, -2)),
        ("a.jsonl", [{"query": "q", "documents": ["x", "y"], "labels": [0, 1]}], ("x", "y"),
         (0, 1), None),
    ],
)  # fmt: skip
def test_forms_of_files(tmp_path, name, lines, documents, labels, teacher):
    (found,) = read(tmp_path, lines, name)
    assert found[:4] == ("q", documents, labels, teacher)
    assert found.is_labelled() == (labels is not None)
    assert found.unlabelled()[2:4] == (None, None)


@pytest.mark.parametrize(
    ("name", "lines", "says"),
    [
        ("a.tsv", ["query\tdocument", "q\tx"], "a.tsv:2: has no 'label'; its columns are 'query'"),
        ("a.tsv", ["query\tdocument\tlabel", "q\tx\t3"], "a.tsv:2: label 3 is not between 0 "),
        ("a.tsv", ["query\tdocument\tlabel", "q\tx\tno"], "a.tsv:2: label 'no' is not a number"),
        ("a.tsv", ["query\tdocument\tlabel", " \tx\t1"], "a.tsv:2: the text of 'query' is empty"),
        ("a.tsv", ["query\tpositive\tnegative\tscore", "q\tx\ty\t1,2,3"],
         "a.tsv:2: has 3 scores of a teacher for 2 documents"),
        ("a.tsv", ["query\tpositive\tnegative\tnegative_score", "q\tx\ty\t1"],
         "a.tsv:2: this task does not use the column 'negative_score'; give a teacher's scores"),
        ("a.jsonl", [{"query": "q", "documents": ["x", ""], "labels": [0, 1]}],
         "a.jsonl:1: 'documents' must be a list of non-empty texts"),
        ("a.jsonl", [{"query": "q", "documents": ["x", "y"], "labels": [1]}],
         "a.jsonl:1: has 1 labels for 2 documents"),
    ],
)  # fmt: skip
def test_bad_candidates_are_named(tmp_path, name, lines, says):
    with pytest.raises(errors.UserError, match=says):
        read(tmp_path, lines, name, "train")


def test_the_candidates_of_a_query_are_in_one_split(tmp_path):
    rows = [f"q{n % 10}\tx{n}\t{n % 2}" for n in range(60)]
    train, dev = splits.held_out(read(tmp_path, ["query\tdocument\tlabel", *rows]), 0.3)
    assert dev and not {e.query for e in train} & {e.query for e in dev}
