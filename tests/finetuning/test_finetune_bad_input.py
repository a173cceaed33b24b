"""Bad labelled data through the front door: exit code 2 and one line, or a warning and a model."""

import json

import pytest

from bertjax import __main__ as cli
from bertjax import errors
from bertjax.artifact import artifact
from tests.helpers import corpora, tiny_model

GOOD = "sentence\tlabel\nthe cat sat\tyes\na dog ran\tno\n"
CONTEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "artifact"
    artifact.write(tiny_model.make(), path)
    return path


@pytest.fixture
def finetune(model, tmp_path, capsys, monkeypatch):
    """Runs the command on files of these contents; returns its exit code and stderr's lines."""
    monkeypatch.chdir(corpora.ROOT)
    monkeypatch.delenv("BERTJAX_TRACEBACK", raising=False)

    def run(task, files, *flags, suffix="tsv"):
        argv = ["finetune", f"--model={model}", f"--task={task}", f"--output={tmp_path / 'out'}"]
        for split, content in files.items():
            path = tmp_path / f"{split}.{suffix}"
            path.write_text(content)
            argv.append(f"--{split}={path}")
        code = cli.main([*argv, *flags])
        return code, capsys.readouterr().err.splitlines()

    return run


def _squad(answer, start):
    qa = {"id": "q1", "question": "where", "answers": [{"text": answer, "answer_start": start}]}
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [qa]}]}]})


@pytest.mark.parametrize(
    ("task", "suffix", "files", "expected"),
    [
        ("classification", "tsv", {"train": "text1\tlabel\na dog\tyes\n"},
         "train.tsv:2: has no column 'sentence'; its columns are 'text1', 'label'"),
        ("classification", "tsv", {"train": GOOD, "dev": "sentence\tlabel\na dog\tmaybe\n"},
         "dev.tsv:2: label 'maybe' is not one of the labels of the training data (no, yes)"),
        ("sst2", "tsv", {"train": GOOD},
         "train.tsv:2: label 'yes' is not a label of the task sst2"),
        ("classification", "tsv", {"train": GOOD + " \tyes\n"},
         "train.tsv:4: the text of 'sentence' is empty"),
        ("classification", "tsv", {"train": GOOD + "a dog\n"},
         "train.tsv:4: the number of cells is 1, but the header has 2"),
        ("classification", "tsv", {"train": GOOD + "a dog\t\n"}, "train.tsv:4: has no 'label'"),
        ("classification", "tsv", {"train": GOOD + "a dog\t \n"}, "train.tsv:4: has no 'label'"),
        ("classification", "tsv", {"train": ""}, "train.tsv: the file is empty"),
        ("classification", "tsv", {"train": "text\tlabel\tgroup\nA.\tx\t1\nB.\ty\t2\n"},
         "train.tsv: has the column 'group', but a split into train and dev does not keep groups "
         "together: give --dev=FILE"),
        ("embeddings", "tsv", {"train": "anchor\tpositive\nA.\tB.\na.\tC.\n"},
         "train.tsv cannot be split into train and dev: it has 2 examples, all about the same "
         "text; give --dev=FILE"),
        ("embeddings", "tsv", {"train": "anchor\tpositive\tnegative_ids\nA.\tB.\tC.\n"},
         "train.tsv:2: this task does not use the column 'negative_ids'; give negatives as texts"),
        ("ner", "conll", {"train": "the B-A\ncat O\nsat I-A\n"},
         "train.conll:3: tag 'I-A' continues an entity that has not begun"),
        ("ner", "conll", {"train": "the B-A\n", "dev": "cat B-B\n"}, "dev.conll:1: "),
        ("squad", "json", {"train": _squad("cat", 4), "dev": _squad("dog", 4)},
         "dev.json question q1: the answer 'dog' is not in its context at character 4"),
        ("text_to_text", "jsonl", {"train": '{"source": "a dog", "target": "a cat"}\n'},
         ", of the family bert, is of the kind encoder"),
    ],
)  # fmt: skip
def test_bad_data_is_one_line(finetune, task, suffix, files, expected):
    code, lines = finetune(task, files, suffix=suffix)
    assert code == errors.EXIT_BAD_INPUT
    (line,) = [line for line in lines if line.startswith("bertjax: error: ")]
    assert expected in line and not any("Traceback" in line for line in lines)


def test_what_is_only_suspicious_is_warned_of_and_trained_on(finetune, tmp_path):
    train = f"body\tmood\n{'cat ' * 10_000}\t1\na dog ran\tpositive\n"
    files = {"train": train, "dev": "body\tmood\nA  dog ran\t1\na mat\t0\n"}
    code, lines = finetune("sst2", files, "--lr=1e-5", "--config.num_epochs=1",
                           "--config.max_length=16", "--text_column=body",
                           "--label_column=mood")  # fmt: skip
    assert code == 0
    text = "\n".join(line for line in lines if "warning" in line)
    assert "1 of 2 labels never occur in the " in text and "learned: 'negative'" in text
    assert f"1 of 2 examples of dev (50.0%) are in train too, the first at {tmp_path}" in text
    assert "50.0% of the examples of train are cut after 16 tokens" in text
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["labels"] == ["negative", "positive"] and len(report["warnings"]) >= 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.attention=flash"], "config.attention = 'flash': must be 'auto', 'xla'"),
        (["--config.attention=splash"], "config.attention = 'splash': must be 'auto', 'xla'"),
        (["--config.attention=cudnn"], "config.attention = 'cudnn': must be 'auto' or 'xla'"),
        (["--train=."], "--train=.: is a folder; give it as --data=."),
        (["--strategy=features", "--config.batch_size=3"], "config.batch_size = 3: must be"),
    ],
)
def test_what_cannot_be_done_is_one_line(finetune, flags, message):
    code, lines = finetune("classification", {"train": GOOD, "dev": GOOD}, *flags)
    (error,) = [line for line in lines if not line.startswith("bertjax: finetune: reading ")]
    assert code == errors.EXIT_BAD_INPUT and error.startswith(f"bertjax: error: {message}")


def test_a_prompt_that_leaves_no_room_is_refused(finetune):
    flags = "--strategy=prompts", "--config.strategy.length=60"
    code, lines = finetune("classification", {"train": GOOD, "dev": GOOD}, *flags)
    assert code == 2
    assert "config.strategy.length = 60: must be 32 or less: the model reads 40 tokens" in lines[-1]
