"""What one labelled line of a file says: an example, one type for each kind of input.

`where` is "file:line" (or "file: question ID"), which a message of a bad example names. Files to
predict have the same examples without labels: None, or () where there may be several.
"""

import re
from typing import NamedTuple

from bertjax import errors

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

    text: the raw text that the words are cut from; "" where they came as words.
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


def with_text(example: Words, text: str) -> Words:
    """Returns the example with its raw text; unchanged if the text has more than the words."""
    try:
        spans = places(example._replace(text=text))
    except errors.UserError:
        return example
    bounds = [0, *(bound for span in spans for bound in span), len(text)]
    between = "".join(text[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True))
    return example if between.strip() else example._replace(text=text)


def places(example: Words) -> list[tuple[int, int]]:
    """Returns the characters [start, stop) of each word in the example's text.

    Raises UserError for a word that does not follow the word before it in the text.
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
    """The text without what tells near copies apart: in lower case, one space between words."""
    return " ".join(text.lower().split())
