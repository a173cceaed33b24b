"""Freezes the embeddings and the bottom layers and trains the layers above.

Lee et al., arXiv 1911.03090, study how many layers can be frozen at what cost. Layers are stacked
in one array, so a parameter of the layers is in both trees: its bottom slices are frozen, and its
top slices are trained.

NOTE: if the stack is compiled as a loop, the backward pass still runs through all layers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base


@dataclasses.dataclass(frozen=True)
class Config:
    """The number of bottom layers to freeze; in an encoder-decoder, that many in each stack."""

    frozen_layers: int = 2  # lowest layers that are not trained; 0: only the embeddings are frozen

    def __post_init__(self):
        errors.check(self.frozen_layers >= 0, "strategy.frozen_layers", self.frozen_layers,
                     "0 or more")  # fmt: skip


class Strategy(base.Strategy):
    """Trains the layers above the frozen ones, the parameters after them, and the head."""

    name = "partial"

    def moves(self, path: str) -> bool:
        """Returns whether the parameter is in the layers, which `split` divides, or after them."""
        return "/layers/" in path or base.above_layers(path)

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Returns (trained, frozen); splits stacked parameters at `frozen_layers`.

        Raises UserError if `frozen_layers` exceeds the layers, or if nothing is left to train.
        """
        count = self.config.frozen_layers
        trained, frozen = map(artifact.flatten, super().split(params, key))
        for path in [path for path in trained if "/layers/" in path]:
            stack = trained.pop(path)
            self._check(path.split("/")[0], len(stack))
            if count < len(stack):
                trained[path] = stack[count:]
            if count > 0:
                frozen[path] = stack[:count]
        errors.check(bool(trained), "strategy.frozen_layers", count,
                     "fewer, so that parameters are left to train")  # fmt: skip
        return artifact.unflatten(trained), artifact.unflatten(frozen)

    def combine(self, trained: Any, frozen: Any) -> Any:
        """Returns the whole model, with the slices of each stack concatenated."""
        flat_trained, flat_frozen = artifact.flatten(trained), artifact.flatten(frozen)
        stacks = {
            path: jnp.concatenate([flat_frozen[path], flat_trained[path]])
            for path in flat_trained.keys() & flat_frozen
        }
        return artifact.unflatten({**flat_frozen, **flat_trained, **stacks})

    def _check(self, stack: str, num_layers: int) -> None:
        errors.check(
            self.config.frozen_layers <= num_layers,
            "strategy.frozen_layers",
            self.config.frozen_layers,
            f"at most {num_layers}, the layers of the {stack} (a shared layer counts once)",
        )
