"""Only biases and the head are trained: BitFit (Ben Zaken et al., arXiv 2106.10199, section 3)."""

import dataclasses
from typing import Any

import jax

from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base

RATES = (1e-4, 4e-4, 1e-3)


@dataclasses.dataclass(frozen=True)
class Config:
    """No knobs."""


class Strategy(base.Strategy):
    """Biases of dense maps and of norms."""

    name = "bitfit"

    def moves(self, path: str) -> bool:
        """Leaves called bias; the bias of a map to the vocabulary is one."""
        return path.split("/")[-1] == "bias"

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """(biases and head, the rest). UserError for a model whose layers have no biases."""
        found = any("/layers/" in p and self.moves(p) for p in artifact.flatten(params))
        self.needs(found, "biases in its layers")
        return super().split(params, key)
