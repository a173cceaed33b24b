"""The margins of a teacher: its score of a positive minus that of each hard negative.

    of_label((9.0, 2.5, 1.0))       # [6.5, 8.0]
    of_label(6.5)                   # [6.5]
"""

from typing import Any

from bertjax import errors
from bertjax.finetuning.examples import types as examples_lib


def of_label(label: Any) -> list[float]:
    """Returns the teacher's score of the positive minus that of each negative.

    label: the scores of the positive and the negatives, or one margin.
    """
    if isinstance(label, tuple):
        positive, *negatives = map(float, label)
        return [positive - negative for negative in negatives]
    return [float(label)]


def check(example: examples_lib.Sentence, where: str) -> None:
    """Raises UserError unless a teacher's scores fit the hard negatives of an example."""
    count, place = len(example.texts) - 2, example.where or where
    if count < 1:
        raise errors.UserError(
            f"{place}: has no negative, which config.kind.loss = 'margin_mse' needs: give a column "
            "'negative', or 'negatives' with a list"
        )
    label = example.label
    number = len(label) if isinstance(label, tuple) else 2
    if isinstance(label, str) or number != 1 + count:
        margin = ", or their difference" * (count == 1)
        raise errors.UserError(
            f"{place}: the scores {label!r:.40} do not fit {errors.count(count, 'negative')}: give "
            f"the score of the positive and that of each negative ({1 + count} numbers){margin}"
        )
