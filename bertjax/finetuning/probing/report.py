"""The result of probing a model: probe.json, a table and a plot.

probed = bertjax.probe(model="bert-base-uncased/", train="train.conll", dev="dev.conll")
print(probed)                                    # the table
probed.report["layers"][0]["selectivity"]        # {"mean": -3.8, "std": None, ...}
probed.draw("probe.png")
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax import errors, files, html_tables, paths, plot
from bertjax.finetuning import report as report_lib
from bertjax.finetuning import scores as scores_lib

REPORT, PLOT = "probe.json", "probe.png"
SCORES = ("accuracy", "macro_f1", "control_accuracy", "selectivity")
_TITLES = ("layer", "accuracy", "macro F1", "control", "selectivity")
_MAX_TITLE = 45  # characters of a path in the title of the plot
CONTROLS = {
    "tokens": "a random label for each word type",
    "classification": "a random label for one word type of each text, its rarest one that occurs "
    "in several texts of train",
}


@dataclasses.dataclass(frozen=True)
class Probed:
    """The scores of the probes. report: the content of probe.json.

    `str` gives the table, and a notebook shows it.
    """

    report: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join(lines(self.report))

    def __repr__(self) -> str:
        best = best_layer(self.report)
        score = best["accuracy"]["mean"]
        return f"<Probed: {len(self.report['layers'])} layers, best {best['name']} {score:.1f}>"

    def _repr_html_(self) -> str:
        """Returns the table for a notebook."""
        return html_tables.table(_TITLES, _rows(self.report))

    def draw(self, path: str | os.PathLike) -> None:
        """Draws the scores of the layers to a PNG file."""
        lines = {
            "accuracy": [layer["accuracy"]["values"] for layer in self.report["layers"]],
            "control task": [
                layer["control_accuracy"]["values"] for layer in self.report["layers"]
            ],
        }
        selectivity = [layer["selectivity"]["values"] for layer in self.report["layers"]]
        plot.by_layer(
            [layer["name"] for layer in self.report["layers"]], lines, selectivity,
            {"most frequent label": self.report["majority"]["accuracy"]}, path,
            title=f"Linear probes on {_short(self.report['model']['path'])}",
        )  # fmt: skip

    def write(self, folder: epath.Path) -> None:
        """Writes probe.json and probe.png to an existing folder."""
        self.draw(folder / PLOT)
        files.write_json(folder / REPORT, self.report)


def _short(path: str) -> str:
    """Returns a path, or its end if it is long."""
    return path if len(path) <= _MAX_TITLE else f"...{path[-_MAX_TITLE:]}"


def output_folder(path: str | os.PathLike) -> epath.Path:
    """Returns the folder at `path`, which is made if needed. Raises UserError if it cannot be."""
    folder = paths.of(path)
    if folder.exists() and not folder.is_dir():
        raise errors.UserError(f"--output={path}: is a file; give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def best_layer(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the layer with the best mean accuracy."""
    return max(report["layers"], key=lambda layer: layer["accuracy"]["mean"])


def layer_names(num_layers: int) -> list[str]:
    """Returns "embeddings" and the names of the layers after them; `num_layers` in total."""
    return ["embeddings", *(f"layer {number}" for number in range(1, num_layers))]


def layers(seeds: Sequence[Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """Returns the name and the summarised scores of each layer.

    seeds: {score of SCORES: its value in each layer} for each seed.
    """
    names = layer_names(len(seeds[0][SCORES[0]]))
    return [
        {
            "name": name,
            **{s: report_lib.summary([float(seed[s][i]) for seed in seeds]) for s in SCORES},
        }
        for i, name in enumerate(names)
    ]


def scores(
    predictions_MN: np.ndarray,
    targets_N: np.ndarray,
    control_MN: np.ndarray,
    controls_N: np.ndarray,
) -> dict[str, list[float]]:
    """Returns {score of SCORES: its value in each layer}, as percentages, for one seed.

    predictions_MN, targets_N: of the real task on dev; control_MN, controls_N: of the control task
    on the same items. macro_f1 is the mean F1 of the labels that occur in dev.
    """
    labels = sorted(set(targets_N.tolist()))
    accuracy = [_accuracy(predictions_N, targets_N) for predictions_N in predictions_MN]
    control = [_accuracy(control_N, controls_N) for control_N in control_MN]
    return {
        "accuracy": accuracy,
        "macro_f1": [scores_lib.macro_f1(targets_N.tolist(), predictions_N.tolist(), labels)
                     for predictions_N in predictions_MN],
        "control_accuracy": control,
        "selectivity": [a - b for a, b in zip(accuracy, control, strict=True)],
    }  # fmt: skip


def majority(counts_C: np.ndarray, targets_N: np.ndarray) -> tuple[int, float]:
    """Returns (the most frequent label of train, the accuracy of always predicting it on dev)."""
    label = int(np.argmax(counts_C))
    return label, _accuracy(np.full_like(targets_N, label), targets_N)


def _accuracy(predictions_N: np.ndarray, targets_N: np.ndarray) -> float:
    return scores_lib.accuracy(targets_N.tolist(), predictions_N.tolist())


def lines(report: Mapping[str, Any]) -> list[str]:
    """Returns the lines of the table, and what it was measured on."""
    rows = [list(_TITLES), *_rows(report)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_TITLES))]
    table = [
        "  ".join([row[0].ljust(widths[0]),
                   *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]  # fmt: skip
    return [*table, *context(report)]


def context(report: Mapping[str, Any]) -> list[str]:
    """Returns what the scores were measured on, and the scores to compare them with."""
    sizes = ", ".join(
        f"{split} {part['items']:,} {report['items']}" for split, part in report["files"].items()
    )
    control = report["control"]
    return [
        f"{sizes}; {len(report['labels'])} labels",
        f"most frequent label ({report['majority']['label']}): "
        f"{report['majority']['accuracy']:.1f}",
        f"control task: {control['kind']}; most frequent label: {control['majority']['mean']:.1f}; "
        f"{control['known']:.1f}% of dev have a type that occurs in train",
    ]


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    return [
        [layer["name"], *(cell(layer[score]) for score in SCORES)] for layer in report["layers"]
    ]


def cell(summary: Mapping[str, Any]) -> str:
    """Returns the mean over seeds as text, with the standard deviation if there is one."""
    spread = "" if summary["std"] is None else f" +- {summary['std']:.1f}"
    return f"{summary['mean']:.1f}{spread}"
