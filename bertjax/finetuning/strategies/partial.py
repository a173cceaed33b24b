"""The embeddings and the bottom layers stay as they are, the layers above are trained.

Which bottom layers can stay, and what it costs: Lee et al., arXiv 1911.03090. Layers lie stacked in
one array, so a parameter of the layers is in both trees: its bottom slices frozen, those on top
trained. The backward pass still goes through all of them where the stack is compiled as a loop.
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
    """How many layers stay, from the bottom; of an encoder-decoder: of both stacks."""

    frozen_layers: int = 2  # from the bottom; 0: the embeddings alone

    def __post_init__(self):
        errors.check(self.frozen_layers >= 0, "strategy.frozen_layers", self.frozen_layers,
                     "0 or more")  # fmt: skip


class Strategy(base.Strategy):
    """The layers above `frozen_layers`, what follows them and the head."""

    name = "partial"

    def moves(self, path: str) -> bool:
        """All but the embeddings; of layers, see `split`."""
        return "/layers/" in path or base.above_layers(path)

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Stacked parameters are cut at `frozen_layers`; UserError for more than there are."""
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
                     "less: nothing is left to train")  # fmt: skip
        return artifact.unflatten(trained), artifact.unflatten(frozen)

    def combine(self, trained: Any, frozen: Any) -> Any:
        """Slices of a stack one on the other."""
        over, under = artifact.flatten(trained), artifact.flatten(frozen)
        both = {path: jnp.concatenate([under[path], over[path]]) for path in over.keys() & under}
        return artifact.unflatten({**under, **over, **both})

    def _check(self, stack: str, num_layers: int) -> None:
        errors.check(
            self.config.frozen_layers <= num_layers,
            "strategy.frozen_layers",
            self.config.frozen_layers,
            f"at most {num_layers}, the layers of the {stack} (one that is used again is one)",
        )
