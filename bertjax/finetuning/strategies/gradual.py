"""Gradual unfreezing (Howard and Ruder, arXiv 1801.06146, section 3.3).

In the first epoch the head and the top layer move, in each epoch after it one layer more; after the
lowest layer the embeddings. A layer that does not move yet has gradients and moments nevertheless:
Adam corrects its moments for the steps since the start of the run, and moments that began later
would make its first steps several times too large.
"""

import dataclasses
from typing import Any

import jax

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base, full


@dataclasses.dataclass(frozen=True)
class Config:
    """How many layers join each epoch: more where there are fewer epochs than layers."""

    layers_per_epoch: int = 1  # that join, from the top

    def __post_init__(self):
        errors.check(self.layers_per_epoch >= 1, "strategy.layers_per_epoch",
                     self.layers_per_epoch, "1 or more")  # fmt: skip


class Strategy(full.Strategy):
    """Rates that are zero until a layer's epoch."""

    name = "gradual"

    def notes(self, trained: Any, num_epochs: int) -> list[str]:
        """The layers that never move."""
        num_layers = base.stacked(artifact.flatten(trained))
        lowest = num_layers - self.config.layers_per_epoch * num_epochs
        if lowest < 0:
            return []
        layers = f" and the lowest {lowest} of {num_layers} layers" * (lowest > 0)
        return [
            f"strategy gradual: the embeddings{layers} never move, for the epochs are too few: "
            "raise --config.strategy.layers_per_epoch or --config.num_epochs"
        ]

    def rate_factor(self, height: Any, step: jax.Array, steps_per_epoch: int) -> Any:
        """1 for what moves by now, 0 for what does not."""
        epochs = 1 + step // steps_per_epoch
        return 1.0 * (height <= self.config.layers_per_epoch * epochs)
