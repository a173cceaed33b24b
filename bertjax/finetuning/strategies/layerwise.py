"""Layer-wise learning rate decay: lower layers have lower rates (Sun et al., arXiv 1905.05583).

The top layer has the optimizer's learning rate. Each layer below has `decay` times the rate of the
layer above it. The embeddings count as one more layer. The rate of the head is scaled by the
config's head_rate_factor.
"""

import dataclasses
from typing import Any

import jax

from bertjax import errors
from bertjax.finetuning.strategies import full


@dataclasses.dataclass(frozen=True)
class Config:
    """The factor between layers.

    The paper found 0.95 best at a rate of 2e-5; ELECTRA uses 0.8 and 0.9 (arXiv 2003.10555).
    """

    decay: float = 0.9  # factor on the learning rate from each layer to the one below

    def __post_init__(self):
        errors.check(0 < self.decay <= 1, "strategy.decay", self.decay, "above 0 and at most 1")


class Strategy(full.Strategy):
    """Trains the whole model, with lower learning rates for lower layers."""

    name = "layerwise"

    def rate_factor(self, height: Any, step: jax.Array, steps_per_epoch: Any) -> Any:
        """Returns decay ** (number of layers above `height`)."""
        return self.config.decay ** (height - 1)
