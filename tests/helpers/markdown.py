"""Reads what tests check in a Markdown page: blocks of code, commands, links and paths.

    page = markdown.Page(ROOT / "docs" / "index.md")
    page.blocks         # [Block(language="bash", code="bertjax ...", comment="run", line=12), ...]
    page.commands()     # [Command(line=12, words=["bertjax", "plan", ...], is_whole=True), ...]
"""

import dataclasses
import functools
import pathlib
import re
import shlex
from collections.abc import Iterator

FOLDERS = ("configs", "launch", "benchmarks", "tests", "bertjax", "docs", "notebooks")
_FENCE = re.compile(r"^(\s*)(`{3,})\s*(\S*)\s*(.*)$")
_GIVEN = "run, given: "
_COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$")
_ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "(", ")", "2>&1"}  # of a command's words
_PATH = re.compile(rf"(?<![\w./~-])(?:\$REPO/)?((?:{'|'.join(FOLDERS)})/[\w./*-]*[\w*/])")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced or indented block of code. language: "" if it is indented. line: of its first line.

    comment: the HTML comment on the line above its fence; "" if there is none.
    """

    language: str
    code: str
    comment: str
    line: int

    @property
    def is_run(self) -> bool:
        """Whether the tests run the block: its comment is "run" or "run, given: NAMES"."""
        return self.comment == "run" or self.comment.startswith(_GIVEN)

    @property
    def packages(self) -> list[str]:
        """The packages without which the block is skipped: "package NAME" among the names."""
        return re.findall(r"\bpackage (\S+)", self.comment) if self.is_run else []

    @property
    def given(self) -> list[str]:
        """The paths that must exist before the block."""
        names = re.sub(r"\bpackage \S+", "", self.comment.removeprefix(_GIVEN))
        return names.split() if self.comment.startswith(_GIVEN) else []


@dataclasses.dataclass(frozen=True)
class Command:
    """A `bertjax VERB ...` command. is_whole: False if it is part of a sentence or shortened."""

    line: int
    words: list[str]
    is_whole: bool


@dataclasses.dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: pathlib.Path

    @functools.cached_property
    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    @functools.cached_property
    def blocks(self) -> list[Block]:
        """The blocks of code, in order."""
        return [block for block, _ in self._parts if block is not None]

    @functools.cached_property
    def prose(self) -> str:
        """The text with an empty line in place of each line of code."""
        return "\n".join(line for _, line in self._parts if line is not None)

    @functools.cached_property
    def _parts(self) -> list[tuple[Block | None, str | None]]:
        """Pairs of which one is None: each block before its first line, and each line."""
        parts: list[tuple[Block | None, str | None]] = []
        number = 0
        while number < len(self._lines):
            line = self._lines[number]
            before = self._lines[number - 1] if number else ""
            if fence := _FENCE.match(line):
                stop = number + 1
                while stop < len(self._lines) and self._lines[stop].strip() != fence[2]:
                    stop += 1
                start, end = number + 1, stop + 1
                language = fence[3]
                comment = _COMMENT.match(before)
                note = comment[1] if comment else ""
            elif line.startswith("    ") and not before.strip():
                start = stop = number
                while stop < len(self._lines) and re.match(r"    |\s*$", self._lines[stop]):
                    stop += 1
                end, language, note = stop, "", ""
            else:
                parts.append((None, line))
                number += 1
                continue
            code = "\n".join(text.removeprefix(" " * 4) if not language else text
                             for text in self._lines[start:stop])  # fmt: skip
            parts.append((Block(language, code, note, start + 1), None))
            parts += [(None, "")] * (end - number)
            number = end
        return parts

    def titles(self) -> list[tuple[int, str]]:
        """Returns (level, text) of each heading."""
        found = re.findall(r"^(#{1,6}) +(.+?) *$", self.prose, re.MULTILINE)
        return [(len(marks), text) for marks, text in found]

    def anchors(self) -> set[str]:
        """Returns the names by which links can point to a section of the page."""
        labels = re.findall(r"^\(([\w-]+)\)=$", self.prose, re.MULTILINE)
        return {slug(text) for _, text in self.titles()} | set(labels)

    def links(self) -> list[str]:
        """Returns the targets of the links, without those to other sites."""
        prose = re.sub(r"`[^`]*`", "code", self.prose)
        targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose)
        return [target for target in targets if not re.match(r"\w+:", target)]

    def inline_codes(self) -> list[tuple[int, str]]:
        """Returns (line, text) of each piece of code in the sentences and tables."""
        prose = self.prose
        return [
            (prose.count("\n", 0, match.start()) + 1, " ".join(match[2].split()))
            for match in re.finditer(r"(`+)([^`]+)\1", prose)
        ]

    def toctree(self) -> list[str]:
        """Returns the entries of the page's tables of contents; an entry may be a pattern."""
        entries = []
        for block in self.blocks:
            if block.language == "{toctree}":
                lines = [line.strip() for line in block.code.splitlines()]
                entries += [line for line in lines if line and not line.startswith(":")]
        return [re.sub(r".*<(.+)>$", r"\1", entry) for entry in entries]

    def commands(self) -> Iterator[Command]:
        """Yields the `bertjax VERB` commands of the blocks and of the inline code."""
        for block in self.blocks:
            if block.language in ("", "bash", "text", "console"):
                yield from _commands(block)
        for line, code in self.inline_codes():
            if re.match(r"bertjax \w", code):
                yield Command(line, _words(code)[0], False)

    def paths(self) -> Iterator[tuple[int, str]]:
        """Yields (line, path) for each path of the repository that is named in code."""
        codes = [*self.inline_codes(), *((block.line, block.code) for block in self.blocks)]
        for line, code in codes:
            for match in _PATH.finditer(code):
                yield line, match[1]


def slug(title: str) -> str:
    """Returns the anchor of a heading, as GitHub and MyST make it."""
    text = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower())
    return text.strip().replace(" ", "-")


def _commands(block: Block) -> Iterator[Command]:
    lines = block.code.split("\n")
    number = 0
    while number < len(lines):
        line, first = lines[number], number
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line = line[:-1] + " " + lines[number]
        number += 1
        line = line.strip().removeprefix("$ ")
        if not re.search(r"(^|[\s(])bertjax \w", line) or line.startswith("#"):
            continue
        is_shell = block.language in ("bash", "console")
        if not is_shell and not re.match(r"(\w+=\S+ )*bertjax \w.*( --|\.\.\.|/)", line):
            continue  # output, or a program in another language
        for words in _words(line):
            yield Command(block.line + first, words, "..." not in words)


def _words(line: str) -> list[list[str]]:
    """Returns the words of each command of bertjax in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in _ENDS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words[words.index("bertjax") :] for words in commands if "bertjax" in words]
