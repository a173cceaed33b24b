"""Sweeps over config keys: trains every combination of values, and chooses the best one on dev.

    swept = sweep.parse({"strategy": "full,lora", "num_epochs": "2,3"})
    members = sweep.members(swept, values, lambda values: recipe.make(task, data, files, values))
    result = sweep.run(members, "out/")

Each combination is a fine-tuning with its own folder under the output, with all learning rates and
seeds. Only the runs of the chosen combination are scored on test; its model becomes the artifact of
the sweep. Each combination has a page, and the page of the sweep links to them.
"""

import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors, paths
from bertjax.artifact import artifact
from bertjax.finetuning import (
    keys,
    output_folder,
    pages,
    recipe,
    sharing,
    strategies,
    sweep_report,
)
from bertjax.finetuning import run as run_lib

STRATEGY = "strategy.name"
_SHORT = {"strategy": STRATEGY, "partial_layers": "strategy.frozen_layers"}
_RATES, _SEEDS = "give the learning rates as --lr=2e-5,5e-5", "give the number of seeds as --seeds"
_REFUSED = {
    "learning_rates": _RATES,
    "learning_rate": _RATES,
    "lr": _RATES,
    "seeds": _SEEDS,
    "seed": _SEEDS,
    "task": "tasks cannot be compared by their scores; --suite runs several tasks",
    "data.folds": "a sweep compares scores on one dev",
    "data.fold": "a sweep compares scores on one dev",
    "dtype": "all runs of a process compute in the same type",
}


Member = sweep_report.Member


def parse(flags: Mapping[str, str | Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    """Returns {config key: its values, as text} for {KEY of --sweep.KEY: "V1,V2", or the values}.

    Values in a text that contain commas are separated by semicolons. Raises UserError for a key
    that is unknown or cannot be swept, and for values that are missing or repeated.
    """
    swept = {}
    for name, text in flags.items():
        key, flag = _SHORT.get(name, name), f"--sweep.{name}={text}"
        reason = _REFUSED.get(key.removeprefix("optimizer."))
        if reason:
            raise errors.UserError(f"{flag}: {reason}")
        if key not in keys.names():
            hint = errors.hint([f"--sweep.{other}" for other in errors.near(key, keys.names())])
            raise errors.UserError(f"{flag}: unknown config key{hint}")
        parts = text.split(";" if ";" in text else ",") if isinstance(text, str) else text
        values = tuple(str(value).strip() for value in parts)
        if "" in values or len(set(values)) < len(values):
            raise errors.UserError(
                f"{flag}: give different values, separated by commas (or by semicolons, if a "
                "value contains commas)"
            )
        swept[key] = values
    return swept


def combinations(
    swept: Mapping[str, Sequence[str]], strategy: str | None = None
) -> list[dict[str, str]]:
    """Returns {key: value} for every combination; strategies change slowest, then the first key.

    An option of a strategy applies only to combinations with that strategy, which is added to the
    swept strategies if it is absent. strategy: the strategy of all combinations, if it is given and
    not swept. Raises UserError if it does not have a swept option.
    """
    names = list(swept.get(STRATEGY, [strategy] if strategy else []))
    for key in filter(_is_option, swept):
        owners = strategies.owners(key)
        if set(owners) & set(names):
            continue
        if len(owners) > 1 or (strategy and STRATEGY not in swept):
            raise errors.UserError(
                f"--sweep.{key}: is a key of the strategy {' or '.join(owners)}: give "
                f"--sweep.strategy={','.join([*names, owners[0]])}"
            )
        names += owners
    if STRATEGY in swept or names != [strategy] * len(names):
        swept = {STRATEGY: names, **{k: v for k, v in swept.items() if k != STRATEGY}}
    found: list[dict[str, str]] = []
    for choice in itertools.product(*swept.values()):
        values = dict(zip(swept, choice, strict=True))
        name = values.get(STRATEGY, strategy)
        values = {key: value for key, value in values.items() if _applies(key, name)}
        if values not in found:
            found.append(values)
    return found


def _is_option(key: str) -> bool:
    return key.startswith("strategy.") and key != STRATEGY


def _applies(key: str, strategy: str | None) -> bool:
    return not _is_option(key) or strategy in strategies.owners(key)


def members(
    swept: Mapping[str, Sequence[str]],
    values: Mapping[str, Any],
    make: Callable[[dict[str, Any]], ConfigDict],
) -> list[Member]:
    """Returns every combination with its validated config.

    values: {config key: value} for all combinations; an option of a strategy applies to those with
    this strategy. make: returns the config for {key: value}. Raises UserError for a bad value.
    """
    overlap = sorted(set(swept) & set(values))
    if overlap:
        raise errors.UserError(f"{overlap[0]} has a value and is swept: give only one of them")
    if swept and int(values.get("data.folds", 0)):
        raise errors.UserError("--folds cannot be used with --sweep: remove one of them")
    strategy = values.get(STRATEGY)
    found = combinations(swept, strategy)
    names = {combination.get(STRATEGY, strategy) for combination in found}
    result: list[Member] = []
    for combination in found:
        name = combination.get(STRATEGY, strategy)
        # An option that applies to none of the strategies stays, so that `make` names it.
        fixed = {
            key: value
            for key, value in values.items()
            if _applies(key, name) or not any(_applies(key, other) for other in names)
        }
        config = make({**fixed, **combination})
        recipe.validate(config)
        parsed = {key: config_lib.value_of(config, key) for key in combination}
        member = Member(config, parsed, _folder(parsed), fixed.keys() | parsed.keys())
        if member.folder in (other.folder for other in result):
            raise errors.UserError(f"--sweep: {member.label} occurs twice: give different values")
        result.append(member)
    return result


def _folder(values: Mapping[str, Any]) -> str:
    """Returns a folder name for the values, which no other values have."""
    text = sweep_report.label(values).replace(", ", ",")
    plain = re.sub(r"[^\w.,=+-]", "-", text)[:120]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return plain if plain == text else f"{plain}-{digest}"


def run(
    sweep_members: Sequence[Member],
    output: str | os.PathLike,
    tell: Callable[[str], None] = errors.tell,
) -> run_lib.Finetuned:
    """Trains what the output lacks of every combination; writes and returns the results.

    The report has the table of all combinations, and "splits" with the scores of the chosen one.
    Raises UserError for bad data or models, and for a folder of another fine-tuning.
    """
    out, start_time, shared = paths.of(output), time.perf_counter(), sharing.Shared()
    tell = tell if jax.process_index() == 0 else lambda line: None
    _check_output(out, sweep_members)
    contents: list[Mapping[str, Any]] = []
    best = 0
    for number, member in enumerate(sweep_members):
        tell(f"combination {number + 1} of {len(sweep_members)}: {member.label}")
        result = run_lib.finetune(
            member.config, out / member.folder, tell, is_chosen=False, shared=shared
        )
        contents.append(result.report)
        loser = number
        if number and sweep_report.score(contents[number]) > sweep_report.score(contents[best]):
            best, loser = number, best
        if loser != best and jax.process_index() == 0:
            output_folder.drop_all_params(out / sweep_members[loser].folder)
    chosen = sweep_members[best]
    tell(f"{chosen.label} has the best mean on dev and is scored on the other splits")
    result = run_lib.finetune(chosen.config, out / chosen.folder, tell, shared=shared)
    warnings = _dev_warnings(out, sweep_members)
    for line in warnings:
        tell(f"warning: {line}")
    content = sweep_report.make(sweep_members, contents, best, result.report, warnings)
    content["seconds"] = time.perf_counter() - start_time
    if jax.process_index() == 0:
        artifact.write(result.model.source, out / output_folder.ARTIFACT)
        sweep_report.write(content, out)
        for member, member_content in zip(sweep_members, contents, strict=True):
            if member is not chosen:
                pages.write_at_end(out / member.folder, member_content)
        pages.write_at_end(out)
    return run_lib.Finetuned(content, result.model)


def _check_output(out: epath.Path, sweep_members: Sequence[Member]) -> None:
    """Raises UserError if the output, or the folder of a member, is of another fine-tuning."""
    if (out / output_folder.CONFIG).exists():
        raise errors.UserError(
            f"{out}: contains a fine-tuning without a sweep, or a model; give another --output"
        )
    for member in sweep_members:
        output_folder.check_config(out / member.folder, member.config, member.given)


def _dev_warnings(out: epath.Path, sweep_members: Sequence[Member]) -> list[str]:
    """Returns a warning if the combinations have different dev examples; else []."""
    digests = {output_folder.stored(out / m.folder)["data"]["dev"] for m in sweep_members}
    if len(digests) == 1:
        return []
    return [
        "the combinations have different dev examples, so their scores are not comparable: give "
        "--dev=FILE"
    ]
