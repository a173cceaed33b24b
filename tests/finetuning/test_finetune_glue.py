"""GLUE as its archive has it, and the files that its leaderboard and SQuAD's take."""

import collections
import json
import os

import pytest

from bertjax import errors
from bertjax.finetuning import split_files, submission, tasks
from bertjax.finetuning.examples.types import Question, Sentence


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def _lines(*rows):
    return "".join(f"{row}\n" for row in rows)


def _read(name, path, split="train", **options):
    return tasks.read(tasks.find(name), os.fspath(path), split, **options)


_MNLI = "\t".join(
    ("index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
     "sentence2_parse sentence1 sentence2 label1").split()
)  # fmt: skip
_STSB = "index genre filename year old_index source1 source2 sentence1 sentence2".replace(" ", "\t")
_STSB_ROW = "3\tnews\tf\t2012\t7\tnone\tnone\tA dog.\tA cat."
_MNLI_ROW = "3\tp\tq\tfiction\tx\tx\tx\tx\tA dog.\tA cat.\tneutral"
_PAIR = ("A dog.", "A cat.")
# Header and row of a train file, its example; header and row of a test file.
LAYOUTS = {
    "cola": (None, "gj04\t0\t*\tDog a.", (("Dog a.",), "unacceptable", ""),
             "index\tsentence", "3\tA dog."),
    "sst2": ("sentence\tlabel", "a fine dog \t1", (("a fine dog ",), "positive", ""),
             "index\tsentence", "3\tA dog."),
    "mrpc": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t4\t5\tA " dog.\tA cat.',
             (('A " dog.', "A cat."), "equivalent", ""),
             "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "3\t4\t5\tA dog.\tA cat."),
    "stsb": (f"{_STSB}\tscore", f"{_STSB_ROW}\t3.800", (_PAIR, 3.8, "3"), _STSB, _STSB_ROW),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "3\t4\t5\tA dog.\tA cat.\t0",
            (_PAIR, "not_duplicate", "3"), "id\tquestion1\tquestion2", "3\tA dog.\tA cat."),
    "mnli": (f"{_MNLI}\tgold_label", f"{_MNLI_ROW}\tcontradiction",
             (_PAIR, "contradiction", "3"),
             _MNLI.removesuffix("\tlabel1"), _MNLI_ROW.removesuffix("\tneutral")),
    "qnli": ("index\tquestion\tsentence\tlabel", "3\tA dog.\tA cat.\tentailment",
             (_PAIR, "entailment", "3"), "index\tquestion\tsentence", "3\tA dog.\tA cat."),
    "rte": ("index\tsentence1\tsentence2\tlabel", "3\tA dog.\tA cat.\tnot_entailment",
            (_PAIR, "not_entailment", "3"), "index\tsentence1\tsentence2", "3\tA dog.\tA cat."),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "3\tA dog.\tA cat.\t1",
             (_PAIR, "entailment", "3"), "index\tsentence1\tsentence2", "3\tA dog.\tA cat."),
}  # fmt: skip
FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "qqp": "QQP",
           "mnli": "MNLI", "qnli": "QNLI", "rte": "RTE", "wnli": "WNLI"}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_glue_is_read_as_its_archive_has_it(tmp_path, name):
    header, row, (texts, label, index), test_header, test_row = LAYOUTS[name]
    middle = "_matched" if name == "mnli" else ""
    root = tmp_path / "glue"
    inner = root / FOLDERS[name]
    rows = [row] if header is None else [header, row]
    for stem in ("train", f"dev{middle}"):
        _write(inner / f"{stem}.tsv", _lines(*rows))
    _write(inner / f"test{middle}.tsv", _lines(test_header, test_row))

    task = tasks.find(name)
    found = split_files.find(task, os.fspath(root))
    assert found == split_files.find(task, os.fspath(inner))
    assert list(found) == ["train", "dev", "test"]
    for split in ("train", "dev"):
        (example,) = tasks.read(task, found[split], split)
        assert example == Sentence(texts, label, index, f"{found[split]}:{len(rows)}")
    (example,) = tasks.read(task, found["test"], "test")
    assert example.label is None and example.id == "3" and example.texts[0] == "A dog."


def test_mnli_has_five_files_to_answer_and_ax_is_one_of_them(tmp_path):
    root = tmp_path / "MNLI"
    for stem in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        _write(root / f"{stem}.tsv", "index\n")
    found = split_files.find(tasks.find("mnli"), os.fspath(tmp_path))
    assert found["test_mismatched"].endswith("test_mismatched.tsv") and len(found) == 5
    _write(tmp_path / "diagnostic" / "diagnostic.tsv", "index\tsentence1\tsentence2\n0\tA.\tB.\n")
    for folder in (tmp_path, root):
        found = split_files.find(tasks.find("mnli"), os.fspath(folder))
        assert list(found)[-1] == "ax" and len(found) == 6
        (example,) = _read("mnli", found["ax"], "ax")
        assert example == Sentence(("A.", "B."), None, "0", f"{found['ax']}:2")


def test_files_with_plain_columns_are_read_by_the_names_of_glue_too(tmp_path):
    path = _write(tmp_path / "a.tsv", "label\tsentence2\tsentence1\nduplicate\tB.\tA.\n1\tB.\tC.\n")
    assert [e.label for e in _read("qqp", path)] == ["duplicate", "duplicate"]
    assert _read("qqp", path)[0].texts == ("A.", "B.")


def test_damaged_rows_of_qqp_are_left_out_of_training_and_counted(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    rows = (header, "1\t2\t3\tA?\tB?\t1", "2\t2\t3\tA?", "3\t2\t3\tA?\t\t0")
    path = _write(tmp_path / "train.tsv", _lines(*rows))
    skipped = collections.Counter()
    assert [e.id for e in _read("qqp", path, skipped=skipped)] == ["1"]
    assert skipped == {
        "rows with more or fewer cells than the header": 1,
        "rows with an empty text": 1,
    }
    with pytest.raises(errors.UserError, match=r"train\.tsv:3"):
        _read("qqp", path)
    path = _write(tmp_path / "test.tsv", _lines("question1\tquestion2\tis_duplicate", "A?\tB?\tx"))
    (found,) = _read("qqp", path, "test", scored=False)
    assert found.label is None and found.texts == ("A?", "B?")
    path = _write(tmp_path / "test.tsv", _lines("question1\tquestion2\tis_duplicate", "A?\tB?\t1"))
    assert _read("qqp", path, "test", scored=False)[0].label == "duplicate"
    # The leaderboard wants an answer to each row of its test data.
    path = _write(tmp_path / "test.tsv", _lines("id\tquestion1\tquestion2", "0\tA?\tB?", "1\tA?\t"))
    assert [e.texts[1] for e in _read("qqp", path, "test")] == ["B?", ""]


# --- submissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split", "file", "labels", "written"),
    [
        ("sst2", "test", "SST-2.tsv", ["positive", "negative"], ["1", "0"]),
        ("qnli", "test", "QNLI.tsv", ["entailment", "not_entailment"], None),
        ("mnli", "test_mismatched", "MNLI-mm.tsv", ["neutral", "contradiction"], None),
        ("mnli", "ax", "AX.tsv", ["neutral", "entailment"], None),
        ("stsb", "test", "STS-B.tsv", [5.3, 2.12345], ["5.000", "2.123"]),
        ("cola:text_to_text", "test", "CoLA.tsv", [None, "acceptable"], ["0", "1"]),
    ],
)
def test_submissions(tmp_path, name, split, file, labels, written):
    examples = [Sentence(("A.",), id="7"), Sentence(("B.",))]
    predictions = [{"label": label} for label in labels]
    path = submission.write(tasks.find(name), tmp_path / "s", examples, predictions, split)
    assert path == os.fspath(tmp_path / "s" / file)
    first, second = written or labels
    assert (tmp_path / "s" / file).read_text() == f"index\tprediction\n7\t{first}\n1\t{second}\n"


def test_submission_of_squad_and_of_what_has_no_leaderboard(tmp_path):
    examples = [Question("q1", "Who?", "Ada."), Question("q2", "Why?", "Ada.")]
    predictions = [{"answer": "Ada"}, {"answer": ""}]
    path = submission.write(tasks.find("squad_v2"), tmp_path, examples, predictions)
    with open(path) as file:
        assert json.load(file) == {"q1": "Ada", "q2": ""}
    predictions[1]["answer"] = "\ud83d"  # half of a character, as a window may cut it
    submission.write(tasks.find("squad_v2"), tmp_path, examples, predictions)
    with open(path) as file:
        assert json.load(file) == {"q1": "Ada", "q2": "\ud83d"}
    with pytest.raises(errors.UserError, match="--task=ner: no leaderboard"):
        submission.write(tasks.find("ner"), tmp_path, [], [])
