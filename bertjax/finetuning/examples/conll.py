"""Reads CoNLL columns: a word and its tag on each line, blank lines between sentences.

    EU      B-ORG
    rejects O
    German  B-MISC

The first column is the word and the last one the tag. A line is split at its tabs if it has any,
else at white space. -DOCSTART- lines are treated as blank lines. Comments, such as `# name = value`
and `# newpar`, are skipped. But `# text = EU rejects German` is the raw text of the next sentence.
Entity tags are converted to BIO2, whichever scheme the file uses (Tjong Kim Sang & Buchholz,
CoNLL-2000; for IOBES and BILOU see Ratinov & Roth, CoNLL-2009).
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bertjax import errors
from bertjax.data.corpus import corpus_files

_ENTITY = re.compile(r"O|[BIESLU]-.+")
_BIO2 = {"O": "O", "B": "B", "I": "I", "E": "I", "S": "B", "L": "I", "U": "B"}
_TEXT = "# text = "
_COMMENT = re.compile(r"#[^\t]* = |# new(doc|par)$")  # as in Universal Dependencies

class Line(NamedTuple):
    """A word and its tag ("" if there is none). number: the line number in the file."""

    word: str
    tag: str
    number: int


class Sentence(NamedTuple):
    """The lines of a sentence (at least one) and its raw text ("" if there is none)."""

    text: str
    lines: list[Line]


def is_plain(path: str, *, entities: bool) -> bool:
    """Returns whether the path is a .txt file with one text per line, not with columns.

    A file with tabs has columns. A file without tabs is judged by `entities` (see `bio2`). If it is
    True, the file has columns if every line is one word or ends with a tag. If it is False, any
    word may be a tag, so the file has columns if all its lines have the same number of words.
    """
    if corpus_files.suffix(path) != ".txt":
        return False
    lines = [line for _, line in corpus_files.text_lines(path) if not _ends_sentence(line)]
    rows = [row for line in lines if not _COMMENT.match(line) and (row := line.split())]
    if any("\t" in line for line in lines):
        return False
    if not entities:
        return len(set(map(len, rows))) > 1
    return not all(len(row) == 1 or _ENTITY.fullmatch(row[-1]) for row in rows)


def _ends_sentence(line: str) -> bool:
    return not line.strip(" \t") or line.startswith("-DOCSTART-")


def sentences(path: str) -> Iterator[Sentence]:
    """Yields the sentences of a file.

    Raises UserError for lines with unequal numbers of columns, and for an empty word.
    """
    text, columns = "", 0
    sentence: list[Line] = []
    for number, line in corpus_files.text_lines(path):
        if _ends_sentence(line):
            if sentence:
                yield Sentence(text, sentence)
                text = ""
            sentence = []
        elif line.startswith(_TEXT):
            text = line.removeprefix(_TEXT)
        elif not _COMMENT.match(line):
            cells = line.split("\t") if "\t" in line else line.split()
            columns = columns or len(cells)
            if len(cells) != columns:
                raise errors.UserError(
                    f"{path}:{number}: the number of columns is {len(cells)}, but the lines above "
                    f"have {columns}"
                )
            if not (cells and cells[0]):
                raise errors.UserError(f"{path}:{number}: the first column, the word, is empty")
            tag = cells[-1].strip() if columns > 1 else ""
            sentence.append(Line(cells[0], tag, number))
    if sentence:
        yield Sentence(text, sentence)


def bio2(
    sentences: Sequence[Sequence[str]], place: Callable[[int, int], str], *, entities: bool
) -> list[tuple[str, ...]]:
    """Returns the tags of all sentences of a file, with entity tags in BIO2.

    entities: whether the tags must be entity tags. If False, they may be any names, such as parts
    of speech; if one of them is not an entity tag, all are returned unchanged.
    place: function of (sentence index, word index) that returns the place in the file, for error
    messages. Raises UserError for a tag that continues an entity which has not begun and, with
    `entities`, for a tag that is not an entity tag.
    """
    for i, tags in enumerate(sentences):
        for j, tag in enumerate(tags):
            if _ENTITY.fullmatch(tag):
                continue
            if not entities:
                return [tuple(tags) for tags in sentences]
            raise errors.UserError(
                f"{place(i, j)}: tag {tag!r:.40} is neither O nor B-NAME nor I-NAME; for tags that "
                "do not mark entities use --task=tokens"
            )
    letters = {tag[0] for tags in sentences for tag in tags}
    if letters <= set("OBI") and not any(map(_excludes_iob1, sentences)):
        return [_from_iob1(tags) for tags in sentences]
    return [
        _to_bio2(tags, functools.partial(place, number)) for number, tags in enumerate(sentences)
    ]


def _excludes_iob1(tags: Sequence[str]) -> bool:
    """Returns whether a B, S or U begins an entity that does not follow one of the same type.

    In IOB1 such an entity begins with I, so tags for which this is true are not IOB1.
    """
    pairs = itertools.pairwise(["O", *tags])
    return any(tag[0] in "BSU" and previous[2:] != tag[2:] for previous, tag in pairs)


def _from_iob1(tags: Sequence[str]) -> tuple[str, ...]:
    """Converts IOB1 to BIO2.

    In IOB1, an entity begins with B only if the entity right before it has the same type; all
    others begin with I.
    """
    pairs = itertools.pairwise(["O", *tags])
    return tuple("B" + tag[1:] if previous[2:] != tag[2:] != "" else tag for previous, tag in pairs)


def _to_bio2(tags: Sequence[str], place: Callable[[int], str]) -> tuple[str, ...]:
    result = []
    for word, (previous, tag) in enumerate(itertools.pairwise(["O", *tags])):
        letter = _BIO2[tag[0]]
        if letter == "I" and (previous[0] not in "BI" or previous[2:] != tag[2:]):
            raise errors.UserError(
                f"{place(word)}: tag {tag!r:.40} continues an entity that has not begun (the tag "
                f"before is {previous!r:.40}); the first word of an entity has B-{tag[2:]:.40}"
            )
        result.append(letter + tag[1:])
    return tuple(result)
