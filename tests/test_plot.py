"""Curves: a PNG with what the run has measured, and nothing else."""

import math

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from bertjax import errors, plot


def make_metrics(num_steps: int, **extra: float) -> list[dict[str, float]]:
    metrics: list[dict[str, float]] = []
    for step in range(1, num_steps + 1):
        metrics.append({"step": step, "train/mlm_loss": 10 - step / num_steps, **extra})
        if step % 5 == 0:
            metrics.append({"step": step, "eval/mlm_loss": 10.5 - step / num_steps})
    return metrics


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that are saved while the test runs."""
    saved = []
    save = Figure.savefig

    def remember(figure, *arguments, **options):
        saved.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    return saved


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_curves_are_a_png_with_every_measured_panel(tmp_path, figures):
    extra = {"train/mlm_accuracy": 0.1, "train/nsp_accuracy": 0.5, "train/bits_per_byte": 2.0}
    metrics = make_metrics(40, **extra, learning_rate=1e-4, tokens_per_second=12_000)
    metrics[-1]["eval/unigram_loss"] = 9.7
    plot.curves(metrics, tmp_path / "curves.png", title="bert mini")
    pixels = image.imread(tmp_path / "curves.png")
    assert pixels.shape[1] > pixels.shape[0] > 500 and pixels[..., :3].std() > 0.01
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]
    assert titles(figures[0]) == [
        "bert mini: masked language model loss",
        "Bits per byte of text",
        "MLM accuracy",
        "NSP accuracy",
        "Learning rate",
        "Tokens/s",
    ]
    losses = figures[0].axes[0]
    assert [text.get_text() for text in losses.texts] == ["unigram model 9.70"]
    legend = [text.get_text() for text in losses.get_legend().get_texts()]
    assert legend == ["train, last 9.00", "held-out, last 9.50"]
    metrics.append({"step": 40, "eval/ema/mlm_loss": 9.25, "eval/ema/mlm_accuracy": 0.2})
    plot.curves(metrics, tmp_path / "curves.png")
    assert titles(figures[1])[1:] == titles(figures[0])[1:]
    legend = [text.get_text() for text in figures[1].axes[0].get_legend().get_texts()]
    assert legend[2:] == ["held-out, moving average, last 9.25"]


def test_each_phase_has_its_border_and_its_unigram_loss(tmp_path, figures):
    metrics = [
        {"step": step, "phase": 1.0 + (step > 6), "train/mlm_accuracy": step / 80,
         "train/mlm_loss": 9.0 - (step > 6), "eval/unigram_loss": 7.0 if step > 6 else 6.5}
        for step in range(1, 101)
    ]  # fmt: skip
    plot.curves(metrics, tmp_path / "curves.png")
    losses, accuracy = figures[0].axes
    dashed = [line for line in losses.get_lines() if line.get_linestyle() == "--"]
    levels = [(list(line.get_xdata()), set(line.get_ydata())) for line in dashed]
    assert levels == [([0, 6], {6.5}), ([6, 100], {7.0})]
    smoothed = next(line for line in losses.get_lines() if line.get_label().startswith("train"))
    assert list(smoothed.get_ydata()) == [9.0] * 6 + [8.0] * 94, "phases are not mixed"
    for axes in (losses, accuracy):
        dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert [list(line.get_xdata()) for line in dotted] == [[6, 6]]
    percent = accuracy.yaxis.get_major_formatter()
    assert [percent(value, 0) for value in (0.025, 0.05, 0.0001)] == ["2.5%", "5%", "0.01%"]


def test_scores_of_layers_have_the_range_of_their_seeds(tmp_path, figures):
    names = ["embeddings", *(f"layer {n}" for n in range(1, 25))]
    lines = {"accuracy": [[70.0, 80.0]] * 25, "control task": [[60.0, 70.0]] * 25}
    differences = [[10.0, 10.0]] * 25
    plot.by_layer(names, lines, differences, {"majority": 50.0}, tmp_path / "a.png", title="mini")
    upper, lower = figures[0].axes
    assert titles(figures[0]) == ["mini", "Selectivity: accuracy minus control accuracy"]
    assert [set(line.get_ydata()) for line in upper.get_lines()] == [{75.0}, {65.0}, {50.0}]
    (shade, _) = upper.collections
    assert set(shade.get_paths()[0].vertices[:, 1]) == {70.0, 80.0}
    legend = [text.get_text() for text in upper.get_legend().get_texts()]
    assert legend == ["accuracy", "control task", "majority, 50.0"]
    ticks = [text.get_text() for text in lower.get_xticklabels()]
    assert ticks[:2] == ["embeddings", "2"] and len(ticks) <= 16
    plot.by_layer(names, {"a": [[1.0]] * 25}, [[0.0]] * 25, {}, tmp_path / "a.png")
    assert not figures[1].axes[0].collections, "one seed has no range"


def test_what_was_not_measured_has_no_panel(tmp_path, figures):
    plot.curves(make_metrics(10), tmp_path / "curves.png")
    assert titles(figures[0]) == ["Masked language model loss"]
    assert not figures[0].axes[0].texts


def test_one_point_and_non_finite_losses_are_drawn_around(tmp_path, figures):
    metrics = [{"step": 1, "train/mlm_loss": 9.0}, {"step": 2, "train/mlm_loss": math.nan}]
    plot.curves(metrics, tmp_path / "curves.png")
    line = figures[0].axes[0].get_lines()[-1]
    assert list(line.get_ydata()) == [9.0] and line.get_marker() == "o"


@pytest.mark.parametrize("metrics", [[], [{"step": 1, "learning_rate": 1e-4}]])
def test_no_loss_is_one_line(tmp_path, metrics):
    with pytest.raises(errors.UserError, match=r"curves.png: not drawn, because"):
        plot.curves(metrics, tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


def test_smoothing_keeps_a_straight_line_straight():
    line = np.linspace(5.0, 1.0, 200)
    np.testing.assert_allclose(plot._smooth(line), line)
    noisy = line + np.random.default_rng(0).normal(size=200)
    assert np.abs(plot._smooth(noisy) - line)[10:-10].max() < 1.5
    assert np.std(np.diff(plot._smooth(noisy))) < np.std(np.diff(noisy)) / 3
