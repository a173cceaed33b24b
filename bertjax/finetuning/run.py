"""Runs a fine-tuning from a config to a report, top to bottom.

    run.finetune(config, "out/")

Every learning rate is trained with every seed. The rate with the best mean on dev is chosen. Its
runs are scored on test, once. Its best seed becomes the artifact.
"""

import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections

from bertjax import errors, files, plugins, progress, sharding
from bertjax.artifact import artifact, loading
from bertjax.finetuning import (
    data_warnings,
    memory,
    output_folder,
    predictor,
    recipe,
    report,
    submission,
    training,
)
from bertjax.finetuning import parts as parts_lib
from bertjax.runtime import distributed


class Finetuned(NamedTuple):
    """The result of a fine-tuning. report: as in report.json. model: the best one."""

    report: dict[str, Any]
    model: predictor.Predictor


def finetune(
    config: ml_collections.ConfigDict,
    output: str | os.PathLike,
    tell: Callable[[str], None] = errors.tell,
) -> Finetuned:
    """Trains the runs that the output folder lacks; writes and returns the results.

    Raises UserError for an invalid config, model, data or folder, and on several hosts.
    """
    recipe.validate(config)
    output = files.local(output)
    if distributed.on_several_hosts() or jax.process_count() > 1:
        raise errors.UserError(
            "fine-tuning runs on one host, and this is a slice or a job of several: take one host"
        )
    started = time.perf_counter()
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        tell(f"finetune: reading {config.model} and the data")
        source = loading.load(config.model)
        model_kind = plugins.family(source.family).KIND
        config = recipe.with_rates(config, model_kind)
        parts = parts_lib.Parts(config, source, mesh)
        out = output_folder.Folder(output, config, parts.source, parts.examples)
        rails = recipe.guard_rails(config, model_kind)
        warnings = [*rails, *parts.notes, *suspicions(parts)]
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
            tell(f"finished runs that --lr and --seeds leave out, and are not compared: {names}")
        for line in progress.lines(header(parts, config, mesh, out, missing), before=errors.BEFORE):
            tell(line)
        together = memory.seeds_at_once(parts, max(map(len, missing.values())))
        runs: dict[float, list[training.Run]] = {}
        for rate in config.learning_rates:
            train(parts, out, rate, missing[rate], together, tell)
            runs[rate] = [out.run(rate, seed) for seed in seeds]
            chosen = best_rate(runs)
            for other in runs.keys() - {chosen}:
                for run in runs[other]:
                    out.drop_params(run)
        best = max(runs[chosen], key=lambda run: run.score)
        for run in runs[chosen]:
            finish(parts, out, run, is_best=run is best, tell=tell)

        late = [
            f"rate {run.learning_rate:g}, seed {run.seed}: {run.skipped} of {parts.num_steps} "
            "steps were not finite and changed nothing; lower the rate"
            for run in itertools.chain.from_iterable(runs.values())
            if run.skipped
        ]
        means = {rate: _mean(own) for rate, own in runs.items()}
        late += data_warnings.results(means, chosen, out.predictions("dev"))
        for line in late:
            tell(f"warning: {line}")
        seconds = time.perf_counter() - started
        content = report.make(parts, runs, chosen, best, warnings + late, seconds)
        report.write(content, out.path)
        for run in runs[chosen]:
            out.drop_params(run)
        model = predictor.Predictor(artifact.read(out.path / output_folder.ARTIFACT))
    return Finetuned(content, model)


def header(
    parts: parts_lib.Parts,
    config: ml_collections.ConfigDict,
    mesh: jax.sharding.Mesh,
    out: output_folder.Folder,
    missing: Mapping[float, Sequence[int]],
) -> dict[str, str]:
    """Returns the rows of a table that is printed before training.

    They give the model, devices, strategy, task, examples, runs and output folder.
    """
    sizes = ", ".join(f"{split} {len(own):,}" for split, own in parts.examples.items())
    cut = "" if config.data.dev else f", dev being {config.data.dev_fraction:g} of train"
    rates = ", ".join(f"{rate:g}" for rate in missing)
    count = sum(map(len, missing.values()))
    return {
        "model": f"{config.model}: {parts.family}, {parts.fields['num_layers']} layers of width "
        f"{parts.fields['hidden_size']}",
        "devices": sharding.described(mesh, parts.model.config.dtype),
        "strategy": report.what_moves(config.strategy.name, parts.counts, parts.memory),
        "task": config.task,
        "examples": sizes + cut,
        "runs": f"{count}, of {parts.num_steps:,} steps, at rates {rates}; the first one compiles"
        if count
        else "all are finished",
        "writes to": os.fspath(out.path),
    }


def suspicions(parts: parts_lib.Parts) -> list[str]:
    """Returns the warnings of `data_warnings` about the data."""
    truncated = {split: encoded.truncated for split, encoded in parts.encoded.items()}
    rows = parts.source.fields["vocab_size"]
    return data_warnings.everything(parts.examples, truncated, parts.answering, parts.longest, rows)


def train(
    parts: parts_lib.Parts,
    out: output_folder.Folder,
    learning_rate: float,
    seeds: Sequence[int],
    together: int,
    tell: Callable[[str], None],
) -> None:
    """Trains and saves the runs of these seeds, `together` of them side by side."""
    for start in range(0, len(seeds), together):
        group = seeds[start : start + together]
        for run, trained in training.train(parts, learning_rate, group, tell):
            out.save(run, trained)


def best_rate(runs: dict[float, list[training.Run]]) -> float:
    """Returns the rate with the best mean on dev; the first of equal ones."""
    return max(runs, key=lambda rate: _mean(runs[rate]))


def _mean(runs: Sequence[training.Run]) -> float:
    return statistics.fmean(run.score for run in runs)


def finish(
    parts: parts_lib.Parts,
    out: output_folder.Folder,
    run: training.Run,
    *,
    is_best: bool,
    tell: Callable[[str], None],
) -> None:
    """Scores a run on the labelled splits except train and dev.

    For the best run also writes the artifact, the predictions and leaderboard submissions.
    """
    others = [split for split in parts.examples if split not in ("train", "dev")]
    scored = [split for split in others if parts.can_be_scored(split)]
    if run.others.keys() >= set(scored) and (not is_best or out.holds(run, ["dev", *others])):
        return
    trained = out.params(run)
    again = trained is None  # an earlier call had another best run
    if again:
        what = f"rate {run.learning_rate:g}, seed {run.seed}"
        tell(f"{what}: trained again for its scores, since its parameters were not kept")
        ((_, trained),) = training.train(parts, run.learning_rate, [run.seed], tell)
    alone = parts.place_trained(trained)
    answering, found, dev = parts.on_dev(parts.outputs(alone, "dev")[0])
    if again and not math.isclose(dev[run.main], run.score, abs_tol=0.01):
        tell(
            f"warning: {what}: dev {run.main} is {dev[run.main]:.2f} now and was {run.score:.2f}: "
            "on another machine or mesh; what is scored now is the model of now"
        )
    predictions = {"dev": found}
    for split in others if is_best else scored:
        outputs = parts.outputs(alone, split)[0]
        predictions[split] = parts.predictions(outputs, split, answering)
    run.others |= {
        split: answering.scores(parts.examples[split], predictions[split]) for split in scored
    }
    if is_best:
        out.drop_report()  # before the artifact it describes is replaced
        artifact.write(parts.artifact(trained, answering), out.path / output_folder.ARTIFACT)
        out.write_predictions(parts.examples, predictions)
        for split, answers in predictions.items():
            if split in parts.task.submissions:
                place = os.fspath(out.path / output_folder.SUBMISSION)
                submission.write(parts.task, place, parts.examples[split], answers, split)
    out.save(run)
