"""The curves of a pretraining run: a chart for each metric, in train, held-out and by source.

    curves.figures(run_log.read_metrics("run/metrics.jsonl"), borders=[900])
"""

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.reporting import charts, page

Metrics = Sequence[Mapping[str, float]]
_TITLES = {
    "loss": "Loss, as minimised",
    "mlm_loss": "Masked language model loss",
    "lm_loss": "Language model loss",
    "bits_per_byte": "Bits per byte of text",
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
    "mfu": "Model FLOP utilisation (MFU)",
    "data_wait": "Share of time waiting for data",
    "skipped": "Skipped steps",
}
_HIDDEN = ("samples", "unigram_loss", "perplexity")  # not drawn on their own
_QUANTITIES = ("learning_rate", "grad_norm", "tokens_per_second", "mfu", "data_wait", "skipped")
_SHARES = ("mfu", "data_wait")  # shown as percentages
_EMA = "ema"


def series(metrics: Metrics, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and values of the lines with the metric `name`: float[N] each."""
    points = [(line["step"], line[name]) for line in metrics if name in line]
    table = np.array(points, float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def latest(metrics: Metrics, name: str) -> float | None:
    """Returns the newest value of a metric; None if it was not logged."""
    values = series(metrics, name)[1]
    return float(values[-1]) if values.size else None


def median(metrics: Metrics, name: str) -> float | None:
    """Returns the median of the finite values of a metric; None if there are none."""
    values = series(metrics, name)[1]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else None


def title_of(name: str) -> str:
    """Returns the name of a metric for readers, such as "MLM accuracy"."""
    if name in _TITLES:
        return _TITLES[name]
    words = name.split("_")
    return " ".join([words[0].upper() if len(words[0]) <= 4 else words[0].capitalize(), *words[1:]])


def names(metrics: Metrics) -> list[str]:
    """Returns the metrics of train and held-out data, losses first, without "train/" and "eval/".

    Leaves out "loss" if it is always the same as another loss.
    """
    keys = dict.fromkeys(key for line in metrics for key in line)
    found = [key.split("/")[1] for key in keys
             if key.startswith(("train/", "eval/")) and key.count("/") == 1]  # fmt: skip
    found = [name for name in dict.fromkeys(found) if name not in _HIDDEN]
    losses = [name for name in found if name.endswith("_loss")]
    others = [name for name in found if name not in (*losses, "loss")]
    is_total = not any(_same(metrics, "loss", name) for name in losses)
    return ["loss"] * ("loss" in found and is_total) + losses + others


def _same(metrics: Metrics, one: str, other: str) -> bool:
    return all(
        np.array_equal(series(metrics, f"{kind}/{one}")[1], series(metrics, f"{kind}/{other}")[1],
                       equal_nan=True)
        for kind in ("train", "eval")
    )  # fmt: skip


def sources(metrics: Metrics) -> list[str]:
    """Returns the names of the sources whose held-out data was evaluated."""
    keys = dict.fromkeys(key for line in metrics for key in line)
    parts = [key.split("/") for key in keys if key.startswith("eval/") and key.count("/") == 2]
    return [name for name in dict.fromkeys(part[1] for part in parts) if name != _EMA]


def figures(metrics: Metrics, borders: Sequence[float] = ()) -> page.Html:
    """Returns the charts of a run. borders: the steps after which the phase changes."""
    shown = []
    for name in names(metrics):
        drawn = _train_and_heldout(metrics, name)
        if name.endswith("loss") and name == _main_loss(metrics):
            reference = series(metrics, "eval/unigram_loss")
            drawn.append(charts.Line("unigram model", *reference, "#7a7a7a", dashed=True))
        percent = name.endswith("_accuracy")
        shown.append(charts.lines(title_of(name), drawn, borders=borders, percent=percent))
    by_source = sources(metrics)
    for name in names(metrics) if by_source else ():
        drawn = [charts.Line(s, *series(metrics, f"eval/{s}/{name}")) for s in by_source]
        title = f"{title_of(name)} by source, held-out"
        percent = name.endswith("_accuracy")
        shown.append(charts.lines(title, drawn, borders=borders, percent=percent))
    keys = dict.fromkeys(key for line in metrics for key in line)
    read = [key.split("/")[1] for key in keys if key.startswith("data/") and "/epochs" in key]
    drawn = [charts.Line(name, *series(metrics, f"data/{name}/epochs")) for name in read]
    shown.append(charts.lines("Epochs read by source", drawn, borders=borders, from_zero=True))
    for name in _QUANTITIES:
        line = charts.Line("last", *series(metrics, name))
        if name == "skipped" and not np.any(np.asarray(line.values) > 0):
            continue
        shown.append(
            charts.lines(
                title_of(name),
                [line],
                borders=borders,
                percent=name in _SHARES,
                from_zero=name != "grad_norm",
            )
        )
    body = page.joined(shown)
    return page.element("div", body, style="charts") if body else body


def _main_loss(metrics: Metrics) -> str:
    """Returns the name of the loss to which the unigram model's loss compares."""
    losses = [name for name in names(metrics) if name.endswith("_loss")]
    return losses[0] if losses else "loss"


def _train_and_heldout(metrics: Metrics, name: str) -> list[charts.Line]:
    colours = charts.COLOURS
    return [
        charts.Line("train", *series(metrics, f"train/{name}"), colours[0]),
        charts.Line("held-out", *series(metrics, f"eval/{name}"), colours[1]),
        charts.Line("moving average", *series(metrics, f"eval/{_EMA}/{name}"), colours[1],
                    dashed=True),
    ]  # fmt: skip
