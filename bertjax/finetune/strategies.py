"""Which numbers a fine-tuning moves, as functions on trees of parameters.

    strategy = strategies.make(config.strategy, fields)
    trained, frozen = strategy.split(params, key)
    loss of strategy.combine(trained, frozen)         # the model's own parameters again

What is frozen has no gradient and no optimizer state. (Skeleton of the contract.)
"""

from typing import Any, Protocol

import jax
import optax


class Strategy(Protocol):
    """caches: the encoder is frozen and gives the head the same features at every epoch."""

    name: str
    caches: bool

    def fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of the model that it needs: those given, adapters or rows of prompts added."""

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """(trained, frozen) out of the parameters of a model with `fields`; new ones from key."""

    def combine(self, trained: Any, frozen: Any) -> Any:
        """The parameters that the model computes with; pure, and can be jitted and vmapped."""

    def optimizer(
        self, config: Any, num_steps: int, steps_per_epoch: int, num_layers: int
    ) -> optax.GradientTransformation:
        """The chain for `trained`: `optimizer.make` with rates by depth where it has them."""

    def prompt_ids(self) -> tuple[int, ...]:
        """Ids that `kind.encode`'s rows get after their first token; () but for prompts."""
