"""Prompt tuning (Lester et al., arXiv 2104.08691): new rows of the word table, used as tokens.

Only the new rows and the head are trained. Each new row starts as a copy of the row of a random
piece (section 3.2, "sampled vocabulary"). The ids of the new rows follow those of the vocabulary.
The task type inserts these ids after the first token of each input.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base
from bertjax.models.common import layers

TABLE = "embeddings/word/embedding"
RATES = (3e-3, 1e-2, 3e-2)


@dataclasses.dataclass(frozen=True)
class Config:
    """The number of prompt tokens; more than 20 helped little in the paper (section 3.2)."""

    length: int = 20  # tokens of the prompt

    def __post_init__(self):
        errors.check(self.length >= 1, "strategy.length", self.length, "1 or more")


class Strategy(base.Strategy):
    """Trains the new rows of the word table, and the head."""

    name = "prompts"

    def fields(self) -> dict[str, Any]:
        """Returns the model's fields, whose vocab_size includes the new rows."""
        return {**self.model, "vocab_size": self.model["vocab_size"] + self.config.length}

    def prompt_ids(self) -> tuple[int, ...]:
        """Returns the ids of the new rows, which follow those of the vocabulary."""
        return tuple(range(self.model["vocab_size"], self.fields()["vocab_size"]))

    def moves(self, path: str) -> bool:
        """Returns False: the body is frozen, except for the rows that `split` adds."""
        return False

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Returns (trained, frozen): the new rows and the head; and the rest of the model.

        The path of the word table is in both trees: the new rows in the first, the old ones in the
        second.
        """
        trained, frozen = map(artifact.flatten, super().split(params, key))
        words = frozen[TABLE][: self.model["vocab_size"]]
        pieces = jax.random.randint(key, (self.config.length,), 0, len(words))
        trained[TABLE], frozen[TABLE] = jnp.asarray(words)[pieces], words
        return artifact.unflatten(trained), artifact.unflatten(frozen)

    def combine(self, trained: Any, frozen: Any) -> Any:
        """Returns the parameters, with one word table: old rows, new rows and padding."""
        flat_trained, flat_frozen = artifact.flatten(trained), artifact.flatten(frozen)
        rows = jnp.concatenate([flat_frozen[TABLE], flat_trained[TABLE]])
        missing = layers.padded_vocab_size(len(rows)) - len(rows)
        table = {TABLE: jnp.pad(rows, ((0, missing), (0, 0)))}
        return artifact.unflatten({**flat_frozen, **flat_trained, **table})
