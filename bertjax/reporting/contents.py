"""The contents of a pretraining run's workdir, as a report shows them.

    run = contents.read("run/")
    run.step, contents.final_scores(run)["mlm_loss"]
"""

import dataclasses
import math
import os
from typing import Any

from bertjax import config as config_lib
from bertjax import errors, paths, run_log, run_starts, workdir
from bertjax import phases as phases_lib
from bertjax.artifact import artifact, loading
from bertjax.reporting import tables


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a workdir, as far as a report shows them.

    model: without parameters. config: None if it is not a config of this version. phases: [] then.
    """

    path: str
    model: artifact.Artifact
    stored: dict[str, Any]
    config: Any
    phases: list[phases_lib.Phase]
    metrics: list[dict[str, float]]
    starts: list[run_starts.Start]
    saved_steps: list[int]

    @property
    def name(self) -> str:
        """The name of the folder."""
        return os.path.basename(os.path.abspath(self.path))

    @property
    def step(self) -> int:
        """The newest step of which there is a metric or a checkpoint."""
        return int(max([*self.saved_steps, *(line["step"] for line in self.metrics)], default=0))

    @property
    def borders(self) -> list[int]:
        """The steps after which the phase changes."""
        return [phase.start for phase in self.phases[1:]]


def read(path: str | os.PathLike) -> Run:
    """Returns the contents of the workdir at `path`.

    Raises UserError if it is not the workdir of a run, or if one of its files is damaged.
    """
    place = loading.find(path)
    if place.kind != "workdir":
        raise errors.UserError(
            f"{path}: a report describes the workdir of a pretraining run, or the output folder of "
            f"fine-tuning (to compare parts of a sweep or a suite, give their folders); this is a "
            f"model of the format {place.kind}"
        )
    stored = workdir.read(place.folder).config
    config, phases = None, []
    try:
        config = config_lib.from_dict(stored)
        phases = phases_lib.of(config)
    except errors.UserError:  # of another version, or with a package that is missing here
        pass
    metrics_file = paths.of(place.folder) / workdir.METRICS
    return Run(
        place.folder,
        loading.load(place.folder, with_params=False),
        stored,
        config,
        phases,
        run_log.read_metrics(metrics_file) if metrics_file.exists() else [],
        run_starts.read(place.folder),
        workdir.saved_steps(place.folder),
    )


def positions(run: Run) -> int:
    """Returns the number of positions, padding included, that the steps so far have read."""
    return sum(
        (min(phase.stop, run.step) - phase.start) * phase.batch_size * phase.length
        for phase in run.phases
        if phase.start < run.step
    )


def final_scores(run: Run) -> dict[str, float]:
    """Returns {metric: the newest held-out value}, of all sources together."""
    values: dict[str, float] = {}
    for line in run.metrics:
        values |= {
            key.removeprefix("eval/"): value
            for key, value in line.items()
            if key.startswith("eval/") and key.count("/") == 1
        }
    return values


def score_text(name: str, value: float | None) -> str:
    """Returns a score as text; accuracies as percentages."""
    if value is not None and name.endswith("_accuracy") and math.isfinite(value):
        return tables.share(value)
    return "" if value is None else tables.number(float(f"{value:.4g}"))
