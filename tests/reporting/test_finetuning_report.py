"""The report on a fine-tuning: a page beside report.json, and the mistakes in it."""

import json
import shlex

import pytest

from bertjax import __main__ as command_line
from bertjax import paths
from bertjax.finetuning import mistakes, pages, report_page
from tests.helpers import toy_tasks, web_pages


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A fine-tuning of one epoch, which makes mistakes, and one at another rate."""
    root = toy_tasks.toys(tmp_path_factory.mktemp("finetune"), train=24, others=8)
    words = ["finetune", f"--model={root / 'model'}", "--task=classification", f"--data={root}",
             *("--config.max_length=40", "--config.batch_size=8", "--config.num_epochs=1")]
    for name, rates in (("out", "1e-5,1e-6"), ("other", "1e-2")):
        assert command_line.main([*words, f"--lr={rates}", f"--output={root / name}"]) == 0
    return root


def test_the_page_has_scores_curves_mistakes_and_the_command(root, capsys):
    page = web_pages.Page(root / "out" / "report.html")
    assert page.loads() == [] and len(page.source) < 200_000
    assert {"Scores", "Baselines", "Curves", "All runs", "Mistakes", "Data", "Model", "Config",
            "Command", "Environment"} <= {*page.sections}  # fmt: skip
    content = json.loads((root / "out" / "report.json").read_text())
    mean = content["splits"]["test"]["accuracy"]["mean"]
    (row,) = [row for row in page.tables["Scores"] if row[:2] == ["test", "accuracy"]]
    assert row[3] == f"{mean:.2f}"
    assert page.charts == ["accuracy on dev", "Loss on train"]
    assert len(page.tables["All runs"]) == 3 and page.source.count('<tr class="marked">') > 1
    assert ["dev", str(root / "dev.tsv"), "8"] in page.tables["Data"]
    assert ["num_epochs", "1", "0"] in page.tables["Config"]
    assert "cat, dog" in page.sections["Model"] and "jax" in page.sections["Environment"]
    wrong = round(8 * (1 - mean / 100))
    count = sum(1 for row in page.tables["Mistakes"] if {*row[1:3]} == {"cat", "dog"})
    dev_wrong = round(8 * (1 - content["splits"]["dev"]["accuracy"]["mean"] / 100))
    assert wrong + dev_wrong > 0 and count >= wrong + dev_wrong
    words = shlex.split(page.sections["Command"])
    words = [word for word in words[1:] if word.strip()]
    assert command_line.main([*words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "learning_rates=1e-05,1e-06" in printed and "num_epochs=1 " in printed


def test_inspect_writes_the_page_again_and_compares(root, tmp_path, capsys):
    before = (root / "out" / "report.html").read_text()
    (root / "out" / "report.html").unlink()
    assert command_line.main(["inspect", str(root / "out"), "--report"]) == 0
    assert (root / "out" / "report.html").read_text() == before
    file = tmp_path / "both.html"
    words = ["inspect", str(root / "out"), str(root / "other"), "--compare", f"--report={file}"]
    assert command_line.main(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["learning_rates", "1e-05,1e-06", "0.01"] in rows
    page = web_pages.Page(file)
    assert page.loads() == [] and "accuracy on dev, best run" in page.charts
    assert page.tables["Final scores"][0] == ["score", "out", "other"]


def test_a_damaged_report_is_one_line_and_does_not_fail_the_run(root, tmp_path, capsys):
    content = json.loads((root / "out" / "report.json").read_text())
    for name, text in (("config.json", (root / "out" / "config.json").read_text()),
                       ("report.json", json.dumps(content | {"splits": None}))):  # fmt: skip
        (tmp_path / name).write_text(text)
    pages.write_at_end(paths.of(tmp_path))
    assert "warning: no report.html was written: " in capsys.readouterr().err
    (tmp_path / "report.json").write_text("{}")
    assert command_line.main(["inspect", str(tmp_path), "--report"]) == 2
    assert "report.json: has no 'task'; run the same" in capsys.readouterr().err
    assert command_line.main(["inspect", str(tmp_path), str(root / "out"), "--compare"]) == 2


def test_an_output_of_an_earlier_version_lacks_facts(root, tmp_path):
    content = json.loads((root / "out" / "report.json").read_text())
    for key in ("environment", "intervals", "baselines", "speed", "warnings", "labels"):
        content.pop(key)
    text = report_page.document(tmp_path, content)
    assert "Environment" not in text and "Mistakes" not in text and "Command" in text


SENTENCE = {"texts": ["a", "b"], "label": "x"}
WORDS = {"words": ["a", "b"], "tags": ["O", "B-X"]}
QUESTION = {"question": "q", "context": "c", "answers": [["The cat", 0]], "impossible": False}
CASES = [
    (SENTENCE, {"label": "x"}, None),
    (SENTENCE, {"label": "y", "probabilities": {"y": 0.75}}, ("x", "y", 0.75)),
    (SENTENCE, {"label": None, "text": "no label"}, ("x", "no label", 0)),
    (SENTENCE | {"label": 2.0}, {"label": 3.5}, ("2", "3.5", 1.5)),
    (SENTENCE | {"label": ["x", "z"]}, {"labels": ["z", "x"]}, None),
    (SENTENCE | {"label": ["x"]}, {"labels": ["y"]}, ("x", "y", 2)),
    (SENTENCE | {"label": []}, {"labels": ["y"]}, ("none", "y", 1)),
    (WORDS, {"tags": ["O", "B-X"]}, None),
    (WORDS, {"tags": ["B-Y", "B-X"]}, ("a O", "a B-Y", 1)),
    (QUESTION, {"answer": "cat!"}, None),
    (QUESTION, {"answer": "dog"}, ("The cat", "dog", 0)),
    (QUESTION | {"answers": [], "impossible": True}, {"answer": ""}, None),
    (QUESTION | {"answers": [], "impossible": True}, {"answer": "dog"}, ("", "dog", 0)),
    ({"context": "c", "choices": ["a", "b"], "label": 1},
     {"label": 0, "text": "a", "probabilities": {"a": 0.5, "b": 0.25}}, ("b", "a", 0.5)),
    ({"source": "s", "targets": ["a", "b"]}, {"text": "b"}, None),
    ({"source": "s", "targets": ["a", "b"]}, {"text": "c"}, ("a", "c", 0)),
    ({"query": "q", "documents": ["a", "b"], "labels": [0.0, 1.0]}, {"scores": [0.5, 0.25]},
     ("b", "a", 0.25)),
    ({"query": "q", "documents": ["a", "b"], "labels": [0.0, 1.0]}, {"scores": [0.0, 1.0]}, None),
    ({"example": SENTENCE, "task": "t"}, {"label": "y", "text": "y"}, ("x", "y", 0)),
]  # fmt: skip


@pytest.mark.parametrize(("example", "prediction", "mistake"), CASES)
def test_mistakes_of_every_type_of_example(example, prediction, mistake, tmp_path):
    (tmp_path / "predictions").mkdir()
    line = json.dumps({"example": example, "prediction": prediction})
    (tmp_path / "predictions" / "dev.jsonl").write_text(f"{line}\n")
    found = mistakes.read(paths.of(tmp_path), "dev")
    assert found.read == 1 and found.count == (mistake is not None)
    if mistake:
        (wrong,) = found.wrong
        assert (wrong.truth, wrong.predicted, wrong.size) == mistake


def test_what_has_no_label_is_no_mistake(tmp_path):
    (tmp_path / "predictions").mkdir()
    line = json.dumps({"example": SENTENCE | {"label": None}, "prediction": {"label": "x"}})
    (tmp_path / "predictions" / "test.jsonl").write_text(f"{line}\n")
    assert mistakes.read(paths.of(tmp_path), "test") is None
    assert mistakes.read(paths.of(tmp_path), "dev") is None
