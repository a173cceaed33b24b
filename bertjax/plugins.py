"""Loads families, objectives and task types by name.

The name is that of the file, so that no registry is needed.
A name with a dot is a module of another package: `config.family = "my_package.my_bert"` imports
that module, which must be on Python's path.
"""

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors, models, objectives, protocols
from bertjax.models.common import layers

# The names that the module of a family and of an objective must define.
FAMILY = protocols.names(protocols.Family)
OBJECTIVE = protocols.names(protocols.Objective)


def _names(package: ModuleType) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]


def _load_plugin(package: ModuleType, key: str, name: str, required: Sequence[str]) -> Any:
    """Imports the plug-in `name`. Raises UserError if that fails or it lacks one of `required`.

    required: the names that the module must define. key: the config key, for the error message.
    """
    if "." not in name and name not in _names(package):
        raise errors.UserError(
            f"config.{key} = {name!r}: must be one of {', '.join(_names(package))}, or the dotted "
            "name of your own module, such as my_package.my_module"
        )
    path = name if "." in name else f"{package.__name__}.{name}"
    try:
        module = importlib.import_module(path)
    except Exception as error:  # the plug-in's code may raise anything
        hint = "; add its folder to PYTHONPATH" if isinstance(error, ImportError) else ""
        raise errors.UserError(
            f"config.{key} = {name!r}: cannot import the module {path}: {type(error).__name__}: "
            f"{error}{hint}"
        ) from error
    missing = [part for part in required if not hasattr(module, part)]
    if missing:
        raise errors.UserError(
            f"config.{key} = {name!r}: {module.__file__ or path} must define {', '.join(missing)}"
        )
    return module


def families() -> list[str]:
    """Returns the names of the families of this package."""
    return _names(models)


def objective_names() -> list[str]:
    """Returns the names of the objectives of this package."""
    return _names(objectives)


def objectives_of(kind: str) -> list[str]:
    """Returns the names of the objectives of this package that train a family of this kind.

    Skips files that cannot be loaded, so that a broken file fails only the runs that name it.
    """
    names = []
    for name in _names(objectives):
        with contextlib.suppress(errors.UserError):
            names += [name] if kind in objective(name).KINDS else []
    return names


def objective_for(family_name: str, name: str) -> protocols.Objective:
    """Returns the module of objective `name`. Raises UserError if it cannot train the family."""
    kind, module = family(family_name).KIND, objective(name)
    if kind not in module.KINDS:
        errors.check(
            False,
            "objective.name",
            name,
            f"one of {', '.join(objectives_of(kind))}, which can train {family_name}",
        )
    return module


def family(name: str) -> protocols.Family:
    """Returns the module `bertjax.models.NAME`, or the module NAME if the name has a dot.

    Raises UserError if there is no such module, or if it lacks one of the names in FAMILY.
    """
    return _load_plugin(models, "family", name, FAMILY)


def objective(name: str) -> protocols.Objective:
    """Returns the module `bertjax.objectives.NAME`, or the module NAME if the name has a dot.

    Raises UserError if there is no such module, or if it lacks one of the names in OBJECTIVE.
    """
    return _load_plugin(objectives, "objective.name", name, OBJECTIVE)


def objective_config(config: Any) -> Any:
    """Builds the objective's frozen Config from `config.objective`."""
    check_objective_keys(config)
    fields = {k: v for k, v in config.objective.items() if k != "name"}
    return objective(config.objective.name).Config(**fields)


def check_objective_keys(config: Any) -> None:
    """Raises UserError unless `config.objective` has exactly the keys of its objective."""
    fields = {field.name for field in dataclasses.fields(objective(config.objective.name).Config)}
    if set(config.objective) - {"name"} != fields:
        raise errors.UserError(
            f"config.objective.name = {config.objective.name!r}: its other keys belong to another "
            "objective; switch with --config.objective.name or config.choose_objective"
        )


def task_type(name: str) -> Any:
    """Returns the class of a task type. Raises UserError for a name without a file."""
    return _task_types().load(name)


def task_types() -> list[Any]:
    """Returns the classes of all task types, sorted by name."""
    package = _task_types()
    return [package.load(name) for name in package.names()]


def _task_types() -> Any:
    # NOTE: imported by name at run time, because the task types themselves import this module.
    return importlib.import_module("bertjax.finetuning.task_types")


def compute(config: Any, platform: str | None = None) -> layers.Compute:
    """Returns the compute settings of a config on a platform, with the dtype "auto" resolved.

    platform: cpu, gpu or tpu; None means the platform of this machine's devices.
    """
    on_cpu = (platform or jax.default_backend()) == "cpu"
    dtype = config.dtype if config.dtype != "auto" else ("float32" if on_cpu else "bfloat16")
    return layers.Compute(
        dtype=dtype, remat=config.remat, unroll_layers=on_cpu, attention=config.attention
    )


def variant(family_name: str, name: str) -> dict[str, Any]:
    """Returns the fields of a variant of a family. Raises UserError for an unknown name."""
    variants = family(family_name).VARIANTS
    if name not in variants:
        raise errors.UserError(
            f"{family_name} has no variant {name!r}; its variants are {', '.join(variants)}"
        )
    return variants[name]


def model(family_name: str, fields: dict[str, Any], compute: layers.Compute | None = None) -> Any:
    """Returns the Linen model of a family with the `fields` of its Config.

    Raises UserError for an unknown field.
    """
    module = family(family_name)
    known_fields = [field.name for field in dataclasses.fields(module.Config)]
    for name in set(fields) - set(known_fields):
        hint = errors.hint(errors.near(name, known_fields))
        raise errors.UserError(f"the Config of {family_name} has no field {name!r}{hint}")
    compute_fields = dataclasses.asdict(compute or layers.Compute())
    return module.Model(module.Config(**{**fields, **compute_fields}))


def abstract_params(model: Any) -> Any:
    """Returns shapes and dtypes of the parameters; nothing is allocated."""
    return jax.tree.map(lambda leaf: leaf, _abstract_params(model))  # a copy of the cached dicts


@functools.lru_cache(maxsize=64)  # tracing dominates the time to load a small model
def _abstract_params(model: Any) -> Any:
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def family_of(model: Any) -> protocols.Family:
    """Returns the module of a model's family."""
    module: Any = importlib.import_module(type(model).__module__)
    return module


@functools.partial(jax.jit, static_argnums=0, inline=True)
def init_params(model: Any, key: jax.Array) -> Any:
    """Returns fresh parameters of a model.

    Calls the model with all inputs in its family's INPUTS, so that all parameters are created. A
    model is traced once in a process, whoever asks for its parameters or only for their shapes.
    """
    inputs = dict.fromkeys(family_of(model).INPUTS, jnp.ones((1, 2), jnp.int32))
    return model.init(key, **inputs)["params"]
