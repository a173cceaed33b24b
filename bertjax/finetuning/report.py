"""Writes the report on fine-tuning (each seed, medians, means) as JSON, Markdown and a plot."""

import dataclasses
import math
import os
import statistics
from collections.abc import Container, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax import files, plot
from bertjax.finetuning import baselines, intervals, output_folder, speed, task_types, training
from bertjax.finetuning import job as job_lib
from bertjax.runtime import environment

Runs = Mapping[float, Sequence[training.Run]]
FOLDS = "folds"  # the name of the scores of cross-validation, beside the names of splits
_STYLES = ("-", "--", ":", "-.")  # line styles, one per rate

_COLUMNS = ("split", "score", "median", "mean", "std", "seeds")


def make(
    job: job_lib.Job,
    runs: Runs,
    chosen: float,
    best: training.Run,
    warnings: Sequence[str],
    seconds: float,
    *,
    out: output_folder.Folder | None = None,
    folds: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of report.json.

    runs: {learning rate: its runs}. chosen: the rate whose runs are summarised under "splits".
    best: the best of these runs. seconds: the duration of the call of `run.finetune`; each run also
    has its own duration. out: the output folder, whose predictions are those of the best run; None
    for a report without baselines and intervals. folds: the result of `folds.crossed`, for a final
    model without dev; its scores are under "splits" as "folds". sizes:
    the result of `speed.measure` for the best run; None: unknown.
    """
    chosen_runs, main = runs[chosen], job.task.metrics[0]
    splits = {"dev": [run.dev for run in chosen_runs]} if best.dev else {}
    # A run may lack scores of other splits, if an earlier call chose another rate or config.
    others = [
        split
        for split in best.others
        if split in job.examples and all(split in run.others for run in chosen_runs)
    ]
    splits |= {split: [run.others[split] for run in chosen_runs] for split in others}
    writes = out is not None and out.writes
    table, notes = baselines.scores(job.task_type, job.examples) if writes else ({}, [])
    summarised = {split: summaries(scores) for split, scores in splits.items()}
    if folds:
        summarised = {FOLDS: folds["scores"], **summarised}
        table = {name: {FOLDS: folds["baselines"][name], **table[name]} for name in table}
    return {
        "task": job.config.task,
        "kind": job.task.kind,
        "metrics": list(job.task.metrics),
        "model": job.config.model,
        "family": job.family,
        "strategy": job.config.strategy.name,
        "parameters": job.counts,
        "memory": job.memory,
        "speed": dict(sizes or {}),
        "labels": list(job.task_type.labels),
        "examples": {split: len(examples) for split, examples in job.examples.items()},
        "steps": job.num_steps,
        "warnings": [*warnings, *notes, *baselines.verdict(table, summarised, main)],
        "best": {"learning_rate": chosen, "seed": best.seed},
        "splits": summarised,
        "intervals": {split: _interval(job, out, split, main) for split in splits} if out else {},
        "baselines": table,
        "runs": [_run_content(run, splits) for rate_runs in runs.values() for run in rate_runs],
        **({"folds": folds} if folds else {}),
        "seconds": seconds,
        "environment": environment.describe(),
        "config": job.config.to_dict(),
    }


def _interval(
    job: job_lib.Job, out: output_folder.Folder, split: str, main: str
) -> dict[str, Any] | None:
    """Returns {"score", "low", "high", "examples"} of the best run; None if there is none."""
    examples = job.examples[split]
    if not isinstance(job.task_type, intervals.SUPPORTED):
        return None
    limits = intervals.of(job.task_type, examples, out.predictions(split), main)
    if limits is None:
        return None
    return {"score": main, "low": limits[0], "high": limits[1], "examples": len(examples)}


def _run_content(run: training.Run, splits: Container[str]) -> dict[str, Any]:
    others = {split: scores for split, scores in run.others.items() if split in splits}
    return {
        **dataclasses.asdict(run),
        "others": others,
        "best_epoch": run.evaluations[run.best].epoch,
        "scores": {**({"dev": run.dev} if run.dev else {}), **others},
    }


def summaries(scores: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Returns {score: its `summary` over the seeds}, for the scores that all seeds have."""
    names = [name for name in scores[0] if all(name in seed_scores for seed_scores in scores)]
    return {name: summary([seed_scores[name] for seed_scores in scores]) for name in names}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Returns {"median", "mean", "std", "values"}.

    std is the sample standard deviation; None for a single value or if a value is not finite.
    """
    finite = all(map(math.isfinite, values))
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 and finite else None,
        "values": list(values),
    }


def write(content: Mapping[str, Any], path: epath.Path) -> None:
    """Writes report.json, report.md and scores.png to the output folder `path`."""
    draw(content, path / output_folder.PLOT)
    files.write_text(path / output_folder.TABLE, table(content))
    files.write_json(path / output_folder.REPORT, content)  # last: see `Folder.holds`


def table(content: Mapping[str, Any]) -> str:
    """Returns the report as Markdown."""
    main = content["metrics"][0]
    moves = what_moves(content["strategy"], content["parameters"], content["memory"])
    sizes = ", ".join(f"{n:,} {split}" for split, n in content["examples"].items())
    lines = [
        f"# {content['task']}: {content['family']} of {content['model']}",
        "",
        f"Strategy {moves}. Examples: {sizes}. {content['steps']:,} steps a run.",
        "",
        *([f"The model has {speed.line(content['speed'])}.", ""] if content["speed"] else []),
        _chosen(content),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|---:|---:|---:|---|",
        *(f"| {' | '.join(row)} |" for row in _score_rows(content)),
    ]
    lines += _interval_lines(content)
    lines += _baseline_lines(content)
    task_class = task_types.load(content["kind"])
    for note in task_class(
        content["task"], task_class.Config(**content["config"]["kind"])
    ).report_notes():
        lines += ["", note]
    others = [split for split in content["splits"] if split not in ("dev", FOLDS)]
    header = " | ".join(["rate", "seed", f"best dev {main}", "after epoch", *others, "seconds"])
    lines += ["", "All runs (the seconds of each call's first run include compilation):", ""]
    lines += [f"| {header} |", "|---:" * (5 + len(others)) + "|"]
    for run in content["runs"]:
        scores = run["scores"]
        other_cells = [f"{scores[s][main]:.2f}" if s in scores else "" for s in others]
        row = [
            f"{run['learning_rate']:g}",
            str(run["seed"]),
            f"{scores['dev'][main]:.2f}" if "dev" in scores else "",
            f"{run['best_epoch']:g}",
            *other_cells,
            f"{run['seconds']:.1f}",
        ]
        lines.append(f"| {' | '.join(row)} |")
    if content["warnings"]:
        lines += ["", "Warnings:", "", *(f"- {line}" for line in content["warnings"])]
    lines += ["", f"![dev scores]({output_folder.PLOT})", ""]
    return "\n".join(lines)


def scores_table(content: Mapping[str, Any]) -> tuple[Sequence[str], list[list[str]], str]:
    """Returns (header, rows, caption) of a table with the scores at the chosen rate."""
    best = content["best"]
    caption = (
        f"{content['task']}: {content['family']} of {content['model']}, "
        f"rate {best['learning_rate']:g}, best seed {best['seed']}"
    )
    return _COLUMNS, _score_rows(content), caption


def _score_rows(content: Mapping[str, Any]) -> list[list[str]]:
    """Returns the cells of every score of every split, under _COLUMNS."""
    return [
        [split, name, *cells(scores[name])]
        for split, scores in content["splits"].items()
        for name in _metric_names(content)
        if name in scores
    ]


def _chosen(content: Mapping[str, Any]) -> str:
    """Returns a line of text: the chosen rate, and what the scores below belong to."""
    rate, main = content["best"]["learning_rate"], content["metrics"][0]
    if FOLDS not in content:
        return f"The rate {rate:g} has the best mean of {main} on dev. Its seeds:"
    count = content["config"]["data"]["folds"]
    return (
        f"The rate {rate:g} has the best mean of {main} over {count} folds. The model is trained "
        "on all of train, and has no dev. Each score of a fold is that of a model that was trained "
        "on the other folds; their mean is what to expect of the model on new text:"
    )


def _interval_lines(content: Mapping[str, Any]) -> list[str]:
    lines = []
    for split, interval in content["intervals"].items():
        if interval:
            lines += [
                "",
                f"{interval['examples']} examples of {split} give the {interval['score']} of the "
                f"best seed {interval_text(interval)}.",
            ]
    return lines


def interval_text(interval: Mapping[str, Any]) -> str:
    """Returns an interval as text, such as "a 95% interval of 70.0 to 96.7"."""
    limits = f"{interval['low']:.1f} to {interval['high']:.1f}"
    return f"a {intervals.COVERAGE}% interval of {limits}"


def _baseline_lines(content: Mapping[str, Any]) -> list[str]:
    if not content["baselines"]:
        return []
    splits = [s for s in content["splits"] if any(s in t for t in content["baselines"].values())]
    lines = ["", "Baselines on the same data:", ""]
    lines += [f"| baseline | score | {' | '.join(splits)} |", "|---|---|" + "---:|" * len(splits)]
    for name, by_split in content["baselines"].items():
        for score in content["metrics"]:
            cells = [by_split.get(split, {}).get(score) for split in splits]
            texts = ["" if value is None else f"{value:.2f}" for value in cells]
            if any(texts):
                lines.append(f"| {name} | {score} | {' | '.join(texts)} |")
    return lines


def what_moves(strategy: str, counts: Mapping[str, int], memory: Mapping[str, int]) -> str:
    """Returns a line of text: how many parameters are trained, and the memory that a run takes.

    counts, memory: from `strategies.counts` and `strategies.memory`.
    """
    return (
        f"{strategy}: {counts['trained']:,} of {counts['total']:,} parameters are trained; "
        f"parameters, gradients and moments take {sum(memory.values()) / 1e6:,.0f} MB"
    )


def summary_lines(content: Mapping[str, Any]) -> list[str]:
    """Returns the mean scores at the chosen learning rate, as lines for a terminal."""
    best = content["best"]
    lines = [f"{content['task']}, rate {best['learning_rate']:g}, best seed {best['seed']}"]
    width = max(map(len, _metric_names(content))) + 2
    for split, scores in content["splits"].items():
        for name in _metric_names(content):
            if name in scores:
                stats = scores[name]
                spread = "" if stats["std"] is None else f" +- {stats['std']:.2f}"
                count, kind = len(stats["values"]), "folds" if split == FOLDS else "seeds"
                note = f", mean of {count} {kind}, median {stats['median']:.2f}" * (count > 1)
                interval = content["intervals"].get(split)
                if interval and interval["score"] == name:
                    note += f", {interval_text(interval)} ({interval['examples']} examples)"
                lines.append(f"  {split:<6}{name:<{width}}{stats['mean']:>7.2f}{spread}{note}")
    main = content["metrics"][0]
    for name, by_split in content["baselines"].items():
        for split, scores in by_split.items():
            if split in content["splits"] and main in scores:
                lines.append(f"  {split:<6}{main:<{width}}{scores[main]:>7.2f}, baseline: {name}")
    if content["speed"]:
        lines.append(f"  size  {speed.line(content['speed'])}")
    return lines


def _metric_names(content: Mapping[str, Any]) -> list[str]:
    """Returns the task's metrics, and the main one for each entity type, such as "f1/PER"."""
    first = next(iter(content["splits"].values()), {})
    main = content["metrics"][0]
    return [*content["metrics"], *(name for name in first if name.startswith(f"{main}/"))]


def cells(stats: Mapping[str, Any]) -> list[str]:
    """Returns median, mean, standard deviation and values of a `summary` as table cells."""
    std = "" if stats["std"] is None else f"{stats['std']:.2f}"
    values = ", ".join(f"{value:.2f}" for value in stats["values"])
    return [f"{stats['median']:.2f}", f"{stats['mean']:.2f}", std, values]


def draw(content: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plots the dev scores of all runs over the epochs, and the best score of each run by rate.

    The chosen learning rate is in colour.
    """
    # Imported here because training does not need matplotlib. Figure is used without pyplot, which
    # has global state and may need a display.
    from matplotlib import rc_context, ticker
    from matplotlib.figure import Figure

    main, chosen = content["metrics"][0], content["best"]["learning_rate"]
    if FOLDS in content:
        content = {**content, "runs": content[FOLDS]["runs"]}
    elif "dev" not in content["splits"]:
        return
    rates = list(dict.fromkeys(run["learning_rate"] for run in content["runs"]))
    with rc_context(plot.STYLE):
        figure = Figure(figsize=(9.6, 3.8), dpi=130, layout="constrained")
        by_epoch, by_rate = figure.subplots(1, 2, width_ratios=(5, 3), sharey=True)
        for place, rate in enumerate(rates):
            colour = plot.HELDOUT if rate == chosen else plot.GREY
            rate_runs = [run for run in content["runs"] if run["learning_rate"] == rate]
            for number, run in enumerate(rate_runs):
                epochs = [evaluation["epoch"] for evaluation in run["evaluations"]]
                values = [evaluation["dev"][main] for evaluation in run["evaluations"]]
                label = f"rate {rate:g}{', the best' * (rate == chosen)}" * (number == 0)
                style = dict(color=colour, linestyle=_STYLES[place % len(_STYLES)], linewidth=1.2)
                by_epoch.plot(epochs, values, marker="o", label=label, **style)
            scores = [run["scores"]["dev"][main] for run in rate_runs]
            by_rate.plot([place] * len(rate_runs), scores, "o", color=colour, alpha=0.7)
            mean = statistics.fmean(scores)
            by_rate.plot([place - 0.2, place + 0.2], [mean, mean], color=colour, linewidth=1.6)
        by_epoch.set_title(f"{content['task']}: {main} on dev")
        by_epoch.set_xlabel("epoch")
        by_epoch.set_ylabel(main)
        by_epoch.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
        if len(rates) > 1:
            by_epoch.legend()
        by_rate.set_title("Best of each run, and their mean")
        by_rate.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        by_rate.set_xlim(-0.6, len(rates) - 0.4)
        by_rate.set_xlabel("learning rate")
        plot.save(figure, path)
