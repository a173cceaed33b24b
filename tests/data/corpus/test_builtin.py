"""The built-in corpus: what is kept of a docstring, and the corpus of this installation."""

import json
import os
import pathlib
import re
import subprocess
import sys

from bertjax.data.corpus import builtin

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCSTRING = '''Return the mean of the values along an axis.

The `mean` is taken over :func:`~package.flat` arrays, and ``None`` means all
of them at once.

>>> mean([1, 2])
1.5

Parameters
----------
values : array_like, optional
    The values of which the mean is wanted by the caller.
axis : int

Args:
  name (str): The name that is shown to those who read it.
  other: Too short.

.. code-block:: python

    x = mean(values)[0]

======  ======
left    right
======  ======

- An item of a list which is long enough to stay.
- short

See https://example.org/for/more of this and of that and of the other.

    for value in values: print(value)
'''


def test_paragraphs_keep_the_prose_and_drop_the_rest():
    assert list(builtin.paragraphs(DOCSTRING)) == [
        "Return the mean of the values along an axis.",
        "The mean is taken over package.flat arrays, and None means all of them at once.",
        "The values of which the mean is wanted by the caller.",
        "The name that is shown to those who read it.",
        "An item of a list which is long enough to stay.",
    ]


def test_docstrings_are_read_without_importing():
    source = b'''"""A module's own text which tells what it is for and why."""
raise SystemExit("never run")
class A:
    """The class, which has a method that is told about below, and nothing more than that."""
    def method(self):
        """The method that is told about above, in one line which is long enough to count."""
        return "not a docstring" * 2
'''
    second_words = [text.split()[1] for text in builtin._docstrings(source)]
    assert second_words == ["module's", "class,", "method"]
    assert builtin._docstrings(source + b"x = (") == []


def test_the_corpus_of_this_installation(tmp_path, monkeypatch):
    # The topics and the standard library; the packages would take a minute more.
    monkeypatch.setattr(builtin, "ENOUGH_BYTES", 1_000_000)
    builtin._corpus.cache_clear()
    stats = builtin.write(tmp_path / "a.jsonl")
    assert 1_000_000 <= stats["bytes"] <= builtin.MAX_BYTES
    assert os.listdir(tmp_path) == ["a.jsonl"]
    texts = [json.loads(line)["text"] for line in open(tmp_path / "a.jsonl", encoding="utf-8")]
    assert len(texts) == stats["documents"] > 200
    assert texts == list(builtin.documents())
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n")]
    assert len(paragraphs) == stats["paragraphs"] == len(set(paragraphs))
    assert all(re.search(r"[.!?][\"')\u201d\u2019]*\Z", p) for p in paragraphs)
    assert not any(re.search(r">>>|https?:|site-packages/|/home/|\n", p) for p in paragraphs)
    words = " ".join(paragraphs).lower().split()
    assert sum(word == "the" for word in words) > 0.05 * len(words)


def test_another_process_finds_the_same_bytes():
    # One package of the standard library: the whole corpus would take the time of all other tests.
    script = (
        "import email, pathlib; from bertjax.data.corpus import builtin; seen = set(); "
        "package = builtin._modules(pathlib.Path(email.__file__).parent); "
        "print(*[builtin._document(texts, seen) for texts in package], sep=chr(0))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] and len(runs[0]) > 10_000
