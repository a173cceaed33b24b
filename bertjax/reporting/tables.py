"""Tables of a report, and the numbers in them as text."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bertjax.reporting import page


def facts(rows: Mapping[str, Any]) -> page.Html:
    """Returns a table of names and values; leaves out values that are "" or None."""
    lines = [
        page.element("tr", page.element("th", name), page.element("td", value))
        for name, value in rows.items()
        if value not in ("", None)
    ]
    return page.element("table", *lines, style="facts") if lines else page.Html("")


def table(
    header: Sequence[Any],
    rows: Sequence[Sequence[Any]],
    *,
    left: int = 1,
    marked: Collection[int] = (),
) -> page.Html:
    """Returns a table that scrolls sideways on a narrow screen; "" if there are no rows.

    Leaves out columns whose cells are all empty. left: how many columns are aligned left; the
    others are aligned right. marked: indices of the rows to highlight. A cell that is a `Good` is
    highlighted too.
    """
    kept = [i for i in range(len(header)) if any(row[i] != "" for row in rows)]
    left = sum(i < left for i in kept)
    header, rows = [header[i] for i in kept], [[row[i] for i in kept] for row in rows]
    if not rows:
        return page.Html("")
    lines = [_row("th", header, left, "")]
    lines += [
        _row("td", row, left, "marked" if number in marked else "")
        for number, row in enumerate(rows)
    ]
    return page.element("div", page.element("table", *lines), style="scroll")


class Good(page.Html):
    """The markup of a cell that is highlighted as right."""


def _row(name: str, cells: Sequence[Any], left: int, style: str) -> page.Html:
    def style_of(column: int, cell: Any) -> str:
        return " ".join(["l"] * (column < left) + ["good"] * isinstance(cell, Good))

    parts = (page.element(name, cell, style=style_of(i, cell)) for i, cell in enumerate(cells))
    return page.element("tr", *parts, style=style)


def number(value: float | None) -> str:
    """Returns a number as text: 1,234,567, 0.0312 or 1.2e-05; "" for None, "-" if not finite."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:.3g}"


def short(value: float) -> str:
    """Returns a large number in few characters, such as 4.4M or 12.3k."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def share(value: float) -> str:
    """Returns a share as a percentage; a small one with as many digits as it needs."""
    return f"{100 * value:.3g}%"
