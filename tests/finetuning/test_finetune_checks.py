"""What is said of labelled data and of recipes that can be trained with, but look wrong."""

import types

import numpy as np
import pytest
from bertjax.finetuning.kind import Lengths

from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import data_warnings, recipe
from bertjax.finetuning.examples.types import Question, Sentence, Words

TEXTS = ["The cat sat on the mat.", "A dog ran to Paris."] * 20


@pytest.fixture(scope="module")
def uncased():
    return tokenizer_lib.train("wordpiece", TEXTS, 45, lowercase=True)


@pytest.fixture(scope="module")
def cased():
    return tokenizer_lib.train("wordpiece", TEXTS, 45, lowercase=False)


def _labelled(**counts):
    return [
        Sentence((f"{name} {i}",), name) for name, count in counts.items() for i in range(count)
    ]


def test_texts_in_quotation_marks_and_labels_that_are_texts():
    quoted = [Sentence((f'"The cat sat {i}."',), "x") for i in range(4)]
    (line,) = data_warnings.quotes(quoted)
    assert line.startswith("100% of the examples of train have a text in quotation marks")
    swapped = [Sentence(("x",), f"The cat sat {i}.") for i in range(12)]
    (line,) = data_warnings.labels(swapped, [])
    assert line.startswith("train has 12 different labels in 12 examples")


def test_overlap_ignores_case_and_spaces():
    train = [Sentence(("A  Cat.", "B."), "x", "", "t:2")]
    dev = [Sentence(("a cat.", "b."), "y", "", "d:2"), Sentence(("A cat.", "C."), "x", "", "d:3")]
    (line,) = data_warnings.overlap(train, dev, "dev")
    assert line.startswith("1 of 2 examples of dev (50.0%) are in train too, the first at d:2")
    assert data_warnings.overlap(train, dev[1:], "dev") == []
    question = Question("1", "Who?", "Ada.")
    assert data_warnings.overlap([question], [question._replace(question="Why?")], "dev") == []


def test_labels_that_never_occur_and_skew():
    assert data_warnings.labels(_labelled(yes=10, no=1), ["no", "yes"]) == []
    (line,) = data_warnings.labels(_labelled(yes=2, no=2), ["no", "yes", "maybe"])
    assert line.startswith("1 of 3 labels never occur in the 4 examples of train and")
    assert line.endswith("cannot be learned: 'maybe'")
    (line,) = data_warnings.labels(_labelled(yes=11, no=1), ["no", "yes"])
    assert "class_weights" not in line
    (line,) = data_warnings.labels(_labelled(yes=11, no=1), ["no", "yes"], weigh=True)
    assert "11 of 'yes' and 1 of 'no'" in line and "class_weights" in line
    assert data_warnings.labels([Sentence(("A.",), 2.5)], []) == []


def test_truncation_counts_from_five_percent_on():
    truncated = np.arange(100) < 5
    assert data_warnings.truncation(truncated, "train", Lengths(128)) == []
    (line,) = data_warnings.truncation(np.arange(100) < 6, "train", Lengths(128))
    assert line.startswith("6.0% of the examples of train lose text behind 128 tokens: raise")
    (line,) = data_warnings.truncation(np.arange(100) < 6, "train", Lengths(128), most=128)
    assert line.endswith("behind 128 tokens")
    (line,) = data_warnings.truncation(np.arange(100) < 6, "dev", Lengths(384), question_length=64)
    assert "6.0% of the questions of dev" in line and "config.kind.max_query_length" in line
    (line,) = data_warnings.truncation(np.arange(100) < 6, "train", Lengths(128, 16), most=128)
    assert line.endswith("target behind 16: raise --config.kind.max_target_length")


def test_results_that_say_little():
    answers = [{"label": "cat"}, {"label": "dog"}]
    assert data_warnings.results({1e-5: 50.0, 1e-4: 40.0}, 1e-5, answers) == []
    assert data_warnings.results({1e-5: 50.0}, 1e-5, [{"answer": "x"}] * 3) == []
    (line,) = data_warnings.results({1e-5: 50.0, 1e-4: 60.0}, 1e-4, answers)
    assert line.startswith("the best rate, 0.0001, is the highest")
    found = data_warnings.results({1e-5: 50.0, 1e-4: 50.0}, 1e-5, answers[:1] * 2)
    assert found[0].startswith("all rates score the same")
    assert found[1].startswith("every answer on dev is 'cat'")


def test_text_of_another_language_or_case(uncased, cased):
    assert data_warnings.tokens([Sentence((text,)) for text in TEXTS], uncased) == []
    (line,) = data_warnings.tokens([Sentence(("\u0416\u0436",))], uncased)
    assert "unknown to the tokenizer: is it of another language" in line
    lower = tokenizer_lib.train("wordpiece", [t.lower() for t in TEXTS], 45, lowercase=False)
    (line,) = data_warnings.tokens([Sentence((text,)) for text in TEXTS], lower)
    assert "the vocabulary is uncased" in line
    assert data_warnings.tokens([Sentence((text,)) for text in TEXTS], cased) == []


def test_embeddings_of_another_tokenizer(uncased):
    assert data_warnings.table(uncased, uncased.size + 128) == []  # as T5 has
    (line,) = data_warnings.table(uncased, uncased.size + 1000)
    assert line.endswith(f"embeddings of {uncased.size + 1000:,}: is it another checkpoint's?")


def test_what_a_trained_model_does_not_read():
    own = types.SimpleNamespace(lengths=Lengths(16), config=None)
    assert data_warnings.unread(np.zeros(3, bool), own) == []
    (line,) = data_warnings.unread(np.array([True, False, True]), own)
    assert line.startswith("2 of 3 examples lose text: the model was fine-tuned to read rows of 16")
    own.config = types.SimpleNamespace(max_query_length=64)
    (line,) = data_warnings.unread(np.array([True]), own)
    assert line.startswith("1 of 1 examples lose the end of their question: ")


def test_entities_and_a_tokenizer_without_capital_letters(uncased, cased):
    train = [Words(("A", "dog", "ran", "to", "Paris"), ("O", "O", "O", "O", "B-LOC"))]
    (line,) = data_warnings.tokens(train, uncased)
    assert "the tokenizer is uncased" in line
    assert data_warnings.tokens(train, cased) == []
    other = [train[0]._replace(tags=("DET", "NOUN", "VERB", "ADP", "NOUN"))]
    assert data_warnings.tokens(other, uncased) == []


def test_everything_names_the_split(uncased):
    train = [Sentence((text,), "x") for text in TEXTS]
    examples = {"train": train, "dev": train[:1], "test": [Sentence(("A mat sat.",))]}
    truncated = {split: np.full(len(own), split == "test") for split, own in examples.items()}
    own = types.SimpleNamespace(
        labels=["x", "y"], tokenizer=uncased, lengths=Lengths(16), config=None
    )
    found = data_warnings.everything(examples, truncated, own, 512, uncased.size)
    assert [line.split(":")[0].split(" (")[0] for line in found] == [
        "1 of 2 labels never occur in the 40 examples of train and cannot be learned",
        "1 of 1 examples of dev",
        "100.0% of the examples of test lose text behind 16 tokens",
    ]


def test_guard_rails_speak():
    config = recipe.default("classification")
    config.update(learning_rates=(2e-5, 5e-4), num_epochs=12)
    whole = recipe.guard_rails(config, "encoder")
    assert len(whole) == 2 and "5e-4" in whole[0].replace("0.0005", "5e-4")
    assert "12 epochs" in whole[1]
    config = recipe.default("classification", "lora")
    config.update(learning_rates=(5e-4,))
    assert recipe.guard_rails(config, "encoder") == []
    config = recipe.default("translation")
    config.update(learning_rates=(5e-4,))
    assert recipe.guard_rails(config, "encoder_decoder") == []
    assert "5e-5" in recipe.guard_rails(config, "decoder")[0]


def test_rates_suit_what_is_trained():
    def rates(model_kind, *names):
        return recipe.with_rates(recipe.default(*names), model_kind).learning_rates

    assert rates("encoder", "sst2") == rates("encoder", "sst2", "partial") == (2e-5, 3e-5, 5e-5)
    assert min(rates("encoder", "sst2", "lora")) > 1e-4
    assert max(rates("encoder_decoder", "translation")) == 1e-3
    assert max(rates("decoder", "translation")) == 5e-5
    assert max(rates("encoder_decoder", "translation", "prompts")) > 1e-3
