"""The artifact gives back what was put in, or says in one line which file is wrong."""

import dataclasses
import errno
import json
import os
import shutil

import pytest

from bertjax import errors, files
from bertjax.artifact import artifact
from tests.helpers import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("artifact") / "model"
    artifact.write(tiny_model.make(), folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def _edit(copy, **change):
    file = copy / "config.json"
    content = json.loads(file.read_text()) | change
    del content["checksum"]  # as a file that was edited on purpose
    file.write_text(json.dumps(content))


def _assert_error(folder, *words):
    with pytest.raises(errors.UserError) as caught:
        artifact.read(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_round_trip_is_bit_equal(tmp_path, kind):
    model = tiny_model.make(kind)
    artifact.write(model, tmp_path / "a")
    read = artifact.read(tmp_path / "a")
    tiny_model.assert_same_params(read.params, model.params)
    assert read.tokenizer.fingerprint == model.tokenizer.fingerprint
    for field in ("family", "fields", "step", "objective", "config"):
        assert getattr(read, field) == getattr(model, field)


def test_without_params_reads_their_shapes(folder):
    shapes = artifact.read(folder, with_params=False).params
    params = artifact.read(folder).params
    found = {path: leaf.shape for path, leaf in artifact.flatten(shapes).items()}
    assert found == {path: leaf.shape for path, leaf in artifact.flatten(params).items()}


def test_same_model_same_bytes(folder, tmp_path):
    artifact.write(artifact.read(folder), tmp_path / "again")
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    again = tmp_path / "again"
    assert names == sorted(str(p.relative_to(again)) for p in again.rglob("*") if p.is_file())
    for name in names:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


def test_files_have_the_mode_of_other_files(folder):
    plain = folder.parent / "plain"
    plain.write_text("")
    for file in (folder / "params.safetensors", folder / "config.json"):
        assert file.stat().st_mode == plain.stat().st_mode
    (folder.parent / "made").mkdir()
    assert folder.stat().st_mode == (folder.parent / "made").stat().st_mode


def test_an_earlier_artifact_is_replaced(tmp_path):
    artifact.write(tiny_model.make(seed=1), tmp_path / "a")
    newer = tiny_model.make(seed=2)
    artifact.write(newer, tmp_path / "a")
    tiny_model.assert_same_params(artifact.read(tmp_path / "a").params, newer.params)
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(errors.UserError, match=r"thesis\.tex"):
        artifact.write(tiny_model.make(), tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(errors.UserError, match="is a file"):
        artifact.write(tiny_model.make(), tmp_path / "thesis.tex")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(errors.UserError, match="Permission denied"):
        artifact.write(tiny_model.make(), tmp_path / "a")


def test_an_output_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UserError, match="cannot be written"):
        artifact.write(tiny_model.make(), tmp_path / "file" / "a")


def test_a_failed_write_leaves_nothing(tmp_path):
    class Broken:
        fingerprint = "x"

        def save(self, folder, token_types):
            raise OSError(28, "No space left on device")

    older = tiny_model.make(seed=1)
    artifact.write(older, tmp_path / "a")
    with pytest.raises(OSError, match="No space left"):
        artifact.write(dataclasses.replace(older, tokenizer=Broken()), tmp_path / "a")
    with pytest.raises(OSError, match="No space left"):
        artifact.write(dataclasses.replace(older, tokenizer=Broken()), tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]
    tiny_model.assert_same_params(artifact.read(tmp_path / "a").params, older.params)


@pytest.mark.parametrize("name", ["config.json", "params.safetensors", "tokenizer"])
def test_missing_file(copy, name):
    target = copy / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    _assert_error(copy, target)


def test_truncated_params(copy):
    file = copy / "params.safetensors"
    for size in (file.stat().st_size - 1, 100, 4, 0):
        os.truncate(file, size)
        _assert_error(copy, file)


def test_one_flipped_bit_in_params(copy):
    file = copy / "params.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    _assert_error(copy, file, "checksum")


def test_damaged_config(copy):
    text = (copy / "config.json").read_text()
    for broken in (text[:-5], "[]", "\xff"):
        (copy / "config.json").write_bytes(broken.encode("latin-1"))
        _assert_error(copy, copy / "config.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, ["its format must be bertjax-artifact"]),
        ({"version": 99}, ["version 99", "reads version 1"]),
        ({"family": "bort"}, ["bort"]),
        ({"model": {"vocab_size": 60, "wings": 2}}, ["wings"]),
        ({"model": {"vocab_size": "60"}}, ["no model can be built"]),
        ({"model": [1]}, ["[1]"]),
        ({"model": {**tiny_model.FIELDS, "num_heads": 5, "vocab_size": 60}}, ["num_heads"]),
        ({"model": {**tiny_model.FIELDS, "num_layers": 3, "vocab_size": 60}}, ["params", "(3, 4"]),
        ({"model": {**tiny_model.FIELDS, "heads": ["mlm"], "vocab_size": 60}}, ["nsp_head/bias"]),
        ({"model": {**tiny_model.FIELDS, "vocab_size": 20}}, ["tokenizer", "20 embeddings"]),
        ({"tokenizer_fingerprint": "0" * 64}, ["tokenizer", "0" * 12]),
    ],
)
def test_config_that_does_not_fit(copy, change, words):
    _edit(copy, **change)
    _assert_error(copy, copy, *words)


def test_a_changed_value_of_the_config_is_refused_by_its_checksum(copy):
    content = json.loads((copy / "config.json").read_text())
    content["step"] = 8
    (copy / "config.json").write_text(json.dumps(content))
    _assert_error(copy, copy / "config.json", "checksum")


def test_config_without_a_key(copy):
    content = json.loads((copy / "config.json").read_text())
    del content["step"]
    (copy / "config.json").write_text(json.dumps(content))
    _assert_error(copy, copy / "config.json", "'step'")


def test_another_tokenizer(copy):
    shutil.rmtree(copy / "tokenizer")
    tiny_model.tokenizer("unigram").save(str(copy / "tokenizer"))
    _assert_error(copy, copy / "tokenizer", "fingerprint")


def test_a_remote_folder_is_copied(folder, tmp_path, monkeypatch):
    class Remote:
        """A folder of the local disk behind a made-up address."""

        def __init__(self, address):
            self.local = folder / str(address).removeprefix("gs://bucket").strip("/")
            self.name = self.local.name

        def __fspath__(self):
            return f"gs://bucket/{self.local.relative_to(folder)}"

        def iterdir(self):
            return [Remote(f"gs://bucket/{p.relative_to(folder)}") for p in self.local.iterdir()]

        def is_dir(self):
            return self.local.is_dir()

        def copy(self, target):
            shutil.copy(self.local, target)

    monkeypatch.setattr(files.epath, "Path", Remote)
    local = files.localise("gs://bucket/", tmp_path / "local")
    monkeypatch.undo()
    tiny_model.assert_same_params(artifact.read(local).params, artifact.read(folder).params)


def test_a_passing_error_leaves_no_hidden_folder(tmp_path, monkeypatch):
    rmdir, calls = os.rmdir, []

    def failing_once(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        rmdir(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", failing_once)
        with files.new_folder(tmp_path / "model") as new:
            (new / "a").write_text("a")
    assert calls and os.listdir(tmp_path) == ["model"]


def test_next_write_removes_what_killed_ones_left_and_puts_the_older_folder_back(tmp_path):
    target = tmp_path / "model"
    left = [tmp_path / f".model.{name}.partial" for name in ("aaaaaaaa", "bbbbbbbb", "cccccccc")]
    for folder, inside in zip(left, ("new", "old", "notes"), strict=True):
        (folder / inside).mkdir(parents=True)
        (folder / inside / "file").write_text(inside)
    other = tmp_path / ".model.2.abcdefgh.partial"  # of another name
    other.mkdir()
    with pytest.raises(RuntimeError), files.new_folder(target) as new:
        assert (target / "file").read_text() == "old"
        (new / "file").write_text("new")
        with files.new_folder(target) as second:  # leaves alone what a live process writes
            (second / "file").write_text("second")
        assert (new / "file").read_text() == "new"
        raise RuntimeError("a failed write")
    assert (target / "file").read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["model", left[2].name, other.name]
    )
