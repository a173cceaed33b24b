"""`bertjax embed`: the vectors of `encode` in a file, also if it was killed; bad input."""

import json

import numpy as np
import pyarrow.parquet
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.artifact import artifact
from bertjax.inference import embedding, text_vectors, vector_files
from tests.helpers import downstream, tiny_model

WORDS = "the cat dog ran home on mat saw letters".split()


def made(seed=0):
    return downstream.soft(tiny_model.make(num_layers=1, seed=seed))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A model, and 21 texts in several formats, of which one is empty."""
    folder = tmp_path_factory.mktemp("embed")
    artifact.write(made(), folder / "model")
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(20)] + [""]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    rows = [json.dumps({"id": i, "body": text}) for i, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def windows(monkeypatch):
    """Makes windows of 8 texts; returns the sizes of the windows that are encoded."""
    monkeypatch.setattr(embedding, "WINDOW", 8)
    sizes = []
    encode = text_vectors.Encoder.__call__

    def counted(self, texts):
        sizes.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(text_vectors.Encoder, "__call__", counted)
    return sizes


def embed(root, output, *words, data="texts.txt", model="model"):
    paths = [f"--model={root / model}", f"--data={root / data}", f"--output={output}"]
    return command_line.main(["embed", *paths, "--batch_size=8", *words])


def texts_of(root):
    return (root / "texts.txt").read_text().split("\n")[:-1]


def test_the_vectors_are_those_of_encode(root, tmp_path, windows, capsys):
    assert embed(root, tmp_path / "v.npy") == 0
    assert windows == [8, 8, 5]
    printed = capsys.readouterr()
    assert "21 vectors of 16 dimensions" in printed.out and "1 of 21 texts are empty" in printed.err
    bert = bertjax.load(root / "model")
    vectors = vector_files.read(tmp_path / "v.npy", bert.vectors_fingerprint())
    np.testing.assert_allclose(vectors, bert.encode(texts_of(root)), atol=1e-5)
    words = ["--text_column=body", "--normalize"]
    assert embed(root, tmp_path / "v.parquet", *words, data="texts.jsonl") == 0
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table.column("text").to_pylist() == texts_of(root)
    fingerprint = bert.vectors_fingerprint(bert.encoding(normalize=True))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = vector_files.read(tmp_path / "v.parquet", fingerprint)
    np.testing.assert_allclose(stored, vectors / norms, atol=1e-6)
    assert not list(tmp_path.glob(".*"))
    # A second call finds the file complete.
    windows.clear()
    assert embed(root, tmp_path / "v.npy") == 0
    assert "21 vectors are already there" in capsys.readouterr().out and not windows
    # A prompt, or another model, makes other vectors.
    assert embed(root, tmp_path / "v.npy", "--prompt=saw ") == 0
    expected = bert.encode(texts_of(root), prompt="saw ")
    stored = vector_files.read(tmp_path / "v.npy", bert.vectors_fingerprint())
    np.testing.assert_allclose(stored, expected, atol=1e-5)
    with pytest.raises(errors.UserError, match=r"v.npy: contains vectors of another model"):
        vector_files.read(tmp_path / "v.npy", fingerprint)


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
def test_a_killed_run_ends_with_the_same_bytes(name, root, tmp_path, windows, monkeypatch, capsys):
    assert embed(root, tmp_path / "whole" / name) == 2  # the folder must exist
    (tmp_path / "whole").mkdir()
    assert embed(root, tmp_path / "whole" / name) == 0
    windows.clear()
    save, calls = embedding.Job._save, []

    def killed(self, state):
        calls.append(state)
        if len(calls) == 3:  # the second window is in the file, but not in the state
            raise KeyboardInterrupt
        save(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(embedding.Job, "_save", killed)
        assert embed(root, tmp_path / name) == 130
    assert not (tmp_path / name).exists() and windows == [8, 8]
    assert embed(root, tmp_path / name) == 0
    assert "resuming after 8 texts" in capsys.readouterr().err
    assert windows == [8, 8, 8, 5]
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / file.name).read_bytes(), file.name


def test_an_interrupted_run_on_other_data_is_discarded(
    root, tmp_path, windows, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        patch.setattr(embedding, "_windows", lambda texts: iter([list(texts)[:3], None]))
        with pytest.raises(TypeError):
            embed(root, tmp_path / "v.npy")
    (tmp_path / "texts.txt").write_text("the cat\n")
    words = [f"--data={tmp_path / 'texts.txt'}"]
    assert embed(root, tmp_path / "v.npy", *words) == 0
    assert "discarding 3 vectors of an earlier run" in capsys.readouterr().err
    assert np.load(tmp_path / "v.npy").shape == (1, 16)


def test_a_file_that_does_not_name_its_model(root, tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((2, 16), np.float32))
    with pytest.raises(errors.UserError, match=r"v.npy.json: not found, but it names the model"):
        vector_files.read(tmp_path / "v.npy", "a")
    pyarrow.parquet.write_table(pyarrow.table({"vector": [[1.0]]}), tmp_path / "v.parquet")
    with pytest.raises(errors.UserError, match="does not name the model of its vectors"):
        vector_files.read(tmp_path / "v.parquet", "a")
    (tmp_path / "v.parquet").write_bytes(b"PAR1")
    with pytest.raises(errors.UserError, match=r"v.parquet: is not a Parquet file"):
        vector_files.read(tmp_path / "v.parquet", "a")


def test_a_damaged_file_of_vectors(tmp_path):
    about = vector_files.About("a", "model", 2, 3, "mean", "", "")
    partial = tmp_path / "partial"
    partial.write_bytes(vector_files.npy_header(2, 3) + np.arange(6, dtype="<f4").tobytes())
    vector_files.finish_npy(partial, tmp_path / "v.npy", about)
    stored = vector_files.read(tmp_path / "v.npy", "a")
    np.testing.assert_array_equal(stored, [[0, 1, 2], [3, 4, 5]])
    (tmp_path / "v.npy").write_bytes((tmp_path / "v.npy").read_bytes()[:-4])
    with pytest.raises(errors.UserError, match=r"v.npy: is damaged"):
        vector_files.read(tmp_path / "v.npy", "a")


BAD = {
    "suffix": (["--output=v.txt"], "must end in .npy or .parquet"),
    "column": (["--text_column=body"], "texts.txt has no columns"),
    "missing": (["--data=absent.txt"], "absent.txt"),
    "prompt": (["--prompt_name=query"], "the model has no such prompt (its prompts: none)"),
    "both": (["--prompt_name=query", "--prompt=a"], "either a prompt or the name of a prompt"),
    "batch": (["--batch_size=0"], "--batch_size=0: must be 1 or more"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_flags(case, root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, message = BAD[case]
    assert embed(root, "v.npy", *words) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_bad_rows(root, tmp_path, capsys):
    assert embed(root, tmp_path / "v.npy", data="texts.jsonl") == 2
    error = capsys.readouterr().err
    assert "texts.jsonl:1: has no column 'text' or 'sentence' (its columns: id, body)" in error
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    assert embed(root, tmp_path / "v.npy", f"--data={tmp_path / 'bad.jsonl'}") == 2
    assert "bad.jsonl:2: column 'text' must be text, but is 3" in capsys.readouterr().err
