"""One self-contained HTML page: the style sheet is inside, and nothing is loaded from elsewhere.

    page.document("run", "bert, step 1,000", [page.section("Scores", page.note("none yet"))])

Text is escaped wherever it is inserted, except `Html`, which is markup already.
"""

import html
import shlex
import urllib.parse
from collections.abc import Iterable
from typing import Any


class Html(str):
    """Markup, which is inserted as it is."""


_STYLE = """
:root{--ink:#1f2328;--soft:#59636e;--line:#d9dee3;--pale:#f5f7f9;--mark:#fff1cf;--good:#dcf3e0;
--accent:#3b76af}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:1080px;padding:20px 24px 48px;color:var(--ink);background:#fff;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6em;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15em;margin:36px 0 10px;padding-bottom:4px;border-bottom:1px solid var(--line)}
a{color:var(--accent)}
h3{font-size:1em;margin:20px 0 6px}
p{margin:6px 0}
.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;
margin:18px 0 0}
.tile{background:var(--pale);border-radius:8px;padding:8px 12px}
.tile b{display:block;font-size:1.2em;line-height:1.3;overflow-wrap:anywhere}
.tile span{color:var(--soft);font-size:.85em}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9em;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:4px 12px 4px 0;vertical-align:top;
border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft)}
.l{text-align:left;overflow-wrap:break-word}
td.l{max-width:34em}
.scroll td,.scroll th{white-space:nowrap}
.scroll td.l{white-space:normal}
.wide td.l:first-child{min-width:13em}
tr.marked td{background:var(--mark)}
td.good{background:var(--good)}
.facts{width:100%}
.facts th{text-align:left;font-weight:400;width:11em;white-space:normal}
.facts td{text-align:left;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));
gap:18px 24px;margin-top:8px}
figure{margin:0;break-inside:avoid}
figcaption{font-weight:600;font-size:.9em}
svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--soft);paint-order:stroke;stroke:#fff;
stroke-width:3px}
.key{font-size:.8em;color:var(--soft);line-height:1.4}
.key span{white-space:nowrap;margin-right:12px}
.key i{display:inline-block;width:16px;border-top:3px solid;vertical-align:middle;margin-right:5px}
pre{background:var(--pale);border-radius:8px;padding:10px 12px;white-space:pre-wrap;
overflow-wrap:anywhere;font-size:.85em;margin:8px 0}
code,pre,.text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.text{font-size:.85em;overflow-wrap:anywhere;margin:6px 0}
mark{background:var(--mark);border-radius:3px;padding:0 3px;color:inherit}
details{margin:8px 0}
summary{cursor:pointer;color:var(--accent)}
ul{margin:6px 0;padding-left:1.3em}
@media (max-width:480px){body{padding:14px 14px 40px}.facts th{width:7.5em}
.tiles{grid-template-columns:repeat(2,1fr)}th,td{padding-right:9px}
.wide td.l:first-child{min-width:11em}}
@media print{body{max-width:none;padding:0;font-size:11px}h2{break-after:avoid}
.scroll{overflow:visible}.charts{grid-template-columns:repeat(2,1fr)}
tr,.tile,mark{break-inside:avoid;-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""


def text(value: Any) -> Html:
    """Returns `value` as markup: escaped, unless it is `Html`."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def joined(parts: Iterable[Any], separator: str = "") -> Html:
    """Returns the parts as markup, one after the other; leaves out empty ones."""
    return Html(text(separator).join(text(part) for part in parts if part != ""))


def element(name: str, *parts: Any, style: str = "") -> Html:
    """Returns an HTML element with these parts inside. style: the value of `class`."""
    attribute = f' class="{html.escape(style)}"' if style else ""
    return Html(f"<{name}{attribute}>{joined(parts)}</{name}>")


def section(title: str, *parts: Any) -> Html:
    """Returns a section with a heading; "" if all parts are empty."""
    body = joined(parts)
    return Html(element("section", element("h2", title), body)) if body else Html("")


def note(content: Any) -> Html:
    """Returns a paragraph in soft print."""
    return element("p", content, style="soft")


def link(content: Any, target: str) -> Html:
    """Returns a link to `target`, a path beside the page. Nothing is loaded before a click."""
    return Html(f'<a href="{html.escape(urllib.parse.quote(target))}">{text(content)}</a>')


def bullets(lines: Iterable[Any]) -> Html:
    """Returns a list of lines; "" if there are none."""
    items = joined(element("li", line) for line in lines)
    return element("ul", items) if items else Html("")


def code(content: str) -> Html:
    """Returns a block of code, which wraps on a narrow screen."""
    return element("pre", content)


def command(line: str) -> Html:
    """Returns a command as a block of code with a flag per line, ready to be copied."""
    program, verb, *flags = shlex.split(line)
    words = [f"{program} {verb}", *map(shlex.quote, flags)]
    return code(" \\\n  ".join(words))


def details(summary: str, *parts: Any) -> Html:
    """Returns a part that is folded until the reader opens it."""
    return element("details", element("summary", summary), *parts)


def tiles(values: dict[str, str]) -> Html:
    """Returns a row of boxes, each with a value in large print and its name."""
    boxes = (
        element("div", element("b", value), element("span", name), style="tile")
        for name, value in values.items()
    )
    return element("div", *boxes, style="tiles")


def document(title: str, subtitle: str, parts: Iterable[Any]) -> str:
    """Returns the whole page."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>"
    )
    header = element("header", element("h1", title), note(subtitle))
    return f"{head}\n<body>{header}\n{joined(parts, Html(chr(10)))}\n</body></html>\n"
