"""Hooks: the optional names that an objective's module may define.

`protocols.Objective` lists the required names. Code outside an objective's file does not use the
objective's own fields, but calls these hooks. A module that does not define a hook gets the default
here, which does nothing.

    hooks.of(objective).check_data(objective_config, path, num_documents)
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bertjax.data.tokenizers.vocabulary import Vocabulary


class Frozen(NamedTuple):
    """A frozen model: the fields of its family's Config, and its parameters by path."""

    fields: Mapping[str, Any]
    params: Mapping[str, Any]


class StandIn(NamedTuple):
    """The model that `plan` assumes for a frozen model whose path is not set."""

    family: str
    fields: dict[str, Any]
    description: str


def _no_op(*arguments: Any) -> None:
    return None


@dataclasses.dataclass(frozen=True)
class Hooks:
    """The optional names of an objective's module, with their defaults.

    In all functions `config` is an instance of the objective's Config.

    FROZEN: names of the Config's fields that are paths of models which the loss uses but does not
        train. `loss` takes each model, bound to its parameters, as a keyword argument of that name.
    SCORED_BY: the name of another objective that evaluates a model in place of this objective; ""
        if this objective evaluates it.
    PLAIN_TARGETS: whether the targets of an encoder-decoder are plain text without sentinels.
    fields_for(kind, heads): fields whose defaults depend on the kind and the heads of the model.
    check_family(config, family, kind): raises UserError if the fields do not fit the family.
    check_data(config, path, num_documents): raises UserError if training needs other data.
    heldout_warnings(config, num_documents): warnings about held-out data of that many documents.
    check_frozen(config, name, vocab_size, length, fields): raises UserError if the frozen model
        `name` with the Config `fields` does not fit a model with that vocab_size on sequences of up
        to `length` tokens.
    stand_in(name, fields): the model that `plan` assumes if the path of the frozen model `name` is
        not set, for a model with the Config `fields`; None if the path must be set.
    first_params(config, params, fields, frozen): the initial parameters, {path: array}, of a model
        with fresh `params` and the Config `fields`; None if these are `params`.
    SENTINELS: whether the objective puts sentinels into the text of a decoder alone.
    input_start(config, vocabulary): ids to put in front of every text that an encoder-decoder
        scores, and of every prompt of a decoder, after its start-of-text token.
    """

    FROZEN: tuple[str, ...] = ()
    SCORED_BY: str = ""
    PLAIN_TARGETS: bool = False
    SENTINELS: bool = False
    fields_for: Callable[[str, tuple[str, ...]], dict[str, Any]] = lambda kind, heads: {}
    check_family: Callable[[Any, str, str], None] = _no_op
    check_data: Callable[[Any, str, int], None] = _no_op
    heldout_warnings: Callable[[Any, int], list[str]] = lambda config, num_documents: []
    check_frozen: Callable[[Any, str, int, int, Mapping[str, Any]], None] = _no_op
    stand_in: Callable[[str, Mapping[str, Any]], StandIn | None] = _no_op
    first_params: Callable[
        [Any, Mapping[str, Any], Mapping[str, Any], Mapping[str, Frozen]], dict[str, Any] | None
    ] = _no_op
    input_start: Callable[[Any, Vocabulary], list[int]] = lambda config, vocabulary: []


def of(objective: Any) -> Hooks:
    """Returns the hooks of an objective's module."""
    names = [field.name for field in dataclasses.fields(Hooks)]
    return Hooks(**{name: getattr(objective, name) for name in names if hasattr(objective, name)})
