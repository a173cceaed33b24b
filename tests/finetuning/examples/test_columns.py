"""Files as they come: columns with other names, columns that are not read, folders of shards."""

import json
import os

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from bertjax import errors
from bertjax.finetuning import split_files, tasks
from bertjax.finetuning.examples import readers
from bertjax.finetuning.examples.types import Choice, Question, Sentence, TextPair, Words

REVIEWS = "review,stars,date\ngood,1,May\nbad,0,June\n"


def _write(path, *rows):
    """Writes a text, or rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else f"{json.dumps(row)}\n" for row in rows]
    path.write_text("".join(lines))
    return os.fspath(path)


def _read(name, path, text="", label="", split="train"):
    task = tasks.with_columns(tasks.find(name), [path], text, label)
    return [example._replace(where="") for example in tasks.read(task, path, split)]


ANSWERS = {"text": ["Ada"], "answer_start": [0]}
NAMED = [
    ("classification", "body", "mood", {"body": "A.", "mood": "x"}, Sentence(("A.",), "x")),
    ("pair", "p,h", "gold", {"p": "A.", "h": "B.", "gold": "x"}, Sentence(("A.", "B."), "x")),
    ("rte", "h, p", "", {"p": "A.", "h": "B.", "label": 0}, Sentence(("B.", "A."), "entailment")),
    ("regression", "t", "n", {"t": "A.", "n": 2, "sentence1": "B."}, Sentence(("A.",), 2.0)),
    ("multi_label", "t", "all", {"t": "A.", "all": ["x", "y"]}, Sentence(("A.",), ("x", "y"))),
    ("embeddings", "q,d", "", {"q": "A.", "d": "B.", "score": 1}, Sentence(("A.", "B."))),
    ("embeddings", "", "", {"anchor": "A.", "positive": "B.", "negative_1": "C.",
     "negatives": ["D.", "E."]}, Sentence(("A.", "B.", "C.", "D.", "E."))),
    ("embeddings", "q,d,n", "", {"q": "A.", "d": "B.", "n": ["C.", "D."], "negative": "E."},
     Sentence(("A.", "B.", "C.", "D."))),
    ("embedding_distillation", "", "", {"query": "A.", "positive": "B.", "negative": "C.",
     "positive_score": 9, "negative_score": 2.5}, Sentence(("A.", "B.", "C."), (9.0, 2.5))),
    ("embedding_distillation", "a,b,c", "s", {"a": "A.", "b": "B.", "c": "C.", "s": 6.5},
     Sentence(("A.", "B.", "C."), 6.5)),
    ("similarity", "q,d", "s", {"q": "A.", "d": "B.", "s": 1}, Sentence(("A.", "B."), 1.0)),
    ("ner", "w", "t", {"w": ["Ada"], "t": ["B-PER"]}, Words(("Ada",), ("B-PER",))),
    ("squad", "q,c", "a", {"q": "Who?", "c": "Ada spoke.", "a": ANSWERS},
     Question("0", "Who?", "Ada spoke.", (("Ada", 0),))),
    ("summarization", "article", "highlights", {"article": "A B.", "highlights": "B."},
     TextPair("A B.", ("B.",))),
    ("multiple_choice", "ctx,endings", "gold", {"ctx": "It", "endings": ["is", "as"], "gold": 1},
     Choice("It", ("is", "as"), 1)),
    ("multiple_choice", "p,q,o", "", {"p": "It.", "q": "Why?", "o": ["a", "b"], "label": 1},
     Choice("It. Why?", ("a", "b"), 1, passage="It.")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "label", "row", "expected"), NAMED)
def test_columns_are_named_for_every_type_of_example(tmp_path, name, text, label, row, expected):
    assert _read(name, _write(tmp_path / "a.jsonl", row), text, label) == [expected]
    table = pa.Table.from_pylist([row])
    pq.write_table(table, tmp_path / "a.parquet")
    assert _read(name, os.fspath(tmp_path / "a.parquet"), text, label) == [expected]


def test_a_file_whose_header_is_named_needs_no_usual_names(tmp_path):
    path = _write(tmp_path / "a.tsv", "review\tverdict\nA.\t1\n")  # cola's files have no header
    assert _read("cola", path, "review", "verdict")[0].label == "acceptable"
    path = _write(tmp_path / "pandas.csv", ",text,label\n0,A.,x\n")
    assert _read("classification", path) == [Sentence(("A.",), "x")]


@pytest.mark.parametrize(
    ("name", "file", "text", "label", "message"),
    [
        ("classification", "a.csv", "", "", "a.csv:2: has no column 'sentence'; its columns are "
         "'review', 'stars', 'date'; name yours as --text_column=NAME (a TSV or CSV file begins"),
        ("classification", "a.csv", "reveiw", "", "a.csv:2: has no column 'reveiw'; its columns "
         "are 'review', 'stars', 'date'; did you mean 'review'?; name yours as"),
        ("classification", "a.csv", "review", "star", "a.csv:2: has no 'star'; its columns are "
         "'review', 'stars', 'date'; did you mean 'stars'?; name yours as --label_column=NAME"),
        ("pair", "a.csv", "", "", "name yours as --text_column=NAME1,NAME2"),
        ("pair", "a.csv", "review", "", "--text_column=review: the task reads 2 text column(s): "
         "give as many different names, separated by commas, as in sentence1,sentence2"),
        ("regression", "a.csv", "a,b,c", "", "the task reads 1 or 2 text column(s)"),
        ("pair", "a.csv", "a,a", "", "different names"),
        ("embeddings", "a.csv", "review", "", "the task reads 2 or more text column(s)"),
        ("embeddings", "d.jsonl", "", "", "d.jsonl:1: 'negative' must be a non-empty text or a list"
         " of such texts, but contains ' '"),
        ("embeddings", "e.csv", "", "", "e.csv:3: 'negative' is empty: fill it or remove the row"),
        ("embeddings", "f.csv", "", "", "f.csv:2: this task does not use the column 'score'; use "
         "--task=similarity or --task=regression, or --task=embedding_distillation"),
        ("embeddings", "g.csv", "", "", "g.csv:2: this task does not use the column "
         "'negative_score'; use --task=embedding_distillation for the scores of a teacher"),
        ("embedding_distillation", "h.csv", "", "", "h.csv:2: has no 'scores'"),
        ("embeddings", "a.csv", "review,date", "stars", "--label_column=stars: the task embeddings "
         "has no labels"),
        ("ner", "a.conll", "words", "", "a.conll has no columns with names; remove the flag"),
        ("squad", "a.json", "", "x", "--label_column=x: "),
        ("classification", "b.csv", "", "", "its columns are 'text;label', so its cells may be "
         "separated by semicolons: .csv needs commas"),
        ("multiple_choice", "a.jsonl", "", "", "a.jsonl:1: has no column 'question'; its columns "
         "are 'text', 'label'; did you mean 'text'?; name yours as --text_column=NAME1,NAME2"),
        ("classification", "a.jsonl", "", "", "a.jsonl:1: column 'text' is null: fill it or"),
        ("classification", "c.json", "", "", "c.json:1: is a JSON list, not an object; each line"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(tmp_path, name, file, text, label, message):
    files = {
        "a.csv": REVIEWS, "b.csv": "text;label\nA.;x\n", "a.conll": "Ada B-PER\n",
        "a.json": '{"data": []}', "a.jsonl": '{"text": null, "label": "x"}\n', "c.json": "[{}]",
        "d.jsonl": '{"anchor": "A.", "positive": "B.", "negative": ["C.", " "]}\n',
        "e.csv": "anchor,positive,negative\nA.,B.,C.\nA.,B.,\n",
        "f.csv": "anchor,positive,score\nA.,B.,1\n",
        "h.csv": "anchor,positive,negative\nA.,B.,C.\n",
        "g.csv": "anchor,positive,negative,negative_score\nA.,B.,C.,1\n",
    }  # fmt: skip
    path = _write(tmp_path / file, files[file])
    with pytest.raises(errors.UserError) as caught:
        _read(name, path, text, label)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert "TSV or CSV" not in str(caught.value) or file.endswith(".csv")


def test_examples_have_different_numbers_of_negatives(tmp_path):
    path = _write(tmp_path / "a.csv", "anchor,positive,negative_1,negative_2\nA,B,C,D\nE,F,,G\n")
    texts = [example.texts for example in _read("embeddings", path)]
    assert texts == [("A", "B", "C", "D"), ("E", "F", "G")]
    columns = {"anchor": ["A"], "positive": ["B"], "negative": [b"C"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(errors.UserError, match="row 0: column 'negative' contains bytes"):
        _read("embeddings", os.fspath(tmp_path / "a.parquet"))


def test_scores_of_a_teacher_are_lists_or_separated_by_commas(tmp_path):
    header = "anchor\tpositive\tnegative_1\tnegative_2\tscores\n"
    path = _write(tmp_path / "a.tsv", f"{header}A\tB\tC\tD\t3,2,-1\n")
    row = {"anchor": "A", "positive": "B", "negatives": ["C", "D"], "scores": [3, 2, -1]}
    lists = _write(tmp_path / "a.jsonl", row, {**row, "scores": [3, "x", 1]})
    expected = Sentence(("A", "B", "C", "D"), (3.0, 2.0, -1.0))
    assert _read("embedding_distillation", path) == [expected]
    with pytest.raises(errors.UserError, match=r"a\.jsonl:2: label 'x' is not a number"):
        _read("embedding_distillation", lists)


def test_unused_columns_are_listed(tmp_path):
    def unused(name, path, *named):
        return tasks.unused_columns(tasks.with_columns(tasks.find(name), [path], *named), [path])

    path = _write(tmp_path / "a.csv", REVIEWS)
    line = "columns that are not used: 'date'"
    assert unused("classification", path, "review", "stars") == line
    rows = [{"words": ["A"], "tags": ["O"], "text": "A", "id": 1}, {"words": ["A"], "pos": ["N"]}]
    path = _write(tmp_path / "a.jsonl", *rows)
    assert unused("ner", path, "", "") == "columns that are not used: 'pos'"
    assert unused("ner", _write(tmp_path / "a.conll", "Ada B-PER\n"), "", "") == ""
    path = _write(tmp_path / "glue.tsv", "genre\tquestion\tsentence\nx\tA?\tB.\n")
    assert unused("qnli", path, "", "") == ""  # the published files have columns of no use
    assert unused("pair", path, "", "") == "columns that are not used: 'genre'"


def test_only_columns_in_use_are_read_from_parquet(tmp_path):
    columns = {"text": ["A."], "label": ["x"], "vector": [[0.5] * 9], "raw": [b"A"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    reads = tasks.find("classification").columns.reads
    (record,) = readers.records(os.fspath(tmp_path / "a.parquet"), reads=reads)
    assert record.fields == {"text": "A.", "label": "x"} and record.columns == tuple(columns)


# --- folders --------------------------------------------------------------------------------------


def _shard(path, text, label=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {"names": ["negative", "positive"], "_type": "ClassLabel"}
    info = json.dumps({"info": {"features": {"sentence": {"_type": "Value"}, "label": names}}})
    table = pa.table({"sentence": [text], "label": [label]})
    pq.write_table(table.replace_schema_metadata({"huggingface": info}), path)


@pytest.mark.parametrize("inner", ["data", "", "plain_text"])
@pytest.mark.parametrize("task", ["classification", "sst2"])
def test_shards_of_a_hugging_face_folder(tmp_path, task, inner):
    root = tmp_path / "a[1]"  # a name that is a glob
    for i, text in enumerate(("A.", "B.")):
        _shard(root / inner / f"train-0000{i}-of-00002.parquet", text)
    _shard(root / inner / "validation-00000-of-00001-ab12.parquet", "C.", 0)
    _shard(root / inner / "test-00000-of-00001.parquet", "D.", -1)
    found = split_files.find(tasks.find(task), os.fspath(root))
    assert found.keys() == {"train", "dev", "test"}
    train, dev, test = (_read(task, found[split], split=split) for split in found)
    assert train == [Sentence(("A.",), "positive"), Sentence(("B.",), "positive")]
    assert dev == [Sentence(("C.",), "negative")] and test == [Sentence(("D.",))]
    (root / inner / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(errors.UserError, match=r"1 of 2 files are missing, the first is .*00-of"):
        _read(task, found["train"])


def test_what_datasets_saves_to_disk(tmp_path):
    names = {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "List"}
    info = json.dumps({"info": {"features": {"ner_tags": names}}})
    columns = {"tokens": [["Ada", "spoke"], ["Hi"]], "ner_tags": [[1, 0], [0]], "raw": [b"", b""]}
    table = pa.table(columns).replace_schema_metadata({"huggingface": info})
    path = tmp_path / "train" / "data-00000-of-00001.arrow"
    path.parent.mkdir()
    with pa.OSFile(os.fspath(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=1)
    found = split_files.find(tasks.find("ner"), os.fspath(tmp_path))
    expected = [Words(("Ada", "spoke"), ("B-PER", "O")), Words(("Hi",), ("O",))]
    assert _read("ner", found["train"]) == expected
    assert tasks.unused_columns(tasks.find("ner"), found.values()).endswith("not used: 'raw'")
    data = path.read_bytes()
    damaged = bytes(200) + data[-8:]
    for content, message in (
        (data[:-8], "is incomplete: its end is missing"),
        (data[:8] + damaged, r"corrupt \("),
        (b"", "the file is empty"),
        (b"a text", "is not an Arrow stream"),
        (b"PAR1\0", "is a Parquet file, but must be Arrow stream"),
    ):
        path.write_bytes(content)
        with pytest.raises(errors.UserError, match=message):
            _read("ner", os.fspath(path))


def test_other_layouts_of_folders(tmp_path):
    def found(name, task="classification"):
        files = split_files.find(tasks.find(task), os.fspath(tmp_path / name))
        return {split: os.path.relpath(path, tmp_path / name) for split, path in files.items()}

    for name in ("train/0000.parquet", "train/0001.parquet", "test/0000.parquet"):
        _shard(tmp_path / "a" / name, "A.")
    assert found("a") == {"train": "train/*.parquet", "test": "test/*.parquet"}
    for name in ("train", "validation_matched", "validation_mismatched", "test_matched"):
        _shard(tmp_path / "b" / f"{name}-00000-of-00001.parquet", "A.")
    assert list(found("b", "mnli")) == ["train", "dev", "test", "dev_mismatched"]
    for name in ("train.csv", "val.csv"):
        _write(tmp_path / "c" / "data" / name, REVIEWS)
    assert found("c") == {"train": "data/train.csv", "dev": "data/val.csv"}
    for name in ("de", "fr"):
        _write(tmp_path / "d" / name / "train.json", {"text": "A.", "label": 1})
    with pytest.raises(errors.UserError, match=r"several .* \(de, fr\); .* --data=.*/d/de$"):
        found("d")
    _write(tmp_path / "e" / "notes.txt", "A.")
    with pytest.raises(errors.UserError, match=r"no train file .* \(train\.tsv, .*, or shards"):
        found("e")


def test_a_glob_is_one_file(tmp_path):
    for i in range(3):
        _write(tmp_path / f"part{i}.jsonl", {"text": f"{i}.", "label": i})
    examples = _read("classification", os.fspath(tmp_path / "part*.jsonl"))
    assert [example.texts[0] for example in examples] == ["0.", "1.", "2."]
    with pytest.raises(errors.UserError, match=r"x\*\.jsonl: no such file"):
        _read("classification", os.fspath(tmp_path / "x*.jsonl"))
