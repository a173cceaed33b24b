"""Every key of a fine-tuning for people: its default, and the comment where it is declared.

    keys.names()        # ["model", "num_epochs", ..., "strategy.rank", "kind.doc_stride", ...]
    keys.table()        # ["  num_epochs=3    passes over the training data", ...]

The comments are read from the source, so that each stands in one place.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from bertjax import config as config_lib
from bertjax import optimizer
from bertjax.finetuning import kind, recipe, strategies, tasks

_DECLARED = re.compile(r"^ +(?:config\.)?([\w.]+)(?:\[.*\]|: \w+)? = .*  # (.+)$", re.MULTILINE)
_COLUMN, _WIDTH = 36, 100


def names() -> list[str]:
    """The keys of all tasks and strategies."""
    groups = [_of_recipe(), *_of_strategies().values(), *_of_kinds().values()]
    return [key for group in groups for key in group]


def table() -> list[str]:
    """A line a key, or more: KEY=DEFAULT and what it says. Those of one strategy or kind follow."""
    groups = {"keys of the recipe, for --config.KEY=VALUE": _of_recipe()}
    groups |= {f"with --strategy={name}": group for name, group in _of_strategies().items()}
    for name, group in _of_kinds().items():
        of_kind = [task.name for task in tasks.TASKS.values() if task.kind == name]
        groups[f"with the tasks {', '.join(sorted(of_kind))}"] = group
    lines = []
    for title, group in groups.items():
        lines += [*textwrap.wrap(f"{title}:", _WIDTH), *map(_line, group.items()), ""]
    return lines[:-1]


def _of_tasks(key: str, default: Any) -> str:
    """Which tasks have another value than `default`, for the end of a comment."""
    found: dict[Any, list[str]] = {}
    for task in tasks.TASKS.values():
        own = {f"kind.{name}": value for name, value in task.options.items()}
        own["max_length"] = task.max_length
        if own.get(key, default) != default:
            found.setdefault(own[key], []).append(task.name)
    told = [f"{value!r} with {', '.join(names)}" for value, names in found.items()]
    return f"; {'; '.join(told)}" * bool(told)


def _line(pair: tuple[str, tuple[Any, str]]) -> str:
    key, (value, comment) = pair
    comment += _of_tasks(key, value)
    value = ",".join(f"{one:g}" for one in value) if isinstance(value, tuple) else value
    value = value.encode("unicode_escape").decode() if isinstance(value, str) else value
    first = f"  {f'{key}={value}':<{_COLUMN - 4}}  "
    return textwrap.fill(comment, _WIDTH, initial_indent=first, subsequent_indent=" " * _COLUMN)


def _of_recipe() -> dict[str, tuple[Any, str]]:
    """{key: (default, comment)} of what every task and strategy has."""
    config = recipe.default("classification")
    known = _comments(recipe)
    known = {f"optimizer.{key}": said for key, said in _comments(optimizer).items()} | known
    return {
        key: (config_lib.value_of(config, key), known.get(key) or known.get(key.split(".")[0], ""))
        for key in config_lib.keys(config)
        if key != "task" and not key.startswith("kind.")
    }


def _of_strategies() -> dict[str, dict[str, tuple[Any, str]]]:
    return _knobs("strategy", {name: strategies.load(name) for name in strategies.names()})


def _of_kinds() -> dict[str, dict[str, tuple[Any, str]]]:
    return _knobs("kind", {name: kind.load(name) for name in kind.names()})


def _knobs(
    prefix: str, modules: Mapping[str, ModuleType]
) -> dict[str, dict[str, tuple[Any, str]]]:
    """The fields of each module's Config, where it has any."""
    found = {}
    for name, module in modules.items():
        known = _comments(module)
        fields = dataclasses.asdict(module.Config())
        found[name] = {f"{prefix}.{k}": (value, known.get(k, "")) for k, value in fields.items()}
    return {name: group for name, group in found.items() if group}


def _comments(module: ModuleType) -> dict[str, str]:
    """{what is assigned: the comment behind it}, of several the first."""
    return dict(reversed(_DECLARED.findall(inspect.getsource(module))))
