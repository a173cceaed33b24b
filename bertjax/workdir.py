"""The folder of one run: whose it is, and that a restart is the same run.

    run/config.json        resolved config, fingerprints of tokenizer and data; written once
    run/tokenizer/         the tokenizer's files
    run/checkpoints/STEP/  Orbax
    run/metrics.jsonl, run/tensorboard/
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors

FORMAT = "bertjax-workdir"
VERSION = 1
CONFIG = "config.json"
TOKENIZER = "tokenizer"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"

# Keys that configs of earlier versions lack, with what these did.
_ADDED = {"model.num_labels": 0, "model.adapter_size": 0}
_PATHS = ("data.path", "data.heldout_path", "init_from", "objective.teacher")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What makes two starts the same run, and what every checkpoint carries."""

    config: dict[str, Any]
    tokenizer_fingerprint: str
    data_fingerprint: str
    frozen_fingerprints: dict[str, str]  # of the models that the objective asks, by its names


def identity(
    config: ConfigDict,
    tokenizer_fingerprint: str,
    data_fingerprint: str,
    frozen_fingerprints: Mapping[str, str],
) -> Identity:
    """The identity of a run; tuples become lists, as in the JSON that it is compared with."""
    plain = json.loads(json.dumps(config.to_dict()))
    return Identity(plain, tokenizer_fingerprint, data_fingerprint, dict(frozen_fingerprints))


def read(path: str | os.PathLike) -> Identity:
    """The identity stored in a workdir. UserError names the file when it is absent or damaged."""
    file = epath.Path(path) / CONFIG
    try:
        stored = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise errors.UserError(f"{file}: not there; {path} is not the workdir of a run") from error
    except ValueError as error:
        raise errors.UserError(f"{file}: not JSON ({error}); restore it from a copy") from error
    fields = [field.name for field in dataclasses.fields(Identity)]
    whole = isinstance(stored, dict) and all(name in stored for name in fields)
    if not whole or (stored.get("format"), stored.get("version")) != (FORMAT, VERSION):
        raise errors.UserError(f"{file}: not the config of a bertjax workdir, version {VERSION}")
    return Identity(**{name: stored[name] for name in fields})


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return flat


def _differences(mine: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    mine, stored = (_ADDED | _flat(config) for config in (mine, stored))

    def free(key: str) -> bool:
        return any(key == f or key.startswith(f"{f}.") for f in config_lib.FREE_KEYS)

    absent = "absent"
    return [
        f"{key} = {mine.get(key, absent)!r} (there {stored.get(key, absent)!r})"
        for key in sorted(mine | stored)
        if not free(key) and mine.get(key, absent) != stored.get(key, absent)
    ]


def without_paths(mine: Identity) -> dict[str, Any]:
    """What all processes of a run share, by name: what paths lead to, but not the paths."""
    config = {key: value for key, value in _flat(mine.config).items() if key not in _PATHS}
    return {
        "config": config,
        "tokenizer": mine.tokenizer_fingerprint,
        "prepared data": mine.data_fingerprint,
        "teacher": mine.frozen_fingerprints,
    }


def saved_step(path: str | os.PathLike) -> int | None:
    """The newest step that a workdir has saved, None where there is none; asks the disk alone."""
    folder = epath.Path(path) / CHECKPOINTS
    steps = [item for item in folder.iterdir() if item.name.isdigit()] if folder.exists() else []
    if "://" in os.fspath(path):  # Orbax cannot rename there, and writes this file last
        steps = [item for item in steps if (item / "commit_success.txt").exists()]
    return max((int(item.name) for item in steps), default=None)


def claim(path: str | os.PathLike, mine: Identity, save_tokenizer: Any) -> None:
    """Makes `path` the workdir of this run, or checks that it already is.

    save_tokenizer: called with the folder to write the tokenizer's files to. Raises UserError when
    the folder belongs to a run with another config, tokenizer, data or teacher, and that has saved
    a checkpoint; what has saved none is nobody's yet.
    """
    folder = epath.Path(path)
    stored = read(path) if (folder / CONFIG).exists() else None
    if stored and saved_step(path) is not None:
        other = "; give the run another --workdir, or set these back"
        differences = _differences(mine.config, stored.config)
        if differences:
            raise errors.UserError(
                f"{path} belongs to a run with another config: {', '.join(differences)}{other}"
            )
        if stored.tokenizer_fingerprint != mine.tokenizer_fingerprint:
            raise errors.UserError(
                f"{path} belongs to a run with another tokenizer than that of config.data.path"
                f" = {mine.config['data']['path']}{other}"
            )
        if stored.data_fingerprint != mine.data_fingerprint:
            raise errors.UserError(
                f"{path} belongs to a run on other data than config.data.path"
                f" = {mine.config['data']['path']}{other}"
            )
        if stored.frozen_fingerprints != mine.frozen_fingerprints:
            names = ", ".join(f"config.objective.{name}" for name in mine.frozen_fingerprints)
            raise errors.UserError(f"{path} belongs to a run with another {names}{other}")
        return
    if jax.process_index() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(os.fspath(folder / TOKENIZER))
    content = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(mine)}
    partial = folder / f"{CONFIG}.partial"
    partial.write_text(json.dumps(content, indent=2))
    partial.replace(folder / CONFIG)  # last, and whole: without it the folder is nobody's
