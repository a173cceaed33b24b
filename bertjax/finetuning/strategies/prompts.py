"""Prompt tuning (Lester et al., arXiv 2104.08691): new rows of the word table, read as tokens.

Only those rows and the head are trained. Each starts as the row of some piece of the vocabulary
(section 3.2, "sampled vocabulary"). Their ids follow the vocabulary's, and `kind.encode`'s rows get
them after their first token.
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
    """How many tokens the prompt has; above 20 the paper gains little (section 3.2)."""

    length: int = 20  # tokens of the prompt

    def __post_init__(self):
        errors.check(self.length >= 1, "strategy.length", self.length, "1 or more")


class Strategy(base.Strategy):
    """The new rows of the word table."""

    name = "prompts"

    def fields(self) -> dict[str, Any]:
        """With the new rows."""
        return {**self.model, "vocab_size": self.model["vocab_size"] + self.config.length}

    def prompt_ids(self) -> tuple[int, ...]:
        """The ids after those of the vocabulary."""
        return tuple(range(self.model["vocab_size"], self.fields()["vocab_size"]))

    def moves(self, path: str) -> bool:
        """Nothing of the body but what `split` cuts off the word table."""
        return False

    def split(self, params: Any, key: jax.Array) -> tuple[Any, Any]:
        """Under the path of the word table: (the new rows, the vocabulary's rows)."""
        trained, frozen = map(artifact.flatten, super().split(params, key))
        words = frozen[TABLE][: self.model["vocab_size"]]
        pieces = jax.random.randint(key, (self.config.length,), 0, len(words))
        trained[TABLE], frozen[TABLE] = jnp.asarray(words)[pieces], words
        return artifact.unflatten(trained), artifact.unflatten(frozen)

    def combine(self, trained: Any, frozen: Any) -> Any:
        """The table again: the vocabulary's rows, the new ones, zeros to its full height."""
        over, under = artifact.flatten(trained), artifact.flatten(frozen)
        rows = jnp.concatenate([under[TABLE], over[TABLE]])
        missing = layers.padded_vocab_size(len(rows)) - len(rows)
        whole = {TABLE: jnp.pad(rows, ((0, missing), (0, 0)))}
        return artifact.unflatten({**under, **over, **whole})
