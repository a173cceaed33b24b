"""Models by their names on the Hub: what is downloaded, from where it is read, and each error."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors, hub
from bertjax.artifact import artifact, huggingface, loading
from tests.helpers import children, fake_hub, tiny_model

NAME = "org/tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a Hugging Face folder, with files that must not be downloaded."""
    folder = tmp_path_factory.mktemp("hub") / "tiny"
    huggingface.write(tiny_model.make(), folder)
    for name in ("pytorch_model.bin", "tf_model.h5", "onnx/config.json", "train.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"evil")
    return folder


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with fake_hub.serve(monkeypatch, tmp_path) as server:
        yield server


def shard(folder):
    """Returns the files of the folder, with the weights in two shards."""
    import safetensors.numpy

    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    halves = [dict(list(tensors.items())[i::2]) for i in range(2)]
    names = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
    shards = {
        name: safetensors.numpy.save(half) for name, half in zip(names, halves, strict=True)
    }
    index = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    rest = {
        p.name: p.read_bytes()
        for p in folder.iterdir()
        if p.is_file() and p.name != "model.safetensors"
    }
    return rest | shards | {
        "model.safetensors.index.json": json.dumps({"weight_map": index}).encode(),
        "model-00009-of-00009.safetensors": b"not in the index",
    }


def test_a_name_downloads_only_what_is_read_and_tells_the_revision(server, folder, capsys):
    commit = server.add_folder(NAME, folder)
    model = loading.load(NAME)
    tiny_model.assert_same_params(model.params, loading.load(folder).params)
    assert model.source == f"{NAME}@{commit}" == hub.pinned(NAME)
    assert server.downloads() == {
        "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    }  # fmt: skip
    assert f"bertjax: {NAME}: is revision {commit} of http://127.0.0.1" in capsys.readouterr().err
    count = len(server.requests)
    assert bertjax.load(NAME).encode(["the cat"]).shape == (1, 16)
    assert len(server.requests) == count and not capsys.readouterr().err  # read once a process
    artifact.write(model, "artifact")
    assert loading.load("artifact").source == f"{NAME}@{commit}"


def test_a_revision_stays_when_the_branch_moves(server, folder, monkeypatch):
    commit = server.add_folder(NAME, folder)
    loading.load(f"{NAME}@{commit}")
    server.commit(NAME, {"config.json": b"{}"})
    count = len(server.requests)
    monkeypatch.setattr(hub, "_revisions", {})
    assert loading.load(f"{NAME}@{commit}").source == f"{NAME}@{commit}"
    assert len(server.requests) == count  # a commit in the cache needs no request
    with pytest.raises(errors.UserError, match="has no model_type"):
        loading.load(NAME)


def test_a_local_folder_of_the_same_name_wins(server, folder, tmp_path):
    server.add_folder(NAME, folder)
    artifact.write(tiny_model.make(), tmp_path / "org/tiny")
    assert loading.load(NAME).origin == "artifact" and server.requests == []
    assert hub.parse("./org/other") is None and hub.parse("org/other/") is None
    assert hub.parse("org/tiny/1000") is None  # longer than a name
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    assert hub.parse("run/1000") is None  # a part of the folder of a model
    assert hub.parse("org/other@refs/pr/1") == ("org/other", "refs/pr/1")


def test_shards_are_those_of_the_index(server, folder):
    server.commit(NAME, shard(folder))
    tiny_model.assert_same_params(loading.load(NAME).params, loading.load(folder).params)
    weights = {name for name in server.downloads() if name.endswith(".safetensors")}
    assert weights == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}


def test_offline_reads_the_cache(server, folder, monkeypatch, capsys):
    from huggingface_hub import constants

    commit = server.add_folder(NAME, folder)
    with pytest.raises(errors.UserError, match="and HF_HUB_OFFLINE is set"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        loading.load(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.fetch(NAME, with_weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(errors.UserError, match="and HF_HUB_OFFLINE is set"):
        loading.load(NAME)  # the cache has only the tokenizer
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    loading.load(NAME)
    monkeypatch.setattr(hub, "_revisions", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    count = len(server.requests)
    assert loading.load(NAME).source == f"{NAME}@{commit}" and len(server.requests) == count
    monkeypatch.setattr(hub, "_revisions", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server.broken = True
    capsys.readouterr()
    loading.load(NAME)
    assert "answered with status 503; try again later; using the copy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/absent", "org/absent: not found as a local path or at http"),
        ("org/tiny@v9", "org/tiny@v9: http.* has no such revision"),
        ("org/gated", "org/gated: is gated; accept its conditions at http.*/org/gated and log in"),
        ("org/pickle", "weights only as pytorch_model.bin, which bertjax never downloads"),
        ("org/adapter", "contains only an adapter of PEFT"),
        ("org/empty", "contains no model.safetensors"),
        ("org/a--b", "org/a--b: is not a valid name"),
    ],
)
def test_each_error_is_one_line(server, folder, name, message, capsys):
    server.add_folder("org/tiny", folder)
    server.add_folder("org/gated", folder)
    server.gated.add("org/gated")
    server.commit("org/pickle", {"config.json": b"{}", "pytorch_model.bin": b""})
    server.commit("org/adapter", {"adapter_model.safetensors": b""})
    server.commit("org/empty", {"README.md": b""})
    assert command_line.main(["predict", f"--model={name}", "--text=a"]) == errors.EXIT_BAD_INPUT
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert re.search(message, line), line
    assert not [path for path in server.downloads() if path.endswith(".bin")]


def test_without_a_network_it_says_so(server, monkeypatch):
    from huggingface_hub import constants

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        message = r"not found as a local path or at http.*, which cannot be reached"
        with pytest.raises(errors.UserError, match=message):
            loading.load(NAME)


def test_the_token_opens_gated_models_and_is_never_printed(server, folder, monkeypatch, capsys):
    server.add_folder(NAME, folder)
    server.gated.add(NAME)
    monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
    assert command_line.main(["inspect", NAME]) == 0
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    monkeypatch.setattr(hub, "_revisions", {})
    assert command_line.main(["inspect", f"{NAME}@main"]) in (0, errors.EXIT_BAD_INPUT)
    captured = capsys.readouterr()
    assert "hf_" not in captured.out + captured.err


def test_import_and_prepare_accept_names(server, folder, tmp_path, capsys):
    commit = server.add_folder(NAME, folder)
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 20)
    words = ["prepare", "--input=a.txt", f"--tokenizer={NAME}", "--output=prepared"]
    assert command_line.main([*words, "--heldout_fraction=0", "--workers=1"]) == 0
    assert "model.safetensors" not in server.downloads()
    assert command_line.main(["import", f"--input={NAME}", "--output=imported"]) == 0
    assert json.loads((tmp_path / "imported/config.json").read_text())["source"] == (
        f"{NAME}@{commit}"
    )


@pytest.mark.parametrize("format", ["hf", "artifact"])
def test_push_uploads_the_folder_with_its_card(
    server, folder, monkeypatch, tmp_path, capsys, format
):
    words = ["export", f"--model={folder}", "--output=out", f"--format={format}"]
    words += ["--push_to=org/new", "--private"]
    assert command_line.main(words) == errors.EXIT_BAD_INPUT
    assert "run `hf auth login` or set HF_TOKEN" in capsys.readouterr().err
    assert not os.path.exists("out")  # found before the work
    monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
    assert command_line.main(words) == 0
    captured = capsys.readouterr()
    assert f"uploaded to {server.url}/org/new" in captured.out
    assert fake_hub.TOKEN not in captured.out + captured.err
    assert server.private == {"org/new"}
    uploaded = server.repos["org/new"]["main"]
    files = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
    local = {path.relative_to(tmp_path / "out").as_posix() for path in files}
    assert uploaded.keys() == local | {"README.md"}
    card = uploaded["README.md"].decode()
    library = {"hf": "transformers", "artifact": "bertjax"}[format]
    assert card.startswith("---\n") and f"library_name: {library}\n" in card
    monkeypatch.setattr(hub, "_revisions", {})
    tiny_model.assert_same_params(loading.load("org/new").params, loading.load(folder).params)


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("others/new", "refused the request (status 403)"),
        ("new", "--push_to=new: give ORG/NAME"),
        ("org/new@main", "--push_to=org/new@main: give ORG/NAME"),
    ],
)
def test_a_push_that_is_refused_is_one_line(server, folder, monkeypatch, repo, message, capsys):
    monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
    words = ["export", f"--model={folder}", "--output=out", f"--push_to={repo}"]
    assert command_line.main(words) == errors.EXIT_BAD_INPUT
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert message in line and fake_hub.TOKEN not in line


def test_a_path_that_is_not_there_is_one_line_in_a_fresh_process(tmp_path):
    # In this process, the fake hub has imported all parts of huggingface_hub.
    done = subprocess.run(
        [sys.executable, "-m", "bertjax", "inspect", "runs/nothere"], cwd=tmp_path,
        env=children.environment() | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == errors.EXIT_BAD_INPUT, done.stderr
    assert "runs/nothere: not found as a local path" in done.stderr
    assert "Traceback" not in done.stderr
