"""Named recipes: the values for common uses, each in a file of configs/finetune/ with its source.

    named.names()                 # ["completion", "custom_qa", "dialogue", ...]
    named.load("sentiment")       # or the path of a file; ":smoke" shrinks it

A file defines `get_recipe(arg="")`, which returns a `Recipe`. Values that the user gives override
those of the recipe.
"""

import ast
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors
from bertjax.finetuning import recipe as recipe_lib

# The files are in configs/finetune/ of a source tree, and beside this module in an installed one.
_FOLDERS = (
    pathlib.Path(__file__).parents[2] / "configs" / "finetune",
    pathlib.Path(__file__).parent / "recipes",
)
_SMOKE = {"seeds": 1, "num_epochs": 1, "evals_per_epoch": 1, "data.max_train": 64}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A task, and {config key: value} for fine-tuning on it."""

    task: str
    values: Mapping[str, Any]


def choose(recipe: Recipe, arg: str) -> Recipe:
    """Returns the recipe, or for "smoke" one that trains for seconds on a CPU.

    Raises UserError for any other argument.
    """
    if arg not in ("", "smoke"):
        raise errors.UserError(f"the argument of a recipe must be smoke or absent, not {arg!r}")
    if not arg:
        return recipe
    one_rate = {"learning_rates": recipe.values["learning_rates"][:1]}
    return dataclasses.replace(recipe, values={**recipe.values, **_SMOKE, **one_rate})


def names() -> list[str]:
    """Returns the names of the recipes, sorted."""
    return [path.stem for path in _files()]


def table() -> list[str]:
    """Returns help lines: the name of each recipe and the first line of its docstring."""
    width = max(map(len, names()), default=0)
    titles = [(ast.get_docstring(ast.parse(path.read_text())) or "") for path in _files()]
    return [
        f"  {path.stem:<{width}}  {title.splitlines()[0]}"
        for path, title in zip(_files(), titles, strict=True)
    ]


def load(text: str) -> Recipe:
    """Returns the recipe of a name or a file, optionally with ":ARG" at its end.

    Raises UserError if there is none.
    """
    name, _, arg = text.partition(":")
    path = next((path for path in _files() if path.stem == name), None)
    if path is None and not name.endswith(".py"):
        raise errors.UserError(
            f"--recipe={text}: {errors.did_you_mean(name, names())}the recipes are "
            f"{', '.join(names())}; or give the path of a Python file"
        )
    return config_lib.of_file("recipe", f"{path or name}:{arg}".rstrip(":"), Recipe)


def under(recipe: Recipe, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recipe's values, overridden by `values`.

    If `values` have another strategy, the recipe's rates and strategy options do not apply.
    """
    own = recipe.values
    strategy = own.get("strategy.name", "full")
    if values.get("strategy.name", strategy) != strategy:
        own = {
            key: value
            for key, value in own.items()
            if key != "learning_rates" and not key.startswith("strategy.")
        }
    return {**own, **values}


def maker(
    text: str,
    task: str,
    data: str | os.PathLike | None,
    files: Mapping[str, str | os.PathLike | None],
) -> Callable[[Mapping[str, Any]], ConfigDict]:
    """Returns the function that makes a config from {config key: value}, see `recipe.make`.

    text: a recipe as in `load`; "" for none. task: "" for that of the recipe. Raises UserError if
    there is no such recipe.
    """
    chosen = load(text) if text else Recipe(task, {})
    return lambda values: recipe_lib.make(task or chosen.task, data, files, under(chosen, values))


def _files() -> list[pathlib.Path]:
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return sorted(folder.glob("[a-z]*.py")) if folder else []
