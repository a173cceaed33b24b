"""Paths that lead nowhere are refused in one line, whichever flag they are given to."""

import os
import re

import pytest

from bertjax import __main__ as cli
from bertjax import errors, paths
from tests.helpers import corpora

ODD = {
    "http://host/run": "give a local path or gs://...",
    "s3://bucket/run": "give a local path or gs://...",
    "://": "give a local path or gs://...",
    "file:///run": "without file://",
    "gs://": "contains no bucket name",
    "gs:/bucket/run": "with two slashes",
    "a\0b": "a\\0b: contains an invalid character",
    "\ud800": "contains an invalid character",
    "/".join("d" * 2_000): "folders deep",
    "/dev/zero": "a device or a pipe",
}
FLAGS = (
    ("tokenizer", "--input={}", "--vocab_size=300", "--output=x"),
    ("tokenizer", "--input=builtin", "--output={}"),
    ("prepare", "--input={}", "--tokenizer={}", "--output=x"),
    ("prepare", "--input=builtin", "--tokenizer={}", "--output=x"),
    ("pretrain", f"--config={corpora.ROOT}/configs/bert_tiny.py:smoke", "--workdir=x",
     "--config.data.path={}"),
    ("evaluate", "--model={}", "--data=x"),
    ("predict", "--model={}", "--text=x"),
    ("inspect", "{}"),
    ("export", "--model={}", "--output=x"),
    ("import", "--input={}", "--output=x"),
    ("finetune", "--model={}", "--task=classification", "--train=x", "--output=x"),
)  # fmt: skip


@pytest.mark.parametrize("path", ODD)
def test_an_odd_path_is_refused(path):
    with pytest.raises(errors.UserError, match=re.escape(ODD[path])) as caught:
        paths.of(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", ["run", "/run", "a b/\u00e9", "~/x", "run:2", "../x"])
def test_a_local_path_is_itself(path):
    assert os.fspath(paths.of(path)) == path


def test_an_empty_path_is_refused():
    with pytest.raises(errors.UserError, match="empty"):
        paths.of("")


def test_a_bucket_needs_gcsfs(monkeypatch):
    monkeypatch.setattr(paths, "reaches_buckets", lambda: False)
    with pytest.raises(errors.UserError, match=r"gs://bucket/run: .*pip install 'bertjax\[gcs\]'"):
        paths.of("gs://bucket/run")


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: " ".join(flags)[:30])
@pytest.mark.parametrize("path", ["http://host/run", "a\0b", "/dev/zero"])
def test_every_verb_refuses_it_in_one_line(flags, path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([word.format(path) for word in flags]) == errors.EXIT_BAD_INPUT
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert ODD[path].split(":")[-1] in line or path in line
    assert os.listdir(tmp_path) == []


def test_a_superscript_digit_is_no_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["inspect", "run/checkpoints/\u00b2"]) == errors.EXIT_BAD_INPUT
    assert "not found; give a workdir" in capsys.readouterr().err
