"""Everything is trained, the lower the slower (Sun et al., arXiv 1905.05583).

The top layer has the rate of the optimizer, each layer below `decay` times that of the one above
it, the embeddings that of one more layer; the head the factor that a config gives all heads.
"""

import dataclasses
from typing import Any

import jax

from bertjax import errors
from bertjax.finetuning.strategies import full


@dataclasses.dataclass(frozen=True)
class Config:
    """The paper found 0.95 best at a rate of 2e-5; ELECTRA has 0.8 and 0.9 (arXiv 2003.10555)."""

    decay: float = 0.9  # of the rate, from a layer to the one below

    def __post_init__(self):
        errors.check(0 < self.decay <= 1, "strategy.decay", self.decay, "above 0 and at most 1")


class Strategy(full.Strategy):
    """Rates that fall with the depth."""

    name = "layerwise"

    def rate_factor(self, height: Any, step: jax.Array, steps_per_epoch: int) -> Any:
        """decay ** (layers above it)."""
        return self.config.decay ** (height - 1)
