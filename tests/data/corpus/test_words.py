"""Words and runs of words: what counts as a word, and hashes that do not depend on pieces."""

import numpy as np
import pytest

from bertjax.data.corpus import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat's  mat, no. 3!", ["the", "cat", "s", "mat", "no", "3"]),
        ("Stra\u00dfe STRASSE", ["stra\u00dfe", "strasse"]),
        ("cafe\u0301 caf\u00e9", ["caf\u00e9", "caf\u00e9"]),  # two ways to write one letter
        ("\u5317\u4eac is big", ["\u5317", "\u4eac", "is", "big"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e\u0964",
         ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092d\u093e\u0937\u093e"]),
        ("... -- !", []),
    ],
)  # fmt: skip
def test_words(text, expected):
    assert words.split(text) == expected


def _runs(text: str, length: int) -> list[int]:
    parts = [part.tolist() for part in words.runs(text, length)]
    return [number for part in parts for number in part]


def test_runs_of_words_are_equal_exactly_where_the_words_are():
    rng = np.random.default_rng(0)
    text = rng.choice(["a", "b", "c"], 300).tolist()
    numbers = _runs(" ".join(text), 4)
    runs = [tuple(text[i : i + 4]) for i in range(len(text) - 3)]
    assert len(numbers) == len(runs) == 297
    assert len(set(numbers)) == len(set(runs)) == len(set(zip(numbers, runs, strict=True)))
    assert _runs("A, b; C ... a -- b", 5) == _runs("a b c a b", 5)
    assert _runs("a b c", 4) == []


def test_a_long_text_is_hashed_in_pieces(monkeypatch):
    text = " ".join(f"word{i}" for i in range(1000))
    whole = _runs(text, 13)
    monkeypatch.setattr(words, "_PIECE", 50)  # fewer words than a run
    assert len(list(words.runs(text, 13))) > 100
    assert _runs(text, 13) == whole and len(set(whole)) == 988


def test_digests_ignore_case_and_white_space_alone():
    assert words.digest("The  Cat\nsat.") == words.digest(" the cat sat.")
    assert words.digest("The cat sat.") != words.digest("The cat sat!")
