"""The examples that labelled files hold: one type for each kind of input.

`where` is "file:line" (or "file question ID") and begins error messages about the example. Examples
to predict on have the same types without labels: None, or () for fields that hold several.
"""

import re
from typing import NamedTuple

from bertjax import errors

_WORD = re.compile(r"\w+|[^\w\s]")


class Sentence(NamedTuple):
    """One or two texts and a label: a class name, or a score (also of similarity).

    id: the id that the file gives the line, "" if none; submissions to a benchmark repeat it.
    """

    texts: tuple[str, ...]
    label: str | float | None = None
    id: str = ""
    where: str = ""


class Words(NamedTuple):
    """A sentence split into words, and a tag for each word, in the BIO2 scheme or any other.

    text: the raw text that the words come from; "" if the file has only the words.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    where: str = ""
    text: str = ""


class Question(NamedTuple):
    """A question about a context, as in SQuAD.

    answers: (text, start) of each, where context[start : start + len(text)] == text; annotators in
    any order. () if the answer is unknown, or `impossible`: the context has none.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    where: str = ""


class TextPair(NamedTuple):
    """A source text and its targets. Training uses the first; scores use the best of all."""

    source: str
    targets: tuple[str, ...] = ()
    id: str = ""
    where: str = ""


class Choice(NamedTuple):
    """A context (or question), its continuations or answers, and the index of the right one.

    passage: the passage, if the context is a passage and a question; other questions may share it.
    """

    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: str = ""
    where: str = ""
    passage: str = ""


Example = Sentence | Words | Question | TextPair | Choice


def is_labelled(example: Example) -> bool:
    """Returns whether the example has a label; for a Question, also if it is `impossible`."""
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
    """Returns the example without its label."""
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
    """Splits a raw text into words: runs of letters and digits, and single other marks."""
    return Words(tuple(_WORD.findall(text)), where=where, text=text)


def with_text(example: Words, text: str) -> Words:
    """Returns the example with its raw text; unchanged unless the text is just the words."""
    try:
        spans = places(example._replace(text=text))
    except errors.UserError:
        return example
    bounds = [0, *(bound for span in spans for bound in span), len(text)]
    between = "".join(text[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True))
    return example if between.strip() else example._replace(text=text)


def places(example: Words) -> list[tuple[int, int]]:
    """Returns the characters [start, stop) of each word in the example's text.

    Raises UserError for a word that is not in the text after the word before it.
    """
    found, end = [], 0
    for word in example.words:
        start = example.text.find(word, end)
        if start < 0:
            where = f"{example.where}: " if example.where else ""
            raise errors.UserError(
                f"{where}the word {word!r:.40} is not in {example.text[end:]!r:.40}, the text "
                "behind the word before it: give the words in the order of the text, or no text"
            )
        end = start + len(word)
        found.append((start, end))
    return found


def squeezed(text: str) -> str:
    """Normalises case and whitespace, to find near-duplicate texts."""
    return " ".join(text.lower().split())
