"""Chooses the objective of a config, and the heads that the model needs for it."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from bertjax import plugins, protocols
from bertjax.models.common import encoders
from bertjax.objectives.common import hooks


def choose(config: ConfigDict, name: str = "") -> None:
    """Switches `config` to objective `name` (default: the family's published one), with its fields.

    With an objective other than the family's published one, the model has only the heads that the
    objective uses.
    """
    family = plugins.family(config.family)
    if name:
        plugins.objective_for(config.family, name)
    with config.unlocked():
        config.objective = ConfigDict(_fields(family, name))
    if config.objective.name != family.OBJECTIVE["name"]:
        config.model.heads = _default_heads(family, config.objective.name)


def add_heads(config: ConfigDict) -> None:
    """Changes `config.model.heads` to the heads that the objective uses, if it lacks one of them.

    For example, this gives an ALBERT the head for `config.objective.pair` = "nsp". Heads that the
    user has set, which differ from the default of the objective, stay as they are.
    """
    family, needed = plugins.family(config.family), needed_heads(config)
    is_default = config.model.heads == _default_heads(family, config.objective.name)
    if is_default and not needed <= set(config.model.heads):
        config.model.heads = encoders.heads_for(family.HEADS, tuple(needed))


def needed_heads(config: ConfigDict) -> set[str]:
    """Returns the heads that the objective of `config` uses."""
    return set(plugins.objective(config.objective.name).heads(plugins.objective_config(config)))


def _default_heads(family: protocols.Family, name: str) -> tuple[str, ...]:
    """Returns the heads of a model whose objective `name` has its default fields."""
    if name == family.OBJECTIVE["name"]:
        return family.Config().heads
    objective = plugins.objective(name)
    fields = {key: value for key, value in _fields(family, name).items() if key != "name"}
    return encoders.heads_for(family.HEADS, objective.heads(objective.Config(**fields)))


def _fields(family: protocols.Family, name: str) -> dict[str, Any]:
    """Returns all fields of the objective `name`; "" means the family's published objective.

    For the published objective, the fields have the values with which the family was published.
    """
    published = family.OBJECTIVE
    name = name or published["name"]
    objective = plugins.objective(name)
    fields = {"name": name, **dataclasses.asdict(objective.Config())}
    fields |= hooks.of(objective).fields_for(family.KIND, family.Config().heads)
    return fields | published if name == published["name"] else fields
