"""The output folder of fine-tuning: the config, the finished runs and the results.

    out/config.json                    shared by all runs: config, fingerprints of model and data
    out/runs/lr3e-05-seed0.json        a finished run: its scores
    out/runs/lr3e-05-seed0.safetensors its trained parameters, deleted when no longer needed
    out/runs/lr3e-05-seed0/            its metrics, and its checkpoints until it is finished
    out/artifact/                      the best model, for `bertjax predict` and `evaluate`
    out/report.json, report.md, scores.png, report.html, predictions/SPLIT.jsonl, submission/

Each (rate, seed) is a separate run. Fine-tuning that was killed resumes with the missing runs, and
more rates or seeds can be added later. If there are several processes, only process 0 writes.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bertjax import errors, files, paths, schema
from bertjax import workdir as workdir_lib
from bertjax.artifact import artifact, loading, weight_files
from bertjax.finetuning import projection, recipe, task_types, tasks, training
from bertjax.finetuning.examples import queries
from bertjax.runtime import distributed

FORM = schema.Form(loading.FINETUNING, 1)
_ADVICE = "give another --output"
CONFIG, RUNS, ARTIFACT = "config.json", "runs", "artifact"
PREDICTIONS, SUBMISSION = "predictions", "submission"
_RUN_FILE = re.compile(r"lr([0-9]+(?:[.][0-9]+)?(?:e[-+]?[0-9]+)?)-seed([0-9]+)[.]json")
REPORT, TABLE, PLOT, PAGE = "report.json", "report.md", "scores.png", "report.html"


@dataclasses.dataclass(frozen=True)
class _Config:
    """The content of config.json.

    model: a digest of the model and its tokenizer. data: {split: a digest of its examples}.
    """

    config: dict[str, Any]
    model: str
    data: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Best(schema.Open):
    learning_rate: float
    seed: int


@dataclasses.dataclass(frozen=True)
class _RunScores(_Best):
    scores: dict[str, dict[str, schema.Score]]


@dataclasses.dataclass(frozen=True)
class _Report(schema.Open):
    best: _Best
    runs: list[_RunScores]


@contextlib.contextmanager
def locked(path: str | os.PathLike) -> Iterator[None]:
    """Locks an output folder as `workdir.locked` does. Raises UserError if it cannot be created."""
    with contextlib.ExitStack() as stack:
        with _writing(path):
            busy = "another process fine-tunes in it; give another --output"
            stack.enter_context(workdir_lib.locked(path, busy))
        yield


@contextlib.contextmanager
def _writing(path: str | os.PathLike) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.UserError(
            f"{path}: cannot be written ({error.strerror}); give another --output"
        ) from error


class Folder:
    """The output folder of fine-tuning with one config.

    writes: whether this process writes files. The constructor raises UserError if the folder was
    made with another config, model or data, or cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        config: ConfigDict,
        source: artifact.Artifact,
        examples: Mapping[str, Sequence[Any]],
    ):
        self.path = paths.of(path)
        params = projection.joined(source.params, recipe.task_type(config), source)
        whole = dataclasses.replace(source, params=params)
        content = {
            "config": _json_config(config),
            "model": artifact.fingerprint(whole) + source.tokenizer.fingerprint,
            "data": {split: _digest(split_examples) for split, split_examples in examples.items()},
        }
        self.writes = jax.process_index() == 0
        distributed.check_same(content)
        if not self.writes:
            return
        file = self.path / CONFIG
        _check_foreign(self.path)
        if file.exists():
            stored = self.stored()
            _check_stored(self.path, content, stored)
            content["data"] = stored["data"] | content["data"]  # keeps splits of earlier calls
        with _writing(path):
            self.path.mkdir(parents=True, exist_ok=True)
            schema.write(file, content, FORM)  # before all other files, see `_check_foreign`
            (self.path / RUNS).mkdir(exist_ok=True)
            self._remove_leftovers()

    def stored(self) -> dict[str, Any]:
        """Returns config, model and data of the existing config.json."""
        return stored(self.path)

    def run(self, learning_rate: float, seed: int) -> training.Run | None:
        """Returns a finished run; None if it is not finished.

        Raises UserError if the file of the run is invalid.
        """
        file = self._file(learning_rate, seed, "json")
        if not file.exists():
            return None
        advice = "remove the file to train the run again"
        run = schema.read(file, training.Run, advice)
        if not 0 <= run.best < len(run.evaluations) or (run.dev and run.main not in run.dev):
            raise errors.UserError(
                f"{file}: `best` is not the index of an evaluation with the score {run.main!r}; "
                f"{advice}"
            )
        return run

    def left_out(self, rates: Sequence[float], seeds: Sequence[int]) -> list[tuple[float, int]]:
        """Returns (rate, seed) of each finished run whose rate or seed is not among these."""
        matches = (_RUN_FILE.fullmatch(file.name) for file in self._run_files())
        runs = sorted((float(match[1]), int(match[2])) for match in matches if match)
        return [(rate, seed) for rate, seed in runs if rate not in rates or seed not in seeds]

    def save(self, run: training.Run, trained: Any = None) -> None:
        """Saves a finished run, and its trained parameters if given. All processes must call it."""
        if self.writes:
            self._save(run, trained)
        distributed.wait("run")

    def _save(self, run: training.Run, trained: Any) -> None:
        if trained is not None:
            file = self._file(run.learning_rate, run.seed, "safetensors")
            with files.replacing(file) as partial:
                weight_files.write_tensors(partial, artifact.flatten(trained))
        # NOTE: last, because this file marks the run as finished.
        schema.write(self._file(run.learning_rate, run.seed, "json"), dataclasses.asdict(run))
        self._remove_checkpoints(run.learning_rate, run.seed)

    def run_folder(self, learning_rate: float, seed: int) -> epath.Path:
        """Returns the folder with the metrics and the checkpoints of a run."""
        return self.path / RUNS / f"lr{learning_rate!r}-seed{seed}"

    def _remove_checkpoints(self, learning_rate: float, seed: int) -> None:
        _remove(self.run_folder(learning_rate, seed) / workdir_lib.CHECKPOINTS)

    def params(self, run: training.Run) -> Any | None:
        """Returns the trained parameters of a run; None if they are no longer kept."""
        file = self._file(run.learning_rate, run.seed, "safetensors")
        if not file.exists():
            return None
        return artifact.unflatten(weight_files.read_all(file))

    def drop_params(self, run: training.Run) -> None:
        """Deletes the file of a run's trained parameters, if it exists."""
        if self.writes:
            self._file(run.learning_rate, run.seed, "safetensors").unlink(missing_ok=True)

    def write_predictions(
        self,
        examples: Mapping[str, Sequence[Any]],
        predictions: Mapping[str, Sequence[dict[str, Any]]],
    ) -> None:
        """Writes a JSON lines file per split: each example with its prediction.

        First deletes the predictions and leaderboard submissions of an earlier model.
        """
        for name in (PREDICTIONS, SUBMISSION):
            _remove(self.path / name)
        (self.path / PREDICTIONS).mkdir(parents=True, exist_ok=True)
        for split, values in predictions.items():
            files.write_text(
                self._predictions_file(split), prediction_lines(examples[split], values)
            )

    def predictions(self, split: str) -> list[dict[str, Any]]:
        """Returns the predictions that `write_predictions` wrote for a split.

        Raises UserError for a line without a prediction.
        """
        file, advice = self._predictions_file(split), "remove the file to have it written again"
        predictions = []
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            if line:
                prediction = schema.parse(line, file, advice, number=number).get("prediction")
                if not isinstance(prediction, dict):
                    raise errors.UserError(f"{file}:{number}: contains no prediction; {advice}")
                predictions.append(prediction)
        return predictions

    def holds(self, run: training.Run, splits: Sequence[str]) -> bool:
        """Returns whether the folder has this run's artifact, and predictions for these splits.

        The report, which is written last, names the run of the artifact.
        """
        file = self.path / REPORT
        if not (file.exists() and (self.path / ARTIFACT).exists()):
            return False
        best = schema.read(file, _Report, "remove the file to have it written again").best
        same_run = (best.learning_rate, best.seed) == (run.learning_rate, run.seed)
        return same_run and all(self._predictions_file(split).exists() for split in splits)

    def drop_report(self) -> None:
        """Deletes the report.

        NOTE: `holds` is then false for every run, because the report names the artifact's run.
        """
        for name in (REPORT, TABLE, PLOT, PAGE):
            (self.path / name).unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Deletes what a killed process may have left: partial files, checkpoints of finished runs.

        safetensors names its partial files .tmpXXXXXX.
        """
        for file in self._run_files():
            if file.suffix == files.PARTIAL or file.name.startswith(".tmp"):
                file.unlink()
            elif match := _RUN_FILE.fullmatch(file.name):
                self._remove_checkpoints(float(match[1]), int(match[2]))

    def _run_files(self) -> list[epath.Path]:
        """Returns the files and folders of the runs; a bucket has no empty folders."""
        folder = self.path / RUNS
        return list(folder.iterdir()) if folder.exists() else []

    def _predictions_file(self, split: str) -> epath.Path:
        return self.path / PREDICTIONS / f"{split}.jsonl"

    def _file(self, learning_rate: float, seed: int, suffix: str) -> epath.Path:
        folder = self.run_folder(learning_rate, seed)
        return folder.with_name(f"{folder.name}.{suffix}")


def _remove(folder: epath.Path) -> None:
    """Removes a folder, if it exists; a failure is ignored."""
    if "://" not in os.fspath(folder):
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        folder.rmtree()


def scores(model: str | os.PathLike) -> dict[str, dict[str, float]]:
    """Returns {split: {name: score}} of the artifact in an output folder, from its report.

    Returns {} if the folder `model` is not the artifact of a fine-tuning run.
    """
    folder = paths.of(model)
    file = folder.parent / REPORT
    if folder.name != ARTIFACT or not file.exists():
        return {}
    report = schema.read(file, _Report, "remove the file to have it written again")
    best = [run for run in report.runs if (run.learning_rate, run.seed) == tuple(
        dataclasses.astuple(report.best)
    )]
    return best[0].scores if best else {}


def stored(path: epath.Path) -> dict[str, Any]:
    """Returns config, model and data of an output folder."""
    return dataclasses.asdict(schema.read(path / CONFIG, _Config, _ADVICE, form=FORM))


def check_config(path: epath.Path, config: ConfigDict, keys: Collection[str]) -> None:
    """Raises UserError if the folder exists and was made with other values of these keys."""
    if (path / CONFIG).exists():
        content = stored(path)
        values = {key: value for key, value in _json_config(config).items() if key in keys}
        _check_stored(path, content | {"config": content["config"] | values}, content)


def drop_all_params(path: epath.Path) -> None:
    """Deletes the trained parameters of all runs in an output folder."""
    for file in (path / RUNS).glob("*.safetensors"):
        file.unlink()


def prediction_lines(examples: Sequence[Any], predictions: Sequence[dict[str, Any]]) -> str:
    """Returns one line of JSON per example: {"example": its fields, "prediction": ...}."""
    return "".join(
        json.dumps({"example": _example_fields(e), "prediction": p}, ensure_ascii=False) + "\n"
        for e, p in zip(examples, predictions, strict=True)
    )


def _shared_values(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {dotted key: value} for the keys that are the same for all runs in a folder."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _shared_values(value, f"{prefix}{key}.")
        elif not recipe.is_free(prefix + key):
            flat[prefix + key] = value
    return flat


def _json_config(config: ConfigDict) -> dict[str, Any]:
    return json.loads(json.dumps(_shared_values(config.to_dict())))


def _check_foreign(path: epath.Path) -> None:
    """Raises UserError if a folder without config.json has files that would be overwritten."""
    names = (RUNS, ARTIFACT, PREDICTIONS, SUBMISSION, REPORT, TABLE, PLOT, PAGE)
    existing = [name for name in names if (path / name).exists()]
    if existing and not (path / CONFIG).exists():
        raise errors.UserError(
            f"{path}: contains {', '.join(existing)}, which would be "
            "overwritten; give another --output"
        )


def _check_stored(
    path: epath.Path, content: Mapping[str, Any], stored: Mapping[str, Any]
) -> None:
    config, stored_config = content["config"], stored["config"]
    former = task_types.load(tasks.find(config["task"]).kind).former
    former_values = {f"kind.{name}": value for name, value in former.items()}
    stored_config = recipe.ADDED_KEYS | former_values | stored_config
    keys = [
        key for key in sorted(config | stored_config) if config.get(key) != stored_config.get(key)
    ]
    for main_key in ("task", "strategy.name"):  # report only this key: other keys depend on it
        keys = [main_key] if main_key in keys else keys
    differences = [
        f"{key} = {config.get(key)!r} (there {stored_config.get(key)!r})" for key in keys
    ]
    if content["model"] != stored["model"]:
        differences.append("another model")
    for split in sorted(content["data"].keys() & stored["data"].keys()):
        if content["data"][split] != stored["data"][split]:
            differences.append(f"other {split} data")
    if differences:
        raise errors.UserError(
            f"{path} belongs to another fine-tuning: {', '.join(differences)}; give another "
            "--output, or restore the folder's config, model and data"
        )


def _example_fields(example: Any) -> dict[str, Any]:
    return {
        name: _example_fields(value) if hasattr(value, "_asdict") else value
        for name, value in example._asdict().items()
        if name not in ("where", "passage") and (name != "text" or value)
    }


def _digest(examples: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(_example_fields(example)).encode("utf-8", "surrogatepass"))
    if isinstance(examples, queries.Queries):
        digest.update(repr(examples.content()).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
