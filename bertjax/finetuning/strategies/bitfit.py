"""Trains only the biases and the head: BitFit (Ben Zaken et al., arXiv 2106.10199, section 3)."""

import dataclasses
from typing import Any

import jax

from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base

RATES = (1e-4, 4e-4, 1e-3)


@dataclasses.dataclass(frozen=True)
class Config:
    """This strategy has no options."""


class Strategy(base.Strategy):
    """Trains the biases of dense layers and of norms, and the head."""

    name = "bitfit"

    def moves(self, path: str) -> bool:
        """Returns whether the parameter is a bias, including the bias over the vocabulary."""
        return path.split("/")[-1] == "bias"

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Returns (biases and head, the rest). Raises UserError if the layers have no biases."""
        has_biases = any("/layers/" in p and self.moves(p) for p in artifact.flatten(params))
        self.needs(has_biases, "biases in its layers")
        return super().split(params, key)
