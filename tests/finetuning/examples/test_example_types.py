"""What every type of example defines: labels, inputs of `predict`, and groups of a split."""

import pytest

from bertjax.finetuning.examples import types
from bertjax.finetuning.examples.types import (
    Candidates,
    Choice,
    Mixed,
    Question,
    Sentence,
    TextPair,
    Words,
)

LABELLED = {
    "sentences": Sentence(("A", "B"), "yes"),
    "words": Words(("a", "b"), ("O", "B-X")),
    "questions": Question("q", "who", "Ada", (("Ada", 0),)),
    "text_pairs": TextPair("a", ("b",)),
    "choices": Choice("a", ("b", "c"), 0, passage="p"),
    "candidates": Candidates("a", ("b", "c"), (1.0, 0.0)),
    "mixed": Mixed(TextPair("a", ("b",)), "en-de", "translation", "to German: "),
}


@pytest.mark.parametrize("reader", types.TYPES)
def test_an_example_keeps_its_type_and_fields_without_its_label(reader):
    example = LABELLED[reader]
    bare = example.unlabelled()
    assert type(bare) is type(example) is types.TYPES[reader]
    assert example.is_labelled() and not bare.is_labelled()
    assert bare.all_texts() == example.all_texts() and bare.group() == example.group()
    assert not hasattr(example, "__dict__")  # data sets have millions of examples
    names = [name for name in example._fields if getattr(bare, name) != getattr(example, name)]
    assert len(names) == 1


@pytest.mark.parametrize("reader", types.TYPES)
def test_an_input_is_an_example_or_of_the_wrong_form(reader):
    kind, bare = types.TYPES[reader], LABELLED[reader].unlabelled()
    assert kind.from_input(bare._asdict()) == bare
    assert set(kind.LISTS) == set(filter(_several, bare._fields))
    for wrong in (None, 3, b"a", {}, {"nothing": "a"}, ["a"]):
        with pytest.raises(TypeError):
            kind.from_input(wrong)


def _several(name):
    return name in ("texts", "words", "tags", "answers", "targets", "choices") or (
        name in ("documents", "labels", "teacher")
    )


@pytest.mark.parametrize(
    ("reader", "given", "expected"),
    [
        ("sentences", "Hi", Sentence(("Hi",))),
        ("sentences", ("Hi", "Ho"), Sentence(("Hi", "Ho"))),
        ("words", "Hi!", Words(("Hi", "!"), text="Hi!")),
        ("text_pairs", "Hi", TextPair("Hi")),
        ("questions", {"question": "Who?", "context": "Ada"}, Question("", "Who?", "Ada")),
    ],
)
def test_texts_and_fields_are_inputs(reader, given, expected):
    assert types.TYPES[reader].from_input(given) == expected


@pytest.mark.parametrize("reader", ["words", "text_pairs", "questions", "choices"])
def test_a_pair_of_texts_is_only_for_sentences(reader):
    with pytest.raises(TypeError):
        types.TYPES[reader].from_input(("Hi", "Ho"))


def test_groups_are_of_one_text():
    assert Sentence(("A  cat",)).group() == Sentence(("a cat", "b")).group()
    assert Choice("p q", ("a", "b"), passage="p").group() == "p"
    assert Choice("", ("a", "b")).group() is None and Question("", "q", "").group() is None
