"""Reading labelled data: every layout that is named, and one line for whatever is wrong."""

import gzip
import io
import json
import os

import numpy as np
import pytest

from bertjax import errors
from bertjax.data.corpus import indexed
from bertjax.finetuning import split_files, task_types, tasks
from bertjax.finetuning.examples.types import Choice, Sentence, TextPair


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _lines(*rows):
    return "".join(f"{row}\n" for row in rows)


def _read(name, path, split="train", **options):
    return tasks.read(tasks.find(name), os.fspath(path), split, **options)


def _bare(examples):
    """The examples without where they were found."""
    return [example._replace(where="") for example in examples]


@pytest.mark.parametrize("name", ["classification", "embeddings"])  # from elsewhere, the first
def test_models_that_take_any_texts_read_single_ones_and_pairs(tmp_path, name):
    task = tasks.answered(name, any_texts=True)
    for columns, texts in (("sentence1\tsentence2", ("a", "b")), ("text\tx", ("a",))):
        (tmp_path / "a.tsv").write_text(f"{columns}\tlabel\na\tb\tyes\n")
        assert tasks.read(task, str(tmp_path / "a.tsv"), "test")[0].texts == texts
    assert tasks.answered("classification", any_texts=False) == tasks.find("classification")


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_has_a_kind_that_takes_its_options(name):
    task = tasks.find(name)
    assert task.name == name and task.metrics and task.max_length > 0
    task_types.load(task.kind).Config(**task.options)
    assert not task.spelling or tuple(task.spelling) == task.labels
    assert task.numbers == (task.metrics[0] in ("spearman", "pearson"))


def test_tasks_are_found_by_name_or_refused_with_the_names():
    said = r"--task=sst-2: did you mean sst2\? the tasks are classification, .*, sst2"
    with pytest.raises(errors.UserError, match=said):
        tasks.find("sst-2")
    with pytest.raises(errors.UserError, match="sst2:lm"):
        tasks.find("sst2:lm")
    with pytest.raises(errors.UserError, match="embeddings has no text-to-text form"):
        tasks.find("embeddings:text_to_text")


@pytest.mark.parametrize(
    ("name", "options", "metrics"),
    [
        ("sst2", {"task": "sst2"}, ("accuracy",)),
        ("stsb", {"task": "stsb"}, ("spearman", "pearson")),
        ("ner", {}, ("f1", "precision", "recall")),
        ("squad_v2", {}, ("f1", "exact_match")),
    ],
)
def test_a_task_in_words(name, options, metrics):
    task = tasks.find(f"{name}:text_to_text")
    assert (task.kind, task.options, task.metrics) == ("text_to_text", options, metrics)
    task_types.load(task.kind).Config(**task.options)
    assert task.labels == tasks.find(name).labels


# --- other forms ----------------------------------------------------------------------------------


def test_jsonl_and_tsv_say_the_same(tmp_path):
    rows = [{"sentence": "A caf\u00e9.", "label": "yes", "id": 4}, {"sentence": "B.", "label": 7}]
    json_lines = _write(tmp_path / "a.jsonl", _lines(*map(json.dumps, rows)) + "\n")
    expected = [Sentence(("A caf\u00e9.",), "yes", "4"), Sentence(("B.",), "7")]
    assert _bare(_read("classification", json_lines)) == expected
    table = "id\tlabel\tsentence\r\n4\tyes\tA caf\u00e9.\r\n\t7\tB.\r\n\r\n".encode()
    assert _bare(_read("classification", _write(tmp_path / "a.tsv", table))) == expected
    packed = _write(tmp_path / "a.tsv.gz", gzip.compress(table))
    assert _bare(_read("classification", packed)) == expected


def test_labels_that_are_numbers_in_json_count_from_zero(tmp_path):
    rows = [{"question": "A?", "sentence": "B.", "label": label} for label in (1, 0)]
    path = _write(tmp_path / "a.jsonl", _lines(*map(json.dumps, rows)))
    assert [e.label for e in _read("qnli", path)] == ["not_entailment", "entailment"]
    path = _write(tmp_path / "a.jsonl", json.dumps(rows[0] | {"label": -1}))
    assert _read("qnli", path, "test")[0].label is None
    path = _write(tmp_path / "a.tsv", "question\tsentence\tlabel\nA?\tB.\t-1\n")
    assert _read("qnli", path, "test")[0].label is None
    scored = {"sentence1": "A", "sentence2": "B", "label": -1.0}
    path = _write(tmp_path / "a.jsonl", json.dumps(scored))
    assert _read("stsb", path, "test")[0].label is None
    assert _read("regression", path, "test")[0].label == -1
    path = _write(tmp_path / "a.jsonl", json.dumps(rows[0] | {"label": 2}))
    with pytest.raises(errors.UserError, match="label '2' is not a label of the task qnli"):
        _read("qnli", path)


def test_text_pairs_have_one_target_or_more(tmp_path):
    rows = [
        {"source": "Hi.", "target": "Hola.", "targets": ["Hola.", "Buenas."]},
        {"source": "No.", "target": "No."},
    ]
    path = _write(tmp_path / "a.jsonl", _lines(*map(json.dumps, rows)))
    assert _bare(_read("translation", path)) == [
        TextPair("Hi.", ("Hola.", "Buenas.")),
        TextPair("No.", ("No.",)),
    ]
    path = _write(tmp_path / "a.tsv", "source\ttarget\nHi.\tHola.\n")
    assert _bare(_read("translation", path)) == [TextPair("Hi.", ("Hola.",))]
    assert _bare(_read("embeddings", path)) == [Sentence(("Hi.", "Hola."))]


def test_choices(tmp_path):
    rows = [
        {"context": "It rained.", "question": "Why?", "choices": ["Clouds.", "Sun."], "label": 0},
        {"question": "Who?", "choices": ["Ada.", "Bob.", "Cy."], "label": 2},
    ]
    path = _write(tmp_path / "a.jsonl", _lines(*map(json.dumps, rows)))
    assert _bare(_read("multiple_choice", path)) == [
        Choice("It rained. Why?", ("Clouds.", "Sun."), 0, passage="It rained."),
        Choice("Who?", ("Ada.", "Bob.", "Cy."), 2),
    ]


def test_similarity_reads_scores(tmp_path):
    path = _write(tmp_path / "a.tsv", "sentence1\tsentence2\tscore\nA.\tB.\t-1\n")
    assert _bare(_read("similarity", path)) == [Sentence(("A.", "B."), -1.0)]


def test_files_of_a_folder_by_their_stems(tmp_path):
    for name in ("train.jsonl", "validation.jsonl", "test.tsv", "notes.txt"):
        _write(tmp_path / name, "x")
    found = split_files.find(tasks.find("classification"), os.fspath(tmp_path))
    names = {split: os.path.basename(path) for split, path in found.items()}
    assert names == {"train": "train.jsonl", "dev": "validation.jsonl", "test": "test.tsv"}
    _write(tmp_path / "train-v1.1.json", "x")
    _write(tmp_path / "train-v2.0.json", "x")
    for name, version in (("squad", "v1.1"), ("squad_v2", "v2.0")):
        found = split_files.find(tasks.find(name), os.fspath(tmp_path))
        assert found == {"train": os.fspath(tmp_path / f"train-{version}.json")}
    with pytest.raises(errors.UserError, match=r"no train file of the task ner \(train\.conll"):
        split_files.find(tasks.find("ner"), os.fspath(_write(tmp_path / "x" / "a.tsv", "").parent))
    with pytest.raises(errors.UserError, match=r"train\.jsonl: is a file; give it as --train="):
        split_files.find(tasks.find("pair"), os.fspath(tmp_path / "train.jsonl"))
    with pytest.raises(errors.UserError, match="no such folder"):
        split_files.find(tasks.find("pair"), os.fspath(tmp_path / "nowhere"))


@pytest.fixture
def tfds_folder(tmp_path, monkeypatch):
    """A TFDS dataset "moods/sst2", built without TensorFlow: its test has no labels."""
    tfds = pytest.importorskip("tensorflow_datasets")

    with tfds.core.registered.skip_registration():

        class Moods(tfds.core.GeneratorBasedBuilder):
            code_path = None
            VERSION = tfds.core.Version("1.0.0")
            BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="sst2", version="1.0.0"),)

            def _info(self):
                label = tfds.features.ClassLabel(names=["negative", "positive"])
                features = {"sentence": tfds.features.Text(), "label": label, "idx": np.int32}
                features = tfds.features.FeaturesDict(features)
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, manager):
                return {name: self._generate_examples(name) for name in ("train", "test")}

            def _generate_examples(self, name):
                for i in range(4):
                    label = i % 2 if name == "train" else -1
                    yield i, {"sentence": f"Caf\u00e9 {i}.", "label": label, "idx": i}

    builder = Moods(config="sst2", data_dir=tmp_path, file_format="array_record")
    with monkeypatch.context() as quiet:
        quiet.setattr("sys.stderr", io.StringIO())
        builder.download_and_prepare()
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", os.fspath(tmp_path))
    indexed.opened.cache_clear()
    yield
    indexed.opened.cache_clear()


def test_tfds_labels_come_by_name(tfds_folder):
    task = tasks.find("sst2")
    found = split_files.find(task, "tfds:moods/sst2")
    assert found == {"train": "tfds:moods/sst2:train", "test": "tfds:moods/sst2:test"}
    train = sorted(tasks.read(task, found["train"], "train"), key=lambda example: example.id)
    assert [e.label for e in train] == ["negative", "positive", "negative", "positive"]
    assert train[1].texts == ("Caf\u00e9 1.",) and train[1].id == "1"
    assert train[1].where.startswith("tfds:moods/sst2:train record ")
    assert [e.label for e in tasks.read(task, found["test"], "test")] == [None] * 4
    with pytest.raises(errors.UserError, match="tfds:no_such_thing:train: cannot be read"):
        split_files.find(task, "tfds:no_such_thing")


# --- what is wrong --------------------------------------------------------------------------------

_ROW = '{"question": "Q?", "choices": ["A.", "B."], "label": %s}\n'


@pytest.mark.parametrize(
    ("task", "name", "content", "expected"),
    [
        ("classification", "a.tsv", b"", "a.tsv: the file is empty"),
        ("classification", "a.tsv", "sentence\tlabel\n\n", "a.tsv: contains no rows"),
        ("classification", "a.tsv", "text1\tlabel\nA.\tx\n", "a.tsv:2: has no column 'sentence'; "
         "its columns are 'text1', 'label'"),
        ("pair", "a.tsv", "sentence1\tlabel\nA.\tx\n", "a.tsv:2: has no column 'sentence2'"),
        ("classification", "a.tsv", "sentence\tlabel\nA.\tx\nB.\n", "a.tsv:3: the number of cells "
         "is 1, but the header has 2"),
        ("classification", "a.tsv", "sentence\tlabel\n\nB.\tx\n", "a.tsv:2: an empty line"),
        ("classification", "a.tsv", "sentence\tlabel\tlabel\n", "a.tsv:1: the header has column "
         "'label' twice"),
        ("classification", "a.tsv", "sentence\tlabel\nA.\tx\n \ty\n", "a.tsv:3: the text of "
         "'sentence' is empty"),
        ("classification", "a.tsv", "sentence\nA.\n", "a.tsv:2: has no 'label'"),
        ("classification", "a.tsv", "sentence\tlabel\nA.\tx\nB.\t\n", "a.tsv:3: has no 'label'"),
        ("classification", "a.tsv", b"sentence\tlabel\ncaf\xe9\tx\n", "a.tsv:2: is not UTF-8"),
        ("classification", "a.tsv", b"sentence\tlabel\nA\0.\tx\n", "a.tsv:2: contains a NUL"),
        ("classification", "a.csv", "sentence,label\n", "a.csv: contains no rows"),
        ("classification", "a.jsonl", '{"sentence": "A."\n', "a.jsonl:1: is not JSON"),
        ("classification", "a.jsonl", "\n" + "[" * 100_000, "a.jsonl:2: is nested more than"),
        ("classification", "a.jsonl", '{"label": ' + "9" * 5_000 + "}", "a.jsonl:1: is not JSON"),
        ("classification", "a.jsonl", '{"text": "\\ud800"}', "a.jsonl:1: '\\ud800' contains"),
        ("classification", "a.jsonl", "[1]\n", "a.jsonl:1: is a JSON list"),
        ("classification", "a.jsonl", '{"text": "A.", "text": "B."}\n', "'text' occurs twice"),
        ("classification", "a.tsv", "sentence\tlabel\rA.\tx\r", "end with a carriage return"),
        ("classification", "a.jsonl", '{"sentence": ["A."], "label": 1}\n', "'sentence' must "
         "be a string, not list"),
        ("classification", "a.jsonl", '{"sentence": "A.", "label": 0.5}\n', "a.jsonl:1: label 0.5"),
        ("classification", "a.jsonl", '{"text": "A.", "stars": 1}\n', "a.jsonl:1: has no "
         "'label'; its columns are 'text', 'stars'; name yours as --label_column=NAME; train and "),
        ("sst2", "a.tsv", "sentence\tlabel\nA.\t2\n", "a.tsv:2: label '2' is not a label of the "
         "task sst2 (negative, positive, 0, 1)"),
        ("stsb", "a.tsv", "sentence1\tsentence2\tscore\nA.\tB.\tnan\n", "a.tsv:2: label 'nan' is "
         "not a number"),
        ("embeddings", "a.tsv", "sentence1\tsentence2\tscore\nA.\tB.\t1\n",
         "a.tsv:2: this task does not use the column 'score'; use --task=similarity"),
        ("translation", "a.jsonl", '{"source": "A.", "targets": ["B.", ""]}\n', "a.jsonl:1: the "
         "target must be a non-empty text"),
        ("translation", "a.jsonl", '{"source": "A."}\n', "a.jsonl:1: has no 'targets'"),
        ("multiple_choice", "a.jsonl", _ROW % 2, "a.jsonl:1: label 2 is not the number of a choice,"
         " 0 to 1"),
        ("multiple_choice", "a.jsonl", _ROW % "true", "a.jsonl:1: label True"),
        ("multiple_choice", "a.jsonl", '{"question": "Q?", "choices": ["A."], "label": 0}\n',
         "needs at least two non-empty texts"),
        ("multiple_choice", "a.jsonl", '{"choices": ["A.", "B."], "label": 0}\n', "no column"),
    ],
)  # fmt: skip
def test_bad_tables_name_file_and_line(tmp_path, task, name, content, expected):
    path = _write(tmp_path / name, content)
    with pytest.raises(errors.UserError) as caught:
        _read(task, path)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_other_files_have_labels_for_all_or_for_none(tmp_path):
    path = _write(tmp_path / "a.tsv", "sentence\tlabel\nA.\tx\nB.\t\n")
    with pytest.raises(errors.UserError, match=r"a\.tsv:3: has no 'label': .* is empty.*; other"):
        _read("classification", path, "test")
    path = _write(tmp_path / "b.tsv", "sentence\nA.\n")
    assert _bare(_read("classification", path, "test")) == [Sentence(("A.",))]
    with pytest.raises(errors.UserError, match=r"nowhere\.tsv: cannot be read"):
        _read("classification", tmp_path / "nowhere.tsv")


def test_a_text_a_line_needs_no_labels(tmp_path):
    path = _write(tmp_path / "a.txt", "One, two.\n\nThree.\n")
    texts = [Sentence(("One, two.",)), Sentence(("Three.",))]
    for task in ("classification", "regression", "embeddings"):
        assert _bare(_read(task, path, "test")) == texts
    assert [each.source for each in _read("translation", path, "test")] == ["One, two.", "Three."]
    for task in ("pair", "multiple_choice"):
        with pytest.raises(errors.UserError, match=f"of the task {task} has several texts"):
            _read(task, path, "test")
    with pytest.raises(errors.UserError, match="questions are JSON in SQuAD's form"):
        _read("squad", path, "test")
    with pytest.raises(errors.UserError, match="no column 'sentence'"):
        _read("classification", path, "dev")
    header = _write(tmp_path / "b.txt", "sentence\nA.\n")
    assert _bare(_read("classification", header, "test")) == [Sentence(("A.",))]
    with pytest.raises(errors.UserError, match="is a folder: give a file in it"):
        _read("classification", tmp_path)


def test_a_text_of_ten_thousand_words(tmp_path):
    text = "word " * 10_000
    path = _write(tmp_path / "a.tsv", f"sentence\tlabel\n{text}\tx\n")
    assert _read("classification", path)[0].texts == (text,)
    path = _write(tmp_path / "a.conll", "word O\n" * 10_000)
    assert len(_read("ner", path)[0].words) == 10_000


# --- real data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "folder", "sizes"),
    [
        ("classification", "classification/banking77", (10_003, 3080)),
        ("qnli", "pairs/qnli_part", (3238, 741)),
        ("wnli", "pairs/wnli", (635, 71)),
        ("translation", "text2text/wikisplit", (5000, 5000)),
        ("generative_qa", "text2text/fairytaleqa", (8548, 1025)),
    ],
)
def test_real_tables(shared_data, task, folder, sizes):
    task = tasks.find(task)
    found = split_files.find(task, os.fspath(shared_data / folder))
    assert sizes == tuple(len(tasks.read(task, found[s], s)) for s in ("train", "dev"))
