"""The report on a suite as one HTML page, made of its report.json.

    suite_page.document("out/", content)

`pages` writes the page; `suite` writes the same results as JSON and Markdown. The page links to
those of the tasks, in folders beside it.
"""

import math
import os
import statistics
from collections.abc import Mapping
from typing import Any

from bertjax.finetuning import output_folder, report, report_page
from bertjax.reporting import charts, page, tables


def document(path: str | os.PathLike, content: Mapping[str, Any]) -> str:
    """Returns the page. content: that of report.json."""
    first = next(iter(content["tasks"].values()))
    sections = [
        page.tiles(_headline(content)),
        page.section("Scores", _scores(content)),
        page.section("Seeds and learning rates", _charts(content)),
        page.section("All runs", _runs(content)),
        page.section("Tasks without files", page.bullets(_absent(content))),
        page.section("Warnings", page.bullets(_warnings(content))),
        page.section("Environment", tables.facts(first.get("environment", {}))),
    ]
    subtitle = f"Suite of fine-tuning, {first['family']} of {first['model']}"
    title = f"{report_page.name_of(path)}: {content['title']}"
    return page.document(title, subtitle, sections)


def _headline(content: Mapping[str, Any]) -> dict[str, str]:
    means = [mean for mean in map(_main_mean, content["tasks"].values()) if mean is not None]
    runs = [run for each in content["tasks"].values() for run in _all_runs(each)]
    values = {"tasks": str(len(content["tasks"])), "runs": str(len(runs)),
              "time of all runs": report_page.time_of(runs)}  # fmt: skip
    if means and all(map(math.isfinite, means)):
        values = {"mean of the main scores": f"{statistics.fmean(means):.2f}"} | values
    return values


def _main_mean(each: Mapping[str, Any]) -> float | None:
    scores = each["splits"].get(report_page.main_split(each), {})
    main = each["metrics"][0]
    return scores[main]["mean"] if main in scores else None


def _all_runs(each: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the runs of a task, with those of its folds."""
    return [*(each[report.FOLDS]["runs"] if report.FOLDS in each else ()), *each["runs"]]


def _link(name: str) -> page.Html:
    return page.link(name, f"{name}/{output_folder.PAGE}")


def _scores(content: Mapping[str, Any]) -> page.Html:
    """Returns the main scores of each task beside its baselines and published scores."""
    published = content.get("published", ())  # absent in earlier versions
    known = dict.fromkeys(n for each in content["tasks"].values() for n in each["baselines"])
    rows = []
    for name, each in content["tasks"].items():
        main = each["metrics"][0]
        splits = dict.fromkeys([*each["splits"], *(
            split for other in published for split in other["scores"].get(name, {}))])  # fmt: skip
        for split in splits:
            stats = each["splits"].get(split, {}).get(main)
            median, mean, std, values = report.cells(stats) if stats else [""] * 4
            simple = (each["baselines"].get(n, {}).get(split, {}).get(main) for n in known)
            others = (other["scores"].get(name, {}).get(split) for other in published)
            rows.append([
                _link(name), split, main, mean, std, median, values,
                f"{each['best']['learning_rate']:g}",
                *("" if value is None else f"{value:.2f}" for value in simple),
                *("" if value is None else f"{value:g}" for value in others),
            ])  # fmt: skip
    header = ["task", "split", "score", "mean", "std", "median", "of each seed", "rate", *known,
              *(other["name"] for other in published)]  # fmt: skip
    notes = ["The rate of each task is the one with the best mean on dev. The columns after it are "
             "baselines on the same data and published scores."]  # fmt: skip
    notes += [content["note"]] if content.get("note") else []
    sources = page.bullets(f"{other['name']}: {other['source']}" for other in published)
    return page.joined([tables.table(header, rows, left=3), *map(page.note, notes), sources])


def _charts(content: Mapping[str, Any]) -> page.Html:
    rows, figures = [], []
    for name, each in content["tasks"].items():
        main, split = each["metrics"][0], next(iter(each["splits"]), "")  # dev, or folds
        stats = each["splits"].get(split, {}).get(main)
        if stats:
            rows.append((f"{name}, {main} on {split}", stats["values"]))
        figures.append(charts.spreads(f"{name}: {main} on dev by learning rate",
                                      [_by_rate(each)], {}))  # fmt: skip
    title = "Each seed at the best rate, and the mean"
    return page.element("div", charts.dots(title, rows, {}), *figures, style="charts")


def _by_rate(each: Mapping[str, Any]) -> charts.Spread:
    """Returns the means of the main dev score by rate, over the seeds."""
    main = each["metrics"][0]
    scores: dict[float, list[float]] = {}
    for run in each["runs"]:
        if main in run["scores"].get("dev", {}):
            scores.setdefault(run["learning_rate"], []).append(run["scores"]["dev"][main])
    stats = [report.summary(values) for values in scores.values()]
    means, deviations = ([s[key] for s in stats] for key in ("mean", "std"))
    return charts.Spread(each["strategy"], [*scores], means, deviations)


def _runs(content: Mapping[str, Any]) -> page.Html:
    rows, marked = [], []
    for name, each in content["tasks"].items():
        main = each["metrics"][0]
        marked.append(len(rows) + report_page.best_run(each))
        for run in each["runs"]:
            scores = run["scores"]
            other = next((split for split in scores if split != "dev"), "")
            rows.append([
                _link(name), each["strategy"], main, f"{run['learning_rate']:g}", str(run["seed"]),
                f"{run['best_epoch']:g} of {run['evaluations'][-1]['epoch']:g}",
                *(f"{scores[s][main]:.2f}" if main in scores.get(s, {}) else ""
                  for s in ("dev", other)),
                f"{each['parameters']['trained']:,}", f"{run['seconds']:.1f}",
            ])  # fmt: skip
    header = ["task", "strategy", "score", "rate", "seed", "best epoch", "dev", "test",
              "trained parameters", "seconds"]  # fmt: skip
    table = tables.table(header, rows, left=3, marked=marked)
    return page.joined([table, page.note("The highlighted runs are the models in the folders.")])


def _absent(content: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {reason}" for name, reason in content.get("absent", {}).items()]


def _warnings(content: Mapping[str, Any]) -> list[page.Html]:
    return [
        page.joined([_link(name), f": {line}"])
        for name, each in content["tasks"].items()
        for line in each.get("warnings", ())
    ]
