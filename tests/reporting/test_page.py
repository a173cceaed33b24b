"""The parts of a page: text cannot become markup, and charts show what they are given."""

import math
import re

import numpy as np
import pytest

from bertjax.reporting import charts, curves, page, tables

EVIL = '<script>alert("1")</script>&'


def test_text_is_escaped_wherever_it_is_inserted():
    parts = [
        page.section(EVIL, page.note(EVIL), page.code(EVIL), page.bullets([EVIL])),
        page.details(EVIL, EVIL),
        page.tiles({EVIL: EVIL}),
        tables.facts({EVIL: EVIL}),
        tables.table([EVIL, ""], [[EVIL, tables.Good(page.text(EVIL))]]),
        charts.lines(EVIL, [charts.Line(EVIL, [1, 2], [3, 4])], EVIL),
        charts.histogram(EVIL, [1, 2, 3], [4, 5], EVIL),
        charts.spreads(EVIL, [charts.Spread(EVIL, [1, 2], [3, 4], [1, None])], {EVIL: 3.5}),
        charts.dots(EVIL, [(EVIL, [3, 4])], {EVIL: 3.5}),
        page.link(EVIL, f'"{EVIL}'),
        page.command("bertjax pretrain '<u>'"),
    ]
    text = page.document(EVIL, EVIL, parts)
    assert "<script" not in text and "<u>" not in text
    assert text.count("&lt;script&gt;") > 20


def test_empty_parts_leave_no_trace():
    assert page.section("Curves", charts.lines("loss", [charts.Line("a", [], [])])) == ""
    assert tables.table(["a"], []) == tables.facts({"a": ""}) == page.bullets([]) == ""
    assert charts.histogram("n", [1, 2], [0], "x") == ""
    assert charts.dots("n", [("a", [math.nan])], {"b": 1.0}) == ""
    assert charts.spreads("n", [charts.Spread("a", [1e-3], [50.0], [1.0])], {}) == ""
    text = tables.table(["a", "b", "c"], [["1", "", "3"], ["4", "", "6"]], left=2)
    assert "b" not in re.sub(r"<[^>]*>", "", text), "a column without values"


def points(svg: str) -> np.ndarray:
    line = re.search(r'd="M([^"HV]*)" fill="none"', svg)[1]
    return np.array(line.split(), float).reshape(-1, 2)


def test_a_long_line_is_averaged_and_stays_in_the_chart():
    steps = np.arange(5_000)
    values = np.where(steps % 97 == 0, math.nan, np.exp(-steps / 900))
    xy = points(charts.lines("loss", [charts.Line("train", steps, values)]))
    assert len(xy) == charts.MAX_POINTS
    assert (np.diff(xy[:, 0]) > 0).all() and (np.diff(xy[:, 1]) >= 0).all(), "it falls"
    assert 0 < xy.min() and xy[:, 0].max() <= 360 and xy[:, 1].max() <= 210


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [0.0, 0.0], [1e-9, 1e9], [-3.0, math.inf]])
def test_odd_values_are_drawn(values):
    svg = charts.lines("x", [charts.Line("a", range(len(values)), values)])
    numbers = [float(n) for n in re.findall(r'(?:x|y|cx|cy)="([\d.e+-]+)"', svg)]
    assert numbers and all(-1 <= n <= 361 for n in numbers) and "nan" not in svg.lower()


def test_means_over_rates_have_bars_of_their_deviation():
    rates, means = [1e-5, 1e-4, 1e-3], [50.0, 60.0, math.nan]
    drawn = [charts.Spread("full", rates, means, [5.0, None, None]),
             charts.Spread("lora", [1e-3], [80.0], [10.0])]  # fmt: skip
    svg = charts.spreads("accuracy", drawn, {"majority": 14.0})
    assert [f">{text}<" in svg for text in ("1e-5", "1e-4", "1e-3", "0.001")] == [1, 1, 1, 0]
    assert svg.count("<circle") == 3 and "majority 14.00" in svg
    line = points(svg)
    circles = np.array(re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg), float)
    assert (line == circles[:2]).all()
    (low, high), (other_low, other_high) = (
        sorted(map(float, bar)) for bar in re.findall(r'd="M[\d.]+ ([\d.]+)V([\d.]+)" stroke=', svg)
    )
    unit = (circles[0, 1] - circles[1, 1]) / 10
    assert (high - low) == pytest.approx(10 * unit, abs=0.2)
    assert (other_high - other_low) == pytest.approx(20 * unit, abs=0.2)


def test_dots_have_a_row_for_each_label():
    svg = charts.dots("seeds", [("a", [1.0, 3.0]), ("b" * 90, [2.0])], {"bag": 2.0}, marked=1)
    rows = [float(y) for y in re.findall(r'cy="([\d.]+)"', svg)]
    assert rows[0] == rows[1] < rows[2] and "b" * 55 + "..." in svg
    assert svg.count(charts.COLOURS[1]) == 2, "the dot and the mean of the marked row"


def test_metrics_become_charts_by_objective_and_source():
    metrics = [
        {"step": step, "train/loss": 5.0, "train/mlm_loss": 5.0, "eval/loss": 4.0,
         "eval/mlm_loss": 4.0, "eval/web/mlm_loss": 3.0, "eval/books/mlm_loss": 5.0,
         "eval/ema/mlm_loss": 3.5, "eval/unigram_loss": 6.0, "eval/samples": 8.0,
         "data/web/epochs": step / 10, "learning_rate": 1e-3, "mfu": 0.4, "data_wait": 0.02,
         "skipped": 0.0}
        for step in (5, 10, 15)
    ]  # fmt: skip
    assert curves.names(metrics) == ["mlm_loss"], "the sum of one loss is that loss"
    assert curves.sources(metrics) == ["web", "books"]
    text = curves.figures(metrics, borders=[8])
    assert re.findall(r'aria-label="([^"]*)"', text) == [
        "Masked language model loss", "Masked language model loss by source, held-out",
        "Epochs read by source", "Learning rate", "Model FLOP utilisation (MFU)",
        "Share of time waiting for data",
    ]  # fmt: skip
    assert "moving average 3.5" in text and "unigram model 6" in text and "40%" in text
    assert text.count('stroke-dasharray="2 3"') == 6, "the border of the phases is in every chart"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1,234,567"), (0.03125, "0.03125"), (1.234e-5, "1.23e-05"), (math.nan, "-"),
     (None, ""), (12345.678, "12,345.7"), (3.0, "3")],
)  # fmt: skip
def test_numbers_as_text(value, text):
    assert tables.number(value) == text
