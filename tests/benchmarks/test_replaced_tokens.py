"""benchmarks/replaced_tokens: the scores of a discriminator."""

import numpy as np
import pytest

from benchmarks import replaced_tokens


def test_scores_of_four_tokens():
    logits = np.array([2.0, -1.0, 1.0, -3.0])
    labels = np.array([True, True, False, False])
    found = replaced_tokens.scores(logits, labels)
    chances = 1 / (1 + np.exp(-logits))
    losses = -np.log(np.where(labels, chances, 1 - chances))
    assert found == pytest.approx({
        "loss": losses.mean(), "trivial": np.log(2), "accuracy": 0.5, "precision": 0.5,
        "recall": 0.5, "F1": 0.5, "average precision": (1 + 2 / 3) / 2,
    })  # fmt: skip
