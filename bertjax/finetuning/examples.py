"""What one labelled line of a file says: an example, one type for each kind of input.

`where` is "file:line" (or "file: question ID"), which a message of a bad example names. Files to
predict have the same examples without labels: None, or () where there may be several.
"""

import re
from typing import NamedTuple

_WORD = re.compile(r"\w+|[^\w\s]")


class Sentence(NamedTuple):
    """One text or two, and a label: a class's name, a score, or a target of sentence embeddings.

    id: the file's own name of the line ("" where it has none); submissions repeat it.
    """

    texts: tuple[str, ...]
    label: str | float | None = None
    id: str = ""
    where: str = ""


class Words(NamedTuple):
    """A sentence cut into words, and a tag for each word in the BIO2 scheme or any other.

    text: what `cut` cut the words from; "" where they came as words.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    where: str = ""
    text: str = ""


class Question(NamedTuple):
    """A question of SQuAD.

    answers: (text, start) each, where context[start : start + len(text)] == text; in any order of
    the annotators. () where nothing is known, or where `impossible`.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    where: str = ""


class TextPair(NamedTuple):
    """A source text and its targets: the first is trained on, scores take the best of all."""

    source: str
    targets: tuple[str, ...] = ()
    id: str = ""
    where: str = ""


class Choice(NamedTuple):
    """A context (or question), its continuations or answers, and the number of the right one.

    passage: of a context that is a passage with a question, what other questions may be asked of.
    """

    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: str = ""
    where: str = ""
    passage: str = ""


Example = Sentence | Words | Question | TextPair | Choice


def is_labelled(example: Example) -> bool:
    """Whether the example says its answer."""
    match example:
        case Words():
            return example.tags is not None
        case Question():
            return bool(example.answers) or example.impossible
        case TextPair():
            return bool(example.targets)
        case _:
            return example.label is not None


def unlabelled(example: Example) -> Example:
    """The example without its answer."""
    match example:
        case Words():
            return example._replace(tags=None)
        case Question():
            return example._replace(answers=(), impossible=False)
        case TextPair():
            return example._replace(targets=())
        case _:
            return example._replace(label=None)


def cut(text: str, where: str = "") -> Words:
    """A text that nobody cut into words: runs of letters and digits, and every other mark."""
    return Words(tuple(_WORD.findall(text)), where=where, text=text)


def places(text: str) -> list[tuple[int, int]]:
    """The characters [start, stop) of each word that `cut` finds."""
    return [found.span() for found in _WORD.finditer(text)]


def squeezed(text: str) -> str:
    """The text without what tells near copies apart: in lower case, one space between words."""
    return " ".join(text.lower().split())
