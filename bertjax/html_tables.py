"""Formats small tables as HTML, which notebooks show as the value of a cell.

html_tables.table(["piece", "probability"], [["cat", "0.21"]], caption="likeliest pieces")
"""

import html
from collections.abc import Sequence
from typing import Any

_STYLE = "border-collapse:collapse;font-size:90%"
_CELL = "padding:2px 8px;border-bottom:1px solid #d0d0d0"
_SHADE = "59,118,175"  # red, green and blue of a cell with shade 1


class Numbers(dict[str, float]):
    """A dict of numbers, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return table(["", "value"], [[name, f"{value:.4g}"] for name, value in self.items()])


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    *,
    shades: Any = None,
) -> str:
    """Returns an HTML table; all texts are escaped.

    header: the names of the columns, of which all but the first are aligned to the right; []: no
    header, and all columns are aligned to the left. shades: how dark the background of each cell
    is, numbers from 0 to 1 for all columns except the first, [rows, columns - 1].
    """
    parts = [f'<table style="{_STYLE}">']
    if caption:
        parts.append(f'<caption style="text-align:left">{html.escape(caption)}</caption>')
    if header:
        parts.append(_row("th", header, "right", None))
    for number, row in enumerate(rows):
        shade = None if shades is None else shades[number]
        parts.append(_row("td", row, "right" if header else "left", shade))
    return "".join([*parts, "</table>"])


def _row(tag: str, cells: Sequence[str], align: str, shades: Any) -> str:
    parts = []
    for number, cell in enumerate(cells):
        style = f"{_CELL};text-align:{align if number else 'left'}"
        if shades is not None and number:
            style += f";background:rgba({_SHADE},{float(shades[number - 1]):.2f})"
        parts.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(parts)}</tr>"
