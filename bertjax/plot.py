"""Plots a run's curves in one PNG: a large panel with the losses, small panels with other metrics.

Example:
    plot.curves(run_log.read_metrics("run/metrics.jsonl"), "run/curves.png", title="bert mini")
"""

import io
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import errors, files, paths

TRAIN, HELDOUT, REFERENCE, GREY = "#3b76af", "#d1622b", "#5a5a5a", "#8a8a8a"
# The main losses of the objectives, and their titles above the curves.
LOSSES = {"mlm_loss": "Masked language model loss", "lm_loss": "Language model loss"}
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b0b0b0",
    "axes.grid": True,
    "grid.color": "#ececec",
    "axes.axisbelow": True,
    "xtick.color": REFERENCE,
    "ytick.color": REFERENCE,
    "legend.edgecolor": "none",  # the white frame covers the lines behind the text
    "lines.markersize": 3.5,
}


def curves(
    metrics: Sequence[Mapping[str, float]],
    path: str | os.PathLike,
    title: str = "",
) -> None:
    """Draws `metrics`, as `run_log.read_metrics` returns them, to the PNG file `path`.

    Metrics that the run did not log have no curve. Raises UserError if there is no loss at all.
    """
    # Imported here because training does not need matplotlib. Figure is used without pyplot, which
    # has global state and may need a display.
    from matplotlib import rc_context, ticker
    from matplotlib.figure import Figure

    loss = next((name for name in LOSSES if _is_logged(metrics, name)), "loss")
    if not _is_logged(metrics, loss):
        raise errors.UserError(f"{path}: not drawn, because the run has not logged a loss yet")
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 6.4), dpi=130, layout="constrained")
        small_panels = [
            (draw, name)
            for draw, name in (
                (_bits, "bits_per_byte"),
                *((_accuracy, name) for name in _accuracies(metrics)),
                (_quantity, "learning_rate"),
                (_quantity, "tokens_per_second"),
            )
            if _is_logged(metrics, name)
        ]
        grid = figure.add_gridspec(2, max(1, len(small_panels)), height_ratios=(5, 3))
        _losses(figure.add_subplot(grid[0, :]), metrics, loss, title)
        for column, (draw, name) in enumerate(small_panels):
            draw(figure.add_subplot(grid[1, column]), metrics, name)
        last_step = max(line["step"] for line in metrics)
        for i, axes in enumerate(figure.axes):
            ticks = ticker.MaxNLocator(4 if i else 10, steps=[1, 2, 2.5, 5, 10])
            axes.xaxis.set_major_locator(ticks)
            axes.xaxis.set_major_formatter(_thousands)
            axes.set_xlim(0, max(1, last_step) * 1.01)
            for step in _phase_starts(metrics):
                axes.axvline(step, color=GREY, linestyle=":", linewidth=1.0)
        save(figure, path)


def by_layer(
    names: Sequence[str],
    lines: Mapping[str, Sequence[Sequence[float]]],
    differences: Sequence[Sequence[float]],
    levels: Mapping[str, float],
    path: str | os.PathLike,
    title: str = "",
) -> None:
    """Draws percentages of the layers of a model to the PNG file `path`.

    names: of the layers. lines: {label: the values of each layer, one for each seed}; the range of
    several seeds is shaded. differences: the same for the small panel, selectivity. levels: {label:
    percentage} of horizontal lines.
    """
    from matplotlib import rc_context  # see `curves`
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 5.4), dpi=130, layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(5, 3))
        for (label, values), color in zip(lines.items(), (TRAIN, HELDOUT), strict=False):
            _with_range(upper, values, color, label)
        for label, level in levels.items():
            upper.axhline(level, color=REFERENCE, linewidth=1, linestyle=(0, (5, 3)),
                          label=f"{label}, {level:.1f}")  # fmt: skip
        upper.set_title(title)
        upper.set_ylabel("accuracy on dev, %")
        upper.legend(loc="best")
        lower.axhline(0, color=REFERENCE, linewidth=1)
        _with_range(lower, differences, GREY, "selectivity")
        lower.set_title("Selectivity: accuracy minus control accuracy")
        lower.set_xlabel("layer")
        step = -(-len(names) // 16)  # labels that fit beside each other
        lower.set_xticks(range(0, len(names), step), [
            name.removeprefix("layer ") for name in names[::step]
        ])  # fmt: skip
        save(figure, path)


def _with_range(axes: Any, values: Sequence[Sequence[float]], color: str, label: str) -> None:
    """Draws the means of the layers' values, and their range if there are several values."""
    table = np.array(values, float)
    places = np.arange(len(table))
    if table.shape[1] > 1:
        axes.fill_between(
            places, table.min(axis=1), table.max(axis=1), color=color, alpha=0.2, linewidth=0
        )
    axes.plot(places, table.mean(axis=1), color=color, marker="o", linewidth=1.6, label=label)


def save(figure: Any, path: str | os.PathLike) -> None:
    """Writes a figure to `path` as PNG, atomically."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    with files.replacing(paths.of(path)) as partial:
        partial.write_bytes(buffer.getvalue())


def _losses(
    axes: Any,
    metrics: Sequence[Mapping[str, float]],
    name: str,
    title: str,
) -> None:
    _train_and_heldout(axes, metrics, name, markers=True)
    _unigram(axes, metrics)
    loss_title = LOSSES.get(name, "Loss")
    axes.set_title(f"{title}: {loss_title.lower()}" if title else loss_title)
    axes.set_ylabel("nats per predicted token")
    axes.set_xlabel("step")
    axes.legend(loc="upper right")


def _unigram(axes: Any, metrics: Sequence[Mapping[str, float]]) -> None:
    """Draws the loss of the unigram model in each phase, whose mixture of sources it depends on."""
    steps, losses = _series(metrics, "eval/unigram_loss")
    if not steps.size:
        return
    edges = [0.0, *_phase_starts(metrics), max(line["step"] for line in metrics)]
    for start, stop in itertools.pairwise(edges):
        inside = losses[(steps > start) & (steps <= stop)]
        if inside.size:
            level = [inside[-1]] * 2
            axes.plot((start, stop), level, color=REFERENCE, linewidth=1, linestyle=(0, (5, 3)))
    axes.annotate(
        f"unigram model {losses[-1]:.2f}",
        (1, losses[-1]),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        color=REFERENCE,
    )


def _phase_starts(metrics: Sequence[Mapping[str, float]]) -> list[float]:
    """Returns the steps after which the phase of the run changes."""
    steps, numbers = _series(metrics, "phase")
    return [float(steps[i]) for i in np.flatnonzero(np.diff(numbers))]


def _accuracy(axes: Any, metrics: Sequence[Mapping[str, float]], name: str) -> None:
    _train_and_heldout(axes, metrics, name)
    axes.set_title(f"{name.removesuffix('_accuracy').upper()} accuracy")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")


def _bits(axes: Any, metrics: Sequence[Mapping[str, float]], name: str) -> None:
    _train_and_heldout(axes, metrics, name)
    axes.set_title("Bits per byte of text")


def _quantity(axes: Any, metrics: Sequence[Mapping[str, float]], name: str) -> None:
    title, formatter = {
        "learning_rate": ("Learning rate", _power_of_ten),
        "tokens_per_second": ("Tokens/s", _thousands),
    }[name]
    steps, values = _series(metrics, name)
    axes.plot(steps, values, color=GREY, marker=_marker(steps))
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(formatter)


def _train_and_heldout(
    axes: Any, metrics: Sequence[Mapping[str, float]], name: str, *, markers: bool = False
) -> None:
    steps, values = _series(metrics, f"train/{name}")
    if steps.size:
        borders = np.searchsorted(steps, _phase_starts(metrics), side="right")
        smoothed = np.concatenate([_smooth(part) for part in np.split(values, borders)])
        label = f"train, last {smoothed[-1]:.2f}"
        axes.plot(steps, values, color=TRAIN, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smoothed, color=TRAIN, linewidth=1.6, marker=_marker(steps), label=label)
    steps, values = _series(metrics, f"eval/{name}")
    if steps.size:
        marker = "o" if markers else _marker(steps)
        label = f"held-out, last {values[-1]:.2f}"
        axes.plot(steps, values, color=HELDOUT, linewidth=1.6, marker=marker, label=label)
    steps, values = _series(metrics, f"eval/ema/{name}")
    if steps.size:
        label = f"held-out, moving average, last {values[-1]:.2f}"
        axes.plot(steps, values, color=HELDOUT, linestyle="--", marker=_marker(steps), label=label)


def _accuracies(metrics: Sequence[Mapping[str, float]]) -> list[str]:
    """Returns the names of the logged accuracies, at most three, in the order of the log."""
    keys = dict.fromkeys(key.split("/")[-1] for line in metrics for key in line)
    return [name for name in keys if name.endswith("_accuracy")][:3]


def _is_logged(metrics: Sequence[Mapping[str, float]], name: str) -> bool:
    return any(_series(metrics, key)[0].size for key in (name, f"train/{name}", f"eval/{name}"))


def _series(metrics: Sequence[Mapping[str, float]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and values of the lines in which the metric `name` is finite."""
    points = [(line["step"], line[name]) for line in metrics if name in line]
    table = np.array(points, dtype=float).reshape(-1, 2)
    table = table[np.isfinite(table[:, 1])]
    return table[:, 0], table[:, 1]


def _smooth(values: np.ndarray) -> np.ndarray:
    """Returns means over a centred window of 1/20 of the values, smaller near both ends.

    NOTE: smooth each phase by itself, because its loss has another level.
    """
    width = max(1, len(values) // 40)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    radius = np.minimum(np.minimum(index, index[::-1]), width)
    return (sums[index + radius + 1] - sums[index - radius]) / (2 * radius + 1)


def _marker(steps: np.ndarray) -> str | None:
    return "o" if steps.size == 1 else None  # a line through one point is invisible


def _power_of_ten(value: float, _: int) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"


def _thousands(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
