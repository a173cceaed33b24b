"""From a config to the things it names: name = file, so there is no registry."""

import dataclasses
import importlib
import pkgutil
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors, models, objectives
from bertjax.models import layers

# Files which are no family and no objective.
_SHARED = (
    "activations", "attention", "heads", "kernels", "layers", "masks", "norms", "positions",
    "post_norm", "t5_layers", "terms",
)  # fmt: skip


def _names(package: ModuleType) -> list[str]:
    return [m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _SHARED]


def _module(package: ModuleType, key: str, name: str) -> ModuleType:
    if name not in _names(package):
        raise errors.UserError(f"config.{key} = {name!r}: there are {', '.join(_names(package))}")
    return importlib.import_module(f"{package.__name__}.{name}")


def families() -> list[str]:
    """Names of all families."""
    return _names(models)


def objectives_of(kind: str) -> list[str]:
    """Names of the objectives that train a family of this kind."""
    return [name for name in _names(objectives) if kind in objective(name).KINDS]


def family(name: str) -> ModuleType:
    """The module `bertjax.models.NAME`. Raises UserError for a name without a file."""
    return _module(models, "family", name)


def objective(name: str) -> ModuleType:
    """The module `bertjax.objectives.NAME`. Raises UserError for a name without a file."""
    return _module(objectives, "objective.name", name)


def objective_config(config: Any) -> Any:
    """The objective's frozen Config out of `config.objective`."""
    kind = objective(config.objective.name).Config
    fields = {k: v for k, v in config.objective.items() if k != "name"}
    if fields.keys() != {field.name for field in dataclasses.fields(kind)}:
        raise errors.UserError(
            f"config.objective.name = {config.objective.name!r}: the other keys are of another "
            "objective; choose it with --config.objective.name or config.choose_objective"
        )
    return kind(**fields)


def compute(config: Any, platform: str | None = None) -> layers.Compute:
    """How to compute on a platform: "auto" is decided here and nowhere else.

    platform: cpu, gpu or tpu; None is that of the devices there are.
    """
    on_cpu = (platform or jax.default_backend()) == "cpu"
    dtype = config.dtype if config.dtype != "auto" else ("float32" if on_cpu else "bfloat16")
    return layers.Compute(
        dtype=dtype, remat=config.remat, unroll_layers=on_cpu, attention=config.attention
    )


def model(family_name: str, fields: dict[str, Any], compute: layers.Compute | None = None) -> Any:
    """The Linen model of a family with the `fields` of its Config."""
    module = family(family_name)
    how = dataclasses.asdict(compute or layers.Compute())
    return module.Model(module.Config(**{**fields, **how}))


def abstract_params(model: Any) -> Any:
    """Shapes and types of the parameters, nothing allocated."""
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def family_of(model: Any) -> ModuleType:
    """The module of a model's family."""
    return importlib.import_module(type(model).__module__)


def init_params(model: Any, key: jax.Array) -> Any:
    """Fresh parameters of a model; its family says which inputs it needs to make them all."""
    inputs = dict.fromkeys(family_of(model).INPUTS, jnp.ones((1, 2), jnp.int32))
    return model.init(key, **inputs)["params"]
