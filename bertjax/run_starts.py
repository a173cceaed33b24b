"""Records each start of a pretraining run in its workdir: starts.jsonl, one line per start.

    run_starts.record("run/", step=0, origin=run_starts.Origin("bertjax pretrain ..."))
    run_starts.read("run/")[-1].command

A run that was stopped and resumed has a line for each start. The report shows these lines: when the
run was started, from which step, with which versions, on which devices and by which command.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import config_help, errors, files, paths, schema
from bertjax.artifact import initial
from bertjax.runtime import environment

FILE = "starts.jsonl"
_REMEDY = "delete that line"


@dataclasses.dataclass(frozen=True)
class Origin:
    """The command that starts a run, and the recipe behind its config.

    command: the command line; "" if unknown. recipe: the config file as FILE or FILE:ARG, or the
    model of which the config was made; "" if unknown. changed: {key: value in the recipe}, as text,
    for the keys whose value in the run differs.
    """

    command: str = ""
    recipe: str = ""
    changed: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Start(schema.Open):
    """A line of starts.jsonl. time: UTC, in ISO 8601. step: the step from which the run starts."""

    time: str
    step: schema.Count
    environment: dict[str, str]
    command: str
    recipe: str
    changed: dict[str, str]


def origin(
    file: str | None,
    workdir: str | os.PathLike,
    overrides: Mapping[str, str],
    config: ConfigDict,
    branch_from: str | None = None,
) -> Origin:
    """Returns the origin of a run of `bertjax pretrain`.

    file, overrides: the arguments of `initial.run_config`. config: its result. A recipe that
    cannot be loaded without the overrides has no entries in `changed`.
    """
    flags = {"config": file, "workdir": os.fspath(workdir), "branch_from": branch_from}
    flags |= {f"config.{key}": value for key, value in overrides.items()}
    words = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    changed: dict[str, str] = {}
    with contextlib.suppress(errors.UserError):
        changed = {
            key: str(recipe_value if isinstance(recipe_value, str)
                     else config_help.format_value(recipe_value))
            for key, (_, recipe_value) in config_help.differences(
                config, _recipe(file, overrides)
            ).items()
        }  # fmt: skip
    return Origin(
        shlex.join(["bertjax", "pretrain", *words]), file or overrides["init_from"], changed
    )


def _recipe(file: str | None, overrides: Mapping[str, str]) -> ConfigDict:
    if file:
        return config_lib.of_file("config", file, ConfigDict)
    return initial.config_of(overrides["init_from"])


def record(workdir: str | os.PathLike, step: int, origin: Origin | None = None) -> None:
    """Adds a line to starts.jsonl, on process 0; prints a warning if it cannot be written."""
    if jax.process_index() != 0:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = {"time": now, "step": step, "environment": environment.describe()}
    line |= dataclasses.asdict(origin or Origin())
    file = paths.of(workdir) / FILE
    try:
        earlier = file.read_text() if file.exists() else ""
        files.write_text(file, earlier + json.dumps(line) + "\n")
    except OSError as error:
        errors.tell(f"warning: {file}: cannot be written: {error.strerror or error}")


def read(workdir: str | os.PathLike) -> list[Start]:
    """Returns the starts of a run, oldest first; [] if the run has recorded none.

    Raises UserError, naming the line, if a line is invalid.
    """
    return list(_lines(workdir))


def _lines(workdir: str | os.PathLike) -> Iterator[Start]:
    file = paths.of(workdir) / FILE
    content = file.read_bytes().splitlines() if file.exists() else []
    for number, raw in enumerate(content, start=1):
        line: dict[str, Any] = schema.parse(raw, file, _REMEDY, number=number)
        yield schema.typed(line, Start, f"{file}:{number}", _REMEDY)
