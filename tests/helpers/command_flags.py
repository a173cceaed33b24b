"""Checks the flags and config keys of a `bertjax VERB` command without running it."""

import argparse
import functools
import importlib
import pathlib
import re

from bertjax import __main__ as command_line
from bertjax import config as config_lib
from bertjax import errors, help_texts, plugins
from bertjax.finetuning import sweep

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def parser(verb: str) -> argparse.ArgumentParser:
    """Returns the parser of a verb, which raises UserError and needs no flag."""
    made = help_texts.parser(importlib.import_module(f"bertjax.commands.{verb}"))
    for action in made._actions:
        action.required, action.was_required = False, action.required
    return made


def check(words: list[str], *, is_whole: bool = True) -> None:
    """Raises UserError if a command does not exist, or lacks a flag although it `is_whole`.

    words: ["bertjax", VERB, "--flag=value", ...]. "..." is ignored. Values in capitals stand for
    any value. A config file of the repository is loaded with the values of the command.
    """
    verb, *argv = [word for word in words[1:] if word != "..."]
    if verb in ("VERB", "--version", "--help"):
        return
    if verb not in command_line.VERBS:
        raise errors.UserError(f"unknown command {verb!r}")
    argv = command_line._join_config_values(argv)
    help_is_shown = bool({"-h", "--help"} & {*argv})
    argv = [word for word in argv if word not in ("-h", "--help")]
    if not is_whole:
        argv = _without_bare_flags(verb, argv)
    flags, rest = parser(verb).parse_known_args(argv)
    overrides = {}
    for word in rest:
        prefix, _, setting = word.partition(".")
        key, equals, value = setting.partition("=")
        if prefix not in ("--config", "--beam", "--sweep") or prefix[2:] not in flags:
            raise errors.UserError(f"bertjax {verb}: unknown flag {word}")
        if not equals and is_whole:
            raise errors.UserError(f"bertjax {verb}: {word} needs a value")
        if prefix != "--beam" and not re.fullmatch(r"[A-Z_]+", key):
            _check_key(verb, sweep._SHORT.get(key, key) if prefix == "--sweep" else key)
            if prefix == "--config" and equals and not value.isupper():
                overrides[key] = value
    if is_whole and not help_is_shown and not getattr(flags, "print_config", False):
        missing = [
            action.option_strings or action.dest
            for action in parser(verb)._actions
            if action.was_required and getattr(flags, action.dest) in (None, [])
        ]
        if missing:
            raise errors.UserError(f"bertjax {verb}: needs {missing}")
    if verb in ("pretrain", "plan") and flags.config:
        _check_config(flags.config, overrides)


def _without_bare_flags(verb: str, argv: list[str]) -> list[str]:
    """Returns the words without flags that need a value and have none, as in a sentence."""
    values = {
        flag
        for action in parser(verb)._actions
        if action.nargs is None
        for flag in action.option_strings
    }
    following = [*argv, "--"][1:]
    return [
        word
        for word, after in zip(argv, following, strict=True)
        if not (word in values and after.startswith("--"))
    ]


def _check_key(verb: str, key: str) -> None:
    known = _finetune_keys() if verb == "finetune" else _run_keys()
    is_source = verb != "finetune" and re.fullmatch(r"data\.sources\.\w+\.(path|weight)", key)
    if key not in known and not is_source:
        raise errors.UserError(f"bertjax {verb}: unknown config key {key}")


@functools.cache
def _finetune_keys() -> frozenset[str]:
    return frozenset(importlib.import_module("bertjax.commands.finetune").config_keys())


@functools.cache
def _run_keys() -> frozenset[str]:
    """Returns the config keys of pretraining with any family and any objective."""
    keys = {key for family in plugins.families() for key in config_lib.keys(_default(family))}
    for name in plugins.objective_names():
        fields = plugins.objective(name).Config.__dataclass_fields__
        keys |= {f"objective.{field}" for field in fields}
    return frozenset(keys)


def _default(family: str):
    return config_lib.default(family, next(iter(plugins.family(family).VARIANTS)))


def _check_config(name: str, overrides: dict[str, str]) -> None:
    file = name.removeprefix("$REPO/")
    if not file.startswith("configs/") or file.rpartition(":")[2].isupper():
        return
    config_lib.load(str(ROOT / file), overrides)
