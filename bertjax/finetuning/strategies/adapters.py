"""Adapters: bottlenecks between the frozen parts of each layer.

Houlsby et al., arXiv 1902.00751, section 2. The adapters, the norms and the head are trained. The
adapters are part of the model if its field `adapter_size` is set. Their initial output is near
zero, so the model starts as the pretrained one.
"""

import dataclasses
import re
from typing import Any

from bertjax import errors
from bertjax.finetuning.strategies import base

RATES = (1e-4, 3e-4, 1e-3)


@dataclasses.dataclass(frozen=True)
class Config:
    """The width of the bottleneck; the paper uses 8, 64 and 256 (section 3.2)."""

    adapter_size: int = 64  # width of the bottleneck

    def __post_init__(self):
        errors.check(self.adapter_size >= 1, "strategy.adapter_size", self.adapter_size,
                     "1 or more")  # fmt: skip


class Strategy(base.Strategy):
    """Trains the adapters, the norms and the head."""

    name = "adapters"

    def fields(self) -> dict[str, Any]:
        """Returns the model's fields with adapters."""
        return {**self.model, "adapter_size": self.config.adapter_size}

    def moves(self, path: str) -> bool:
        """Returns whether the parameter is in an adapter, or is the scale or bias of a norm."""
        return re.search(r"adapter/|norm/(scale|bias)$", path) is not None
