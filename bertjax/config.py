"""Declares every generic key of a run once, and checks the values.

A config file is a Python file with `get_config(arg="")`; FILE:ARG calls it with the argument ARG.
Fields of the family and of the objective come from their `Config` dataclasses and appear as
`config.model` and `config.objective`. Every field can be overridden on the command line as
`--config.a.b=value`.

    config = config.load("configs/bert_base.py:smoke", {"batch_size": "64"})
"""

import ast
import dataclasses
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import errors, mixing, objective_choice, optimizer, phases, plugins, sharding, trackers
from bertjax.models.common import kernels, layers
from bertjax.objectives.common import hooks
from bertjax.runtime import hardware

# Keys that may change when a run is resumed. They decide where and how the run is computed, but not
# what is learned. NOTE: changing dtype, mesh or micro_batch_size changes rounding and dropout
# masks, so the result is not bit-equal. The paths of the objective's frozen models may change too;
# see `workdir`.
FREE_KEYS = (
    "data.path", "data.heldout_path", "dtype", "remat", "attention", "mesh", "micro_batch_size",
    "log_every", "log_to", "eval", "checkpoint", "max_bad_steps", "init_from", "init_model",
    "init_vocabulary", "topology",
)  # fmt: skip


# {key: (lowest allowed value, highest allowed value)}
BOUNDS = {
    "batch_size": (1, 2**24),
    "num_steps": (1, 2**31 - 2),  # the optimizer counts the steps in 32 bits
    "phase2.num_steps": (0, 2**31 - 2),
    "phase2.batch_size": (1, 2**24),
    "log_every": (1, 2**31),
    "eval.every": (1, 2**31),
    "eval.max_samples": (1, 2**31),
    "checkpoint.every": (1, 2**31),
    "checkpoint.keep_last": (1, 2**31),
    "checkpoint.keep_best": (0, 2**31),
    "checkpoint.keep_every": (0, 2**31),
    "max_bad_steps": (1, 2**31),
}


def default(family: str = "bert", variant: str = "base", objective: str = "") -> ConfigDict:
    """Returns the config of a run with all keys; training is as in the BERT paper (appendix A.2).

    family, objective: names of files in bertjax/models and bertjax/objectives, or dotted names of
        your own modules. The objective "" means the family's published one.
    variant: name of a size in the family's VARIANTS.
    """
    module = plugins.family(family)
    fields = plugins.variant(family, variant)
    config = ConfigDict()
    config.family = family  # a file of bertjax/models, or your own module: package.module
    config.model = ConfigDict(layers.fields_of(module.Config(**fields)))
    choose_objective(config, objective)
    if config.objective.name == module.OBJECTIVE["name"]:
        config.objective.update(getattr(module, "VARIANT_OBJECTIVES", {}).get(variant, {}))

    config.data = ConfigDict()
    config.data.path = ""  # folder written by `bertjax prepare`
    config.data.heldout_path = ""  # folder to evaluate on; "": the held-out split of data.path
    config.data.length = 128  # tokens per sequence, including special tokens
    config.data.sources = ConfigDict()  # instead of data.path: {NAME: {"path": ..., "weight": ...}}
    config.data.size_exponent = 0.0  # a source's weight is multiplied by its tokens ** this

    config.batch_size = 256  # sequences per step, over all devices
    config.micro_batch_size = 0  # sequences per forward pass, over all devices; 0: batch_size
    config.num_steps = 1_000_000  # steps of all phases together
    config.phases = ()  # dicts of keys that differ by phase, see bertjax/phases.py; (): one phase
    config.phase2 = ConfigDict()  # the last steps of the run, on longer sequences
    config.phase2.num_steps = 0  # steps in phase 2, the last ones of num_steps; 0: no phase 2
    config.phase2.length = 512  # tokens per sequence in phase 2
    config.phase2.batch_size = 256  # sequences per step in phase 2
    config.seed = 0  # determines initial parameters, data order, masks and dropout

    config.optimizer = ConfigDict(dataclasses.asdict(optimizer.Config()))

    config.ema_decay = 0.0  # decay per step of a moving average of the parameters; 0: no average

    config.dtype = "auto"  # of activations: float32, bfloat16; auto: float32 on CPUs, else bfloat16
    config.remat = "none"  # what the backward pass recomputes: none, dots, full
    config.attention = "auto"  # xla, rows or splash (TPU), cudnn (GPU); auto: rows where it applies
    config.mesh = "auto"  # auto, or "slice:2,data:-1,fsdp:4,tensor:2,sequence:2"; -1: what is left
    config.topology = "v5e-16"  # devices that `bertjax plan` plans for by default

    config.init_from = ""  # model with the initial parameters: a folder, or ORG/NAME on the Hub
    config.init_model = "same"  # same; extended: larger than init_from, longer, or other RoPE theta
    config.init_vocabulary = "same"  # same, or shared_pieces if init_from has another tokenizer
    config.log_every = 100  # steps between two lines of metrics
    config.log_to = ""  # trackers that receive the metrics, too: wandb, trackio; "": none
    config.eval = ConfigDict()
    config.eval.every = 10_000  # steps between two evaluations
    config.eval.max_samples = 10_000  # held-out samples to evaluate on, always the same ones
    config.checkpoint = ConfigDict()
    config.checkpoint.every = 5_000  # steps between two checkpoints
    config.checkpoint.keep_last = 3  # how many of the newest to keep
    config.checkpoint.keep_best = 1  # how many of the best to keep, by held-out loss of last phase
    config.checkpoint.keep_every = 0  # also keep those whose step is a multiple of this; 0: none
    config.max_bad_steps = 20  # consecutive non-finite steps (skipped) after which the run stops
    return config.lock()


choose_objective = objective_choice.choose


def from_dict(stored: Mapping[str, Any]) -> ConfigDict:
    """Builds the config of a run from the dict stored in its workdir, checkpoints or artifact.

    Raises UserError if the dict is not a config of this version.
    """

    def update(config: ConfigDict, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(config[key], ConfigDict) and not config[key]:
                config[key] = value  # empty by default: the user's own keys
            elif isinstance(value, Mapping):
                update(config[key], value)
            else:
                config[key] = tuple(value) if isinstance(value, list) else value

    try:
        family, objective = stored["family"], stored["objective"]["name"]
        config = default(family, next(iter(plugins.family(family).VARIANTS)), objective)
        update(config, stored)
    except (KeyError, TypeError) as error:
        raise errors.UserError(
            f"the stored config does not match this version of bertjax: {error}"
        ) from error
    return config


def smoke(config: ConfigDict) -> ConfigDict:
    """Shrinks `config` in place to a run that takes seconds on a CPU, and returns it.

    Config files use it for the argument "smoke".
    """
    config.model.update(plugins.family(config.family).SMOKE)
    config.data.length = 32
    config.batch_size = 16
    config.micro_batch_size = 0
    config.num_steps = 20
    config.optimizer.learning_rate = 1e-3
    config.optimizer.update(start_rate=0.0, warmup_steps=4, end_rate=0.0)
    config.optimizer.decay_steps = 4 if config.optimizer.schedule == "wsd" else 0
    if config.phase2.num_steps:
        config.phase2.update(num_steps=5, length=64, batch_size=16)
    if config.phases:
        config.phases = phases.shrunk(config.phases, num_steps=5, length=64, batch_size=16)
        config.num_steps = 5 * len(config.phases)
    config.mesh = "data:-1"
    config.attention = "auto"  # the other kernels need long rows
    config.log_every = 5
    config.eval.update(every=10, max_samples=64)
    config.checkpoint.update(every=10, keep_every=0)
    return config


def load(path: str, overrides: Mapping[str, str] | None = None) -> ConfigDict:
    """Returns the validated config of `FILE` or `FILE:ARG` with overrides {"a.b": "value"}."""
    return overridden(of_file("config", path, ConfigDict), overrides or {})


def overridden(config: ConfigDict, overrides: Mapping[str, str]) -> ConfigDict:
    """Returns a validated copy of the config with overrides {"a.b": "value"}."""
    config, overrides = config.copy_and_resolve_references(), dict(overrides)
    if "family" in overrides:
        raise errors.UserError(
            f"config.family = {overrides['family']!r}: cannot be overridden, because it determines "
            "which other keys exist; set it in the config file, to one of "
            f"{', '.join(plugins.families())}"
        )
    if "objective.name" in overrides:  # first, because it determines which other keys exist
        name = overrides.pop("objective.name")
        if name != config.objective.name:
            choose_objective(config, name)
    mixing.use_float_weights(config)
    for key, value in overrides.items():
        override(config, key, value)
    phases.check_keys(config)
    if "num_steps" not in overrides and any("num_tokens" in part for part in config.phases):
        config.num_steps = phases.total_steps(config)  # other batch sizes give other steps
    check_keys(config)
    objective_choice.add_heads(config)
    validate(config)
    return config


def of_file(flag: str, path: str, kind: type) -> Any:
    """Calls get_FLAG(ARG) of a Python file and returns the result.

    path: the value of the flag --FLAG, `FILE` or `FILE:ARG`; without ARG the argument is "".
    Raises UserError, naming flag and file, if the call fails or the result is not of type `kind`.
    """
    source, function = f"--{flag}={path}", f"get_{flag}"
    name, _, arg = str(path).partition(":")
    file = pathlib.Path(name)
    if not file.is_file():
        raise errors.UserError(f"{source}: the file {name} does not exist")
    spec = importlib.util.spec_from_file_location(f"bertjax_{flag}_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise errors.UserError(f"{source}: {name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise errors.UserError(f"{source}: {name} has no function {function}(arg)")
        result = getattr(module, function)(arg)
    except errors.UserError:
        raise
    except Exception as error:  # the file is the user's own code, which may raise anything
        raise errors.UserError(f"{source}: {type(error).__name__}: {error}") from error
    if not isinstance(result, kind):
        raise errors.UserError(f"{source}: {function} must return a {kind.__name__}")
    return result


def choose(config: ConfigDict, arg: str) -> ConfigDict:
    """Returns `config` for the argument "" and its smoke version for "smoke".

    `get_config` of every file in configs/ ends with this call. Raises UserError for any other
    argument.
    """
    if arg not in ("", "smoke"):
        raise errors.UserError(f"the config argument must be 'smoke' or omitted, not {arg!r}")
    return smoke(config) if arg else config


def keys(config: ConfigDict, prefix: str = "") -> list[str]:
    """Returns all keys; nested ones as "a.b"."""
    names = []
    for name, value in config.items():
        nested = isinstance(value, ConfigDict) and len(value) > 0
        names += keys(value, f"{prefix}{name}.") if nested else [prefix + name]
    return names


def flat(stored: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"a.b": value} for the nested values of a stored config; omits empty groups."""
    result: dict[str, Any] = {}
    for key, value in stored.items():
        nested = isinstance(value, Mapping)
        result |= flat(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return result


def override(config: ConfigDict, key: str, text: str) -> None:
    """Sets `key` ("a.b") to `text`, parsed as the type of the present value.

    `mixing.SOURCES` may be set as a whole, even if its sources have keys. Raises UserError if the
    key is unknown or the text is not of that type.
    """
    if key not in keys(config) and key != mixing.SOURCES:
        hint = errors.hint(errors.near(key, keys(config)))
        raise errors.UserError(f"unknown config key {key!r}{hint}")
    *parents, leaf = key.split(".")
    group = value_of(config, ".".join(parents)) if parents else config
    group[leaf] = _parse_value(key, text, type(group[leaf]))
    if key == mixing.SOURCES:
        mixing.use_float_weights(config)


def _parse_value(key: str, text: str, kind: type) -> Any:
    if kind is str:
        return text
    try:
        value = {"true": True, "false": False}.get(text.lower(), None)
        value = ast.literal_eval(text) if value is None else value
        if kind is float and type(value) is int:
            value = float(value)
        if kind is int and type(value) is float and value.is_integer():
            value = int(value)  # so that 1e6 is an integer
        if kind is tuple and type(value) in (int, float):
            value = (value,)
        if type(value) is kind or (kind is ConfigDict and type(value) is dict):
            return value
    except (ValueError, SyntaxError):
        pass
    raise errors.UserError(f"config.{key} = {text!r}: must be of type {kind.__name__}")


def value_of(config: ConfigDict, key: str) -> Any:
    """Returns the value at `key` ("a.b")."""
    for name in key.split("."):
        config = config[name]
    return config


def _check(ok: bool, config: ConfigDict, key: str, allowed: str) -> None:
    errors.check(ok, key, value_of(config, key), allowed)


def _check_one_of(config: ConfigDict, key: str, allowed: Sequence[str]) -> None:
    _check(value_of(config, key) in allowed, config, key, f"one of {', '.join(allowed)}")


def check_keys(config: ConfigDict) -> None:
    """Raises UserError unless every key is present and its value has the right type."""
    for key in ("family", "model", "objective"):
        errors.check(key in config and config[key] is not None, key, "absent", "set")
    errors.check("name" in config.objective, "objective.name", "absent", "set")
    family = plugins.family(config.family)
    defaults = default(config.family, next(iter(family.VARIANTS)), config.objective.name)
    present = set(keys(config))
    for key in keys(defaults):
        if key not in present and key.startswith("objective."):
            plugins.check_objective_keys(config)
        expected = value_of(defaults, key)
        if isinstance(expected, ConfigDict) and any(k.startswith(f"{key}.") for k in present):
            continue  # empty by default: the user's own keys
        errors.check(key in present, key, "absent", "set; the config file has deleted it")
        value = value_of(config, key)
        int_for_float = type(expected) is float and type(value) is int
        if type(value) is not type(expected) and not int_for_float:
            errors.check(False, key, value, f"of type {type(expected).__name__}")


def validate(config: ConfigDict) -> None:
    """Raises UserError if a value is invalid, naming its key and the allowed values.

    Compiles nothing.
    """
    check_keys(config)
    plugins.objective_for(config.family, config.objective.name)
    _check_one_of(config, "init_model", ("same", "extended"))
    _check_one_of(config, "init_vocabulary", ("same", "shared_pieces"))
    if config.mesh != "auto":
        sharding.parse_mesh(config.mesh)
    hardware.parse_topology(config.topology)
    _check_one_of(config, "dtype", ("auto", "float32", "bfloat16"))
    _check_one_of(config, "remat", tuple(layers.REMAT_POLICIES))
    _check(0 <= config.seed < 2**32, config, "seed", "between 0 and 2**32 - 1")
    for key, (low, high) in BOUNDS.items():
        _check(value_of(config, key) >= low, config, key, f"{low} or more")
        _check(value_of(config, key) <= high, config, key, f"{high:,} or less")
    _check(0 <= config.phase2.num_steps <= config.num_steps, config, "phase2.num_steps",
           f"between 0 and config.num_steps = {config.num_steps}")  # fmt: skip
    mixing.check_sources(config)
    trackers.names(config.log_to)  # raises for an unknown one
    _check(0 <= config.ema_decay < 1, config, "ema_decay", "in [0, 1)")
    every = config.checkpoint.every
    _check(config.checkpoint.keep_every % every == 0, config, "checkpoint.keep_every",
           f"0 or a multiple of config.checkpoint.every = {every}")  # fmt: skip
    phases.validate(config)
    for phase in phases.of(config):
        _check_phase(config, phase)


def _check_phase(config: ConfigDict, phase: phases.Phase) -> None:
    """Raises UserError if a value of the phase is invalid."""
    family, values = plugins.family(config.family), phase.config
    model = family.Config(**values.model, attention=config.attention)  # raises for invalid fields
    objective = plugins.objective_config(values)
    module = plugins.objective(config.objective.name)
    hooks.of(module).check_family(objective, config.family, family.KIND)
    for head in module.heads(objective):
        if head not in family.HEADS:
            families = [name for name in plugins.families() if head in plugins.family(name).HEADS]
            raise errors.UserError(
                f"config.objective.name = {config.objective.name!r}: needs the head {head!r}, "
                f"which the family '{config.family}' does not have; families that have it: "
                f"{', '.join(families) or 'none'}"
            )
        _check(head in config.model.heads, config, "model.heads",
               f"a tuple with {head!r}, which '{config.objective.name}' needs")  # fmt: skip
    length, size, key = phase.length, phase.batch_size, phase.place("data.length")
    errors.check(8 <= length <= model.max_length, key, length,
                 f"between 8 and config.model.max_length = {model.max_length}")  # fmt: skip
    low, high = BOUNDS["batch_size"]
    errors.check(low <= size <= high, phase.place("batch_size"), size, f"{low} to {high:,}")
    if values.micro_batch_size:
        errors.check(values.micro_batch_size > 0 and size % values.micro_batch_size == 0,
                     phase.place("micro_batch_size"), values.micro_batch_size,
                     f"a divisor of the batch size {size}, or 0 for the whole batch")  # fmt: skip
    features = module.features(objective, length)
    kernels.check(config.attention, model, config.dtype, {key: length}, features)
    if values.model != config.model:
        shapes = [
            plugins.abstract_params(plugins.model(config.family, c.model)) for c in (values, config)
        ]
        if shapes[0] != shapes[1]:
            raise errors.UserError(
                f"config.phases[{phase.number}]: its model keys change the model's parameters; a "
                "phase can set only keys that leave them as they are, such as a RoPE theta"
            )
    mixing.check_weights(phase)
