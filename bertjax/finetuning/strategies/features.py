"""Trains only the head (Devlin et al., arXiv 1810.04805, section 5.3: feature-based approach).

The body runs without dropout, so its features are the same in every epoch and in prediction. If
they are small enough, they are computed once and cached (`finetuning.feature_cache`).
"""

import dataclasses
from typing import Any

import jax

from bertjax.finetuning.strategies import base

RATES = (1e-3, 3e-3, 1e-2)


@dataclasses.dataclass(frozen=True)
class Config:
    """This strategy has no options."""


class Strategy(base.Strategy):
    """Freezes the body."""

    name = "features"
    body_stays = True

    def moves(self, path: str) -> bool:
        """Returns False: the body is frozen."""
        return False

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Returns (head, body). Raises UserError if the model has no head for the task."""
        trained, frozen = super().split(params, key)
        self.needs(bool(trained), "head of the task")
        return trained, frozen
