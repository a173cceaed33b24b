"""`bertjax mine` on files: its output is read by --task=embeddings, and bad input is one line."""

import json

import pytest

from bertjax import __main__ as cli
from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning import tasks
from tests.helpers import tiny_model

PAIRS = "anchor\tpositive\nthe cat\tthe mat\na dog\tran home\nletters\tmany words\n"
CORPUS = [
    {"_id": "1", "title": "", "text": "the mat"},
    {"_id": "2", "title": "A", "text": "dog sat"},
    {"_id": "3", "text": "home"},
    {"_id": "4", "text": "The  Mat"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "artifact"
    artifact.write(tiny_model.make(), path)
    return path


@pytest.fixture
def mine(model, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("BERTJAX_TRACEBACK", raising=False)
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(r) + "\n" for r in CORPUS))

    def run(*flags, data="pairs.tsv", output="out.jsonl"):
        code = cli.main(["mine", f"--model={model}", f"--data={tmp_path / data}",
                         f"--output={tmp_path / output}", *flags])  # fmt: skip
        out, err = capsys.readouterr()
        return code, out, [line for line in err.splitlines() if "error" in line]

    return run


ALL = ("--relative_margin=0", "--margin=0")


def test_mined_triplets_are_read_as_embeddings(mine, tmp_path):
    code, out, _ = mine(f"--corpus={tmp_path / 'corpus.jsonl'}", "--num_negatives=2", *ALL)
    assert code == 0 and out.splitlines()[0].endswith(f"of 3 pairs in {tmp_path / 'out.jsonl'}")
    found = tasks.read(tasks.find("embeddings"), str(tmp_path / "out.jsonl"), "train")
    assert [example.texts[:2] for example in found] == [
        ("the cat", "the mat"), ("a dog", "ran home"), ("letters", "many words")
    ]  # fmt: skip
    assert any(len(example.texts) > 2 for example in found)
    negatives = [set(example.texts[2:]) for example in found]
    assert set.union(*negatives) <= {"the mat", "The  Mat", "A dog sat", "home"}
    assert not negatives[0] & {"the mat", "The  Mat"}


def test_without_a_corpus_the_second_texts_are_searched(mine, tmp_path):
    assert mine(*ALL)[0] == 0
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record.pop("negative", "ran home") in {"the mat", "ran home", "many words"}
        assert list(record) == ["anchor", "positive"]


def test_bad_input_is_one_line(mine, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\n")
    (tmp_path / "bad.jsonl").write_text('{"body": "x"}\n')
    for flags, options, expected in (
        ((), {"output": "out.tsv"}, "out.tsv: must end in .jsonl"),
        (("--max_rank=0",), {}, "--max_rank=0: must be 1 (--min_rank) or more"),
        (("--corpus_column=x",), {}, "--corpus_column can only be used with --corpus"),
        ((f"--corpus={tmp_path / 'bad.jsonl'}",), {}, "bad.jsonl:1: has no 'text'; its columns "
         "are 'body': name one as --corpus_column=NAME"),
        ((), {"data": "texts.txt"}, "texts.txt"),
    ):  # fmt: skip
        code, _, lines = mine(*flags, **options)
        assert code == errors.EXIT_BAD_INPUT and len(lines) == 1 and expected in lines[0]
