"""Labelled data and flags that contradict themselves, and output that would replace input."""

import json

import pytest

from bertjax import __main__ as cli
from bertjax import errors
from bertjax.finetuning import data_warnings, run
from bertjax.finetuning.examples import readers, types
from tests.helpers import toy_tasks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("toys"))


def _examples(*rows: tuple[str, str]) -> list[types.Sentence]:
    return [
        types.Sentence((text,), label, where=f"a.tsv:{number}")
        for number, (text, label) in enumerate(rows, 2)
    ]


def test_texts_with_two_labels_are_told():
    train = _examples(("A b", "x"), ("a  B", "y"), ("c", "x"), ("c", "x"))
    (line,) = data_warnings.contradictions(train)
    assert line.startswith("1 of 4 examples of train have the text of an earlier one and another ")
    assert "the first at a.tsv:3" in line
    assert not data_warnings.contradictions(train[2:])


def test_a_positive_that_is_a_negative_is_told():
    train = [
        types.Sentence(("a", "b", "c", "b"), where="a.jsonl:1"),
        types.Sentence(("a", "b", "c")),
    ]
    (line,) = data_warnings.negatives(train)
    assert line.startswith("1 of 2 examples") and "the first at a.jsonl:1" in line
    assert not data_warnings.negatives(train[1:])


def test_a_missing_negative_is_told():
    train = [types.Sentence(("a", "b", "c")), types.Sentence(("a", "b"), where="a.jsonl:2")]
    (line,) = data_warnings.negatives(train)
    assert line.startswith("1 of 2 examples of train have no negative, the first at a.jsonl:2")
    assert not data_warnings.negatives(train[1:])


def test_labels_that_look_alike_are_told():
    rows = [("a", "Play"), ("b", "play"), ("c", "caf\u00e9"), ("d", "cafe\u0301"), ("e", "stop")]
    (line,) = data_warnings.labels(_examples(*rows), [label for _, label in rows])
    assert "'Play' and 'play', 'cafe\\u0301' and 'caf\\xe9': correct them" in line
    assert not data_warnings.labels(_examples(*rows[3:]), ["cafe\u0301", "stop"])


def test_a_whole_number_is_a_label_also_as_a_float():
    record = readers.Record("a.jsonl:1", {}, ())
    assert [readers.name(record, value) for value in (1.0, 1, "1 ", True)] == [
        "1",
        "1",
        "1",
        "true",
    ]
    for value in (0.5, float("nan"), None):
        with pytest.raises(errors.UserError, match="neither a name nor a whole number"):
            readers.name(record, value)


def test_words_are_not_read_from_csv(root, tmp_path):
    (tmp_path / "a.csv").write_text("word,tag\nAda,B-PER\n")
    conf = toy_tasks.config("ner", root / "model", root)
    conf.data.train = str(tmp_path / "a.csv")
    with pytest.raises(errors.UserError, match=r"a\.csv: words with tags are not read from \.csv"):
        run.finetune(conf, tmp_path / "out")


def test_too_few_examples_for_folds_are_not_advised_a_dev_file(root, tmp_path):
    (tmp_path / "a.tsv").write_text("sentence\tlabel\ncat\tcat\n")
    conf = toy_tasks.config("classification", root / "model", root)
    conf.data.update(train=str(tmp_path / "a.tsv"), dev="", folds=5)
    with pytest.raises(errors.UserError, match=r"it has 1 example .*; give more examples"):
        run.finetune(conf, tmp_path / "out")


def test_tags_that_cannot_be_split_are_not_looked_for_in_a_column(root, tmp_path):
    (tmp_path / "a.conll").write_text("Ada\tO\n\n")
    conf = toy_tasks.config("ner", root / "model", root)
    conf.data.update(train=str(tmp_path / "a.conll"), dev="", test="")
    with pytest.raises(errors.UserError, match=r"it has 1 example with 1 label; give --dev=FILE$"):
        run.finetune(conf, tmp_path / "out")


def test_blank_lines_of_a_text_file_are_told(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo\n\n")
    assert [text for _, text in readers.plain(str(tmp_path / "a.txt"))] == ["one", "two"]
    assert "a.txt: 2 blank lines, left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["predict", "--data=FILE", "--output=FILE"],
        ["evaluate", "--data=FILE", "--json=FILE"],
        ["embed", "--data=FILE", "--output=FILE"],
        ["mine", "--data=FILE", "--output=FILE"],
        ["mine", "--data=other.tsv", "--corpus=FILE", "--output=FILE"],
    ],
)
def test_an_input_is_not_replaced_by_the_output(flags, root, tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"sentence": "cat", "label": "cat"}) + "\n")
    before = file.read_bytes()
    words = [word.replace("FILE", str(file)) for word in flags]
    assert cli.main([*words, f"--model={root / 'model'}"]) == errors.EXIT_BAD_INPUT
    assert "is the file of --" in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("flag", "override"),
    [
        ("--lr=3e-4", "--config.learning_rates=1e-4"),
        ("--strategy=lora", "--config.strategy.name=full"),
        ("--seeds=3", "--config.seeds=2"),
        ("--train=a.tsv", "--config.data.train=b.tsv"),
    ],
)
def test_two_flags_for_one_key_must_agree(flag, override, capsys):
    words = ["finetune", "--task=classification", "--output=out/", "--print_config", flag]
    assert cli.main([*words, override]) == errors.EXIT_BAD_INPUT
    message = capsys.readouterr().err
    assert f"{override}: another flag gives {flag.partition('=')[2]} for this key" in message


def test_folds_do_not_start_in_the_folder_of_another_finetuning(root, tmp_path):
    values = {"seeds": 1, "num_epochs": 1, "learning_rates": "1e-2"}
    run.finetune(toy_tasks.config("classification", root / "model", root, **values), tmp_path / "o")
    folds = toy_tasks.config("classification", root / "model", root, **values)
    folds.data.update(folds=3, dev="")
    with pytest.raises(errors.UserError, match="belongs to a fine-tuning without folds"):
        run.finetune(folds, tmp_path / "o")
    assert not (tmp_path / "o" / "folds").exists()
