"""Hard negatives: ranks, margins against false negatives, and texts that match."""

import numpy as np
import pytest

from bertjax import errors
from bertjax.inference import mining

ANGLES = {"q": 0, "Q": 0, "P": 20, "p": 20, "p2": 10, "near": 15, "a": 30, "b": 40, "c": 60,
          "r": 90, "r+": 80}  # fmt: skip


class Model:
    """A model that encodes a text as a vector of length 1 at the angle of ANGLES."""

    def encode(self, texts, *, normalize, truncate):
        assert normalize and truncate
        radians = np.deg2rad([ANGLES[text.strip()] for text in texts])
        return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)

    def compares_cosines(self):
        return True


CORPUS = ["r", "c", "b", "a", "near", "P ", "p2", "P", "Q", "a "]
PAIRS = [("q", "P"), ("q", "p2"), ("r", "r+")]


def _negatives(pairs=PAIRS, **options):
    settings = mining.Options(**{"num_negatives": 3, "relative_margin": 0.0, **options})
    return [mined.negatives for mined in mining.mine(Model(), pairs, CORPUS, settings)]


def test_negatives_are_similar_but_less_than_the_positive():
    assert _negatives() == [("a", "b", "c"), ("near", "a", "b"), ("c", "b", "a")]
    assert _negatives(num_negatives=1) == [("a",), ("near",), ("c",)]


def test_texts_that_match_are_no_negatives_whatever_their_case():
    pairs = [("q", "p"), ("q", "p2")]  # "P " and "P" match as "p" does; "Q" is the query
    assert _negatives(pairs) == [("a", "b", "c"), ("near", "a", "b")]


@pytest.mark.parametrize("block", [2, 100])
def test_blocks_make_no_difference(monkeypatch, block):
    monkeypatch.setattr(mining, "_QUERIES", 1)
    monkeypatch.setattr(mining, "_TEXTS", block)
    assert _negatives() == [("a", "b", "c"), ("near", "a", "b"), ("c", "b", "a")]


def test_margins_exclude_false_negatives():
    cos = {text: np.cos(np.deg2rad(angle)) for text, angle in ANGLES.items()}
    between = cos["P"] - (cos["a"] + cos["b"]) / 2
    assert _negatives(margin=between)[0] == ("b", "c", "r")
    assert _negatives(relative_margin=between / cos["P"])[0] == ("b", "c", "r")
    mined = list(mining.mine(Model(), PAIRS, CORPUS, mining.Options(margin=between)))
    assert [m.false_negatives for m in mined] == [2, 2, 1]


def test_ranks_count_only_texts_that_do_not_match():
    assert _negatives(min_rank=2)[0] == ("a", "b", "c")  # rank 1 is "near", above the positive
    assert _negatives(min_rank=3)[0] == ("b", "c", "r")
    assert _negatives(min_rank=3, max_rank=4)[0] == ("b", "c")
    assert _negatives(max_rank=1)[0] == ()


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_negatives", 0), ("min_rank", 0), ("max_rank", 0), ("margin", -1.0),
     ("relative_margin", 1.0)],
)  # fmt: skip
def test_impossible_options_are_refused(option, value):
    with pytest.raises(errors.UserError, match=f"^--{option}={value}: must be "):
        mining.Options(**{option: value})
