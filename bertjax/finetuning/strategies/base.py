"""What a strategy is: which numbers of a model a fine-tuning moves, and how fast.

A strategy cuts a model's parameters into two trees and puts them together again:

    trained, frozen = strategy.split(params, key)
    params == strategy.combine(trained, frozen)      # at the start; functions added are zero

Both trees keep the paths of the model. What is frozen has no gradient and no optimizer state, and
is the same for every key, so that runs of many seeds can share it.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax import errors, optimizer, sharding
from bertjax.artifact import artifact
from bertjax.models.common import heads

# What stands on the body and answers: trained by every strategy. The maps to the vocabulary with
# which a model was pretrained are none of these; the pooler is the classifier's first layer.
HEADS = ("pooler", *heads.DOWNSTREAM)


def of_head(path: str) -> bool:
    """Whether the parameter at "span/logits/kernel" is of a head."""
    return path.split("/")[0] in HEADS


def above_layers(path: str) -> bool:
    """Whether the parameter is of the body, and what the layers give goes through it."""
    return "final_norm/" in path or path.startswith("lm_head/")


class Strategy(abc.ABC):
    """The parameters of the body that `moves` names, and the heads, are trained as they are.

    config: the strategy's Config. model: fields of the model before `fields`.
    head_rate_factor: learning rate of the heads in rates of the body.
    """

    name = "full"
    body_stays = False  # it is frozen and tells the head the same at every epoch

    def __init__(self, config: Any, model: dict[str, Any], head_rate_factor: float = 1.0):
        self.config = config
        self.model = model
        self.head_rate_factor = head_rate_factor

    def fields(self) -> dict[str, Any]:
        """Fields of the model that it trains: adapters or rows of prompts added."""
        return self.model

    def prompt_ids(self) -> tuple[int, ...]:
        """Ids that the rows of `kind.encode` get after their first token."""
        return ()

    @abc.abstractmethod
    def moves(self, path: str) -> bool:
        """Whether the parameter of the body at `path` is trained."""

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """(trained, frozen) out of the parameters of a model with `fields`; new ones by the key.

        Raises UserError where the model has nothing that this strategy trains.
        """
        del key
        flat = artifact.flatten(params)
        unread = () if "classifier" in params else ("pooler",)
        trained = {
            path: leaf
            for path, leaf in flat.items()
            if self.moves(path) or (of_head(path) and path.split("/")[0] not in unread)
        }
        frozen = {p: x for p, x in flat.items() if p not in trained}
        return artifact.unflatten(trained), artifact.unflatten(frozen)

    def combine(self, trained: Any, frozen: Any) -> Any:
        """The parameters that the model computes with; pure, can be jitted and vmapped."""
        return artifact.unflatten({**artifact.flatten(frozen), **artifact.flatten(trained)})

    def rate_factor(self, height: Any, step: jax.Array, steps_per_epoch: int) -> Any:
        """Factor on the learning rate of the body at `height` (see `heights`), by step."""
        del height, step, steps_per_epoch
        return 1.0

    def notes(self, trained: Any, num_epochs: int) -> list[str]:
        """What a user may not expect of so many epochs."""
        del trained, num_epochs
        return []

    def optimizer(
        self, config: Any, num_steps: int, steps_per_epoch: int
    ) -> optax.GradientTransformation:
        """The chain for `trained`: `optimizer.make` of an `optimizer.Config`, rates by height."""

        def factor(height: Any, step: jax.Array) -> Any:
            of_body = self.rate_factor(height, step, steps_per_epoch)
            return jnp.where(height == 0, self.head_rate_factor, of_body)

        return optax.chain(optimizer.make(config, num_steps), scale_by_height(factor))

    def needs(self, found: bool, what: str) -> None:
        """Raises UserError unless the model has `what` this strategy trains."""
        errors.check(found, "strategy.name", self.name, f"another one: the model has no {what}")


def heights(path: str, shape: tuple[int, ...], num_layers: int) -> np.ndarray:
    """How far below the head a parameter lies, as float32 that broadcasts to its shape.

    0 the head; 1 the top layer, the norm after it and a map to the vocabulary that is no embedding;
    one more each layer down; num_layers + 1 the embeddings, of words and of positions. The two
    stacks of an encoder-decoder stand side by side.
    """
    if of_head(path):
        found = np.zeros(())
    elif "/layers/" in path:
        found = np.arange(shape[0], 0, -1).reshape(-1, *(1 for _ in shape[1:]))
    else:
        found = np.array(1 if above_layers(path) else num_layers + 1)
    return found.astype(np.float32)


def stacked(flat: Mapping[str, Any]) -> int:
    """Layers of the deepest stack among arrays by their paths."""
    return max((x.shape[0] for path, x in flat.items() if "/layers/" in path), default=0)


class HeightState(NamedTuple):
    """count: int32, the steps so far."""

    count: jax.Array


def scale_by_height(
    factor: Callable[[np.ndarray, jax.Array], jax.Array],
) -> optax.GradientTransformation:
    """Multiplies updates by factor(heights, step). The tree must hold a layer of the full stack."""

    def init_fn(params: Any) -> HeightState:
        del params
        return HeightState(jnp.zeros((), jnp.int32))

    def update_fn(updates: Any, state: HeightState, params: Any = None) -> tuple[Any, HeightState]:
        del params
        num_layers = stacked(artifact.flatten(updates))

        def one(path: Any, update: jax.Array) -> jax.Array:
            height = heights(sharding.path_name(path), update.shape, num_layers)
            return update * factor(height, state.count)

        return jax.tree_util.tree_map_with_path(one, updates), HeightState(state.count + 1)

    return optax.GradientTransformation(init_fn, update_fn)
