"""Converts examples of every kind to a source text and target texts, and back.

    pair(Sentence(("How so?", "Who?"), "duplicate"), "qqp")
    # TextPair("qqp question1: How so? question2: Who?", ("duplicate",))

    Sentence       TASK NAME: TEXT NAME: TEXT -> the label; a score is rounded to the nearest 0.2
    Question       question: TEXT context: TEXT -> an answer; "" if there is none
    Words          tag: TEXT -> PER: Ada Lovelace $$ LOC: London
    Choice         CONTEXT (a) TEXT (b) TEXT -> the text of the right choice

Sentences and questions follow T5 (Raffel et al., arXiv 1910.10683, section 2.4 and appendix D; its
`glue`, `stsb` and `squad` preprocessors, without the spaces that `squad` puts around punctuation).
Words follow mT5 (Xue et al., arXiv 2010.11934; its metric `span_f1`). Choices follow UnifiedQA
(Khashabi et al., arXiv 2005.00700, section 3.2).
"""

import math
import string
from collections.abc import Sequence

from bertjax import errors
from bertjax.finetuning.examples import types

# The names of the texts of a GLUE task, in the order of the file. T5's input sorts the texts by
# these names.
_NAMES = {
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "qqp": ("question1", "question2"),
}
_SEPARATOR = " $$ "  # between two entities

Entity = tuple[str, str]  # (type, text)


def pair(example: types.Example, task: str = "") -> types.TextPair:
    """Converts an example to a TextPair; an example without a label has no targets.

    task: the task name to put in front of a Sentence's source text; "" for no name. Raises
    UserError for tags that are not in BIO2 format, and for more than 26 choices, which are lettered
    (a), (b), and so on.
    """
    if isinstance(example, types.TextPair):
        return example
    if isinstance(example, types.Sentence):
        target = None if example.label is None else word(example.label)
        source = _sentence_source(example, task)
    elif isinstance(example, types.Question):
        return _question_pair(example)
    elif isinstance(example, types.Words):
        target = None if example.tags is None else _entity_text(entities(example))
        return _text_pair(f"tag: {' '.join(example.words)}", target, "", example.where)
    else:
        source = _choice_source(example)
        target = None if example.label is None else example.choices[example.label]
    return _text_pair(source, target, example.id, example.where)


def word(label: str | float) -> str:
    """Returns a label as text: a name unchanged, a score rounded to the nearest 0.2 ("2.8")."""
    return label if isinstance(label, str) else f"{round(5 * label) / 5:.1f}"


def number(text: str) -> float | None:
    """Returns the text as a score; None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def entities(example: types.Words) -> list[Entity]:
    """Returns the entities that BIO2 tags mark, in order. Raises UserError for other tags."""
    spans: list[tuple[str, list[str]]] = []
    previous = ""
    for token, tag in zip(example.words, example.tags or (), strict=True):
        scheme, _, name = tag.partition("-")
        if scheme == "B" or (scheme == "I" and name != previous):
            spans.append((name, [token]))
        elif scheme == "I":
            spans[-1][1].append(token)
        elif tag != "O":
            raise errors.UserError(
                f"{example.where}: tag {tag!r} is not O, B-TYPE or I-TYPE: the text-to-text "
                "form supports only entity tags; for other tags fine-tune an encoder-only model, "
                "such as BERT"
            )
        previous = name
    return [(name, " ".join(words)) for name, words in spans]


def read_entities(text: str) -> list[Entity]:
    """Parses a text like "PER: Ada Lovelace $$ LOC: London"; skips parts of any other form."""
    parts = [part.partition(":") for part in text.split(_SEPARATOR.strip())]
    pairs = [(name.strip(), words.strip()) for name, _, words in parts]
    return [(name, words) for name, words in pairs if name and words]


def _text_pair(source: str, target: str | None, name: str, where: str) -> types.TextPair:
    return types.TextPair(source, () if target is None else (target,), name, where)


def _sentence_source(example: types.Sentence, task: str) -> str:
    task = "mnli" if task == "ax" else task  # AX is a split of MNLI
    default = [f"sentence{i + 1}" for i in range(len(example.texts))]
    names = ("sentence",) if len(example.texts) == 1 else _NAMES.get(task, default)
    pairs = sorted(zip(names, example.texts, strict=True))
    return " ".join([task] * bool(task) + [f"{name}: {text}" for name, text in pairs])


def _question_pair(example: types.Question) -> types.TextPair:
    answers = dict.fromkeys(text for text, _ in example.answers)
    targets = ("",) if example.impossible else tuple(answers)
    source = f"question: {example.question} context: {example.context}"
    return types.TextPair(source, targets, example.id, example.where)


def _choice_source(example: types.Choice) -> str:
    letters = string.ascii_lowercase
    if len(example.choices) > len(letters):
        raise errors.UserError(
            f"{example.where}: {len(example.choices)} choices; give at most {len(letters)}, one "
            "per letter"
        )
    options = [f"({a}) {text}" for a, text in zip(letters, example.choices, strict=False)]
    return " ".join([example.context, *options])


def _entity_text(entities: Sequence[Entity]) -> str:
    return _SEPARATOR.join(f"{name}: {words}" for name, words in entities)
