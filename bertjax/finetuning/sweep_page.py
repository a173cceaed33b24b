"""The report on a sweep as one HTML page, made of its report.json.

    sweep_page.document("out/", content)

`pages` writes the page; `sweep_report` writes the same results as JSON and Markdown. The page links
to those of the combinations, in folders beside it.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import config as config_lib
from bertjax import config_help, errors, paths
from bertjax.finetuning import output_folder, report, report_page, sweep_report
from bertjax.reporting import charts, page, tables

_LINES = 8  # most lines of a chart


def document(path: str | os.PathLike, content: Mapping[str, Any]) -> str:
    """Returns the page. content: that of report.json. Raises UserError for an older report."""
    if any("runs" not in row for row in content["combinations"]):
        file = paths.of(path) / output_folder.REPORT
        raise errors.UserError(
            f"{file}: was written by an earlier version; {report_page.REMEDY}"
        )
    runs = [run for row in content["combinations"] for run in row["runs"]]
    tiles = report_page.headline(content)
    tiles |= {"combinations": str(len(content["combinations"])), "runs": str(len(runs)),
              "time of all runs": report_page.time_of(runs)}  # fmt: skip
    sections = [
        page.tiles(tiles),
        page.section("Warnings", page.bullets(sweep_report.warning_lines(content))),
        page.section("Choice", _choice(content)),
        page.section("Scores of the chosen combination", report_page.scores_of(content)),
        page.section("Baselines", report_page.baselines_of(content)),
        page.section("Scores by learning rate", _charts(content)),
        page.section("Means over seeds", _means(content)),
        page.section("All runs", _runs(content)),
        page.section("Data", report_page.data_of(content)),
        page.section("Model", tables.facts(report_page.model_of(paths.of(path), content))),
        page.section("Command", page.command(command(content, path))),
        page.section("Environment", tables.facts(content["environment"])),
    ]
    subtitle = f"Sweep of fine-tuning, {content['family']} of {content['model']}"
    return page.document(f"{report_page.name_of(path)}: {content['task']}", subtitle, sections)


def _link(row: Mapping[str, Any], text: str) -> page.Html:
    return page.link(text, f"{row['folder']}/{output_folder.PAGE}")


def _label(row: Mapping[str, Any]) -> str:
    """Returns the values of a combination; a lone strategy without its key."""
    values = row["values"]
    return str(*values.values()) if [*values] == ["strategy.name"] else sweep_report.label(values)


def _is_chosen(content: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return row["folder"] == content["best"]["folder"]


def _choice(content: Mapping[str, Any]) -> page.Html:
    """Returns what was chosen and why, and how clear the choice is."""
    main, rows = content["metrics"][0], content["combinations"]
    ranked = sorted(rows, key=lambda row: -_finite(sweep_report.at_best_rate(row)[main]["mean"]))
    chosen = next(row for row in rows if _is_chosen(content, row))
    stats = sweep_report.at_best_rate(chosen)[main]
    parts = [
        page.joined([
            _link(chosen, _label(chosen)),
            f" at the rate {chosen['learning_rate']:g} has the best mean of {main} on dev, "
            f"{_mean_text(stats)}. Its best seed is the model in the folder.",
        ])
    ]  # fmt: skip
    others = [row for row in ranked if row is not chosen]
    if others:
        second = sweep_report.at_best_rate(others[0])[main]
        gap = stats["mean"] - second["mean"]
        parts.append(page.joined([
            "The next best is ", _link(others[0], _label(others[0])),
            f" at the rate {others[0]['learning_rate']:g} with {_mean_text(second)}. ",
            _clarity(gap, stats, second),
        ]))  # fmt: skip
    parts.append(
        "The dev score of the chosen combination is the highest of several and therefore somewhat "
        "too high; a test score is not."
    )
    return page.joined(page.element("p", part) for part in parts)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


def _mean_text(stats: Mapping[str, Any]) -> str:
    if stats["std"] is None:
        return f"{stats['mean']:.2f}"
    return f"{stats['mean']:.2f} +- {stats['std']:.2f} over {len(stats['values'])} seeds"


def _clarity(gap: float, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Returns whether the difference of two means is larger than the error of the means.

    The error is that of the difference of two means of independent seeds.
    """
    if one["std"] is None or other["std"] is None:
        return "One seed does not show whether the difference is more than chance: add --seeds."
    error = math.sqrt(sum(s["std"] ** 2 / len(s["values"]) for s in (one, other)))
    size = f"The difference of {gap:.2f} is {'more' if gap > 2 * error else 'less'} than two "
    size += f"standard errors of the seeds ({2 * error:.2f})"
    return f"{size}." if gap > 2 * error else f"{size}, so the order of the two may be chance."


def _charts(content: Mapping[str, Any]) -> page.Html:
    """Returns the scores by rate, a line for each combination, and the seeds at its best rate."""
    main, rows = content["metrics"][0], content["combinations"]
    references = {
        name: by_split["dev"][main]
        for name, by_split in content["baselines"].items()
        if main in by_split.get("dev", {})
    }
    figures = [
        charts.spreads(f"{main} on dev by learning rate{suffix}", drawn, references)
        for suffix, drawn in _lines(main, rows).items()
    ]
    marked = next(i for i, row in enumerate(rows) if _is_chosen(content, row))
    dots = [(f"{_label(row)}, rate {row['learning_rate']:g}",
             sweep_report.at_best_rate(row)[main]["values"]) for row in rows]  # fmt: skip
    title = f"{main} on dev of each seed at the best rate, and the mean"
    figures.append(charts.dots(title, dots, references, marked))
    note = page.note("A bar is the standard deviation over the seeds, up and down.")
    shown = page.element("div", *figures, style="charts")
    has_bars = any(figures[:-1]) and len(rows[0]["rates"][0]["dev"][main]["values"]) > 1
    return page.joined([shown, note if has_bars else ""])


def _lines(main: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[charts.Spread]]:
    """Returns {suffix of the title: lines}: one chart, or one for each strategy if there are many.

    main: the score.
    """
    groups: dict[str, list[charts.Spread]] = {}
    for row in rows:
        name = f", {row['values'].get('strategy.name', '')}" if len(rows) > _LINES else ""
        stats = [rate["dev"][main] for rate in row["rates"]]
        line = charts.Spread(
            _label(row),
            [rate["learning_rate"] for rate in row["rates"]],
            [each["mean"] for each in stats],
            [each["std"] for each in stats],
        )
        groups.setdefault(name, []).append(line)
    return groups


def _header(content: Mapping[str, Any]) -> list[str]:
    return [*map(sweep_report.short, content["keys"]), "rate"]


def _cells(content: Mapping[str, Any], row: Mapping[str, Any]) -> list[Any]:
    """Returns the values of a combination, the first of them as a link to its page."""
    texts = [str(row["values"].get(key, "")) for key in content["keys"]]
    return [_link(row, text) if number == 0 else text for number, text in enumerate(texts)]


def _means(content: Mapping[str, Any]) -> page.Html:
    main, rows, marked = content["metrics"][0], [], []
    for row in content["combinations"]:
        for rate in row["rates"]:
            if _is_chosen(content, row) and rate["learning_rate"] == row["learning_rate"]:
                marked.append(len(rows))
            median, mean, std, values = report.cells(rate["dev"][main])
            rows.append([*_cells(content, row), f"{rate['learning_rate']:g}", mean, std, median,
                         values, f"{row['parameters']['trained']:,}", f"{row['steps']:,}",
                         f"{rate['seconds']:.1f}"])  # fmt: skip
    header = [*_header(content), f"mean of {main} on dev", "std", "median", "of each seed",
              "trained parameters", "steps of a run", "seconds"]  # fmt: skip
    return tables.table(header, rows, left=len(content["keys"]), marked=marked)


def _runs(content: Mapping[str, Any]) -> page.Html:
    main, best, rows, marked = content["metrics"][0], content["best"], [], []
    splits = [split for split in content["splits"] if split != "dev"]
    for row in content["combinations"]:
        for run in row["runs"]:
            same = (run["learning_rate"], run["seed"]) == (best["learning_rate"], best["seed"])
            if same and _is_chosen(content, row):
                marked.append(len(rows))
            scores = run["scores"]
            rows.append([
                *_cells(content, row), f"{run['learning_rate']:g}", str(run["seed"]),
                f"{run['best_epoch']:g} of {run['epochs']:g}",
                *(f"{scores[s][main]:.2f}" if s in scores else "" for s in ("dev", *splits)),
                f"{row['parameters']['trained']:,}", f"{run['seconds']:.1f}",
            ])  # fmt: skip
    header = [*_header(content), "seed", "best epoch",
              *(f"{main} on {split}" for split in ("dev", *splits)),
              "trained parameters", "seconds"]  # fmt: skip
    note = "The highlighted run is the model in the folder. The first run of a combination also "
    note += "compiles its programs."
    if splits:
        note += " Only the runs of the chosen combination at its best rate are scored on "
        note += f"{' and '.join(splits)}."
    table = tables.table(header, rows, left=len(content["keys"]), marked=marked)
    return page.joined([table, page.note(note)])


def command(content: Mapping[str, Any], output: str | os.PathLike) -> str:
    """Returns the command that repeats the sweep."""
    values: dict[str, Any] = {}
    for row in content["combinations"]:
        config = row["config"]
        changed = report_page.differing({**content, "config": config,
                                         "strategy": config["strategy"]["name"]})  # fmt: skip
        values |= {key: value for key, (value, _) in changed.items()
                   if value != config_help.ABSENT}  # fmt: skip
        values |= {key: config_lib.flat(config)[key] for key in ("model", "task")}
    values = {key: value for key, value in values.items() if key not in content["keys"]}
    words = []
    for key in content["keys"]:
        having = (row["values"] for row in content["combinations"] if key in row["values"])
        swept = dict.fromkeys(config_help.format_value(values[key]) for values in having)
        separator = ";" if any("," in value for value in swept) else ","
        words.append(f"--sweep.{sweep_report.short(key)}={separator.join(swept)}")
    return report_page.command_of(values, output, words)
