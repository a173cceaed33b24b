"""Fine-tunes as a config describes, and writes the best model and a report.

    run.finetune(config, "out/")

There is a run for each pair of learning rate and seed. The rate with the best mean score on dev is
chosen. Its runs are scored on test, once. The best of these runs becomes the artifact.
"""

import functools
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
from etils import epath

from bertjax import errors, html_tables, hub, paths, progress, sharding, trackers
from bertjax.artifact import artifact, loading
from bertjax.finetuning import (
    by_size,
    data_warnings,
    distillation,
    output_folder,
    pages,
    predictor,
    recipe,
    report,
    sharing,
    speed,
    submission,
    training,
)
from bertjax.finetuning import folds as folds_lib
from bertjax.finetuning import job as job_lib
from bertjax.runtime import distributed


class Finetuned(NamedTuple):
    """The result of `finetune`.

    report: the content of report.json. model: the model of the best run at the chosen rate; None if
    the config is not chosen.
    """

    report: dict[str, Any]
    model: predictor.Predictor | None

    def __repr__(self) -> str:
        return "\n".join(report.summary_lines(self.report))

    def _repr_html_(self) -> str:
        """Returns a table of the scores, for notebooks."""
        return html_tables.table(*report.scores_table(self.report))


def finetune(
    config: ml_collections.ConfigDict,
    output: str | os.PathLike,
    tell: Callable[[str], None] = errors.tell,
    *,
    is_chosen: bool = True,
    shared: sharing.Shared | None = None,
) -> Finetuned:
    """Trains the runs that the output folder lacks; writes and returns the results.

    With config.data.folds, does so for each fold, see `folds`. tell: called with each line of
    progress. is_chosen: False while a sweep has not chosen this config: trains only, writes no
    report and no model, and keeps the parameters of the best rate. shared: has data and programs of
    other calls. Raises UserError for an invalid config, model, data or folder. With several
    processes, all must call this function, and all must see the output folder.
    """
    recipe.validate(config)
    trackers.check_installed(config.log_to)
    tell = tell if jax.process_index() == 0 else lambda line: None
    once = functools.partial(finetune_once, shared=shared or sharing.Shared())
    if config.data.folds and config.data.fold < 0:
        return folds_lib.finetune(config, output, tell, once)
    return once(config, output, tell, is_chosen=is_chosen)


def finetune_once(
    config: ml_collections.ConfigDict,
    output: str | os.PathLike,
    tell: Callable[[str], None],
    folds: Mapping[str, Any] | None = None,
    *,
    is_chosen: bool = True,
    shared: sharing.Shared,
) -> Finetuned:
    """Does what `finetune` does, for one split into train and dev. folds: see `folds.crossed`."""
    output = paths.of(output)
    config = config.copy_and_resolve_references()
    start_time = time.perf_counter()
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        tell(f"finetune: reading {config.model} and the data")
        source = shared.source(config.model)
        config.model = hub.pinned(config.model)
        job = job_lib.make(config, source, mesh, shared)
    with output_folder.locked(output):
        return _finetune(job, mesh, output, tell, folds, is_chosen, start_time)


def _finetune(
    job: job_lib.Job,
    mesh: jax.sharding.Mesh,
    output: epath.Path,
    tell: Callable[[str], None],
    folds: Mapping[str, Any] | None,
    is_chosen: bool,
    start_time: float,
) -> Finetuned:
    config = job.config
    with jax.set_mesh(mesh):
        out = output_folder.Folder(output, config, job.source, job.examples)
        distributed.check_shared(out.path / output_folder.CONFIG, "output")
        num_rows = job.train_batches.num_rows
        setting_warnings = by_size.guard_rails(config, job.source, num_rows)
        warnings = [*setting_warnings, *job.notes, *suspicions(job)]
        for line in warnings:
            tell(f"warning: {line}")

        seeds = range(config.seed, config.seed + config.seeds)
        missing = {
            rate: [seed for seed in seeds if out.run(rate, seed) is None]
            for rate in config.learning_rates
        }
        left_out = out.left_out(config.learning_rates, seeds)
        if left_out:
            names = errors.several(f"rate {rate:g} seed {seed}" for rate, seed in left_out)
            tell(f"finished runs not included in --lr and --seeds are not compared: {names}")
        for line in progress.lines(header(job, config, mesh, out, missing), prefix=errors.PREFIX):
            tell(line)
        train = Trainer(job, out, tell)
        runs: dict[float, list[training.Run]] = {}
        for rate in config.learning_rates:
            for seed in missing[rate]:
                out.save(*train(rate, seed))
            runs[rate] = [out.run(rate, seed) for seed in seeds]
            chosen = best_rate(runs)
            for other_rate in runs.keys() - {chosen}:
                for run in runs[other_rate]:
                    out.drop_params(run)
        best = max(runs[chosen], key=lambda run: run.score)
        if not is_chosen:
            seconds = time.perf_counter() - start_time
            return Finetuned(report.make(job, runs, chosen, best, warnings, seconds), None)
        for run in runs[chosen]:
            finish(job, out, run, train, is_best=run is best, tell=tell)

        result_warnings = [
            f"rate {run.learning_rate:g}, seed {run.seed}: {run.skipped} of {job.num_steps} "
            "steps were not finite and were skipped; lower the rate"
            for run in itertools.chain.from_iterable(runs.values())
            if run.skipped
        ]
        means = {rate: _mean(rate_runs) for rate, rate_runs in runs.items()}
        dev_predictions = out.predictions("dev") if "dev" in job.examples else []
        highest = by_size.highest_rate(config, job.source)
        result_warnings += data_warnings.results(means, chosen, dev_predictions, highest)
    distributed.wait("model")
    with sharding.alone():
        model = predictor.Predictor(loading.load(out.path / output_folder.ARTIFACT))
        # Not timed in a job of several processes, which may share the processor.
        timed = config.measure_speed and jax.process_count() == 1
        sizes = speed.measure(model, job.examples.get("dev", []) if timed else [])
    with jax.set_mesh(mesh):
        seconds = time.perf_counter() - start_time
        content = report.make(
            job, runs, chosen, best, warnings + result_warnings, seconds,
            out=out, folds=folds, sizes=sizes,
        )  # fmt: skip
        for line in content["warnings"][len(warnings) :]:
            tell(f"warning: {line}")
        if out.writes:
            report.write(content, out.path)
            pages.write_at_end(out.path)
        for run in runs[chosen]:
            out.drop_params(run)
        distributed.wait("report")
    return Finetuned(content, model)


class Trainer:
    """Trains runs one after the other, each in its own folder."""

    def __init__(
        self, job: job_lib.Job, out: output_folder.Folder, tell: Callable[[str], None]
    ):
        self._job, self._out, self._tell = job, out, tell
        self._boundaries = itertools.count()

    def __call__(self, learning_rate: float, seed: int) -> tuple[training.Run, Any]:
        """Trains one run; returns it and its best trained parameters, on the host."""
        folder = self._out.run_folder(learning_rate, seed)
        return training.train(
            self._job, learning_rate, seed, folder, self._tell, self._boundaries
        )


def header(
    job: job_lib.Job,
    config: ml_collections.ConfigDict,
    mesh: jax.sharding.Mesh,
    out: output_folder.Folder,
    missing: Mapping[float, Sequence[int]],
) -> dict[str, str]:
    """Returns {name: text} for a table that is printed before training.

    Its rows are the model, devices, strategy, task, examples, runs and output folder. missing:
    {learning rate: the seeds that are not trained yet}.
    """
    sizes = ", ".join(f"{split} {len(examples):,}" for split, examples in job.examples.items())
    dev_note = "" if config.data.dev else f" (dev is {config.data.dev_fraction:g} of train)"
    if config.data.folds:
        fold = f"fold {config.data.fold} of {config.data.folds}"
        dev_note = f" (dev is {fold})" if config.data.fold else " (no dev: the final model)"
    shares = job.task_type.shares(job.encoded["train"])
    rates = ", ".join(f"{rate:g}" for rate in missing)
    count = sum(map(len, missing.values()))
    return {
        "model": f"{config.model}: {job.family}, {job.fields['num_layers']} layers of width "
        f"{job.fields['hidden_size']}",
        "devices": sharding.described(mesh, job.model.config.dtype),
        "strategy": report.what_moves(config.strategy.name, job.counts, job.memory),
        "task": config.task,
        "examples": sizes + dev_note,
        **({"mixture": ", ".join(shares)} if shares else {}),
        "runs": f"{count}, of {errors.count(job.num_steps, 'step')}, at rates {rates}; the first "
        "run compiles"
        if count
        else "all are finished",
        "writes to": os.fspath(out.path),
    }


def suspicions(job: job_lib.Job) -> list[str]:
    """Returns the warnings of `data_warnings` about the data."""
    truncated = {split: encoded.truncated for split, encoded in job.encoded.items()}
    rows = job.source.fields["vocab_size"]
    examples = {s: e for s, e in job.examples.items() if s != distillation.SPLIT}
    return data_warnings.everything(examples, truncated, job.task_type, job.longest, rows)


def best_rate(runs: dict[float, list[training.Run]]) -> float:
    """Returns the learning rate with the best mean dev score; in case of a tie, the first."""
    return max(runs, key=lambda rate: _mean(runs[rate]))


def _mean(runs: Sequence[training.Run]) -> float:
    return statistics.fmean(run.score for run in runs)


def finish(
    job: job_lib.Job,
    out: output_folder.Folder,
    run: training.Run,
    train: Trainer,
    *,
    is_best: bool,
    tell: Callable[[str], None],
) -> None:
    """Scores a run on the labelled splits except train and dev.

    For the best run, also writes the artifact, the predictions and leaderboard submissions. Does
    nothing if an earlier call did all of this. Trains the run again if its parameters are needed
    and no longer kept.
    """
    dev_splits = ["dev"] if "dev" in job.examples else []
    others = [s for s in job.examples if s not in ("train", "dev", distillation.SPLIT)]
    scored = [split for split in others if job.can_be_scored(split)]
    if run.others.keys() >= set(scored) and (not is_best or out.holds(run, [*dev_splits, *others])):
        return
    trained = out.params(run)
    was_deleted = trained is None  # deleted by an earlier call
    if was_deleted:
        name = f"rate {run.learning_rate:g}, seed {run.seed}"
        tell(f"{name}: training this run again to score it, because its parameters were not kept")
        _, trained = train(run.learning_rate, run.seed)
    device_params = job.place_trained(trained)
    task_type, dev_predictions, dev = job.on_dev(device_params)
    if was_deleted and dev and not math.isclose(dev[run.main], run.score, abs_tol=0.01):
        tell(
            f"warning: {name}: dev {run.main} is {dev[run.main]:.2f} now and was {run.score:.2f}: "
            "results differ slightly between machines and meshes; the new model is scored"
        )
    predictions = dict.fromkeys(dev_splits, dev_predictions)
    for split in others if is_best else scored:
        outputs = job.outputs(device_params, split)
        predictions[split] = job.predictions(outputs, split, task_type)
    run.others |= {
        split: task_type.scores(job.examples[split], predictions[split]) for split in scored
    }
    if is_best:
        model = job.artifact(trained, task_type)
        if out.writes:
            write_model(job, out, model, predictions)
    out.save(run)


def write_model(
    job: job_lib.Job,
    out: output_folder.Folder,
    model: artifact.Artifact,
    predictions: Mapping[str, Sequence[Any]],
) -> None:
    """Writes the artifact, the predictions and leaderboard submissions."""
    out.drop_report()  # first, because it describes the old artifact
    artifact.write(model, out.path / output_folder.ARTIFACT)
    out.write_predictions(job.examples, predictions)
    for split, split_predictions in predictions.items():
        if split in job.task.submissions:
            folder = os.fspath(out.path / output_folder.SUBMISSION)
            submission.write(job.task, folder, job.examples[split], split_predictions, split)
