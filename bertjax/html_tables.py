"""Formats small tables as HTML, which notebooks show as the value of a cell.

html_tables.table(["piece", "probability"], [["cat", "0.21"]], caption="likeliest pieces")
"""

import html
from collections.abc import Sequence
from typing import Any

_STYLE = "border-collapse:collapse;font-size:90%"
_CELL = "padding:2px 8px;border-bottom:1px solid #d0d0d0"
_LONGEST = 120  # characters of a cell
_SHADE = "59,118,175"  # red, green and blue of a cell with shade 1


class Numbers(dict[str, float]):
    """A dict of numbers, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return table(["", "value"], [[name, _text(value)] for name, value in self.items()])


class Records(list[dict[str, Any]]):
    """A list of dicts, which a notebook shows as a table: a row for each, a column for each key."""

    def _repr_html_(self) -> str:
        keys = list(dict.fromkeys(key for record in self for key in record))
        return table(
            keys, [[_text(record[key]) if key in record else "" for key in keys] for record in self]
        )


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


def _text(value: Any) -> str:
    """Returns the text of a cell: numbers with four digits; long texts are truncated."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(v)}" for key, v in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
