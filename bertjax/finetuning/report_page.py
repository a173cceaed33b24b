"""The report on a fine-tuning as one HTML page, made of report.json and the predictions.

    report_page.document("out/", report_page.read("out/"))

`pages` writes the page; `report` writes the same results as JSON and Markdown.
"""

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import config as config_lib
from bertjax import config_help, errors, paths, schema
from bertjax.artifact import facts, loading
from bertjax.finetuning import mistakes, output_folder, recipe, report, speed
from bertjax.reporting import charts, comparison, page, tables

REMEDY = "run the same `bertjax finetune` command again to have it written again"
_CHARACTERS = 320  # of a text that are shown
_LABELS = 12  # most labels of a task whose confusions are shown
_FLAGS = {
    "model": "model", "task": "task", "data.train": "train", "data.dev": "dev",
    "data.test": "test", "data.text_column": "text_column", "data.label_column": "label_column",
    "learning_rates": "lr", "seeds": "seeds", "strategy.name": "strategy", "data.folds": "folds",
}  # fmt: skip


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the content of report.json. Raises UserError if it is damaged."""
    file = paths.of(path) / output_folder.REPORT
    content = schema.read_object(file, REMEDY)
    for key in ("task", "metrics", "splits", "runs", "config", "best"):
        if key not in content:
            raise errors.UserError(f"{file}: has no {key!r}; {REMEDY}")
    return content


def document(path: str | os.PathLike, content: Mapping[str, Any]) -> str:
    """Returns the page. content: that of report.json."""
    out = paths.of(path)
    sections = [
        page.tiles(headline(content)),
        page.section("Warnings", page.bullets(content.get("warnings", ()))),
        page.section("Scores", scores_of(content)),
        page.section("Baselines", baselines_of(content)),
        page.section("Curves", _curves(content)),
        page.section("All runs", _runs(content)),
        page.section("Mistakes", *(_mistakes(out, split) for split in content["splits"])),
        page.section("Data", data_of(content)),
        page.section("Model", tables.facts(model_of(out, content))),
        page.section("Config", config_of(content)),
        page.section("Command", page.command(command(content, path))),
        page.section("Environment", tables.facts(content.get("environment", {}))),
    ]
    subtitle = f"Fine-tuning, {content['family']} of {content['model']}"
    return page.document(f"{name_of(path)}: {content['task']}", subtitle, sections)


def name_of(path: str | os.PathLike) -> str:
    return os.path.basename(os.path.abspath(path))


def main_split(content: Mapping[str, Any]) -> str:
    """Returns the split whose scores count: test, else the scores of folds, else dev."""
    names = ("test", report.FOLDS, "dev")
    return next((s for s in names if s in content["splits"]), next(iter(content["splits"]), ""))


def time_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns the time that the runs of a report took, as text."""
    seconds = sum(run["seconds"] for run in runs)
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def headline(content: Mapping[str, Any]) -> dict[str, str]:
    split, main = main_split(content), content["metrics"][0]
    values = {}
    if split and main in content["splits"][split]:
        values[f"{main} on {split}"] = f"{content['splits'][split][main]['mean']:.2f}"
        interval = content.get("intervals", {}).get(split)
        if interval and interval["score"] == main:
            name = f"{report.intervals.COVERAGE}% interval, best seed"
            values[name] = f"{interval['low']:.1f} to {interval['high']:.1f}"
        for name, by_split in content.get("baselines", {}).items():
            if main in by_split.get(split, {}):
                values[f"baseline: {name}"] = f"{by_split[split][main]:.2f}"
    if content.get("speed"):
        values["parameters"] = tables.short(content["speed"]["parameters"])
        values["size"] = f"{content['speed']['bytes'] / 1e6:,.1f} MB"
        if "latency_ms" in content["speed"]:
            values["latency of a text"] = f"{content['speed']['latency_ms']:.1f} ms"
    return values


def scores_of(content: Mapping[str, Any]) -> page.Html:
    names = dict.fromkeys(content["metrics"])
    rows = [
        [split, name, *report.cells(scores[name])]
        for split, scores in content["splits"].items()
        for name in names | dict.fromkeys(scores)
        if name in scores
    ]
    lines = [
        f"{interval['examples']:,} examples of {split} give the {interval['score']} of the best "
        f"seed {report.interval_text(interval)}."
        for split, interval in content.get("intervals", {}).items()
        if interval
    ]
    best = content["best"]
    note = f"The learning rate {best['learning_rate']:g} is the best; its seeds:"
    header = ["split", "score", "median", "mean", "std", "of each seed"]
    return page.joined([page.note(note), tables.table(header, rows, left=2),
                        *map(page.note, lines)])  # fmt: skip


def baselines_of(content: Mapping[str, Any]) -> page.Html:
    baselines = content.get("baselines", {})
    splits = [s for s in content["splits"] if any(s in table for table in baselines.values())]
    rows = []
    for score in content["metrics"]:
        own = {
            split: {score: content["splits"][split][score]["mean"]}
            for split in splits
            if score in content["splits"][split]
        }
        for name, by_split in ({"this model": own} | baselines).items():
            values = [by_split.get(split, {}).get(score) for split in splits]
            if any(value is not None for value in values):
                rows.append([name, score, *("" if v is None else f"{v:.2f}" for v in values)])
    return tables.table(["model", "score", *splits], rows, left=2) if splits else page.Html("")


def run_curves(content: Mapping[str, Any]) -> dict[str, list[charts.Line]]:
    """Returns {title: a line for each run}: the main score on dev and the loss on train."""
    main, chosen = content["metrics"][0], content["best"]["learning_rate"]
    runs = content[report.FOLDS]["runs"] if report.FOLDS in content else content["runs"]
    rates = list(dict.fromkeys(run["learning_rate"] for run in runs))
    drawn: dict[str, list[charts.Line]] = {f"{main} on dev": [], "Loss on train": []}
    for run in runs:
        rate = run["learning_rate"]
        colour = charts.COLOURS[rates.index(rate) % len(charts.COLOURS)]
        label = f"rate {rate:g}, seed {run['seed']}"
        label += f", fold {run['fold']}" if "fold" in run else ""
        epochs = [evaluation["epoch"] for evaluation in run["evaluations"]]
        scores = [evaluation["dev"].get(main, np.nan) for evaluation in run["evaluations"]]
        losses = [np.nan if e["loss"] is None else e["loss"] for e in run["evaluations"]]
        for title, values in zip(drawn, (scores, losses), strict=True):
            line = charts.Line(label, epochs, values, colour, dashed=rate != chosen)
            drawn[title].append(line)
    return drawn


def _curves(content: Mapping[str, Any]) -> page.Html:
    figures = [charts.lines(title, drawn, "epoch") for title, drawn in run_curves(content).items()]
    body = page.joined(figures)
    return page.element("div", body, style="charts") if body else body


def _runs(content: Mapping[str, Any]) -> page.Html:
    main = content["metrics"][0]
    splits = [split for split in content["splits"] if split != report.FOLDS]
    rows = [
        [
            f"{run['learning_rate']:g}",
            str(run["seed"]),
            *(f"{run['scores'][s][main]:.2f}" if main in run["scores"].get(s, {}) else ""
              for s in splits),
            f"{run['best_epoch']:g}",
            f"{run['seconds']:.1f}",
        ]
        for run in content["runs"]
    ]  # fmt: skip
    header = ["rate", "seed", *(f"{main} on {split}" for split in splits), "best epoch", "seconds"]
    note = page.note("The highlighted run is the best one of the best rate.")
    return page.joined([tables.table(header, rows, marked=[best_run(content)]), note])


def best_run(content: Mapping[str, Any]) -> int:
    """Returns the index of the run whose model is in the folder."""
    best = content["best"]["learning_rate"], content["best"]["seed"]
    return [(run["learning_rate"], run["seed"]) for run in content["runs"]].index(best)


def _mistakes(out: Any, split: str) -> page.Html:
    found = mistakes.read(out, split)
    if found is None:
        return page.Html("")
    shown = f"the {len(found.wrong):,} largest" if len(found.wrong) < found.count else "all of them"
    note = f"{found.count:,} of {found.read:,} examples are wrong; {shown}:"
    if found.are_numbers:
        note = f"The largest of {found.read:,} errors:"
    elif not found.count:
        note = f"All {found.read:,} examples are right."
    measure = found.wrong[0].measure if found.wrong else ""
    rows = [
        [_cut(m.text), _cut(m.truth), _cut(m.predicted)] + [tables.number(m.size)] * bool(measure)
        for m in found.wrong
    ]
    header = ["text", "true", "predicted"] + [measure] * bool(measure)
    return page.joined([
        page.element("h3", split),
        page.note(note),
        page.element("div", tables.table(header, rows, left=3), style="wide"),
        _confusions(found.confusions),
    ])  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 3] + "..."


def _confusions(counts: Mapping[tuple[str, str], int]) -> page.Html:
    """Returns the table of true and predicted labels; "" for one label, or for many."""
    labels = sorted({label for pair in counts for label in pair})
    if not 1 < len(labels) <= _LABELS:
        return page.Html("")
    rows = []
    for truth in labels:
        cells: list[Any] = [f"{counts.get((truth, label), 0):,}" for label in labels]
        cells[labels.index(truth)] = tables.Good(page.text(cells[labels.index(truth)]))
        rows.append([truth, *cells])
    return page.joined([page.note("True labels by row, predictions by column:"),
                        tables.table(["", *labels], rows)])  # fmt: skip


def data_of(content: Mapping[str, Any]) -> page.Html:
    files_of = content["config"]["data"]
    rows = [
        [split, files_of.get(split) or _origin(split, files_of), f"{count:,}"]
        for split, count in content["examples"].items()
    ]
    labels = content.get("labels") or []
    return page.joined([
        tables.table(["split", "file", "examples"], rows, left=2),
        page.note(f"{len(labels)} labels: {errors.several(labels, 30)}") if labels else "",
    ])  # fmt: skip


def _origin(split: str, data: Mapping[str, Any]) -> str:
    """Returns where a split without a file comes from. data: the keys `config.data`."""
    if split != "dev":
        return ""
    if data.get("folds"):
        return f"a fold of {data['folds']} of train"
    return f"{data['dev_fraction']:g} of train" if "dev_fraction" in data else ""


def model_of(out: Any, content: Mapping[str, Any]) -> dict[str, str]:
    shown = {"started from": content["model"]}
    try:
        shown |= facts.of_model(loading.load(out / output_folder.ARTIFACT, with_params=False))
    except (errors.UserError, OSError):  # was moved or deleted
        shown["family"] = content["family"]
    moves = report.what_moves(content["strategy"], content["parameters"], content["memory"])
    shown["strategy"] = moves
    if content.get("speed"):
        shown["size and speed"] = speed.line(content["speed"])
    return shown


def _defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    config = recipe.default(content["task"], content["strategy"]).to_dict()
    return config_lib.flat(json.loads(json.dumps(config)))


def differing(content: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns {key: (value, default)} for the keys of the config that differ from the recipe."""
    values = config_lib.flat(content["config"])
    try:
        defaults = _defaults(content)
    except errors.UserError:  # a task or a strategy of another version
        return {}
    keys = dict.fromkeys([*values, *defaults])
    pairs = {key: (values.get(key, config_help.ABSENT), defaults.get(key, config_help.ABSENT))
             for key in keys}  # fmt: skip
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def config_of(content: Mapping[str, Any]) -> page.Html:
    changed = differing(content)
    values = config_lib.flat(content["config"])
    pairs = {key: (value, value) for key, value in values.items()} | changed
    every = [[key, *map(config_help.format_value, pair)] for key, pair in pairs.items()]
    marked = [number for number, row in enumerate(every) if row[0] in changed]
    rows = [every[number] for number in marked]
    header = ["key", "this run", "recipe"]
    return page.joined([
        page.note(f"{len(rows)} of {len(every)} keys differ from the recipe of the task, or were "
                  "chosen by the size of the data and the model:"),
        tables.table(header, rows, left=3),
        page.details("all keys", tables.table(header, every, left=3, marked=marked)),
    ])  # fmt: skip


def command(content: Mapping[str, Any], output: str | os.PathLike) -> str:
    """Returns the command that repeats the fine-tuning, with every value that was chosen."""
    values = {key: value for key, (value, _) in differing(content).items()}
    return command_of({**values, "model": content["model"], "task": content["task"]}, output)


def command_of(
    values: Mapping[str, Any], output: str | os.PathLike, more: Sequence[str] = ()
) -> str:
    """Returns the command that fine-tunes with these config keys. more: further flags."""
    flags, config_flags = {}, {}
    for key in dict.fromkeys(["model", "task", *values]):
        if key not in values or key == "data.fold" or values[key] == config_help.ABSENT:
            continue
        text = config_help.format_value(values[key])
        if key in _FLAGS:
            flags[_FLAGS[key]] = text
        else:
            config_flags[f"config.{key}"] = text
    words = [f"--{name}={value}" for name, value in (flags | config_flags).items()]
    return shlex.join(["bertjax", "finetune", *words, *more, f"--output={os.fspath(output)}"])


def side(path: str | os.PathLike) -> comparison.Side:
    """Returns an output folder as one of the compared runs. Raises UserError if it is damaged."""
    content = read(path)
    scores = {
        f"{name} on {split}": stats["mean"]
        for split, by_name in content["splits"].items()
        for name, stats in by_name.items()
        if name in content["metrics"]
    }
    best = content["best"]
    drawn: dict[str, comparison.Curve] = {}
    if report.FOLDS not in content:
        place = best_run(content)
        for title, lines in run_curves(content).items():
            points = np.asarray(lines[place].steps), np.asarray(lines[place].values)
            drawn[f"{title}, best run"] = points
    shown = {"task": content["task"], "strategy": content["strategy"], "model": content["model"],
             "learning rate": f"{best['learning_rate']:g}"}  # fmt: skip
    if content.get("speed"):
        shown["size and speed"] = speed.line(content["speed"])
    values = config_lib.flat(content["config"])
    digests = output_folder.stored(paths.of(path))["data"]
    scored = {split: digest for split, digest in digests.items() if split != "train"}
    return comparison.Side(
        name_of(path), "fine-tuning", "epoch", shown,
        {key: config_help.format_value(value) for key, value in values.items()}, scores, drawn,
        {"task": content["task"], "examples to score": json.dumps(scored)},
    )  # fmt: skip
