"""Strategies of fine-tuning: which parameters are trained, and at what learning rates.

    method = strategies.make(config.strategy, fields)       # {"name": "lora", "rank": 8, ...}
    trained, frozen = method.split(params, key)             # params of a model with method.fields()
    params = method.combine(trained, frozen)                # for the loss

The file NAME.py defines the strategy NAME: `Config`, a frozen dataclass of its options; `Strategy`,
a subclass of `finetuning.strategies.base.Strategy`; and `RATES`, its usual learning rates, if they
are higher than those for training a whole model. Models do not depend on strategies, except for
their field `adapter_size`.
"""

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import optax

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning.strategies import base


def names() -> list[str]:
    """Returns the names of the strategies: the files of this package except `base`."""
    return [module.name for module in pkgutil.iter_modules(__path__) if module.name != "base"]


def load(name: str) -> ModuleType:
    """Returns the module of a strategy. Raises UserError if there is none of that name."""
    errors.check(name in names(), "strategy.name", name, f"one of {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def default(name: str) -> dict[str, Any]:
    """Returns {option: default} of a strategy. Raises UserError if there is none of that name."""
    return dataclasses.asdict(load(name).Config())


def owners(key: str) -> list[str]:
    """Returns the names of the strategies that have the config key `key`, "strategy.OPTION"."""
    group, _, option = key.partition(".")
    return [name for name in names() if group == "strategy" and option in default(name)]


def rates(name: str) -> tuple[float, ...]:
    """Returns the strategy's usual learning rates; () if they are the same as for "full"."""
    return getattr(load(name), "RATES", ())


def make(
    config: Mapping[str, Any], fields: Mapping[str, Any], head_rate_factor: float = 1.0
) -> base.Strategy:
    """Returns the strategy that `config` describes.

    config: "name" and every field of the strategy's Config. fields: the fields of the model to
    fine-tune. head_rate_factor: see `base.Strategy`.
    """
    module = load(config["name"])
    return module.Strategy(config_of(config), dict(fields), head_rate_factor)


def config_of(config: Mapping[str, Any]) -> Any:
    """Returns the strategy's Config. Raises UserError for wrong or missing keys and bad values."""
    module = load(config["name"])
    options = {key: value for key, value in config.items() if key != "name"}
    names = {field.name for field in dataclasses.fields(module.Config)}
    if options.keys() != names:
        raise errors.UserError(
            f"config.strategy has the keys {sorted(options)}, but the strategy {config['name']!r} "
            f"needs exactly {sorted(names)}: set these"
        )
    return module.Config(**options)


def counts(trained: Any, frozen: Any, vocab_size: int) -> dict[str, int]:
    """Returns the "trained" and "total" numbers of parameters, without vocabulary padding."""

    def of_leaf(path: str, leaf: Any) -> int:
        shape = artifact.real_shape(path, leaf.shape, vocab_size)
        return math.prod(map(min, shape, leaf.shape))  # a leaf may be only part of a table

    def count(tree: Any) -> int:
        return sum(of_leaf(path, leaf) for path, leaf in artifact.flatten(tree).items())

    return {"trained": count(trained), "total": count(trained) + count(frozen)}


def memory(trained: Any, frozen: Any, tx: optax.GradientTransformation) -> dict[str, int]:
    """Returns the bytes of "parameters", "gradients" and "optimizer" state of one run.

    Activations are not included.
    """
    trained_bytes = _bytes(trained)
    return {
        "parameters": trained_bytes + _bytes(frozen),
        "gradients": trained_bytes,
        "optimizer": _bytes(jax.eval_shape(tx.init, trained)),
    }


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
