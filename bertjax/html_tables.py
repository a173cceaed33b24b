"""Formats small tables as HTML, which notebooks show as the value of a cell.

    html_tables.table(["piece", "probability"], [["cat", "0.21"]], caption="likeliest pieces")
"""

import html
from collections.abc import Sequence
from typing import Any

_STYLE = "border-collapse:collapse;font-size:90%"
_CELL = "padding:2px 8px;border-bottom:1px solid #d0d0d0"
_SHADE = "59,118,175"  # red, green and blue of a cell with shade 1


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    *,
    shades: Any = None,
) -> str:
    """Returns an HTML table; all texts are escaped. The first column is aligned to the left.

    header: the names of the columns; [] for none. shades: numbers from 0 to 1 for all cells except
    the first column, [rows, columns - 1]: how dark the background of each cell is.
    """
    parts = [f'<table style="{_STYLE}">']
    if caption:
        parts.append(f'<caption style="text-align:left">{html.escape(caption)}</caption>')
    if header:
        parts.append(_row("th", header, None))
    for number, row in enumerate(rows):
        parts.append(_row("td", row, None if shades is None else shades[number]))
    return "".join([*parts, "</table>"])


def _row(tag: str, cells: Sequence[str], shades: Any) -> str:
    parts = []
    for number, cell in enumerate(cells):
        style = f"{_CELL};text-align:{'right' if number else 'left'}"
        if shades is not None and number:
            style += f";background:rgba({_SHADE},{float(shades[number - 1]):.2f})"
        parts.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(parts)}</tr>"
