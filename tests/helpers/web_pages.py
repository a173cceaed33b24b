"""Reads the HTML pages of reports, for tests."""

import html.parser
import os
import pathlib
import re
import urllib.parse

VOID = {"meta", "br", "hr", "img", "path", "rect", "circle"}  # elements without an end tag
# What would make a browser load something: attributes, elements and CSS. A link to a file beside
# the page loads nothing before a click.
LOADING = re.compile(
    r"\b(src|(?<!<a )href|srcset|data|action|poster|background)\s*="
    r"|<(script|link|iframe|object|embed|img)|url\(|@import|https?://",
    re.IGNORECASE,
)


class Page(html.parser.HTMLParser):
    """A page: the text and the tables, as lists of cells, of its sections; its charts and links."""

    def __init__(self, path: str | os.PathLike):
        super().__init__()
        self.source = pathlib.Path(path).read_text("utf-8")
        self.sections: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.charts: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self._section = self._title = ""
        self.feed(self.source)
        assert not self._open, f"not closed: {self._open}"

    def loads(self) -> list[str]:
        """Returns what the page would load from elsewhere."""
        return [match[0] for match in LOADING.finditer(self.source)]

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = self._title = ""
        elif tag == "h2":
            self._title = "reading"
        elif tag == "tr":
            self.tables.setdefault(self._section, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._section][-1].append("")
        elif tag == "a":
            self.links.append(urllib.parse.unquote(dict(attrs)["href"]))
        elif tag == "svg":
            self.charts.append(dict(attrs)["aria-label"])

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID, tag

    def handle_endtag(self, tag):
        assert tag not in VOID and self._open.pop() == tag, tag
        if tag == "h2":
            self._title = ""

    def handle_data(self, data):
        if self._title:
            self._section += data
        self.sections[self._section] = self.sections.get(self._section, "") + data
        if "tr" in self._open and ("td" in self._open or "th" in self._open):
            self.tables[self._section][-1][-1] += data
