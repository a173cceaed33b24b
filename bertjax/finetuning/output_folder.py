"""The output folder of a fine-tuning: whose it is, and its finished runs.

    out/config.json                    what all runs share: config, fingerprints of model and data
    out/runs/lr3e-05-seed0.json        a finished run: its scores
    out/runs/lr3e-05-seed0.safetensors what it trained, as long as that may be the best
    out/artifact/                      the best model, for `bertjax predict` and `evaluate`
    out/report.json, report.md, scores.png, predictions/SPLIT.jsonl, submission/

A (rate, seed) is a run of its own: a fine-tuning that was killed goes on with those it lacks, and
more rates or seeds can be added later.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bertjax import errors, schema
from bertjax.artifact import artifact, files, loading
from bertjax.finetuning import kind, recipe, tasks, training

FORM = schema.Form(loading.FINETUNING, 1)
_ANOTHER = "give another --output"
CONFIG, RUNS, ARTIFACT = "config.json", "runs", "artifact"
PREDICTIONS, SUBMISSION = "predictions", "submission"
_RUN = re.compile(r"lr([0-9]+(?:[.][0-9]+)?(?:e[-+]?[0-9]+)?)-seed([0-9]+)[.]json")
REPORT, TABLE, PLOT = "report.json", "report.md", "scores.png"


@dataclasses.dataclass(frozen=True)
class _Config:
    """config.json of the folder. model, data: digests."""

    config: dict[str, Any]
    model: str
    data: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Best(schema.Open):
    learning_rate: float
    seed: int


@dataclasses.dataclass(frozen=True)
class _Report(schema.Open):
    best: _Best


class Folder:
    """The output folder. UserError for one of another fine-tuning, or what cannot be written."""

    def __init__(
        self,
        path: str | os.PathLike,
        config: ConfigDict,
        source: artifact.Artifact,
        examples: Mapping[str, Sequence[Any]],
    ):
        self.path = files.local(path)
        mine = {
            "config": json.loads(json.dumps(_shared(config.to_dict()))),
            "model": artifact.fingerprint(source) + source.tokenizer.fingerprint,
            "data": {name: _digest(found) for name, found in examples.items()},
        }
        file = self.path / CONFIG
        _check_own(self.path)
        if file.exists():
            stored = self.stored()
            _check(self.path, mine, stored)
            mine["data"] = stored["data"] | mine["data"]  # scores of splits not given now are kept
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            schema.write(file, mine, FORM)  # first: without it the other files are nobody's
            (self.path / RUNS).mkdir(exist_ok=True)
            self._remove_partial_files()
        except OSError as error:
            raise errors.UserError(
                f"{path}: cannot be written ({error.strerror}); give another --output"
            ) from error

    def stored(self) -> dict[str, Any]:
        """Returns config, model and data of the config.json that is there."""
        return dataclasses.asdict(schema.read(self.path / CONFIG, _Config, _ANOTHER, form=FORM))

    def run(self, learning_rate: float, seed: int) -> training.Run | None:
        """A finished run; None for one that is not."""
        file = self._file(learning_rate, seed, "json")
        if not file.exists():
            return None
        again = "remove it, and it is trained again"
        run = schema.read(file, training.Run, again)
        if not 0 <= run.best < len(run.evaluations) or run.main not in run.dev:
            raise errors.UserError(f"{file}: has no best evaluation; {again}")
        return run

    def left_out(self, rates: Sequence[float], seeds: Sequence[int]) -> list[tuple[float, int]]:
        """(rate, seed) of the finished runs that are none of these."""
        matches = (_RUN.fullmatch(file.name) for file in (self.path / RUNS).iterdir())
        found = sorted((float(match[1]), int(match[2])) for match in matches if match)
        return [(rate, seed) for rate, seed in found if rate not in rates or seed not in seeds]

    def save(self, run: training.Run, trained: Any = None) -> None:
        """A run that is finished, and what it trained."""
        if trained is not None:
            file = self._file(run.learning_rate, run.seed, "safetensors")
            partial = file.with_suffix(".partial")
            files.write_tensors(partial, artifact.flatten(trained))
            partial.replace(file)
        # Last: without it the run is not finished.
        schema.write(self._file(run.learning_rate, run.seed, "json"), dataclasses.asdict(run))

    def params(self, run: training.Run) -> Any | None:
        """What the run trained; None where it is no longer kept."""
        file = self._file(run.learning_rate, run.seed, "safetensors")
        if not file.exists():
            return None
        return artifact.unflatten(files.read_tensors(file, list(files.tensor_shapes(file))))

    def drop_params(self, run: training.Run) -> None:
        """Those of a run that is not the best."""
        self._file(run.learning_rate, run.seed, "safetensors").unlink(missing_ok=True)

    def write_predictions(
        self,
        examples: Mapping[str, Sequence[Any]],
        predictions: Mapping[str, Sequence[dict[str, Any]]],
    ) -> None:
        """Of each split a line of JSON an example: what it says, and what the model says of it.

        Those of an earlier model go, and what a leaderboard would have taken of them.
        """
        for name in (PREDICTIONS, SUBMISSION):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / PREDICTIONS).mkdir()
        for split, found in predictions.items():
            files.write_text(self._predictions(split), prediction_lines(examples[split], found))

    def predictions(self, split: str) -> list[dict[str, Any]]:
        """What `write_predictions` wrote of a split, without the examples."""
        file, again = self._predictions(split), "remove it, and it is written again"
        found = []
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            if line:
                prediction = schema.parse(line, file, again, number=number).get("prediction")
                if not isinstance(prediction, dict):
                    raise errors.UserError(f"{file}:{number}: has no prediction; {again}")
                found.append(prediction)
        return found

    def holds(self, run: training.Run, splits: Sequence[str]) -> bool:
        """Whether the artifact is of this run, and its predictions of these splits are there."""
        file = self.path / REPORT
        if not (file.exists() and (self.path / ARTIFACT).exists()):
            return False
        best = schema.read(file, _Report, "remove it, and it is written again").best
        same = (best.learning_rate, best.seed) == (run.learning_rate, run.seed)
        return same and all(self._predictions(split).exists() for split in splits)

    def drop_report(self) -> None:
        """Without one, artifact and predictions are of no run that is known."""
        for name in (REPORT, TABLE, PLOT):
            (self.path / name).unlink(missing_ok=True)

    def _remove_partial_files(self) -> None:
        """Removes what a killed process was writing; safetensors names it .tmpXXXXXX."""
        for file in (self.path / RUNS).iterdir():
            if file.suffix == schema.PARTIAL or file.name.startswith(".tmp"):
                file.unlink()

    def _predictions(self, split: str) -> pathlib.Path:
        return self.path / PREDICTIONS / f"{split}.jsonl"

    def _file(self, learning_rate: float, seed: int, suffix: str) -> pathlib.Path:
        return self.path / RUNS / f"lr{learning_rate!r}-seed{seed}.{suffix}"


def prediction_lines(examples: Sequence[Any], predictions: Sequence[dict[str, Any]]) -> str:
    """A line of JSON an example: {"example": what it says, "prediction": what the model says}."""
    return "".join(
        json.dumps({"example": _said(e), "prediction": p}, ensure_ascii=False) + "\n"
        for e, p in zip(examples, predictions, strict=True)
    )


def _shared(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The keys that all runs share, by their dotted names."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _shared(value, f"{prefix}{key}.")
        elif not recipe.is_free(prefix + key):
            flat[prefix + key] = value
    return flat


def _check_own(path: pathlib.Path) -> None:
    """UserError for a folder of something else that has what a fine-tuning would write over."""
    own = (RUNS, ARTIFACT, PREDICTIONS, SUBMISSION, REPORT, TABLE, PLOT)
    there = [name for name in own if (path / name).exists()]
    if there and not (path / CONFIG).exists():
        raise errors.UserError(
            f"{path}: holds {', '.join(there)}, which would be lost; give another --output"
        )


def _check(path: pathlib.Path, mine: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    config, other = mine["config"], stored["config"]
    former = kind.former(kind.load(tasks.find(config["task"]).kind))
    other = {f"kind.{name}": value for name, value in former.items()} | other
    keys = [key for key in sorted(config | other) if config.get(key) != other.get(key)]
    for named in ("task", "strategy.name"):  # they decide which other keys there are
        keys = [named] if named in keys else keys
    different = [f"{key} = {config.get(key)!r} (there {other.get(key)!r})" for key in keys]
    if mine["model"] != stored["model"]:
        different.append("another model")
    for split in sorted(mine["data"].keys() & stored["data"].keys()):
        if mine["data"][split] != stored["data"][split]:
            different.append(f"other {split} data")
    if different:
        raise errors.UserError(
            f"{path} belongs to another fine-tuning: {', '.join(different)}; give another --output,"
            " or set these back"
        )


def _said(example: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in example._asdict().items()
        if name not in ("where", "passage") and (name != "text" or value)
    }


def _digest(examples: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(_said(example)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
