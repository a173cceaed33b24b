"""Collections in BEIR's layout and runs in TREC's format: what is read, refused and written."""

import json

import pytest

from bertjax import errors
from bertjax.data.corpus import beir, trec_runs


def write(root, corpus=(), queries=(), qrels=(), split="test"):
    """Writes a collection of two documents and two queries, and more lines."""
    (root / "qrels").mkdir(exist_ok=True)
    corpus = [{"_id": "d1", "title": " Ada ", "text": "wrote it."}, {"_id": "d2", "text": ""},
              *corpus]  # fmt: skip
    queries = [{"_id": "q1", "text": "Who?"}, {"_id": 2, "text": "When?"}, *queries]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (root / f"{name}.jsonl").write_text("\n".join(texts) + "\n")
    lines = ["query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\td2\t0", *qrels]
    (root / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return root


def test_documents_queries_and_judgements(tmp_path):
    found = beir.read(write(tmp_path, qrels=["2\td1\t1.0"]), "test")
    assert {name: text for name, (text, _) in found.documents.items()} == {
        "d1": "Ada wrote it.", "d2": ""
    }  # fmt: skip
    assert found.queries["2"] == ("When?", f"{tmp_path}/queries.jsonl:2")
    assert found.qrels == {"q1": {"d1": 2, "d2": 0}, "2": {"d1": 1}}
    assert not beir.read(tmp_path, "").qrels


def test_a_split_is_found_by_name_or_by_its_file(tmp_path):
    write(tmp_path, split="validation")
    by_name, by_file = beir.read(tmp_path, "dev"), tmp_path / "qrels" / "validation.tsv"
    assert by_name.qrels == beir.read(by_file, "ignored").qrels
    assert beir.is_collection(tmp_path) and beir.is_collection(by_file)
    assert not beir.is_collection(tmp_path / "qrels") and not beir.is_collection("tfds:nq")
    with pytest.raises(errors.UserError, match=r"qrels/test.tsv: .*splits are validation"):
        beir.read(tmp_path, "test")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ({"qrels": ["q1\td9\t1"]}, "qrels/test.tsv:4: there is no document 'd9' in corpus.jsonl"),
        ({"qrels": ["q9\td1\t1"]}, "qrels/test.tsv:4: there is no query 'q9' in queries.jsonl"),
        ({"qrels": ["q1\td1\t1"]}, "qrels/test.tsv:4: 'd1' is judged twice for 'q1'"),
        ({"qrels": ["2\td1\t0.5"]}, "qrels/test.tsv:4: the score '0.5' is not an integer"),
        ({"qrels": ["2 d1 1"]}, "qrels/test.tsv:4: has 1 cells, separated by tabs"),
        ({"queries": [{"_id": "q3", "text": " "}]}, "queries.jsonl:3: the query is empty"),
        ({"queries": [{"_id": "q1", "text": "a"}]},
         "queries.jsonl:3: the id 'q1' is also that of .*queries.jsonl:1"),
        ({"corpus": [{"_id": "d1", "text": "a"}]}, "corpus.jsonl:3: the id 'd1' is also"),
        ({"corpus": [{"_id": "a b", "text": "a"}]}, "corpus.jsonl:3: the id 'a b' .*white space"),
        ({"corpus": [{"text": "a"}]}, "corpus.jsonl:3: '_id' must be a string, not None"),
        ({"corpus": [{"_id": "d3", "text": 3}]}, "corpus.jsonl:3: 'text' must be a string, not 3"),
        ({"corpus": ["{"]}, "corpus.jsonl:3: is not JSON"),
    ],
)  # fmt: skip
def test_bad_collections_are_named(tmp_path, lines, says):
    with pytest.raises(errors.UserError, match=says):
        beir.read(write(tmp_path, **lines), "test")


def test_qrels_need_a_header_and_a_relevant_document(tmp_path):
    file = write(tmp_path) / "qrels" / "test.tsv"
    file.write_text("q1\td1\t1\n")
    with pytest.raises(errors.UserError, match=r"test.tsv:1: the first line must be query-id"):
        beir.read(tmp_path, "test")
    file.write_text("query-id\tcorpus-id\tscore\nq1\td1\t0\n")
    with pytest.raises(errors.UserError, match="contains no relevant document"):
        beir.read(tmp_path, "test")


def test_a_run_comes_back_in_the_order_of_trec_eval(tmp_path):
    collection, file = beir.read(write(tmp_path), "test"), tmp_path / "a.trec"
    third = 1 / 3
    trec_runs.write(file, {"q1": {"d1": third, "d2": third + 1e-10}, "2": {"d1": -1.0}})
    assert file.read_text().splitlines()[:2] == [
        "q1 Q0 d2 1 0.333333333 bertjax", "q1 Q0 d1 2 0.333333333 bertjax"
    ]  # fmt: skip
    found = trec_runs.read(str(file), collection)
    assert list(found) == ["q1", "2"] and found["2"] == {"d1": -1.0}
    assert trec_runs.best({"d1": third, "d2": third + 1e-10, "d3": 0.4}) == ["d3", "d2", "d1"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("q1 Q0 d9 1 0.5 x", "a.trec:2: there is no document 'd9'"),
        ("q9 Q0 d1 1 0.5 x", "a.trec:2: there is no query 'q9'"),
        ("q1 Q0 d1 1 0.5 x", "a.trec:2: 'd1' occurs twice for 'q1'"),
        ("q1 Q0 d2 1 nan x", "a.trec:2: the score 'nan' is not a number"),
        ("q1 d2 0.5", "a.trec:2: has 3 columns"),
    ],
)
def test_bad_runs_are_named(tmp_path, line, says):
    file = tmp_path / "a.trec"
    file.write_text(f"q1 Q0 d1 1 0.9 x\n{line}\n")
    with pytest.raises(errors.UserError, match=says):
        trec_runs.read(str(file), beir.read(write(tmp_path), "test"))
