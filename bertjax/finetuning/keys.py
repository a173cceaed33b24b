"""Lists every config key of fine-tuning: its default, and the comment on its declaration.

    keys.names()        # ["model", "num_epochs", ..., "strategy.rank", "kind.doc_stride", ...]
    keys.table()        # ["  num_epochs=3    passes over the training data", ...]

The comments are read from the source: see `config_help`.
"""

import dataclasses
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from bertjax import config_help, optimizer
from bertjax.finetuning import recipe, strategies, task_types, tasks


def names() -> list[str]:
    """Returns all config keys, including those of every strategy and task type."""
    groups = [_of_recipe(), *_of_strategies().values(), *_of_kinds().values()]
    return [key for group in groups for key in group]


def table() -> list[str]:
    """Returns help lines: for each key, KEY=DEFAULT and its comment.

    The keys of the recipe come first, then those of each strategy and each task type.
    """
    groups = {"keys of the recipe, for --config.KEY=VALUE": _of_recipe()}
    groups |= {f"with --strategy={name}": group for name, group in _of_strategies().items()}
    for name, group in _of_kinds().items():
        of_kind = [task.name for task in tasks.TASKS.values() if task.kind == name]
        groups[f"with the tasks {', '.join(sorted(of_kind))}"] = group
    return config_help.lines(groups)


def _with_tasks(group: config_help.Group) -> config_help.Group:
    """Adds to each comment of the group the tasks that override the default."""
    return {
        key: (value, comment + _of_tasks(key, value)) for key, (value, comment) in group.items()
    }


def _of_tasks(key: str, default: Any) -> str:
    """Returns a list of the tasks that override `default`, to append to the comment on `key`.

    For example "; 384 with qa, squad, squad_v2"; "" if no task overrides it.
    """
    found: dict[Any, list[str]] = {}
    for task in tasks.TASKS.values():
        own = {f"kind.{name}": value for name, value in task.options.items()}
        own["max_length"] = task.max_length
        if own.get(key, default) != default:
            found.setdefault(own[key], []).append(task.name)
    told = [f"{value!r} with {', '.join(names)}" for value, names in found.items()]
    return f"; {'; '.join(told)}" * bool(told)


def _of_recipe() -> config_help.Group:
    """Returns {key: (default, comment)} for the keys that all tasks and strategies have."""
    config = recipe.default("classification")
    known = config_help.comments(optimizer.Config)
    known = {f"optimizer.{key}": said for key, said in known.items()}
    group = config_help.described(config, known | config_help.comments(recipe))
    return _with_tasks(
        {k: pair for k, pair in group.items() if k != "task" and not k.startswith("kind.")}
    )


def _of_strategies() -> dict[str, config_help.Group]:
    return _knobs("strategy", {name: strategies.load(name) for name in strategies.names()})


def _of_kinds() -> dict[str, config_help.Group]:
    found = {name: sys.modules[task_types.load(name).__module__] for name in task_types.names()}
    return _knobs("kind", found)


def _knobs(prefix: str, modules: Mapping[str, ModuleType]) -> dict[str, config_help.Group]:
    """Returns {name: the fields of its module's Config}; omits a Config without fields.

    prefix: the first part of the keys, "strategy" or "kind".
    """
    found = {}
    for name, module in modules.items():
        known = config_help.comments(module)
        fields = dataclasses.asdict(module.Config())
        found[name] = _with_tasks(
            {f"{prefix}.{k}": (value, known.get(k, "")) for k, value in fields.items()}
        )
    return {name: group for name, group in found.items() if group}
