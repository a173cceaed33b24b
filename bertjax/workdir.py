"""The workdir of one run: stores the run's identity and checks that a restart is the same run.

    run/config.json        resolved config, fingerprints of tokenizer and data; written once
    run/tokenizer/         the tokenizer's files
    run/checkpoints/STEP/  Orbax
    run/metrics.jsonl, run/tensorboard/, run/trackers.json
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors, files, optimizer, paths, plugins, schema
from bertjax import phases as phases_lib
from bertjax.objectives.common import hooks

FORM = schema.Form("bertjax-workdir", 1)
CONFIG = "config.json"
_REMEDY = "restore it from a copy"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"

# Keys that configs of earlier versions lack, with the values that match their behaviour.
_ADDED_DEFAULTS = {
    "model.num_labels": 0, "model.adapter_size": 0, "phases": [], "data.size_exponent": 0.0,
    "optimizer.decay_shape": "linear", "ema_decay": 0.0,
}  # fmt: skip
# Keys that `_past` leaves out, because it compares what they lead to: rates, steps and sources.
_COMPARED_OTHERWISE = (
    "num_steps", "phases", "phase2", "data.sources", "optimizer.learning_rate",
    "optimizer.schedule", "optimizer.warmup_steps", "optimizer.decay_steps",
    "optimizer.decay_shape", "optimizer.start_rate", "optimizer.end_rate",
)  # fmt: skip
_PATH_KEYS = ("data.path", "data.heldout_path", "init_from")


@dataclasses.dataclass(frozen=True)
class Identity:
    """Identifies a run. It is stored in the workdir and in the meta of every checkpoint."""

    config: dict[str, Any]
    tokenizer_fingerprint: str
    data_fingerprint: str
    frozen_fingerprints: dict[str, str]  # {name of a frozen model of the objective: fingerprint}


@dataclasses.dataclass(frozen=True)
class _Data(schema.Open):
    path: str


@dataclasses.dataclass(frozen=True)
class _Objective(schema.Open):
    name: str


@dataclasses.dataclass(frozen=True)
class _Config(schema.Open):
    """The keys of a stored config that are read without building a ConfigDict."""

    family: str
    model: dict[str, Any]
    objective: _Objective
    data: _Data


def identity(
    config: ConfigDict,
    tokenizer_fingerprint: str,
    data_fingerprint: str,
    frozen_fingerprints: Mapping[str, str],
) -> Identity:
    """Returns the identity of a run, with lists instead of tuples, as in the stored JSON."""
    plain = json.loads(json.dumps(config.to_dict()))
    return Identity(plain, tokenizer_fingerprint, data_fingerprint, dict(frozen_fingerprints))


def read(path: str | os.PathLike) -> Identity:
    """Returns the identity stored in a workdir. Raises UserError if it is absent or damaged."""
    file = paths.of(path) / CONFIG
    if not file.exists():
        raise errors.UserError(f"{file}: not found, so {path} is not the workdir of a run")
    stored = schema.read(file, Identity, _REMEDY, form=FORM)
    schema.typed(stored.config, _Config, f"{file}: config", _REMEDY)
    return stored


def _frozen_paths(flat: Mapping[str, Any]) -> list[str]:
    """Returns the config keys whose values are the paths of the objective's frozen models."""
    with contextlib.suppress(errors.UserError):  # the objective's own package may be missing here
        module = plugins.objective(flat["objective.name"])
        return [f"objective.{name}" for name in hooks.of(module).FROZEN]
    return []


def _other_paths(flat: Mapping[str, Any]) -> list[str]:
    """Returns the config keys whose values are the paths of frozen models and of sources."""
    of_sources = [k for k in flat if k.startswith("data.sources.") and k.endswith(".path")]
    return _frozen_paths(flat) + of_sources


def _differences(current: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    current, stored = (_ADDED_DEFAULTS | config_lib.flat(config) for config in (current, stored))
    keys = (*config_lib.FREE_KEYS, *_other_paths(current), *_other_paths(stored))

    def is_free(key: str) -> bool:
        return any(key == k or key.startswith(f"{k}.") for k in keys)

    absent = "absent"
    return [
        f"{key} = {current.get(key, absent)!r} (in the workdir: {stored.get(key, absent)!r})"
        for key in sorted(current | stored)
        if not is_free(key) and current.get(key, absent) != stored.get(key, absent)
    ]


def without_paths(identity: Identity) -> dict[str, Any]:
    """Returns the parts of the identity that all processes must share, as {name: value}.

    Leaves out paths, which may differ between hosts. The fingerprints of data and models are
    included, and identify what is at these paths.
    """
    flat = config_lib.flat(identity.config)
    path_keys = (*_PATH_KEYS, *_other_paths(flat))
    return {
        "config": {key: value for key, value in flat.items() if key not in path_keys},
        "tokenizer": identity.tokenizer_fingerprint,
        "prepared data": identity.data_fingerprint,
        **identity.frozen_fingerprints,
    }


def saved_step(path: str | os.PathLike) -> int | None:
    """Returns the newest step saved in a workdir; None if there is none. Does not use Orbax."""
    return max(saved_steps(path), default=None)


def saved_steps(path: str | os.PathLike) -> list[int]:
    """Returns the steps saved in a workdir, ascending. Uses neither Orbax nor a device."""
    folder = paths.of(path) / CHECKPOINTS
    steps = [item for item in folder.iterdir() if item.name.isdecimal()] if folder.exists() else []
    if "://" in os.fspath(path):  # Orbax cannot rename there, and writes this file last
        steps = [item for item in steps if (item / "commit_success.txt").exists()]
    return sorted(int(item.name) for item in steps)


@contextlib.contextmanager
def locked(path: str | os.PathLike, problem: str) -> Iterator[None]:
    """Locks a local folder on process 0, and creates it if it is missing; see `files.locked`."""
    if jax.process_index() != 0:
        yield
        return
    paths.of(path).mkdir(parents=True, exist_ok=True)
    with files.locked(path, problem):
        yield


def claim(path: str | os.PathLike, current: Identity, save_tokenizer: Any) -> None:
    """Makes `path` the workdir of this run, or checks that it already is.

    save_tokenizer: called with the folder to write the tokenizer's files to. Raises UserError if
    the folder has a checkpoint of a run with another config, tokenizer, data or frozen
    model. A folder without a checkpoint may be reused by any run. `num_steps` and the phases may
    differ, and sources may be added, if the saved steps would have been the same.
    """
    folder = paths.of(path)
    stored = read(path) if (folder / CONFIG).exists() else None
    step = saved_step(path) if stored else None
    if stored and step is not None:
        _check_same_run(path, current, stored, step)
        is_changed = stored.data_fingerprint != current.data_fingerprint
        is_changed = is_changed or bool(_differences(current.config, stored.config))
        if is_changed and jax.process_index() == 0:
            _write(folder, current)
        return
    if jax.process_index() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(os.fspath(folder / TOKENIZER))
    _write(folder, current)


def _check_same_run(
    path: str | os.PathLike, current: Identity, stored: Identity, step: int
) -> None:
    """Raises UserError if `current` is not the run in the workdir, whose newest step is `step`.

    The steps up to `step` must be the same in any case. Without `config.phases`, of the keys that
    determine later steps only `num_steps` and sources with the weight 0 may differ.
    """
    advice = "; give another --workdir, or restore the old values"
    runs = current.config, stored.config
    has_phases = any(config.get("phases") for config in runs)  # absent in earlier versions
    has_sources = any(config["data"].get("sources") for config in runs)  # absent likewise
    if not has_phases:
        differences = _differences(*runs)
        if not all(line.startswith(("num_steps =", "data.sources.")) for line in differences):
            raise errors.UserError(
                f"{path}: belongs to a run with another config: {', '.join(differences)}{advice}"
            )
        if current.config["num_steps"] != stored.config["num_steps"]:
            _check_num_steps(path, current, stored, step)
    where = _data_key(current)
    if stored.tokenizer_fingerprint != current.tokenizer_fingerprint:
        raise errors.UserError(
            f"{path}: belongs to a run with a tokenizer other than that of {where}{advice}"
        )
    if has_phases or has_sources:
        check_past(f"{path}: step {step} is saved", current, stored, step)
    elif stored.data_fingerprint != current.data_fingerprint:
        raise errors.UserError(f"{path}: belongs to a run on different data from {where}{advice}")
    if stored.frozen_fingerprints != current.frozen_fingerprints:
        names = _frozen_keys(current)
        raise errors.UserError(f"{path}: belongs to a run with another {names}{advice}")


def _data_key(identity: Identity) -> str:
    """Returns the config key that names the run's data, with its value if it is one folder."""
    data = identity.config["data"]
    return "config.data.sources" if data.get("sources") else f"config.data.path = {data['path']}"


def _frozen_keys(identity: Identity) -> str:
    return ", ".join(f"config.objective.{name}" for name in identity.frozen_fingerprints)


def branch(path: str | os.PathLike, current: Identity) -> tuple[epath.Path, int]:
    """Returns (workdir, step) of the checkpoint at `path`, from which the run `current` branches.

    path: WORKDIR/checkpoints/STEP. Raises UserError if it is no such folder, or if `current` would
    have computed another state at that step.
    """
    folder = paths.of(path)
    run = folder.parent.parent
    if folder.parent.name != CHECKPOINTS or not folder.name.isdecimal() or not folder.exists():
        raise errors.UserError(
            f"--branch_from={path}: is not a checkpoint; give WORKDIR/{CHECKPOINTS}/STEP"
        )
    stored, step = read(run), int(folder.name)
    where = f"--branch_from={path}: is a checkpoint of another run"
    if stored.tokenizer_fingerprint != current.tokenizer_fingerprint:
        raise errors.UserError(f"{where}, with another tokenizer than that of {_data_key(current)}")
    if step > current.config["num_steps"]:
        raise errors.UserError(
            f"--branch_from={path}: is past the last step of the new run, config.num_steps = "
            f"{current.config['num_steps']}"
        )
    check_past(where, current, stored, step, "branch off another checkpoint")
    if stored.frozen_fingerprints != current.frozen_fingerprints:
        raise errors.UserError(f"{where}, with another {_frozen_keys(current)}")
    return run, step


def check_past(
    where: str,
    current: Identity,
    stored: Identity,
    step: int,
    alternative: str = "use a new --workdir",
) -> None:
    """Raises UserError unless `current` would have computed the first `step` steps as `stored` did.

    Compares the phases and the sources that were used up to `step`, and the learning rates.
    where: the start of the error message. alternative: what its end advises besides restoring the
    old value.
    """
    advice = f"; restore the old value, or {alternative}"
    runs = current, stored
    configs = [config_lib.from_dict(run.config) for run in runs]
    pasts = [_past(run, config, step) for run, config in zip(runs, configs, strict=True)]
    if len(pasts[0]) != len(pasts[1]):
        raise errors.UserError(
            f"{where}, and up to it the run had {len(pasts[1])} phases, not {len(pasts[0])}{advice}"
        )
    for number, (new, old) in enumerate(zip(*pasts, strict=True), 1):
        for key in sorted(new | old):
            if new.get(key) != old.get(key):
                raise errors.UserError(
                    f"{where}, and in phase {number}, which has begun, {key} = {new.get(key)!r} "
                    f"(it was {old.get(key)!r}){advice}"
                )
    rates = [
        np.asarray(jax.vmap(phases_lib.schedule(config))(np.arange(step)) if step else [])
        for config in configs
    ]
    if not np.array_equal(*rates):
        changed = int(np.flatnonzero(rates[0] != rates[1])[0])
        raise errors.UserError(
            f"{where}: the config would change the learning rate of step {changed}, which is "
            f"already done{advice}"
        )


def _past(run: Identity, config: ConfigDict, step: int) -> list[dict[str, Any]]:
    """Returns {key: value} of each phase up to `step`, with all keys that determined its steps."""
    fingerprints = dict(part.rpartition("=")[::2] for part in run.data_fingerprint.split(","))
    result = []
    for phase in phases_lib.of(config):
        if phase.start >= step and result:
            break
        flat = config_lib.flat(json.loads(json.dumps(phase.config.to_dict())))
        skipped = (*config_lib.FREE_KEYS, *_frozen_paths(flat), *_COMPARED_OTHERWISE)
        values = {
            key: value
            for key, value in flat.items()
            if not any(key == name or key.startswith(f"{name}.") for name in skipped)
        }
        for name, source in phase.config.data.sources.items():
            if source.weight:
                values[f"data.sources.{name}.weight"] = source.weight
                values[f"the text of data.sources.{name}"] = fingerprints[name]
        if not phase.config.data.sources:
            values["the text of data.path"] = run.data_fingerprint
        result.append(values | {"steps": [phase.start, min(phase.stop, step)]})
    return result


def _check_num_steps(
    path: str | os.PathLike, current: Identity, stored: Identity, saved: int
) -> None:
    """Raises UserError if one of the `saved` steps would have been different with the new number.

    `current` and `stored` have no `config.phases`.
    """
    num_steps, old_num_steps = current.config["num_steps"], stored.config["num_steps"]
    configs = [config_lib.from_dict(run.config) for run in (current, stored)]
    where = f"{path}: config.num_steps = {num_steps} (in the workdir: {old_num_steps})"
    if num_steps < saved:
        raise errors.UserError(
            f"{where}: must be {saved} or more, because step {saved} is already saved"
        )
    alternative = f"; restore the old value, or use a new --workdir with --config.init_from={path}"
    schedule = configs[0].optimizer.schedule
    rates, phases = [], []
    for config in configs:
        rate = optimizer.make_schedule(config.optimizer, config.num_steps)
        rates.append(np.asarray(jax.vmap(rate)(np.arange(saved)) if saved else []))
        phases.append(
            [
                (phase.start, min(phase.stop, saved), phase.length, phase.batch_size)
                for phase in phases_lib.of(config)
                if phase.start < saved
            ]
        )
    if not np.array_equal(*rates):
        step = int(np.flatnonzero(rates[0] != rates[1])[0])
        raise errors.UserError(
            f"{where}: would change the learning rate of step {step}, which is already done, with "
            f"the schedule '{schedule}' ('constant', 'rsqrt', and 'wsd' before its decay would "
            f"not){alternative}"
        )
    if phases[0] != phases[1]:
        raise errors.UserError(
            f"{where}: would delay the second phase, which has already begun{alternative}"
        )


def _write(folder: epath.Path, identity: Identity) -> None:
    # NOTE: written last and atomically, because a folder without this file belongs to no run.
    schema.write(folder / CONFIG, dataclasses.asdict(identity), FORM)
