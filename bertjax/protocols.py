"""The contracts of families and objectives: the names that their modules must define, with types.

A module satisfies a protocol if it defines a function for each method (without `self`) and a name
for each property. `tests/plugin_types.py` assigns every module to its protocol, and mypy checks
that file. The base class of strategies is `finetuning.strategies.base.Strategy`; the protocol of
tokenizer models is `data.tokenizers.model.Model`.
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

    A family may also define VARIANT_OBJECTIVES, {variant: fields of the published objective that
    differ for that variant}, the HF_ tables that `artifact.huggingface` and `artifact.hf_config`
    use, and `parts`, which splits a published pair of models (`artifact.part`).
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
        """The names of the inputs with which the model must be called to create all parameters."""

    @property
    def HEADS(self) -> Sequence[str]:
        """The heads that a model may have."""

    @property
    def OBJECTIVE(self) -> Mapping[str, Any]:
        """The published objective: its "name", and the fields that differ from its defaults."""

    @property
    def SMOKE(self) -> Mapping[str, Any]:
        """The fields that shrink any variant to a tiny model."""

    @property
    def Model(self) -> Callable[..., Any]:
        """The Linen module. Its only field is `config`; its output is a dict of named arrays."""

    def flops_per_sequence(self, config: Any, length: int, predictions: int) -> int:
        """Returns the model FLOPs of a forward pass over a sequence of `length` tokens.

        predictions: the number of positions for which vocabulary logits are computed.
        """


class Objective(Protocol):
    """A pretraining objective: one file in `bertjax/objectives/`.

    In all of its functions `config` is an instance of the objective's Config. The names in
    `objectives.common.hooks` are optional.

    Shapes: B batch, L length.
    """

    @property
    def Config(self) -> type[Any]:
        """The frozen dataclass that is the only declaration of the objective's fields."""

    @property
    def KINDS(self) -> Sequence[str]:
        """The kinds of families that the objective can train."""

    def sampling(self, config: Any, length: int, vocabulary: Vocabulary) -> Any:
        """Returns the sampler, which cuts text into samples for `data.batches.loader`.

        See `data.batches.samples`.
        """

    def transform(
        self,
        config: Any,
        length: int,
        vocabulary: Vocabulary,
        batch: layout.Batch,
        rng: RowRandom,
    ) -> dict[str, np.ndarray]:
        """Computes the features of a batch of samples, on the host, for the whole batch at once."""

    def predictions(self, config: Any, length: int) -> int:
        """Returns the number of positions that are predicted in a sequence of full length."""

    def features(self, config: Any, length: int) -> layout.FeatureTable:
        """Returns {feature: (shape without the batch axis, dtype)} for `transform`'s batches."""

    def heads(self, config: Any) -> tuple[str, ...]:
        """Returns the model's heads that `loss` uses."""

    def scales(self, config: Any) -> dict[str, float]:
        """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""

    def normalizers(self, config: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""

    @property
    def loss(self) -> Callable[..., metrics.Terms]:
        """loss(config, apply, batch, **frozen) returns {name: (sum, weight)}.

        apply: the model with its parameters bound. frozen: the models named in FROZEN, each with
        its parameters bound.
        """


def names(protocol: type) -> tuple[str, ...]:
    """Returns the names that a module must define to satisfy `protocol`, in order."""
    members = vars(protocol).items()
    return tuple(
        name
        for name, member in members
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    )
