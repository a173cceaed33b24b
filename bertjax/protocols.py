"""The contracts of families and objectives: the names that their modules must define, with types.

A module satisfies a protocol when its functions are the protocol's methods without `self`.
`tests/plugin_types.py` assigns every module to its protocol, and mypy checks that file. The base
class of strategies is `finetuning.strategies.base.Strategy`; the protocol of tokenizer models is
`data.tokenizers.model.Model`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from bertjax import metrics
from bertjax.data.batches import layout
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Vocabulary


class Family(Protocol):
    """A model family: one file in `bertjax/models/`.

    `plugins` also reads these names where a family has them: VARIANT_OBJECTIVES, {variant: fields
    of the published objective}, and the HF_ tables of `artifact.huggingface` and
    `artifact.hf_config`.
    """

    @property
    def Config(self) -> type[Any]:
        """The frozen dataclass that is the only declaration of the family's fields."""

    @property
    def VARIANTS(self) -> Mapping[str, dict[str, Any]]:
        """{name of a size: fields of Config}; the first one is the default."""

    @property
    def KIND(self) -> str:
        """encoder, decoder or encoder_decoder."""

    @property
    def INPUTS(self) -> Sequence[str]:
        """The inputs of the call that creates all parameters."""

    @property
    def HEADS(self) -> Sequence[str]:
        """The heads that a model may have."""

    @property
    def OBJECTIVE(self) -> Mapping[str, Any]:
        """The published objective: "name", and the fields that differ from its defaults."""

    @property
    def SMOKE(self) -> Mapping[str, Any]:
        """The fields of a tiny model."""

    @property
    def Model(self) -> Callable[..., Any]:
        """The Linen module; its one field is `config`, its output a dict of named arrays."""

    def flops_per_sequence(self, config: Any, length: int, predictions: int) -> int:
        """Returns the model FLOPs of a forward pass over a sequence of `length` tokens.

        predictions: how many positions the vocabulary is predicted at.
        """


class Objective(Protocol):
    """A pretraining objective: one file in `bertjax/objectives/`.

    In all of its functions `config` is its own Config. Optional names are those of
    `objectives.common.hooks`.

    Shapes: B batch, L length.
    """

    @property
    def Config(self) -> type[Any]:
        """The frozen dataclass that is the only declaration of the objective's fields."""

    @property
    def KINDS(self) -> Sequence[str]:
        """The kinds of families that it trains."""

    def sampling(self, config: Any, length: int, vocabulary: Vocabulary) -> Any:
        """Returns how `data.batches.loader` cuts text into samples; see `data.batches.samples`."""

    def transform(
        self,
        config: Any,
        length: int,
        vocabulary: Vocabulary,
        batch: layout.Batch,
        rng: RowRandom,
    ) -> dict[str, np.ndarray]:
        """Returns the features for a batch of samples, on the host, the whole batch at once."""

    def predictions(self, config: Any, length: int) -> int:
        """Returns how many positions are predicted in a sequence of full length."""

    def features(self, config: Any, length: int) -> layout.FeatureTable:
        """Returns {feature: (shape without the batch, dtype)} for the batches of `transform`."""

    def heads(self, config: Any) -> tuple[str, ...]:
        """Returns the model's heads that `loss` uses."""

    def scales(self, config: Any) -> dict[str, float]:
        """Returns {loss term: factor} of the sum that training minimises, the main term first."""

    def normalizers(self, config: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the weight of each loss term over the batch, by which its sum is divided."""

    @property
    def loss(self) -> Callable[..., metrics.Terms]:
        """loss(config, apply, batch, **frozen) returns {name: (sum, weight)}.

        apply: the model with its parameters bound. frozen: the models named in FROZEN, likewise.
        """


def names(protocol: type) -> tuple[str, ...]:
    """Returns the names that a module must define to satisfy `protocol`, in order."""
    members = vars(protocol).items()
    return tuple(
        name
        for name, member in members
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    )
