"""Divides a run into phases, which may differ in length, batch size, mask rate, data and rate.

    config.num_steps = 13_000
    config.phases = (
        {"num_steps": 9_000},  # as the other keys of the config say
        {"num_steps": 3_000, "data.length": 1024, "batch_size": 32,  # longer sequences
         "model.global_theta": 160_000.0},
        {"num_steps": 1_000, "objective.mask_rate": 0.05,  # the decay
         "optimizer.schedule": "linear"},
    )

A phase is a dict of config keys. A key that it does not have keeps its value from the phase before.
`num_tokens` may be given instead of `num_steps`. A phase that sets a key of the optimizer other
than `weight_decay` starts a new learning rate schedule, which lasts until the next such phase. This
schedule has a warm-up and a final decay only if the phase sets `optimizer.warmup_steps` and
`optimizer.decay_steps`.

`config.phase2` is a short form for a second phase that differs in length and batch size only.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import optax
from ml_collections import ConfigDict

from bertjax import errors, optimizer

# The keys that a phase may set, as patterns; besides num_steps and num_tokens.
KEYS = (
    "batch_size", "micro_batch_size", "data.length", "data.size_exponent",
    "data.sources.*.weight", "objective.*", "model.*", "optimizer.learning_rate",
    "optimizer.schedule", "optimizer.warmup_steps", "optimizer.decay_steps",
    "optimizer.decay_shape", "optimizer.start_rate", "optimizer.end_rate",
    "optimizer.weight_decay",
)  # fmt: skip
_FIXED = ("objective.name", "objective.teacher")
_EXTENT = ("num_steps", "num_tokens")


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps [start, stop) of a run.

    number: 0 for the first phase. config: the config of the run with the phase's own values.
    places: for keys that `config.phases` or `config.phase2` sets, the name that error messages use.
    """

    number: int
    start: int
    stop: int
    config: ConfigDict = dataclasses.field(compare=False, repr=False)
    places: Mapping[str, str] = dataclasses.field(compare=False, repr=False)

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return self.stop - self.start

    @property
    def length(self) -> int:
        """The number of tokens per sequence."""
        return self.config.data.length

    @property
    def batch_size(self) -> int:
        """The number of sequences per step, over all devices."""
        return self.config.batch_size

    @property
    def forward_size(self) -> int:
        """The number of sequences in a forward pass, over all devices."""
        return self.config.micro_batch_size or self.batch_size

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in a step."""
        return self.batch_size // self.forward_size

    def place(self, key: str) -> str:
        """Returns the key of the run's config that sets `key` in this phase."""
        return self.places.get(key, key)


def of(config: ConfigDict) -> list[Phase]:
    """Returns the phases of a run, in order. The config must be valid (see `validate`)."""
    phases: list[Phase] = []
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for number, overrides in enumerate(_overrides(config)):
        own = {key: value for key, value in overrides.items() if key not in _EXTENT}
        if phases and _new_schedule(own):
            values |= {"optimizer.warmup_steps": 0, "optimizer.decay_steps": 0}
        values |= own
        places |= {key: _place(config, number, key) for key in own}
        resolved = _resolved(config, values)
        start = phases[-1].stop if phases else 0
        stop = start + _num_steps(overrides, resolved)
        phases.append(Phase(number, start, stop, resolved, dict(places)))
    return [phase for phase in phases if phase.num_steps]


def _overrides(config: ConfigDict) -> Sequence[Mapping[str, Any]]:
    """Returns `config.phases`, or in its form the two phases that `config.phase2` describes."""
    if config.phases:
        return config.phases
    first, second = config.num_steps - config.phase2.num_steps, config.phase2.num_steps
    own = {"data.length": config.phase2.length, "batch_size": config.phase2.batch_size}
    return {"num_steps": first}, {"num_steps": second, **own}


def _place(config: ConfigDict, number: int, key: str) -> str:
    """Returns the name of the key that phase `number` sets, for error messages."""
    if config.phases:
        return f"phases[{number}][{key!r}]"
    return f"phase2.{key.split('.')[-1]}"


def described(phases: Sequence[Phase], phase: Phase) -> str:
    """Returns a line for the log: which phase starts, and what differs from the phase before."""
    before = phases[phases.index(phase) - 1]
    changes = [
        f"{key} {_value(before.config, key)!r} -> {_value(phase.config, key)!r}"
        for key in sorted(phase.places)
        if _value(before.config, key) != _value(phase.config, key)
    ]
    count = f"phase {phases.index(phase) + 1} of {len(phases)} from step {phase.start:,}"
    return f"{count}: {', '.join(changes) or 'the same values'}"


def at_step(phases: Sequence[Phase], step: int) -> Phase:
    """Returns the phase in which step number `step` is trained; steps are counted from 1."""
    return next((phase for phase in phases if step <= phase.stop), phases[-1])


def schedule(config: ConfigDict) -> optax.Schedule:
    """Returns the learning rate of the run as a function of the step."""
    segments = _segments(config)
    parts = [optimizer.make_schedule(part, stop - start) for start, stop, part in segments]
    if len(parts) == 1:
        return parts[0]
    return optax.join_schedules(parts, [start for start, _, _ in segments[1:]])


def _segments(config: ConfigDict) -> list[tuple[int, int, ConfigDict]]:
    """Returns (start, stop, optimizer config) of each learning rate schedule of the run."""
    overrides = _overrides(config)
    segments: list[tuple[int, int, ConfigDict]] = []
    for phase in of(config):
        if segments and not _new_schedule(overrides[phase.number]):
            start, _, part = segments.pop()
            segments.append((start, phase.stop, part))
        else:
            segments.append((phase.start, phase.stop, phase.config.optimizer))
    return segments


def _new_schedule(overrides: Mapping[str, Any]) -> bool:
    return any(k.startswith("optimizer.") and k != "optimizer.weight_decay" for k in overrides)


def _resolved(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """Returns a copy of the config without phases and with `values`, {"a.b": value}."""
    copy = config.copy_and_resolve_references()
    copy.phases, copy.phase2.num_steps = (), 0
    copy.update_from_flattened_dict(values)
    return copy


def _num_steps(overrides: Mapping[str, Any], resolved: ConfigDict) -> int:
    if "num_steps" in overrides:
        return overrides["num_steps"]
    return -(-overrides["num_tokens"] // (resolved.batch_size * resolved.data.length))


def validate(config: ConfigDict) -> None:
    """Raises UserError unless the phases are valid and add up to `config.num_steps`.

    Also checks their learning rate schedules.
    """
    check_keys(config)
    if config.phases and config.phase2.num_steps:
        raise errors.UserError(
            "config.phases and config.phase2.num_steps are both set: set phase2.num_steps to 0 and "
            "describe all phases in config.phases"
        )
    if config.phases:
        total = total_steps(config)
        errors.check(
            config.num_steps == total, "num_steps", config.num_steps,
            f"{total}, the steps of all phases together",
        )  # fmt: skip
    for start, stop, part in _segments(config):
        try:
            optimizer.validate(part, stop - start)
        except errors.UserError as error:
            where = f"the schedule from step {start:,} to {stop:,}: " if config.phases else ""
            raise errors.UserError(f"{where}{error}") from None


def check_keys(config: ConfigDict) -> None:
    """Raises UserError if `config.phases` has an unknown key or a value of the wrong type."""
    for number, overrides in enumerate(config.phases):
        _check_overrides(config, f"config.phases[{number}]", overrides)


def _check_overrides(config: ConfigDict, where: str, overrides: Any) -> None:
    if not isinstance(overrides, Mapping):
        raise errors.UserError(f"{where} = {overrides!r}: must be a dict of config keys")
    extent = [key for key in _EXTENT if key in overrides]
    if len(extent) != 1:
        raise errors.UserError(f"{where}: must have one of the keys num_steps and num_tokens")
    for key, value in overrides.items():
        if key in _EXTENT:
            if type(value) is not int or value < 0:
                raise errors.UserError(
                    f"{where}[{key!r}] = {value!r}: must be an integer, 0 or more"
                )
            continue
        allowed = any(fnmatch.fnmatchcase(key, pattern) for pattern in KEYS)
        current = _value(config, key) if allowed and key not in _FIXED else None
        if current is None:
            raise errors.UserError(
                f"{where}[{key!r}]: a phase cannot set this key; it can set num_steps or "
                f"num_tokens and existing keys among {', '.join(KEYS)}"
            )
        number = type(current) is float and type(value) is int
        if type(value) is not type(current) and not number:
            raise errors.UserError(
                f"{where}[{key!r}] = {value!r}: must be of type {type(current).__name__}"
            )


def _value(config: ConfigDict, key: str) -> Any:
    """Returns the value at `key`; None if there is none, or a group of keys."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, ConfigDict) or name not in value:
            return None
        value = value[name]
    return None if isinstance(value, ConfigDict) else value


def shrunk(
    phases: Sequence[Mapping[str, Any]], *, num_steps: int, length: int, batch_size: int
) -> tuple[dict[str, Any], ...]:
    """Returns the value of `config.phases` for a run of seconds, with `num_steps` steps a phase.

    Lengths, batch sizes and learning rates that the phases set become small ones.
    """
    small = {
        "data.length": length, "batch_size": batch_size, "micro_batch_size": 0,
        "optimizer.learning_rate": 1e-3, "optimizer.warmup_steps": 1,
        "optimizer.decay_steps": num_steps, "optimizer.start_rate": 0.0, "optimizer.end_rate": 0.0,
    }  # fmt: skip
    return tuple(
        {"num_steps": num_steps}
        | {key: small.get(key, value) for key, value in part.items() if key not in _EXTENT}
        for part in phases
    )


def batch_ramp(first: int, last: int, num_tokens: int, parts: int) -> tuple[dict[str, int], ...]:
    """Returns phases in which the batch size grows in equal steps from `first` to `last`.

    Each of the `parts` phases has the same share of `num_tokens`. The sizes should be multiples of
    the number of devices. Since shapes are static on TPUs, each phase is compiled once.
    """
    sizes = [first + (last - first) * i // max(parts - 1, 1) for i in range(parts)]
    return tuple({"num_tokens": num_tokens // parts, "batch_size": size} for size in sizes)


def total_steps(config: ConfigDict) -> int:
    """Returns the number of steps of all phases, for `config.num_steps`."""
    return sum(phase.num_steps for phase in of(config))
