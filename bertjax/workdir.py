"""The workdir of one run: stores the run's identity and checks that a restart is the same run.

    run/config.json        resolved config, fingerprints of tokenizer and data; written once
    run/tokenizer/         the tokenizer's files
    run/checkpoints/STEP/  Orbax
    run/metrics.jsonl, run/tensorboard/
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors, optimizer, paths, plugins, schema
from bertjax.objectives.common import hooks

FORM = schema.Form("bertjax-workdir", 1)
CONFIG = "config.json"
_RESTORE = "restore it from a copy"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"

# Keys that configs of earlier versions lack, with the values that match their behaviour.
_ADDED = {"model.num_labels": 0, "model.adapter_size": 0}
_PATHS = ("data.path", "data.heldout_path", "init_from")


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
    stored = schema.read(file, Identity, _RESTORE, form=FORM)
    schema.typed(stored.config, _Config, f"{file}: config", _RESTORE)
    return stored


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return flat


def _frozen_paths(flat: Mapping[str, Any]) -> list[str]:
    """Returns the config keys whose values are the paths of the objective's frozen models."""
    with contextlib.suppress(errors.UserError):  # the objective's own package may be missing here
        module = plugins.objective(flat["objective.name"])
        return [f"objective.{name}" for name in hooks.of(module).FROZEN]
    return []


def _differences(mine: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    mine, stored = (_ADDED | _flat(config) for config in (mine, stored))
    keys = (*config_lib.FREE_KEYS, *_frozen_paths(mine), *_frozen_paths(stored))

    def free(key: str) -> bool:
        return any(key == f or key.startswith(f"{f}.") for f in keys)

    absent = "absent"
    return [
        f"{key} = {mine.get(key, absent)!r} (in the workdir: {stored.get(key, absent)!r})"
        for key in sorted(mine | stored)
        if not free(key) and mine.get(key, absent) != stored.get(key, absent)
    ]


def without_paths(mine: Identity) -> dict[str, Any]:
    """Returns the parts of the identity that all processes must share, as {name: value}.

    Leaves out paths, which may differ between hosts. The fingerprints of data and models are
    included, and identify what is at these paths.
    """
    flat = _flat(mine.config)
    hidden = (*_PATHS, *_frozen_paths(flat))
    return {
        "config": {key: value for key, value in flat.items() if key not in hidden},
        "tokenizer": mine.tokenizer_fingerprint,
        "prepared data": mine.data_fingerprint,
        **mine.frozen_fingerprints,
    }


def saved_step(path: str | os.PathLike) -> int | None:
    """Returns the newest step saved in a workdir; None if there is none. Does not use Orbax."""
    folder = paths.of(path) / CHECKPOINTS
    steps = [item for item in folder.iterdir() if item.name.isdecimal()] if folder.exists() else []
    if "://" in os.fspath(path):  # Orbax cannot rename there, and writes this file last
        steps = [item for item in steps if (item / "commit_success.txt").exists()]
    return max((int(item.name) for item in steps), default=None)


def claim(path: str | os.PathLike, mine: Identity, save_tokenizer: Any) -> None:
    """Makes `path` the workdir of this run, or checks that it already is.

    save_tokenizer: called with the folder to write the tokenizer's files to. Raises UserError if
    the folder has a checkpoint of a run with another config, tokenizer, data or frozen
    model. A folder without a checkpoint may be reused by any run. A different `num_steps` is
    allowed if the saved steps would have been the same.
    """
    folder = paths.of(path)
    stored = read(path) if (folder / CONFIG).exists() else None
    if stored and saved_step(path) is not None:
        other = "; give another --workdir, or restore the old values"
        steps = mine.config["num_steps"], stored.config["num_steps"]
        extends = steps[0] != steps[1] and not _changed_past(path, mine, stored)
        known = stored.config | ({"num_steps": steps[0]} if extends else {})
        differences = _differences(mine.config, known)
        if differences:
            raise errors.UserError(
                f"{path}: belongs to a run with another config: {', '.join(differences)}{other}"
            )
        if stored.tokenizer_fingerprint != mine.tokenizer_fingerprint:
            raise errors.UserError(
                f"{path}: belongs to a run with another tokenizer than that of config.data.path = "
                f"{mine.config['data']['path']}{other}"
            )
        if stored.data_fingerprint != mine.data_fingerprint:
            raise errors.UserError(
                f"{path}: belongs to a run on other data than config.data.path = "
                f"{mine.config['data']['path']}{other}"
            )
        if stored.frozen_fingerprints != mine.frozen_fingerprints:
            names = ", ".join(f"config.objective.{name}" for name in mine.frozen_fingerprints)
            raise errors.UserError(f"{path}: belongs to a run with another {names}{other}")
        if extends and jax.process_index() == 0:
            _write(folder, dataclasses.replace(stored, config=known))
        return
    if jax.process_index() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(os.fspath(folder / TOKENIZER))
    _write(folder, mine)


def _changed_past(path: str | os.PathLike, mine: Identity, stored: Identity) -> bool:
    """Returns False if the saved steps would have been the same with the new `num_steps`.

    Returns True if another key differs too, which `claim` rejects. Raises UserError naming the
    difference if a saved step would have been different.
    """
    num_steps, before = mine.config["num_steps"], stored.config["num_steps"]
    if _differences(mine.config, stored.config | {"num_steps": num_steps}):
        return True
    saved = saved_step(path) or 0
    configs = [config_lib.from_dict(each.config) for each in (mine, stored)]
    where = f"{path}: config.num_steps = {num_steps} (in the workdir: {before})"
    if num_steps < saved:
        raise errors.UserError(f"{where}: step {saved} is already saved; give {saved} or more")
    elsewhere = f"; restore the old value, or use a new --workdir with --config.init_from={path}"
    schedule = configs[0].optimizer.schedule
    rates, phases = [], []
    for config in configs:
        rate = optimizer.make_schedule(config.optimizer, config.num_steps)
        rates.append(np.asarray(jax.vmap(rate)(np.arange(saved)) if saved else []))
        phases.append(
            [
                (p.start, min(p.stop, saved), p.length, p.batch_size)
                for p in config_lib.phases(config)
                if p.start < saved
            ]
        )
    if not np.array_equal(*rates):
        step = int(np.flatnonzero(rates[0] != rates[1])[0])
        raise errors.UserError(
            f"{where}: would change the learning rate of step {step}, which is already done, with "
            f"the schedule {schedule} (constant, rsqrt, and wsd before its decay would "
            f"not){elsewhere}"
        )
    if phases[0] != phases[1]:
        raise errors.UserError(
            f"{where}: would delay the second phase, which has already begun{elsewhere}"
        )
    return False


def _write(folder: epath.Path, identity: Identity) -> None:
    # NOTE: written last and atomically, because a folder without this file belongs to no run.
    schema.write(folder / CONFIG, dataclasses.asdict(identity), FORM)
