"""Configures Sphinx: `sphinx-build -W docs docs/_build`, see docs/README.md."""

import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import verb_pages  # noqa: E402

import bertjax  # noqa: E402

verb_pages.write(DOCS / verb_pages.FOLDER)

project = "bertjax"
author = "the authors of bertjax"
version = release = bertjax.__version__

extensions = ["myst_parser"]
myst_heading_anchors = 4  # links such as page.md#section-title
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "README.md", "extending/examples"]
highlight_language = "none"  # of the README's indented blocks

html_theme = "furo"
html_title = "bertjax"
html_show_copyright = False
