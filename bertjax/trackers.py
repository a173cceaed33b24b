"""Sends the metrics of a run to experiment trackers, beside its files: Weights & Biases, Trackio.

    config.log_to = "wandb,trackio"

A tracker is one class of TRACKERS. Only process 0 has trackers. A tracker that fails prints one
warning and gets no more metrics; the run continues, and metrics.jsonl has every line. The ids of
the trackers' runs are stored in the workdir, so that a resumed run continues the same curves.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
from etils import epath

from bertjax import errors, schema

FILE = "trackers.json"  # in the workdir: the ids of its runs
PROJECT = "bertjax"  # unless WANDB_PROJECT or TRACKIO_PROJECT is set


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as a tracker shows it. id: unique; the same after a resume."""

    name: str
    id: str
    folder: epath.Path
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Sends metrics to one service."""

    def __init__(self, run: Run): ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends {name: value} of a step."""

    def finish(self) -> None:
        """Sends what is left and ends the run."""


class Wandb:
    """Weights & Biases. WANDB_MODE=offline keeps everything in WORKDIR/wandb, for `wandb sync`."""

    def __init__(self, run: Run):
        import wandb

        is_remote = "://" in os.fspath(run.folder)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.id,
            resume="allow",
            reinit="create_new",  # leaves alone a run that the caller's notebook has open
            dir=None if is_remote else os.fspath(run.folder),
            config=dict(run.config),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends {name: value} of a step, unless the service has later steps already."""
        if step >= self._run.step:  # otherwise it would be ignored, with a warning
            self._run.log(dict(values), step=step)

    def finish(self) -> None:
        """Sends what is left and ends the run."""
        self._run.finish()


class Trackio:
    """Trackio: a local database, or a Hugging Face Space if TRACKIO_SPACE_ID is set."""

    def __init__(self, run: Run):
        import trackio

        self._module = trackio
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{run.name} {run.id}",  # Trackio finds the run to resume by its name
            resume="allow",
            embed=False,  # starts no dashboard in a notebook
            config=dict(run.config),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends {name: value} of a step."""
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        """Sends what is left and ends the run."""
        self._module.finish()


# The name of a tracker is also that of its package and of the extra in setup.py.
TRACKERS: Mapping[str, type[Tracker]] = {"wandb": Wandb, "trackio": Trackio}


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Declares --log_to, which is short for --config.log_to."""
    parser.add_argument(
        "--log_to",
        metavar="NAMES",
        help=f"trackers that receive the metrics, too: {', '.join(TRACKERS)}, or several with "
        "commas; same as --config.log_to",
    )


def overrides(flags: argparse.Namespace) -> dict[str, str]:
    """Returns the config overrides of the flag that `add_flag` declares."""
    return {} if flags.log_to is None else {"log_to": flags.log_to}


def names(log_to: str) -> list[str]:
    """Returns the names in `config.log_to`. Raises UserError for one that is unknown."""
    found = [name.strip() for name in log_to.split(",")] if log_to else []
    for name in found:
        if name not in TRACKERS:
            raise errors.UserError(
                f"config.log_to = {log_to!r}: unknown tracker {name!r}; "
                f"{errors.did_you_mean(name, TRACKERS)}the trackers are {', '.join(TRACKERS)}"
            )
    return list(dict.fromkeys(found))


def check_installed(log_to: str) -> None:
    """Raises UserError if process 0 lacks the package of a tracker."""
    if jax.process_index() != 0:
        return
    for name in names(log_to):
        spec = importlib.util.find_spec(name)
        # NOTE: a folder ./wandb, which wandb itself creates, is a package without an origin.
        if spec is None or spec.origin is None:
            raise errors.UserError(
                f"config.log_to = {log_to!r}: the package {name} is not installed: "
                f"pip install 'bertjax[{name}]'"
            )


@dataclasses.dataclass(frozen=True)
class Tracking:
    """What to track: the value of `config.log_to`, the name of the run, and its config."""

    log_to: str = ""
    name: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


NO_TRACKING = Tracking()


class Writer:
    """Writes the metrics of a run to its trackers.

    A resumed run sends the steps again that it repeats, with the same values.
    """

    def __init__(self, tracking: Tracking, folder: epath.Path, *, start_step: int):
        """Starts or resumes the trackers' runs. Raises UserError if the file of ids is damaged."""
        wanted = names(tracking.log_to)
        self._trackers: dict[str, Tracker] = {}
        # A folder may be used again by another run, whose first step is then 0.
        old_ids = _read_ids(folder) if wanted and start_step else {}
        ids = {name: old_ids[name] if name in old_ids else secrets.token_hex(4) for name in wanted}
        if ids != old_ids and wanted:
            schema.write(folder / FILE, {"ids": old_ids | ids})
        for name in wanted:
            run = Run(tracking.name, ids[name], folder, tracking.config)
            with self._warning(name), contextlib.redirect_stdout(sys.stderr):
                self._trackers[name] = TRACKERS[name](run)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends the metrics of `step`."""
        for name, tracker in list(self._trackers.items()):
            with self._warning(name):
                tracker.log(step, metrics)

    def flush(self) -> None:
        """Does nothing: trackers send in the background."""

    def close(self) -> None:
        """Ends the trackers' runs."""
        for name, tracker in list(self._trackers.items()):
            with self._warning(name), contextlib.redirect_stdout(sys.stderr):
                tracker.finish()
        self._trackers.clear()

    @contextlib.contextmanager
    def _warning(self, name: str) -> Iterator[None]:
        """Turns an error of a tracker into a warning, and removes the tracker."""
        try:
            yield
        except Exception as error:  # trackers raise errors of any type, for example of the network
            self._trackers.pop(name, None)
            errors.tell(
                f"warning: {name} failed and receives no more metrics of this run; they are all in "
                f"metrics.jsonl: {type(error).__name__}: {errors.one_line(error)}"
            )


@dataclasses.dataclass(frozen=True)
class _Ids(schema.Open):
    ids: dict[str, str]


def _read_ids(folder: epath.Path) -> dict[str, str]:
    file = folder / FILE
    if not file.exists():
        return {}
    return schema.read(file, _Ids, "remove it, and the trackers start a new run").ids
