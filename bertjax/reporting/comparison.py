"""Several runs side by side: the config keys that differ, the final scores and the curves.

    sides = [comparison.of_run(contents.read(path)) for path in ("a/", "b/")]
    comparison.document(sides)

`finetuning.report_page.side` makes a `Side` of an output folder of fine-tuning.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax import config as config_lib
from bertjax import config_help, errors, workdir
from bertjax.artifact import facts
from bertjax.reporting import charts, contents, curves, page, tables

Curve = tuple[np.ndarray, np.ndarray]  # positions and values
_LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte")


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the compared runs.

    kind: what sort of run it is; only runs of one kind are compared. unit: the horizontal axis of
    the curves. facts: {name: text}, shown in any case. keys: {config key: value as text}. scores:
    {name: value}. curves: {title: curve}. comparable: {what should be the same in all runs: its
    fingerprint}.
    """

    name: str
    kind: str
    unit: str
    facts: Mapping[str, str]
    keys: Mapping[str, str]
    scores: Mapping[str, float]
    curves: Mapping[str, Curve]
    comparable: Mapping[str, str]


def of_run(run: contents.Run) -> Side:
    """Returns a pretraining run as one of the compared runs."""
    metrics, drawn = run.metrics, {}
    for name in curves.names(metrics):
        for kind, label in (("eval", "held-out"), ("train", "train")):
            drawn[f"{curves.title_of(name)}, {label}"] = curves.series(metrics, f"{kind}/{name}")
    for name in ("learning_rate", "grad_norm", "tokens_per_second"):
        drawn[curves.title_of(name)] = curves.series(metrics, name)
    identity = workdir.read(run.path)
    shown = facts.of_model(run.model)
    shown |= {"step": f"{run.step:,}"}
    if run.phases:
        shown["tokens read, with padding"] = tables.short(contents.positions(run))
    scores = contents.final_scores(run)
    scores.pop("samples", None)
    speed = curves.median(metrics, "tokens_per_second")
    if speed is not None:
        scores["tokens_per_second"] = speed
    flat = config_lib.flat(run.stored)
    return Side(
        run.name, "pretraining", "step", shown,
        {key: config_help.format_value(value) for key, value in flat.items()}, scores, drawn,
        {"tokenizer": identity.tokenizer_fingerprint, "training data": identity.data_fingerprint},
    )  # fmt: skip


def named(sides: Sequence[Side], paths: Sequence[str]) -> list[Side]:
    """Returns the sides with their paths as names if two of them have the same name.

    Raises UserError if the runs are of different kinds.
    """
    for side, path in zip(sides, paths, strict=True):
        if side.kind != sides[0].kind:
            raise errors.UserError(
                f"{path}: is a run of {side.kind}, and {paths[0]} is one of {sides[0].kind}; "
                "compare runs of one kind"
            )
    if len({side.name for side in sides}) == len(sides):
        return list(sides)
    return [dataclasses.replace(side, name=path) for side, path in zip(sides, paths, strict=True)]


def config_rows(sides: Sequence[Side]) -> list[list[str]]:
    """Returns [key, value in each run] for the config keys that differ."""
    keys = dict.fromkeys(key for side in sides for key in side.keys)
    rows = [[key, *(side.keys.get(key, config_help.ABSENT) for side in sides)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def score_rows(sides: Sequence[Side]) -> list[list[str]]:
    """Returns [score, value in each run], with "" where a run lacks the score."""
    names = dict.fromkeys(name for side in sides for name in side.scores)
    return [
        [name, *(contents.score_text(name, side.scores.get(name)) for side in sides)]
        for name in names
    ]


def warnings(sides: Sequence[Side]) -> list[str]:
    """Returns a line for each thing that should be the same in all runs and is not."""
    lines = []
    for name in sides[0].comparable:
        if len({side.comparable.get(name, "") for side in sides}) > 1:
            advice = {
                "tokenizer": "compare bits per byte, not losses, accuracies or perplexities",
                "training data": "scores compare the runs only if the held-out text is the same",
            }.get(name, "scores do not compare the runs")
            lines.append(f"The runs differ in the {name}: {advice}.")
    return lines


def document(sides: Sequence[Side]) -> str:
    """Returns the page."""
    header = [side.name for side in sides]
    shown = dict.fromkeys(name for side in sides for name in side.facts)
    fact_rows = [[name, *(side.facts.get(name, "") for side in sides)] for name in shown]
    differing = config_rows(sides)
    sections = [
        page.bullets(warnings(sides)),
        page.section("Final scores", _scores(sides)),
        page.section("Curves", _curves(sides)),
        page.section(
            "Config keys that differ",
            tables.table(["key", *header], differing, left=len(sides) + 1)
            if differing
            else page.note("The configs are the same."),
        ),
        page.section("Models", tables.table(["", *header], fact_rows, left=len(sides) + 1)),
    ]
    return page.document("Comparison", f"{', '.join(header)}; {sides[0].kind}", sections)


def _scores(sides: Sequence[Side]) -> page.Html:
    """Returns the table of scores, in which the best of each row is highlighted."""
    rows, ranked = [], _ranked(sides)
    for name, *texts in score_rows(sides):
        values = [side.scores.get(name, math.nan) for side in sides]
        best = _best(name, values) if name in ranked else None
        cells = [
            tables.Good(page.text(text)) if value == best else text
            for text, value in zip(texts, values, strict=True)
        ]
        rows.append([curves.title_of(name), *cells])
    if not rows:
        return page.note("No run has a score yet.")
    return tables.table(["score", *(side.name for side in sides)], rows)


def _ranked(sides: Sequence[Side]) -> set[str]:
    """Returns the scores by which the runs can be ranked.

    The loss that is minimised is one only if all runs add up the same losses. With different
    tokenizers, a token is not the same thing in two runs; a byte is.
    """
    names = {name for side in sides for name in side.scores} - {"unigram_loss"}
    if len({frozenset(side.scores) for side in sides}) > 1:
        names.discard("loss")
    tokenizers = {side.comparable.get("tokenizer", "") for side in sides}
    return names if len(tokenizers) == 1 else names & {"bits_per_byte"}


def _best(name: str, values: Sequence[float]) -> float | None:
    """Returns the best of the values; None if they are equal."""
    finite = [value for value in values if math.isfinite(value)]
    if len(set(finite)) < 2:
        return None
    return min(finite) if name.endswith(_LOWER_IS_BETTER) else max(finite)


def _curves(sides: Sequence[Side]) -> page.Html:
    titles = dict.fromkeys(title for side in sides for title in side.curves)
    figures = []
    for title in titles:
        drawn = [
            charts.Line(side.name, *side.curves[title]) for side in sides if title in side.curves
        ]
        percent = "accuracy, " in title and sides[0].kind == "pretraining"
        figures.append(charts.lines(title, drawn, sides[0].unit, percent=percent))
    return page.element("div", *figures, style="charts")
