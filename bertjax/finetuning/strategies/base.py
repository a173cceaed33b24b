"""The base class of strategies, which choose the parameters to train and their learning rates.

A strategy splits a model's parameters into two trees and combines them again:

    trained, frozen = strategy.split(params, key)
    params == strategy.combine(trained, frozen)      # before training, except for prompt rows

Both trees keep the paths of the model. Frozen parameters have no gradient and no optimizer state.
Frozen parameters do not depend on the key, so runs with different seeds can share them.
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
from bertjax.artifact import lora as lora_lib
from bertjax.finetuning import projection
from bertjax.models.common import heads

# The heads for tasks, which every strategy trains. The pooler is one of them, because it is the
# classifier's first layer, and so are the dense layers of text vectors. Pretraining heads, which
# predict over the vocabulary, are not.
HEADS = ("pooler", *heads.DOWNSTREAM, projection.NAME)


def of_head(path: str) -> bool:
    """Returns whether the parameter at `path` ("span/logits/kernel") belongs to a head."""
    return path.split("/")[0] in HEADS


def above_layers(path: str) -> bool:
    """Returns whether the parameter comes after the body's layers: final_norm or lm_head."""
    return "final_norm/" in path or path.startswith("lm_head/")


class Strategy(abc.ABC):
    """Trains the heads, and the parameters of the body for which `moves` is true.

    config: the strategy's Config. model: the model's fields before the strategy adds its own.
    head_rate_factor: factor on the optimizer's learning rate for the heads.
    """

    name = "full"
    body_stays = False  # whether the body is frozen, with the same outputs in every epoch

    def __init__(self, config: Any, model: dict[str, Any], head_rate_factor: float = 1.0):
        self.config = config
        self.model = model
        self.head_rate_factor = head_rate_factor

    def fields(self) -> dict[str, Any]:
        """Returns the fields of the model to train, with any adapters or prompt rows added."""
        return self.model

    def prompt_ids(self) -> tuple[int, ...]:
        """Returns the ids of a prompt, to insert after the first token of each row; () if none."""
        return ()

    @abc.abstractmethod
    def moves(self, path: str) -> bool:
        """Returns whether the parameter of the body at `path` is trained."""

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Splits the parameters of the model that `fields` describes into (trained, frozen).

        key: random key, for subclasses that add parameters (LoRA, prompts). The pooler is trained
        only if the model has a classifier, because no other head for tasks uses the pooler.
        Subclasses raise UserError if the model lacks the parameters that they train.
        """
        del key
        flat = artifact.flatten(params)
        unused_heads = () if "classifier" in params else ("pooler",)
        trained = {
            path: leaf
            for path, leaf in flat.items()
            if self.moves(path) or (of_head(path) and path.split("/")[0] not in unused_heads)
        }
        frozen = {p: x for p, x in flat.items() if p not in trained}
        return artifact.unflatten(trained), artifact.unflatten(frozen)

    def combine(self, trained: Any, frozen: Any) -> Any:
        """Returns the parameters that the model uses. The function is pure, so it can be jitted."""
        return artifact.unflatten({**artifact.flatten(frozen), **artifact.flatten(trained)})

    def lora(self, trained: Any) -> lora_lib.Lora | None:
        """Returns the trained matrices of LoRA, to keep in the artifact; None if there are none."""
        del trained
        return None

    def rate_factor(self, height: Any, step: jax.Array, steps_per_epoch: Any) -> Any:
        """Returns the factor on the body's learning rate at `height` (see `heights`) and `step`."""
        del height, step, steps_per_epoch
        return 1.0

    def notes(self, trained: Any, num_epochs: int) -> list[str]:
        """Returns warnings for the user, for example that some layers are never trained."""
        del trained, num_epochs
        return []

    def optimizer(
        self,
        config: Any,
        num_steps: int,
        steps_per_epoch: Any,
        schedule: optax.Schedule | None = None,
    ) -> optax.GradientTransformation:
        """Returns the optimizer of the trained parameters.

        The learning rate of a parameter depends on its height (see `heights`). config: an
        `optimizer.Config`. schedule: the learning rate; None: that of the config.
        """

        def factor(height: Any, step: jax.Array) -> Any:
            body_factor = self.rate_factor(height, step, steps_per_epoch)
            return jnp.where(height == 0, self.head_rate_factor, body_factor)

        return optax.chain(optimizer.make(config, num_steps, schedule), scale_by_height(factor))

    def needs(self, present: bool, description: str) -> None:
        """Raises UserError unless `present`. description: what the model lacks, in words."""
        allowed = f"another strategy: the model has no {description}"
        errors.check(present, "strategy.name", self.name, allowed)


def heights(path: str, shape: tuple[int, ...], num_layers: int) -> np.ndarray:
    """Returns a parameter's distance below the head, as float32 that broadcasts to `shape`.

    The head has 0. The top layer, the norm after it, and a separate lm_head have 1. Each layer has
    1 more than the layer above it. The embeddings of words and positions have num_layers + 1. In an
    encoder-decoder, the top layers of both stacks have 1.
    """
    if of_head(path):
        height = np.zeros(())
    elif "/layers/" in path:
        height = np.arange(shape[0], 0, -1).reshape(-1, *(1 for _ in shape[1:]))
    else:
        height = np.array(1 if above_layers(path) else num_layers + 1)
    return height.astype(np.float32)


def stacked(flat: Mapping[str, Any]) -> int:
    """Returns the number of layers of the deepest stack in `flat`, which is {path: array}."""
    return max((x.shape[0] for path, x in flat.items() if "/layers/" in path), default=0)


class HeightState(NamedTuple):
    """State of `scale_by_height`. count: int32, the number of steps so far."""

    count: jax.Array


def scale_by_height(
    factor: Callable[[np.ndarray, jax.Array], jax.Array],
) -> optax.GradientTransformation:
    """Multiplies updates by factor(heights, step).

    The updates must contain a stack of all layers, whose size gives the number of layers.
    """

    def init_fn(params: Any) -> HeightState:
        del params
        return HeightState(jnp.zeros((), jnp.int32))

    def update_fn(updates: Any, state: HeightState, params: Any = None) -> tuple[Any, HeightState]:
        del params
        num_layers = stacked(artifact.flatten(updates))

        def scale(path: Any, update: jax.Array) -> jax.Array:
            height = heights(sharding.path_name(path), update.shape, num_layers)
            return update * factor(height, state.count)

        return jax.tree_util.tree_map_with_path(scale, updates), HeightState(state.count + 1)

    return optax.GradientTransformation(init_fn, update_fn)
