"""A fine-tuning from a config to a report, top to bottom.

    run.finetune(config, "out/")

Every learning rate is trained with every seed. The rate of the best mean on dev is taken; its runs
are scored on test, once; its best seed becomes the artifact.
"""

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections

from bertjax import build, sharding
from bertjax.artifact import artifact, loading
from bertjax.finetuning import checks, folder, loop, memory, predictor, recipe, report, tasks
from bertjax.finetuning import parts as parts_lib


class Finetuned(NamedTuple):
    """report: as in report.json. model: the best one, that answers."""

    report: dict[str, Any]
    model: predictor.Predictor


def tell(line: str) -> None:
    """A line of progress."""
    print(f"bertjax: {line}", file=sys.stderr, flush=True)


def finetune(
    config: ml_collections.ConfigDict,
    output: str | os.PathLike,
    tell: Callable[[str], None] = tell,
) -> Finetuned:
    """Trains what the output folder lacks, and writes all of it. UserError for what is wrong."""
    recipe.validate(config)
    started = time.perf_counter()
    mesh = sharding.make_mesh(config.mesh)
    with jax.set_mesh(mesh):
        parts = parts_lib.Parts(config, loading.load(config.model), mesh)
        out = folder.Folder(output, config, parts.source, parts.examples)
        rails = recipe.guard_rails(config, build.family(parts.source.family).KIND)
        warnings = [*rails, *parts.notes, *suspicions(parts)]
        for line in warnings:
            tell(f"warning: {line}")

        seeds = range(config.seed, config.seed + config.seeds)
        runs, trained = {}, 0
        for rate in config.learning_rates:
            trained += train_missing(parts, out, rate, seeds, tell)
            runs[rate] = [out.run(rate, seed) for seed in seeds]
            chosen = best_rate(runs)
            for other in runs.keys() - {chosen}:
                for run in runs[other]:
                    out.drop_weights(run)
        if not trained:
            tell("all runs are finished: nothing to train")
        best = max(runs[chosen], key=lambda run: run.score)
        for run in runs[chosen]:
            finish(parts, out, run, is_best=run is best)

        warnings += [
            f"rate {run.learning_rate:g}, seed {run.seed}: {run.skipped} of {parts.num_steps} "
            "steps were not finite and changed nothing; lower the rate"
            for run in itertools.chain.from_iterable(runs.values())
            if run.skipped
        ]
        means = {rate: _mean(own) for rate, own in runs.items()}
        warnings += checks.results(means, chosen, out.predictions("dev"))
        content = report.make(parts, runs, chosen, best, warnings, time.perf_counter() - started)
        report.write(content, out.path)
        for run in runs[chosen]:
            out.drop_weights(run)
        model = predictor.Predictor(artifact.read(out.path / folder.ARTIFACT))
    return Finetuned(content, model)


def suspicions(parts: parts_lib.Parts) -> list[str]:
    """What `checks` says of the data."""
    truncated = {split: encoded.truncated for split, encoded in parts.encoded.items()}
    own = parts.answering
    return checks.everything(
        parts.examples, truncated, own.labels, own.tokenizer, own.lengths, parts.longest
    )


def train_missing(
    parts: parts_lib.Parts,
    out: folder.Folder,
    learning_rate: float,
    seeds: Sequence[int],
    tell: Callable[[str], None],
) -> int:
    """Trains and saves the runs that are not finished. Returns how many."""
    missing = [seed for seed in seeds if out.run(learning_rate, seed) is None]
    together = memory.seeds_at_once(parts, len(missing)) if missing else 1
    for start in range(0, len(missing), together):
        group = missing[start : start + together]
        for run, trained in loop.train(parts, learning_rate, group, tell):
            out.save(run, trained)
    return len(missing)


def best_rate(runs: dict[float, list[loop.Run]]) -> float:
    """The rate of the best mean on dev; of equal ones the first."""
    return max(runs, key=lambda rate: _mean(runs[rate]))


def _mean(runs: Sequence[loop.Run]) -> float:
    return statistics.fmean(run.score for run in runs)


def finish(parts: parts_lib.Parts, out: folder.Folder, run: loop.Run, *, is_best: bool) -> None:
    """Scores a run on what is neither train nor dev; of the best one writes what it has learned."""
    others = [split for split in parts.examples if split not in ("train", "dev")]
    scored = [split for split in others if parts.can_be_scored(split)]
    if run.others.keys() >= set(scored) and (not is_best or out.holds(run, ["dev", *others])):
        return
    trained = out.weights(run)
    if trained is None:  # an earlier call had another best one
        ((_, trained),) = loop.train(parts, run.learning_rate, [run.seed])
    alone = jax.tree.map(lambda x: x[None], trained)
    answering, found, _ = parts.on_dev(parts.outputs(alone, "dev")[0])
    predictions = {"dev": found}
    for split in others if is_best else scored:
        outputs = parts.outputs(alone, split)[0]
        predictions[split] = parts.predictions(outputs, split, answering)
    run.others |= {
        split: answering.scores(parts.examples[split], predictions[split]) for split in scored
    }
    if is_best:
        out.drop_report()  # of what goes now
        artifact.write(parts.artifact(trained, answering), out.path / folder.ARTIFACT)
        out.write_predictions(parts.examples, predictions)
        for split, answers in predictions.items():
            if split in parts.task.submissions:
                place = os.fspath(out.path / folder.SUBMISSION)
                tasks.write_submission(parts.task, place, parts.examples[split], answers, split)
    out.save(run)
