"""The built-in corpus: English prose from the Python installation itself, without a download.

The sources are reference topics (pydoc_data) and the docstrings of the standard library and of the
installed packages, parsed with `ast`, never imported. Code, doctests, tables, directives,
signatures and headings are removed. Paragraphs that read like sentences are kept, each once. The
same installation gives the same bytes.

    python -c 'from bertjax.data.corpus import builtin; print(builtin.write("builtin.jsonl"))'
"""

import ast
import functools
import inspect
import itertools
import json
import os
import pathlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from bertjax import files

ENOUGH_BYTES = 6_000_000  # whole packages are added in order until there is this much text
MAX_BYTES = 10_000_000  # a package that would exceed this total is skipped
MIN_DOCUMENT = 200  # characters
MIN_WORDS = 6  # per paragraph
# A file is parsed only if at least this share of it is in triple quotes, because parsing takes half
# of the time.
_DOCSTRING_SHARE = 0.2

_SKIPPED_FOLDERS = frozenset(
    "__pycache__ site-packages dist-packages test tests testing _test _tests _vendor vendored "
    "idlelib lib2to3 turtledemo lib-dynload pydoc_data".split()
)
_SKIPPED_PACKAGES = frozenset(["bertjax"])  # so that changes to bertjax do not change the corpus
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.DOTALL)
_HOLDS_DOCSTRINGS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_UNDERLINE = re.compile(r"\s*([=\-~^\"'`#*+.:_])\1{2,}\s*")
_DIRECTIVE = re.compile(r"\s*(\.\. |:\w+(:| [^:]*:)\s*$|@\w+|#|\||\+[-=])")
_ITEM = re.compile(r"(\s*)(?:[-*+\u2022]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
# A parameter in a docstring: `x : array_like` on a line of its own, as in NumPy's style. _FIELD:
# `:param x: text`, and `x (int): text` or `x: text` as in Google's style.
_TYPED_NAME = re.compile(r"\s*\*{0,2}[\w.]+(, *\*{0,2}[\w.]+)* ?: .*")
_FIELD = re.compile(r"(\s*)(?::\w+(?: [^:]*)?:|`{0,2}\*{0,2}[\w.]+`{0,2}(?: \([^)]*\))?:)\s+(?=\S)")
_MARKUP = (
    (re.compile(r":[\w:+-]+:`[~.]*([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :func:`~a.b`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{1,2}"), r"\1"),  # `text <url>`_
    (re.compile(r"\[([^\]]+)\]\((?:[^()]|\([^()]*\))*\)"), r"\1"),  # [text](url)
    (re.compile(r"`{1,2}[~.]*([^`]+)`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}(?=\S)([^*]+?)(?<=\S)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\s*\[(?:\d+|[A-Z]\w*\d)\]_?"), ""),  # citations
)
_CALL = re.compile(r"(?<=\w)\(\)")
_NOT_PROSE = re.compile(
    r"https?:|www\.|>>>|::|[\\{}|<>@$^~]|\.\. |(?:^|\s)[/.]*/\w|[A-Za-z]:/|\w\(\w*[,)].*=|"
    r"==|[+*/=-]=|=.*=|--|[Cc]opyright|[Ll]icensed? under|WARRANT|[Aa]ll rights reserved|"
    r"Auto-?generated|TODO|FIXME|\.py\b"
)
_SENTENCE_END = re.compile(r"[a-z0-9)\]%\"'\u201d\u2019][.!?][\"')\u201d\u2019]*\Z")
_UNPUNCTUATED_END = re.compile(r"[a-z)\"]")
_CODE = re.compile(r"\w[_./\[\]()]\w|_|[a-z][A-Z]|[A-Z]{4}|\d\w*\d|=")
_SIGN = re.compile(r"[^\w\s]|[\d_]")
_COMMON_WORDS = frozenset(
    "a an and are as at be been but by can do does for from has have if in is it its may more must "
    "no not of on one only or other should so such than that the their then there these they this "
    "to used was we when where which will with would you your".split()
)


def documents() -> Iterator[str]:
    """Returns the documents: each reference topic, and for each module its docstrings together.

    Blank lines separate the paragraphs of a document. The documents have 5 to 10 MB in total if
    bertjax's dependencies are installed.
    """
    return iter(_corpus())


def write(path: str | os.PathLike) -> dict[str, int]:
    """Writes the corpus as JSONL {"text"}; returns counts of documents, paragraphs and bytes."""
    stats = {"documents": 0, "paragraphs": 0, "bytes": 0}
    with files.replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        for text in documents():
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            stats["documents"] += 1
            stats["paragraphs"] += text.count("\n\n") + 1
            stats["bytes"] += len(text.encode())
    return stats


def paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring that are prose, each as one line without markup."""
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith(">>>"):
            continue
        for lines in _parts(block.splitlines()):
            words = " ".join(lines).split()
            if len(words) >= MIN_WORDS:
                paragraph = _sentences(" ".join(words))
                if paragraph and _is_prose(paragraph):
                    yield paragraph


@functools.cache
def _corpus() -> tuple[str, ...]:
    seen_keys: set[str] = set()
    corpus: list[str] = []
    total = 0
    for package in _packages():
        texts = [text for text in map(_document, package, itertools.repeat(seen_keys)) if text]
        size = sum(len(text.encode()) for text in texts)
        if total + size <= MAX_BYTES:
            total += size
            corpus += texts
        if total >= ENOUGH_BYTES:
            break
    return tuple(corpus)


def _packages() -> Iterator[Iterable[list[str]]]:
    """Yields the documents of each source: pydoc's topics, the standard library, each package.

    Here a document is a list of docstrings or, for a topic, a list of one text.
    """
    yield _topics()
    paths = sysconfig.get_paths()
    yield _modules(pathlib.Path(paths["stdlib"]))
    installed = {
        entry.name: entry
        for folder in sorted({paths["purelib"], paths["platlib"]})
        for entry in pathlib.Path(folder).iterdir()
        if entry.name not in _SKIPPED_PACKAGES and entry.name.isidentifier()
    }
    for _, folder in sorted(installed.items()):
        yield _modules(folder)


def _topics() -> list[list[str]]:
    try:
        from pydoc_data import topics  # some distributions package it separately
    except ImportError:
        return []
    return [[text] for _, text in sorted(topics.topics.items())]


def _modules(root: pathlib.Path) -> Iterator[list[str]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.endswith(".py"):
                yield _docstrings(pathlib.Path(folder, name).read_bytes())


def _docstrings(source: bytes) -> list[str]:
    quoted_bytes = sum(len(a) + len(b) for a, b in _TRIPLE_QUOTED.findall(source))
    if quoted_bytes < max(MIN_DOCUMENT, _DOCSTRING_SHARE * len(source)):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a package's source
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # templates, other Python versions
        return []
    return [inspect.cleandoc(text) for text in _walk(tree)]


def _walk(node: ast.Module | _HOLDS_DOCSTRINGS) -> Iterator[str]:
    if text := ast.get_docstring(node, clean=False):
        yield text
    for child in node.body:
        if isinstance(child, _HOLDS_DOCSTRINGS):
            yield from _walk(child)


def _document(texts: list[str], seen_keys: set[str]) -> str:
    """Joins the paragraphs of prose whose keys are not in `seen_keys`, and adds their keys to it.

    Returns "" if the result has fewer than MIN_DOCUMENT characters.
    """
    unique = []
    for paragraph in itertools.chain.from_iterable(map(paragraphs, texts)):
        key = "".join(filter(str.isalpha, paragraph)).lower()
        if key not in seen_keys:
            seen_keys.add(key)
            unique.append(paragraph)
    text = "\n\n".join(unique)
    return text if len(text) >= MIN_DOCUMENT else ""


def _parts(lines: list[str]) -> Iterator[list[str]]:
    """Splits the lines of a block into paragraphs. Each list item and each field is a paragraph.

    Drops headings, directives and lines that only name a parameter and its type.
    """
    part: list[str] = []
    indent = 0
    rows = [
        (line, len(line) - len(line.lstrip()), _UNDERLINE.fullmatch(line)) for line in [*lines, ""]
    ]
    for (line, depth, underline), (_, next_depth, next_underline) in itertools.pairwise(rows):
        is_name = next_depth > depth and (len(line.split()) <= 3 or _TYPED_NAME.fullmatch(line))
        is_markup = underline or next_underline or _DIRECTIVE.match(line)
        if is_markup or (is_name and not line.endswith(".")):
            yield part
            part = []
            continue
        bullet = _ITEM.match(line) or _FIELD.match(line)
        if bullet or depth < indent or not part:
            yield part
            part = []
        part.append(line[bullet.end() :] if bullet else line)
        indent = depth
    yield part


def _sentences(paragraph: str) -> str:
    """Removes markup; if necessary, capitalises the first letter and adds a full stop at the end.

    Returns "" if the result is still not a paragraph of whole sentences.
    """
    if any(mark in paragraph for mark in "`*["):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
    paragraph = _CALL.sub("", paragraph).strip()
    if not _SENTENCE_END.search(paragraph):
        if not _UNPUNCTUATED_END.match(paragraph[-1:]):
            return ""
        paragraph += "."
    first = paragraph[0]
    if first.islower() and not _CODE.search(paragraph.split(" ", 1)[0]):
        return first.upper() + paragraph[1:]
    return paragraph if first.isupper() or first in "\"'(\u201c\u2018" else ""


def _is_prose(paragraph: str) -> bool:
    if _NOT_PROSE.search(paragraph):
        return False
    words = paragraph.lower().split()
    return (
        sum(map(_COMMON_WORDS.__contains__, words)) >= 0.2 * len(words)
        and len(_CODE.findall(paragraph)) <= 0.2 * len(words)
        and len(_SIGN.findall(paragraph)) <= 0.1 * len(paragraph)
    )
