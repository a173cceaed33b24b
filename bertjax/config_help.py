"""Formats the keys of a config for help texts, with their values and their comments in the source.

    config_help.of_run("configs/bert_base.py")    # ["keys of ...:", "  batch_size=256    ...", ...]

The comments are read from the source, so that each is written only once.
"""

import argparse
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import optimizer, plugins

Group = Mapping[str, tuple[Any, str]]  # {key: (value, comment)}

_ASSIGNMENT = re.compile(r"^ +(?:config\.)?([\w.]+)(?:\[.*\]|: \w+.*)? = .*  # (.+)$", re.MULTILINE)
_COLUMN, _WIDTH = 36, 100
ABSENT = "absent"  # shown in place of the value of a key that a config lacks


def comments(source: ModuleType | type) -> dict[str, str]:
    """Returns {name: comment at the end of the line that assigns it}.

    If several assignments to a name have a comment, the first counts. For a class, includes the
    comments of its base classes.
    """
    by_name: dict[str, str] = {}
    sources = reversed(source.__mro__[:-1]) if isinstance(source, type) else (source,)
    for part in sources:
        by_name |= dict(reversed(_ASSIGNMENT.findall(inspect.getsource(part))))
    return by_name


def described(config: ConfigDict, comment_of: Mapping[str, str]) -> Group:
    """Returns every key of a config with its value and comment.

    A key without a comment gets the comment of its group: "a.b" gets that of "a".
    """
    return {
        key: (
            config_lib.value_of(config, key),
            comment_of.get(key) or comment_of.get(key.split(".")[0], ""),
        )
        for key in config_lib.keys(config)
    }


def lines(groups: Mapping[str, Group]) -> list[str]:
    """Returns each title followed by one or more lines for each of its keys."""
    result = []
    for title, group in groups.items():
        result += [*textwrap.wrap(f"{title}:", _WIDTH), *map(_line, group.items()), ""]
    return result[:-1]


def _line(pair: tuple[str, tuple[Any, str]]) -> str:
    key, (value, comment) = pair
    first = f"  {f'{key}={format_value(value)}':<{_COLUMN - 4}}  "
    if not comment:
        return first.rstrip()
    return textwrap.fill(comment, _WIDTH, initial_indent=first, subsequent_indent=" " * _COLUMN)


def format_value(value: Any) -> str:
    """Returns a value as it is written after --config.KEY=."""
    if isinstance(value, tuple | list):
        value = ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
    return value.encode("unicode_escape").decode() if isinstance(value, str) else str(value)


def of_run(file: str | None) -> list[str]:
    """Returns the help lines on the config keys of a run.

    file: a config file as FILE or FILE:ARG, whose values are shown. If it is None, shows the
    defaults, and for each other objective the keys that differ.
    """
    config = config_lib.of_file("config", file, ConfigDict) if file else config_lib.default()
    kind = f"values of {file}" if file else "defaults"
    groups = {f"config keys for --config.KEY=VALUE, with the {kind}": _general_group(config)}
    name, current = config.objective.name, config.objective.to_dict()
    config_class = plugins.objective(name).Config
    groups[f"with objective.name={name}"] = _plugin_group(
        "objective", current, plugins.objective(name)
    )
    for other_name in plugins.objective_names() if not file else ():
        module = plugins.objective(other_name)
        fields = dataclasses.asdict(module.Config())
        fields = {k: v for k, v in fields.items() if k not in current or v != current[k]}
        base = f" (other keys as with {name})" * issubclass(module.Config, config_class)
        if other_name != name:
            group = _plugin_group("objective", fields, module)
            groups[f"with objective.name={other_name}{base}"] = group
    title = f"keys of the model {config.family}"
    title += "" if file else "; `--config=FILE --help` shows the values of FILE instead"
    groups[title] = _plugin_group("model", config.model.to_dict(), plugins.family(config.family))
    return lines(groups)


def keys_of_run() -> list[str]:
    """Returns the keys that `pretrain` and `plan` accept as --config.KEY."""
    return config_lib.keys(config_lib.default())


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Declares --print_config, which makes a command print `resolved` and do nothing else."""
    text = "print every config key with its comment (and its default, if it differs), then exit"
    parser.add_argument("--print_config", action="store_true", help=text)


def resolved(file: str, config: ConfigDict) -> list[str]:
    """Returns lines with every key of `config`, its value and its comment.

    A value that differs from the default of the family's base model is followed by that default.
    file: the name of the config file, for the title.
    """
    family = plugins.family(config.family)
    variant = "base" if "base" in family.VARIANTS else next(iter(family.VARIANTS))
    defaults = config_lib.default(config.family, variant, config.objective.name)
    objective = plugins.objective(config.objective.name)
    groups = {
        f"config of {file}": _general_group(config),
        f"objective {config.objective.name}": _plugin_group(
            "objective", config.objective.to_dict(), objective
        ),
        f"model {config.family}": _plugin_group("model", config.model.to_dict(), family),
    }
    differing = {key: default for key, (_, default) in differences(config, defaults).items()}
    return lines(
        {
            title: {
                key: (value, comment + _default_note(differing.get(key, ABSENT)))
                for key, (value, comment) in group.items()
            }
            for title, group in groups.items()
        }
    )


def differences(config: ConfigDict, reference: ConfigDict) -> dict[str, tuple[Any, Any]]:
    """Returns {key: (value in `config`, value in `reference`)} for the keys that differ.

    The value of a key that one of them lacks, such as a source of `data.sources`, is ABSENT. A
    group of keys that is empty in one of them, such as `data.sources`, is left out.
    """
    flat, flat_reference = (
        {key: config_lib.value_of(part, key) for key in config_lib.keys(part)}
        for part in (config, reference)
    )
    pairs = {key: (flat.get(key, ABSENT), flat_reference.get(key, ABSENT))
             for key in flat | flat_reference}  # fmt: skip
    return {
        key: (value, other)
        for key, (value, other) in pairs.items()
        if value != other and not any(isinstance(v, ConfigDict) for v in (value, other))
    }


def _default_note(default: Any) -> str:
    """Returns a comment's suffix that shows the default; "" if `default` is ABSENT."""
    return "" if default == ABSENT else f" [default: {format_value(default)}]"


def _general_group(config: ConfigDict) -> Group:
    """Returns the keys that do not depend on family and objective, with values and comments."""
    generic = config.copy_and_resolve_references().unlock()
    del generic["model"], generic["objective"]
    comment_of = _add_prefix("optimizer", comments(optimizer.Config)) | comments(config_lib)
    return described(generic, comment_of)


def _plugin_group(prefix: str, values: Mapping[str, Any], module: ModuleType) -> Group:
    """Returns {PREFIX.KEY: (value, comment)} for the `values` of a family's or objective's Config.

    The comments are those in the Config of `module`. A model's field that has no comment there gets
    the comment of BERT's field of the same name.
    """
    bert_comments = comments(plugins.family("bert").Config) if prefix == "model" else {}
    comment_of = bert_comments | comments(module.Config)
    return {
        f"{prefix}.{key}": (value, comment_of.get(key, ""))
        for key, value in values.items()
        if key != "name"
    }


def _add_prefix(prefix: str, comment_of: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{key}": comment for key, comment in comment_of.items()}
