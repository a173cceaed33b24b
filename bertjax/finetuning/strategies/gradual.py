"""Gradual unfreezing (Howard and Ruder, arXiv 1801.06146, section 3.3).

By default, the first epoch trains the head and the top layer. Each later epoch adds the next lower
layer. The embeddings are added one epoch after the lowest layer.

NOTE: frozen layers have gradients and Adam moments too. Adam's bias correction counts the steps
since the start of the run. If a layer's moments began later, its first steps would be several times
too large.
"""

import dataclasses
from typing import Any

import jax

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base, full


@dataclasses.dataclass(frozen=True)
class Config:
    """How many layers to unfreeze per epoch; raise it if there are fewer epochs than layers."""

    layers_per_epoch: int = 1  # layers that start training per epoch, from the top

    def __post_init__(self):
        errors.check(self.layers_per_epoch >= 1, "strategy.layers_per_epoch",
                     self.layers_per_epoch, "1 or more")  # fmt: skip


class Strategy(full.Strategy):
    """Keeps a layer's learning rate at zero until its epoch."""

    name = "gradual"

    def notes(self, trained: Any, num_epochs: int) -> list[str]:
        """Returns a warning if the embeddings, and perhaps layers, are never unfrozen; else []."""
        num_layers = base.stacked(artifact.flatten(trained))
        num_frozen = num_layers - self.config.layers_per_epoch * num_epochs
        if num_frozen < 0:
            return []
        layers = f" and the lowest {num_frozen} of {num_layers} layers" * (num_frozen > 0)
        return [
            f"strategy gradual: the embeddings{layers} are never trained in so few epochs: "
            "raise --config.strategy.layers_per_epoch or --config.num_epochs"
        ]

    def rate_factor(self, height: Any, step: jax.Array, steps_per_epoch: Any) -> Any:
        """Returns 1 for unfrozen layers and 0 for frozen ones."""
        epochs = 1 + step // steps_per_epoch
        return 1.0 * (height <= self.config.layers_per_epoch * epochs)
