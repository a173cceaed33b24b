"""Lists every config key of fine-tuning: its default, and the comment on its declaration.

    keys.names()        # ["model", "num_epochs", ..., "strategy.rank", "kind.doc_stride", ...]
    keys.table()        # ["  num_epochs=3    passes over the training data", ...]

The comments are read from the source: see `config_help`.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from bertjax import config_help, optimizer
from bertjax.finetuning import recipe, strategies, task_types, tasks
from bertjax.finetuning import task as task_lib


def names() -> list[str]:
    """Returns all config keys, including those of every strategy and task type."""
    groups = [_recipe_keys(), *_strategy_keys().values(), *_kind_keys().values()]
    return list(dict.fromkeys(key for group in groups for key in group))


def table() -> list[str]:
    """Returns help lines: for each key, KEY=DEFAULT and its comment.

    The keys of the recipe come first, then those of each strategy and each task type.
    """
    groups = {"keys of the recipe, for --config.KEY=VALUE": _recipe_keys()}
    groups |= {f"with --strategy={name}": group for name, group in _strategy_keys().items()}
    for name, group in _kind_keys().items():
        task_names = [task.name for task in tasks.TASKS.values() if task.kind == name]
        groups[f"with the tasks {', '.join(sorted(task_names))}"] = group
    return config_help.lines(groups)


def resolved(config: ConfigDict, combinations: Sequence[str]) -> list[str]:
    """Returns lines with every key of `config`, its value and its comment.

    combinations: the combinations of a sweep as text, which follow if there are several.
    """
    comments = {key: comment for key, (_, comment) in _recipe_keys().items()}
    for groups in (_strategy_keys(), _kind_keys()):
        for name in (config.strategy.name, tasks.find(config.task).kind):
            comments |= {k: comment for k, (_, comment) in groups.get(name, {}).items()}
    described = config_help.described(config, comments)
    lines = config_help.lines({f"config of the task {config.task}": described})
    if len(combinations) > 1:
        title = f"{len(combinations)} combinations, of which the config above is the first:"
        lines += ["", title, *(f"  {text}" for text in combinations)]
    return lines


def _with_task_notes(group: config_help.Group, kind: str = "") -> config_help.Group:
    """Adds to each comment of the group the tasks that override the default.

    kind: the task type that has the keys; "" if all have them.
    """
    found = [task for task in tasks.TASKS.values() if kind in ("", task.kind)]
    return {
        key: (value, comment + _task_note(found, key, value))
        for key, (value, comment) in group.items()
    }


def _task_note(found: Sequence[task_lib.Task], key: str, default: Any) -> str:
    """Returns a list of the tasks that override `default`, to append to the comment on `key`.

    For example "; 384 with qa, squad, squad_v2"; "" if no task overrides it.
    """
    tasks_by_value: dict[Any, list[str]] = {}
    for task in found:
        options = {f"kind.{name}": value for name, value in task.options.items()}
        options["max_length"] = task.max_length
        if options.get(key, default) != default:
            tasks_by_value.setdefault(options[key], []).append(task.name)
    parts = [f"{value!r} with {', '.join(names)}" for value, names in tasks_by_value.items()]
    return f"; {'; '.join(parts)}" * bool(parts)


def _recipe_keys() -> config_help.Group:
    """Returns {key: (default, comment)} for the keys that all tasks and strategies have."""
    config = recipe.default("classification")
    comments = config_help.comments(optimizer.Config)
    comments = {f"optimizer.{key}": comment for key, comment in comments.items()}
    group = config_help.described(config, comments | config_help.comments(recipe))
    return _with_task_notes(
        {k: pair for k, pair in group.items() if k != "task" and not k.startswith("kind.")}
    )


def _strategy_keys() -> dict[str, config_help.Group]:
    return _option_keys("strategy", {name: strategies.load(name) for name in strategies.names()})


def _kind_keys() -> dict[str, config_help.Group]:
    modules = {name: sys.modules[task_types.load(name).__module__] for name in task_types.names()}
    return _option_keys("kind", modules)


def _option_keys(prefix: str, modules: Mapping[str, ModuleType]) -> dict[str, config_help.Group]:
    """Returns {name: the fields of its module's Config}; omits a Config without fields.

    prefix: the first part of the keys, "strategy" or "kind".
    """
    groups = {}
    for name, module in modules.items():
        comments = config_help.comments(module.Config)
        fields = dataclasses.asdict(module.Config())
        groups[name] = _with_task_notes(
            {f"{prefix}.{k}": (value, comments.get(k, "")) for k, value in fields.items()},
            name if prefix == "kind" else "",
        )
    return {name: group for name, group in groups.items() if group}
