"""Charts of lines, points and bars as inline SVG, without JavaScript.

    charts.lines("Loss", [charts.Line("train", steps, losses)], "step", borders=[900])

The coordinates are those of a phone: a chart is 360 units wide, and the page puts as many side by
side as fit.
"""

import dataclasses
import html
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertjax.reporting import page, tables

COLOURS = ("#3b76af", "#d1622b", "#4a9a5b", "#8a5fb0", "#b8912a", "#c2527f", "#3f9c9c", "#7a7a7a")
_WIDTH, _HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 22
_ROW = 32  # height of a row of dots
_LONGEST = 58  # characters of the label of such a row
_REFERENCE = "#59636e"
_DASHES, _CSS_DASHES = ("6 3", "2 3"), ("dashed", "dotted")
MAX_POINTS = 160  # of a line; more are averaged


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart. values that are not finite are left out. dashed: drawn with dashes."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: str = ""
    dashed: bool = False


def lines(
    title: str,
    drawn: Sequence[Line],
    unit: str = "step",
    *,
    borders: Sequence[float] = (),
    percent: bool = False,
    from_zero: bool = False,
) -> page.Html:
    """Returns a chart of the lines with a legend; "" if no line has a point.

    unit: the name of the horizontal axis. borders: positions of dotted vertical lines. percent:
    whether the values are shares. from_zero: whether the vertical axis begins at 0.
    """
    points = [(line, *_thinned(line)) for line in drawn]
    points = [(line, x, y) for line, x, y in points if x.size]
    if not points:
        return page.Html("")
    all_x, all_y = (np.concatenate([p[axis] for p in points]) for axis in (1, 2))
    plane = _Plane(min(0.0, float(all_x.min())), float(all_x.max()), *_range(all_y, from_zero))
    parts = [*plane.grid(tables.share if percent else _tick_text, unit)]
    parts += [f'<path d="M{plane.x(step):.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#9aa4ae" '
              'stroke-dasharray="2 3"/>'
              for step in borders if plane.low_x < step < plane.high_x]  # fmt: skip
    keys = []
    for number, (line, x, y) in enumerate(points):
        colour = line.colour or COLOURS[number % len(COLOURS)]
        parts.append(plane.line(x, y, colour, dashed=line.dashed))
        last = tables.share(y[-1]) if percent else tables.number(float(f"{y[-1]:.4g}"))
        style = "dashed" if line.dashed else "solid"
        keys.append(_key(colour, style, f"{line.label} {last}"))
    return _figure(title, parts, page.element("div", *keys, style="key"))


@dataclasses.dataclass(frozen=True)
class Spread:
    """Means with their deviations, of which `spreads` draws a line with vertical bars.

    deviations: half the length of each bar; None: no bar.
    """

    label: str
    positions: Sequence[float]
    means: Sequence[float]
    deviations: Sequence[float | None]


def spreads(title: str, drawn: Sequence[Spread], references: Mapping[str, float]) -> page.Html:
    """Returns a chart of means over a logarithmic axis; "" if there are not two positions.

    The axis is labelled at the positions. references: {name: value}, drawn as horizontal lines.
    """
    drawn = [_finite(spread) for spread in drawn]
    positions = sorted({x for spread in drawn for x in spread.positions})
    if len(positions) < 2:
        return page.Html("")
    ends = [mean + sign * (deviation or 0.0) for spread in drawn for sign in (-1, 1)
            for mean, deviation in zip(spread.means, spread.deviations, strict=True)]  # fmt: skip
    low, high = math.log10(positions[0]), math.log10(positions[-1])
    margin = 0.08 * (high - low)
    heights = np.array([*ends, *references.values()])
    plane = _Plane(low - margin, high + margin, *_range(heights, False))
    parts = plane.grid(_tick_text, "", bottom=False)
    labelled = -math.inf
    for position in positions:
        place = plane.x(math.log10(position))
        if place - labelled > 34:
            parts.append(_text(place, _HEIGHT - 7, _tick_text(position), "middle"))
            labelled = place
    keys = []
    for number, spread in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)]
        shift = 3.0 * (number - (len(drawn) - 1) / 2)  # so that bars do not hide each other
        shift *= (plane.high_x - plane.low_x) / (_WIDTH - _LEFT - _RIGHT)
        x = np.array([math.log10(position) + shift for position in spread.positions])
        if x.size > 1:
            parts.append(plane.line(x, np.array(spread.means), colour, dashed=False))
        for place, mean, deviation in zip(x, spread.means, spread.deviations, strict=True):
            parts.append(plane.dot(place, mean, colour))
            if deviation:
                top, bottom = plane.y(mean + deviation), plane.y(mean - deviation)
                parts.append(f'<path d="M{plane.x(place):.1f} {top:.1f}V{bottom:.1f}" '
                             f'stroke="{colour}"/>')  # fmt: skip
        keys.append(_key(colour, "solid", spread.label))
    for number, (name, value) in enumerate(references.items()):
        parts.append(
            f'<path d="M{_LEFT} {plane.y(value):.1f}H{_WIDTH - _RIGHT}" stroke="{_REFERENCE}" '
            f'stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/>'
        )
        keys.append(_key(_REFERENCE, _CSS_DASHES[number % len(_DASHES)], f"{name} {value:.2f}"))
    return _figure(title, parts, page.element("div", *keys, style="key"))


def _finite(spread: Spread) -> Spread:
    """Returns the spread without the positions whose mean is not finite."""
    kept = [i for i, mean in enumerate(spread.means) if math.isfinite(mean)]
    return Spread(spread.label, *([values[i] for i in kept] for values in
                                  (spread.positions, spread.means, spread.deviations)))  # fmt: skip


def dots(
    title: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    references: Mapping[str, float],
    marked: int = -1,
) -> page.Html:
    """Returns a chart with a row for each (label, values): a dot a value, and a bar at their mean.

    Values that are not finite are left out; "" if none is left. references: {name: value}, drawn
    as vertical lines. marked: the row in another colour.
    """
    shown = [(label, [v for v in values if math.isfinite(v)]) for label, values in rows]
    every = [value for _, values in shown for value in values]
    if not every:
        return page.Html("")
    height = _TOP + _ROW * len(shown) + _BOTTOM
    low, high = _range(np.array([*every, *references.values()]), False)
    plane = _Plane(low, high, 0.0, 1.0, left=_RIGHT)
    parts = []
    for value in _ticks(low, high, 5):
        x = plane.x(value)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{height - _BOTTOM}" stroke="#e6e9ec"/>')
        if 12 < x < _WIDTH - 12:
            parts.append(_text(x, height - 7, _tick_text(value), "middle"))
    keys = []
    for number, (name, value) in enumerate(references.items()):
        parts.append(
            f'<path d="M{plane.x(value):.1f} {_TOP}V{height - _BOTTOM}" stroke="{_REFERENCE}" '
            f'stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/>'
        )
        keys.append(_key(_REFERENCE, _CSS_DASHES[number % len(_DASHES)], f"{name} {value:.2f}"))
    for number, (label, values) in enumerate(shown):
        colour = COLOURS[1] if number == marked else COLOURS[0]
        top = _TOP + _ROW * number
        text = label if len(label) <= _LONGEST else label[: _LONGEST - 3] + "..."
        parts.append(_text(_RIGHT, top + 11, text, "start"))
        middle = top + 22
        parts += [f'<circle cx="{plane.x(value):.1f}" cy="{middle}" r="3.5" fill="{colour}" '
                  'fill-opacity="0.55"/>' for value in values]  # fmt: skip
        if values:
            mean = plane.x(sum(values) / len(values))
            parts.append(f'<path d="M{mean:.1f} {middle - 7}V{middle + 7}" stroke="{colour}" '
                         'stroke-width="2"/>')  # fmt: skip
    return _figure(title, parts, page.element("div", *keys, style="key"), height)


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[int], unit: str
) -> page.Html:
    """Returns a chart with a bar for each bin; "" if all are empty.

    edges: of the bins, one more than `counts`. The bins have the same width on the page.
    """
    if not sum(counts):
        return page.Html("")
    plane = _Plane(0.0, float(len(counts)), 0.0, max(counts) * 1.05)
    parts = [*plane.grid(_tick_text, unit, bottom=False)]
    for i, count in enumerate(counts):
        left, top = plane.x(i + 0.06), plane.y(count)
        parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" width="{plane.x(i + 0.94) - left:.1f}" '
                     f'height="{plane.y(0) - top:.1f}" fill="{COLOURS[0]}"/>')  # fmt: skip
    every = math.ceil(len(edges) / 6)
    for i in range(0, len(edges) - 2, every):  # the name of the axis is at the end
        parts.append(_text(plane.x(i), _HEIGHT - 7, _tick_text(edges[i]), "middle"))
    return _figure(title, parts)


class _Plane:
    """The coordinates of a chart."""

    def __init__(
        self, low_x: float, high_x: float, low_y: float, high_y: float, *, left: float = _LEFT
    ):
        self.left = left
        self.low_x, self.high_x = low_x, high_x if high_x > low_x else low_x + 1
        self.low_y, self.high_y = low_y, high_y if high_y > low_y else low_y + 1

    def x(self, value: float) -> float:
        """Returns the horizontal position of a value."""
        width = _WIDTH - self.left - _RIGHT
        return self.left + width * (value - self.low_x) / (self.high_x - self.low_x)

    def y(self, value: float) -> float:
        """Returns the vertical position of a value."""
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + height * (self.high_y - value) / (self.high_y - self.low_y)

    def grid(
        self, written: Callable[[float], str], unit: str, *, bottom: bool = True
    ) -> list[str]:
        """Returns the grid lines and the labels of the axes; `bottom`: with numbers below."""
        parts = []
        for value in _ticks(self.low_y, self.high_y, 4):
            y = self.y(value)
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e6e9ec"/>')
            parts.append(_text(_LEFT - 5, y + 4, written(value), "end"))
        edge = self.x(self.high_x)
        for value in _ticks(self.low_x, self.high_x, 4) if bottom else ():
            if self.x(value) < edge - 34:
                parts.append(_text(self.x(value), _HEIGHT - 7, _tick_text(value), "middle"))
        parts.append(_text(edge, _HEIGHT - 7, unit, "end"))
        return parts

    def line(self, x: np.ndarray, y: np.ndarray, colour: str, *, dashed: bool) -> str:
        """Returns a line through the points; a dot if there is only one."""
        if x.size == 1:
            return self.dot(x[0], y[0], colour)
        points = " ".join(f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in zip(x, y, strict=True))
        dash = ' stroke-dasharray="5 3"' if dashed else ""
        return (
            f'<path d="M{points}" fill="none" stroke="{colour}" stroke-width="1.7"'
            f' stroke-linejoin="round"{dash}/>'
        )


    def dot(self, x: float, y: float, colour: str) -> str:
        """Returns a dot at a point."""
        return f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}"/>'


def _key(colour: str, style: str, label: str) -> page.Html:
    """Returns the entry of a line in the legend. style: solid, dashed or dotted."""
    swatch = page.Html(f'<i style="border-top-color:{colour};border-top-style:{style}"></i>')
    return page.element("span", swatch, label)


def _figure(
    title: str, parts: Sequence[str], key: page.Html | str = "", height: int = _HEIGHT
) -> page.Html:
    svg = page.Html(
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
    return page.element("figure", page.element("figcaption", title), svg, key)


def _text(x: float, y: float, content: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(content)}</text>'


def _thinned(line: Line) -> tuple[np.ndarray, np.ndarray]:
    """Returns the finite points of a line; if they are many, the means of neighbours."""
    x, y = np.asarray(line.steps, float), np.asarray(line.values, float)
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if x.size <= MAX_POINTS:
        return x, y
    parts = np.array_split(np.arange(x.size), MAX_POINTS)
    means = [np.array([values[part].mean() for part in parts]) for values in (x, y)]
    return means[0], means[1]


def _range(values: np.ndarray, from_zero: bool) -> tuple[float, float]:
    """Returns the ends of the vertical axis, with a margin around the values."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (min(0.0, low) if from_zero or 0 <= low < 0.1 * high else low - margin), high + margin


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Returns about `count` round numbers between `low` and `high`."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def _tick_text(value: float) -> str:
    if abs(value) >= 1000:
        return tables.short(value)
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"
