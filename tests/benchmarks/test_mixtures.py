"""benchmarks/mixtures: the source of a row, found by its text."""

import numpy as np

from benchmarks import mixtures
from tests.helpers import synthetic


def test_a_row_is_from_the_source_that_has_its_text():
    datasets = {
        name: synthetic.Dataset([synthetic.record({1: [30]}, token=first)])
        for name, first in {"web": 10, "books": 100}.items()
    }
    texts = mixtures.Texts(datasets)
    rows = np.array([[2, *range(first, first + 8), 3] for first in (12, 105, 200)])
    rows[1, 1] = 13  # a stray token
    assert texts.sources(rows).tolist() == [0, 1, -1]


def test_masks_are_undone():
    batch = {
        "input_ids": np.array([[2, 4, 7, 4, 3]]),
        "masked_positions": np.array([[1, 3, 0]]),
        "masked_ids": np.array([[5, 6, 9]]),
        "masked_weights": np.array([[1.0, 1.0, 0.0]]),
    }
    assert mixtures.text_of(batch).tolist() == [[2, 5, 7, 6, 3]]
