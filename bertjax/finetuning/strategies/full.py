"""Every parameter is trained (Devlin et al., arXiv 1810.04805, section 3.2)."""

import dataclasses

from bertjax.finetuning.strategies import base


@dataclasses.dataclass(frozen=True)
class Config:
    """No knobs."""


class Strategy(base.Strategy):
    """Everything moves."""

    name = "full"

    def moves(self, path: str) -> bool:
        """All of the body."""
        return True
