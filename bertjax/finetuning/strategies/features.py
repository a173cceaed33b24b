"""Only the head is trained (Devlin et al., arXiv 1810.04805, section 5.3: feature-based approach).

The body gives the same features at every epoch, so they are computed once and kept, and it has no
dropout: what the head reads is what it will read at prediction (`finetuning.feature_cache`).
"""

import dataclasses
from typing import Any

import jax

from bertjax.finetuning.strategies import base

RATES = (1e-3, 3e-3, 1e-2)


@dataclasses.dataclass(frozen=True)
class Config:
    """No knobs."""


class Strategy(base.Strategy):
    """The body stays."""

    name = "features"
    body_stays = True

    def moves(self, path: str) -> bool:
        """Nothing of the body."""
        return False

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """(head, body). UserError for a model without a head of its own."""
        trained, frozen = super().split(params, key)
        self.needs(bool(trained), "head of the task")
        return trained, frozen
