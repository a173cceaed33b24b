"""Line breaks and indentation of prepared text: kept without a splitter, else single spaces."""

import itertools
import os
import shutil

import pytest

from bertjax import __main__
from bertjax.data.tokenizers import tokenizer
from tests.helpers import corpora, preparing

SPACED = [
    "def f(x):\n    if x:\n\n        return [\n            x,\n        ]\n\n\ndef g():\n\treturn\n",
    "\nOne line.\nTwo lines, e.g. this.\n\n   A block.  Two spaces.\n",
    "\u4ed6\u6765\u4e86\u3002\u4f60\u597d\u5417\uff1f\n\u6211\u5f88\u597d\u3002\n\n" * 500,
    "no end " * 3000,  # is cut
]


@pytest.mark.parametrize("kind", ["gpt2", "bytes"])
def test_without_a_splitter_all_white_space_is_kept(tmp_path, kind):
    path = tmp_path / "tok"
    if kind == "bytes":
        tokenizer.of_bytes().save(os.fspath(path))
    else:
        tokenizer.train("bpe", SPACED, 280).save(os.fspath(tmp_path / "trained"))
        path.mkdir()
        for name in ("vocab.json", "merges.txt"):  # which are read as GPT-2's
            shutil.copy(tmp_path / "trained" / name, path)
    tok = tokenizer.load(os.fspath(path))
    corpora.write_jsonl(tmp_path / "a.jsonl", SPACED)
    preparing.run(
        os.fspath(tmp_path / "a.jsonl"), os.fspath(path), tmp_path / "out",
        splitter="none", heldout_fraction=0,
    )  # fmt: skip
    found = preparing.documents(tmp_path / "out", "train")
    whole = tok.encode_batch(SPACED)  # the documents are cut where the tokenizer cuts them
    assert [list(itertools.chain(*document)) for document in found] == [list(ids) for ids in whole]
    assert len(found[0]) == 3 and all(len(document) > 1 for document in found)


def test_the_command_says_that_line_breaks_are_lost(tmp_path, capsys):
    corpora.write_jsonl(tmp_path / "a.jsonl", SPACED)
    for kind in ("bpe", "wordpiece"):
        tok = tokenizer.train(kind, SPACED, {"bpe": 280, "wordpiece": 80}[kind])
        tok.save(os.fspath(tmp_path / kind))
    said = {}
    for kind, splitter in (("bpe", "rules"), ("bpe", "none"), ("wordpiece", "rules")):
        out = os.fspath(tmp_path / f"{kind}-{splitter}")
        flags = [f"--input={tmp_path}/a.jsonl", f"--tokenizer={tmp_path / kind}", f"--output={out}"]
        assert __main__.main(["prepare", *flags, f"--splitter={splitter}", "--workers=1"]) == 0
        said[kind, splitter] = "--splitter=none keeps them" in capsys.readouterr().err
    assert said == {("bpe", "rules"): True, ("bpe", "none"): False, ("wordpiece", "rules"): False}
