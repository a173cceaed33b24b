"""Trains every parameter (Devlin et al., arXiv 1810.04805, section 3.2)."""

import dataclasses

from bertjax.finetuning.strategies import base


@dataclasses.dataclass(frozen=True)
class Config:
    """This strategy has no options."""


class Strategy(base.Strategy):
    """Trains the whole model."""

    name = "full"

    def moves(self, path: str) -> bool:
        """Returns True: all of the body is trained."""
        return True
