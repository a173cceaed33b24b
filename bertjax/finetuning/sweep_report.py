"""Writes the report of a sweep: the scores of all combinations, as JSON, Markdown and a plot."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bertjax import files, plot
from bertjax.finetuning import output_folder, report


@dataclasses.dataclass(frozen=True)
class Member:
    """A combination of a sweep.

    values: {config key: value} of the swept keys that apply to it. folder: the name of its folder.
    given: all keys whose values were given, and not chosen by the recipe.
    """

    config: ConfigDict
    values: Mapping[str, Any]
    folder: str
    given: Collection[str]

    @property
    def label(self) -> str:
        """The values as text: "strategy=lora, num_epochs=3"."""
        return label(self.values)


def label(values: Mapping[str, Any]) -> str:
    """Returns {config key: value} as text: "strategy=lora, num_epochs=3"."""
    return ", ".join(f"{short(key)}={value}" for key, value in values.items())


def short(key: str) -> str:
    """Returns the name of a key in reports and folder names."""
    return "strategy" if key == "strategy.name" else key


def score(content: Mapping[str, Any]) -> float:
    """Returns the best mean of the main dev score; -inf if it is not finite.

    content: the content of a combination's report.
    """
    mean = content["splits"]["dev"][content["metrics"][0]]["mean"]
    return mean if math.isfinite(mean) else -math.inf


def make(
    members: Sequence[Member],
    contents: Sequence[Mapping[str, Any]],
    best: int,
    chosen: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Returns the content of the sweep's report.json: that of the chosen one, and all combinations.

    contents: the content of each combination's report. best: the index of the best combination.
    chosen: the content of its final report, with the scores on test.
    """
    combinations = [
        {
            "values": dict(member.values),
            "folder": member.folder,
            "learning_rate": content["best"]["learning_rate"],
            "rates": _rates(content),
            "runs": _runs(content if number != best else chosen),
            "config": member.config.to_dict(),  # as given, before sizes choose further values
            "steps": content["steps"],
            "parameters": content["parameters"],
            "warnings": content["warnings"],
        }
        for number, (member, content) in enumerate(zip(members, contents, strict=True))
    ]
    keys = list(dict.fromkeys(key for member in members for key in member.values))
    former = contents[best]["warnings"]
    return {
        **chosen,
        "keys": keys,
        "combinations": combinations,
        "best": {
            **chosen["best"],
            "values": dict(members[best].values),
            "folder": members[best].folder,
        },
        "warnings": [*warnings, *(line for line in chosen["warnings"] if line not in former)],
    }


def _rates(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns {"learning_rate", "dev": scores over the seeds, "seconds"} for each rate."""
    by_rate: dict[float, list[Mapping[str, Any]]] = {}
    for run in content["runs"]:
        by_rate.setdefault(run["learning_rate"], []).append(run)
    return [
        {
            "learning_rate": rate,
            "dev": report.summaries([run["scores"]["dev"] for run in runs]),
            "seconds": sum(run["seconds"] for run in runs),
        }
        for rate, runs in by_rate.items()
    ]


def _runs(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rate, seed, epochs, scores and seconds of each run of a combination."""
    keys = ("learning_rate", "seed", "best_epoch", "scores", "seconds")
    return [
        {**{key: run[key] for key in keys}, "epochs": run["evaluations"][-1]["epoch"]}
        for run in content["runs"]
    ]


def write(content: Mapping[str, Any], path: epath.Path) -> None:
    """Writes report.json, report.md and scores.png to the output folder `path`."""
    _draw(content, path / output_folder.PLOT)
    files.write_text(path / output_folder.TABLE, table(content))
    files.write_json(path / output_folder.REPORT, content)


def table(content: Mapping[str, Any]) -> str:
    """Returns the report as Markdown."""
    main, keys, best = content["metrics"][0], content["keys"], content["best"]
    sizes = ", ".join(f"{n:,} {split}" for split, n in content["examples"].items())
    header = [*map(short, keys), "rate", "mean", "std", "median", "seeds", "steps", "trained", "s"]
    lines = [
        f"# {content['task']}: sweep of {content['model']}",
        "",
        f"{len(content['combinations'])} combinations. Examples: {sizes}.",
        "",
        f"{label(best['values'])} at the rate {best['learning_rate']:g} has the best mean of "
        f"{main} on dev. All of its runs are in `{best['folder']}/report.md`. Its scores:",
        "",
        "| split | score | median | mean | std | seeds |",
        "|---|---|---:|---:|---:|---|",
    ]
    for split, scores in content["splits"].items():
        for name in filter(scores.__contains__, content["metrics"]):
            lines.append(f"| {split} | {name} | {' | '.join(report.cells(scores[name]))} |")
    lines += ["", f"{main} on dev of all combinations (the chosen one is bold):", ""]
    lines += [f"| {' | '.join(header)} |", "|---" * len(keys) + "|---:" * 4 + "|---" + "|---:" * 3]
    lines[-1] += "|"
    for row in content["combinations"]:
        for rate in row["rates"]:
            median, mean, std, values = report.cells(rate["dev"][main])
            is_best = row["values"] == best["values"] and (
                rate["learning_rate"] == best["learning_rate"]
            )
            cells = [str(row["values"].get(key, "")) for key in keys]
            cells += [f"{rate['learning_rate']:g}", f"**{mean}**" if is_best else mean, std, median]
            cells += [values, f"{row['steps']:,}", f"{row['parameters']['trained']:,}"]
            lines.append(f"| {' | '.join(cells)} | {rate['seconds']:.0f} |")
    warnings = warning_lines(content)
    if warnings:
        lines += ["", "Warnings:", "", *(f"- {line}" for line in warnings)]
    return "\n".join([*lines, "", f"![scores]({output_folder.PLOT})", ""])


def warning_lines(content: Mapping[str, Any]) -> list[str]:
    """Returns each warning once, with the combinations that it concerns unless these are all."""
    rows = content["combinations"]
    labels: dict[str, list[str]] = {}
    for row in rows:
        for line in row["warnings"]:
            labels.setdefault(line, []).append(label(row["values"]))
    return [*content["warnings"], *(
        line if len(names) == len(rows) else f"{'; '.join(names)}: {line}"
        for line, names in labels.items()
    )]  # fmt: skip


def summary_lines(content: Mapping[str, Any]) -> list[str]:
    """Returns each combination's dev score at its best rate, as lines for a terminal."""
    main, rows = content["metrics"][0], content["combinations"]
    width = max(len(label(row["values"])) for row in rows)
    lines = [f"{content['task']}, {main} on dev of {len(rows)} combinations"]
    for row in rows:
        stats = at_best_rate(row)[main]
        std = "" if stats["std"] is None else f" +- {stats['std']:.2f}"
        chosen = "  (chosen)" if row["folder"] == content["best"]["folder"] else ""
        place = f"{label(row['values']):<{width}}  rate {row['learning_rate']:<8g}"
        lines.append(f"  {place}{stats['mean']:>7.2f}{std}{chosen}")
    return lines


def at_best_rate(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the dev scores of a combination at its best learning rate."""
    return next(r["dev"] for r in row["rates"] if r["learning_rate"] == row["learning_rate"])


def _draw(content: Mapping[str, Any], path: epath.Path) -> None:
    """Plots for each combination the dev score of each seed at its best rate, and their mean."""
    # Imported here because training does not need matplotlib. Figure is used without pyplot, which
    # has global state and may need a display.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    main, rows = content["metrics"][0], content["combinations"]
    with rc_context(plot.STYLE):
        figure = Figure(figsize=(9.6, 0.4 * len(rows) + 1.4), dpi=130, layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate(rows):
            is_best = row["folder"] == content["best"]["folder"]
            colour = plot.HELDOUT if is_best else plot.GREY
            stats = at_best_rate(row)[main]
            axes.plot(stats["values"], [place] * len(stats["values"]), "o", color=colour, alpha=0.7)
            axes.plot([stats["mean"]] * 2, [place - 0.3, place + 0.3], color=colour)
        axes.set_yticks(range(len(rows)), [label(row["values"]) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(f"{main} on dev: seeds and mean at the best rate")
        axes.set_title(f"{content['task']}: sweep")
        plot.save(figure, path)
