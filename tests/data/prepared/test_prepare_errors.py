"""Prepare: bad input and impossible calls are one line, and the command says what it did."""

import os
import pathlib
import subprocess
import sys

import pytest

from bertjax import errors
from bertjax.data.prepared import prepared, store
from tests.helpers import corpora, preparing
from tests.helpers.preparing import TEXTS


@pytest.fixture(scope="module")
def tok_path(tmp_path_factory) -> str:
    return preparing.train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def corpus_path(tmp_path) -> str:
    return os.fspath(corpora.write_jsonl(tmp_path / "corpus.jsonl", TEXTS))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_stops_everything_or_is_counted(tmp_path, corpus_path, tok_path, workers):
    good = pathlib.Path(corpus_path).read_bytes().splitlines(keepends=True)
    broken = b"{" + b"x" * (len(good[250]) - 2) + b"\n"
    pathlib.Path(corpus_path).write_bytes(b"".join(good[:250] + [broken] + good[251:]))
    out = tmp_path / "out"
    with pytest.raises(errors.UserError, match=r"corpus\.jsonl line 251: not valid JSON"):
        preparing.run(corpus_path, tok_path, out, workers=workers)
    assert not (out / "manifest.json").exists()
    manifest = preparing.run(corpus_path, tok_path, out, workers=workers, on_error="skip")
    assert manifest["skipped"] == {"bad JSON lines": 1}
    documents = [manifest["splits"][split]["documents"] for split in ("train", "heldout")]
    assert sum(documents) == len(TEXTS) - 1
    with pytest.raises(errors.UserError, match="prepared with on_error=skip, so skipped input"):
        preparing.run(corpus_path, tok_path, out, workers=workers)


def test_skipped_files_are_counted_too(tmp_path, corpus_path, tok_path):
    (tmp_path / "empty.jsonl").touch()
    manifest = preparing.run(
        os.fspath(tmp_path / "*.jsonl"), tok_path, tmp_path / "out", on_error="skip"
    )
    assert manifest["skipped"] == {"unreadable or empty files": 1}


def test_an_output_that_is_a_file_is_named(tmp_path, corpus_path, tok_path):
    (tmp_path / "out").touch()
    with pytest.raises(errors.UserError, match=r"out: is not a folder that can be written to"):
        preparing.run(corpus_path, tok_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("only one document.", {}, "the corpus has one document"),
        (" \n \n", {}, "--input contains no text: 1 empty documents"),
        ("a. b.", {"splitter": "magic"}, "splitter = 'magic': must be one of rules, lines, none"),
        ("a. b.", {"text_split": "page"}, "text_split = 'page': must be one of file, blank"),
        ("a. b.", {"on_error": "cry"}, "on_error = 'cry': must be one of stop, skip"),
        ("a. b.", {"heldout_fraction": 1}, "heldout_fraction = 1: must be 0 or more and below 1"),
        ("a. b.", {"workers": 0}, "workers and shard_bytes must be 1 or more"),
    ],
)
def test_impossible_calls_are_one_line(tmp_path, tok_path, text, options, message):
    (tmp_path / "a.txt").write_text(text)
    for _ in range(2):  # the first one leaves nothing behind that changes the second
        with pytest.raises(errors.UserError, match=message) as caught:
            preparing.run(os.fspath(tmp_path / "a.txt"), tok_path, tmp_path / "out", **options)
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out/*.array_record"))
    (tmp_path / "a.txt").write_text("Now there are two.\n\nTwo documents.\n")
    preparing.run(os.fspath(tmp_path / "a.txt"), tok_path, tmp_path / "out", text_split="blank")


def _bertjax(*flags: str) -> subprocess.CompletedProcess:
    root = pathlib.Path(__file__).resolve().parents[3]
    return subprocess.run(
        [sys.executable, "-m", "bertjax", "prepare", *flags],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prepares_and_reports(tmp_path, corpus_path, tok_path):
    (tmp_path / "strange.jsonl").write_text('{"text": "' + "\u6587\u5b57 " * 900 + '"}\n')
    flags = [f"--input={corpus_path}", f"--tokenizer={tok_path}", f"--output={tmp_path / 'out'}"]
    done = _bertjax(*flags, f"--input={tmp_path / 'strange.jsonl'}", "--workers=2")
    assert done.returncode == 0, done.stderr
    assert "documents: 401 " in done.stdout and "held out: " in done.stdout
    assert "MB/s" in done.stdout and f"prepared: {tmp_path / 'out'}" in done.stdout
    assert "of the tokens are unknown to the tokenizer" in done.stdout
    assert store.open_dataset(tmp_path / "out", "train").num_documents > 380


def test_the_command_fails_in_one_line(tmp_path, corpus_path, tok_path):
    pathlib.Path(corpus_path).write_text('{"text": "fine."}\n{"title": "no text"}\n')
    done = _bertjax(
        f"--input={corpus_path}", f"--tokenizer={tok_path}", f"--output={tmp_path / 'out'}"
    )
    assert done.returncode == errors.EXIT_BAD_INPUT and done.stdout == ""
    header, _, error = done.stderr.partition("bertjax: ")
    assert header.startswith("prepare\nreads ")
    assert error == (
        f"error: {corpus_path} line 2: has no field 'text' (its fields: title); "
        "give one of them as --text_field; or leave it out with --on_error=skip\n"
    )


def test_the_help_shows_an_example():
    done = _bertjax("--help")
    assert done.returncode == 0
    assert "bertjax prepare --input='corpus/*.jsonl' --tokenizer=tok/" in done.stdout


@pytest.mark.parametrize(
    ("documents", "tokens", "start"),
    [
        (1, 800, "1 document with 800 tokens in total is too little to rank models"),
        (2, 25_000, "2 documents with 25,000 tokens in total are too few to rank models"),
        (30, 20_000, None),
    ],
)
def test_the_report_says_when_what_is_held_out_is_too_small(documents, tokens, start):
    counts = dict.fromkeys(("documents", "sentences", "tokens", "unknown"), 0)
    heldout = counts | {"documents": documents, "tokens": tokens}
    manifest = {"splits": {"train": counts, "heldout": heldout}, "text_bytes": 1}
    manifest |= {"skipped": {}, "empty_documents": 0}
    result = prepared.of_manifest("prepared/", manifest)
    assert len(result.warnings()) == (start is not None)
    assert all(line.startswith(f"held out: {start}") for line in result.warnings())
    assert [f"warning: {line}" for line in result.warnings()] == result.lines()[3:]
