"""Cross-validation: trains with each part of train as dev in turn, then a final model on all of it.

    folds.finetune(config, "out/", tell, one=run.finetune_once)     # config.data.folds = 5

With few labels, a part of train that is held out is too small to trust and is missed in training.
Here every example is scored once, by a model that has not seen it, and the final model is trained
on all examples, at the rate that is best over all folds. No dev is left for it: it is the model
after the last step, so the scores of the folds are those after their last steps too.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from bertjax import errors, paths
from bertjax.finetuning import output_folder, recipe, report, tasks

FOLDER = "folds"  # in the output folder; the folder of fold 1 is folds/1


def check(config: ml_collections.ConfigDict) -> None:
    """Raises UserError if cross-validation does not go with another key or with the task."""
    if config.data.dev:
        raise errors.UserError(
            f"--folds={config.data.folds} takes dev from train, but there is a dev file, "
            f"{config.data.dev}: remove --folds, or give --train=FILE in place of --data"
        )
    fraction = config.data.dev_fraction
    if fraction != recipe.default(config.task).data.dev_fraction:
        raise errors.UserError(
            f"config.data.dev_fraction = {fraction:g}: does not go with --folds, whose dev is one "
            f"of {config.data.folds} parts of train: remove one of them"
        )
    if config.early_stopping:
        raise errors.UserError(
            f"config.early_stopping = {config.early_stopping}: does not go with --folds, because "
            "the final model has no dev: remove one of them"
        )
    if recipe.task_type(config).tunes:
        raise errors.UserError(
            f"--folds: the task {config.task} chooses a threshold on dev, and the final model has "
            "no dev: remove --folds"
        )


def finetune(
    config: ml_collections.ConfigDict,
    output: str | os.PathLike,
    tell: Callable[[str], None],
    one: Callable[..., Any],
) -> Any:
    """Trains all folds and the final model; returns what `one` returns for the final model.

    one: `run.finetune_once`. Finished folds are not trained again. Raises UserError, before
    anything is trained, if `output` is that of another fine-tuning: fold 1 compares the data.
    """
    check(config)
    count, out = config.data.folds, paths.of(output)
    if (out / output_folder.CONFIG).exists() and not (out / FOLDER).exists():
        raise errors.UserError(
            f"{out} belongs to a fine-tuning without folds; give another --output"
        )
    fold_reports = []
    others = [s for s in recipe.splits(tasks.find(config.task)) if s not in ("train", "dev")]
    unscored = {f"data.{split}": "" for split in others}  # only the final model is scored on test
    for number in range(1, count + 1):
        tell(f"fold {number} of {count}")
        fold_config = _with(config, **unscored, **{"data.fold": number})
        folder = out / FOLDER / str(number)
        fold_reports.append(one(fold_config, folder, tell).report)
    content = crossed(fold_reports)
    rate = content["learning_rate"]
    tell(f"final model: all of train, at the rate {rate:g}, which is the best over all folds")
    return one(_with(config, **{"data.fold": 0, "learning_rates": (rate,)}), out, tell, content)


def _with(config: ml_collections.ConfigDict, **values: Any) -> ml_collections.ConfigDict:
    config = config.copy_and_resolve_references()
    config.update_from_flattened_dict(values)
    return config


def crossed(fold_reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the scores over all folds.

    "learning_rate": the best one. "rates": {rate: its mean}. "scores": {score: its
    `report.summary` over the folds} at the best rate. "baselines": {baseline: {score: its mean}}.
    "runs": the runs of all folds. A score of a fold is the mean of its seeds after the last step.
    """
    main = fold_reports[0]["metrics"][0]
    rates = dict.fromkeys(run["learning_rate"] for run in fold_reports[0]["runs"])
    by_rate = {rate: [_last(content, rate) for content in fold_reports] for rate in rates}
    means = {rate: statistics.fmean(s[main] for s in scores) for rate, scores in by_rate.items()}
    best = max(means, key=means.__getitem__)
    names = fold_reports[0]["baselines"]
    return {
        "learning_rate": best,
        "rates": {f"{rate:g}": mean for rate, mean in means.items()},
        "scores": report.summaries(by_rate[best]),
        "baselines": {
            name: _means([content["baselines"][name]["dev"] for content in fold_reports])
            for name in names
        },
        "runs": [run for content in fold_reports for run in content["runs"]],
    }


def _last(content: Mapping[str, Any], rate: float) -> dict[str, float]:
    """Returns the mean scores of the seeds at `rate` after the last step."""
    runs = [run for run in content["runs"] if run["learning_rate"] == rate]
    return _means([run["evaluations"][-1]["dev"] for run in runs])


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns {score: its mean}, for the scores that all have."""
    return {name: summary["mean"] for name, summary in report.summaries(scores).items()}
