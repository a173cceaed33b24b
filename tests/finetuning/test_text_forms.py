"""Examples of every kind in words, and scores of words: T5's own examples and metrics."""

import pytest

from bertjax import errors
from bertjax.finetuning import scores, squad_scores, text_forms, text_scores
from bertjax.finetuning.examples.types import Choice, Question, Sentence, TextPair, Words

NER = Words(
    ("Ada", "Lovelace", "saw", "London", "Paris"), ("B-PER", "I-PER", "O", "B-LOC", "B-LOC")
)


@pytest.mark.parametrize(
    ("example", "task", "source", "targets"),
    [
        (Sentence(("It is good.",), "acceptable"), "cola", "cola sentence: It is good.",
         ("acceptable",)),
        (Sentence(("How so?", "Why not?"), "duplicate"), "qqp",
         "qqp question1: How so? question2: Why not?", ("duplicate",)),
        (Sentence(("He ran.", "He moved."), "entailment"), "mnli",
         "mnli hypothesis: He moved. premise: He ran.", ("entailment",)),
        (Sentence(("He ran.", "He moved.")), "ax", "mnli hypothesis: He moved. premise: He ran.",
         ()),
        (Sentence(("Who?", "He."), "entailment"), "qnli", "qnli question: Who? sentence: He.",
         ("entailment",)),
        (Sentence(("Big news.", "No idea."), 2.8), "stsb",
         "stsb sentence1: Big news. sentence2: No idea.", ("2.8",)),
        (Sentence(("Big news.", "No idea."), 1.66), "stsb",
         "stsb sentence1: Big news. sentence2: No idea.", ("1.6",)),
        (Sentence(("lost card",), "card"), "", "sentence: lost card", ("card",)),
        (Question("q", "Who?", "Ada or Bob.", (("Bob", 7), ("Ada", 0), ("Bob", 7))), "squad",
         "question: Who? context: Ada or Bob.", ("Bob", "Ada")),
        (Question("q", "Who?", "Ada.", (), True), "squad", "question: Who? context: Ada.", ("",)),
        (Question("q", "Who?", "Ada."), "squad", "question: Who? context: Ada.", ()),
        (NER, "ner", "tag: Ada Lovelace saw London Paris",
         ("PER: Ada Lovelace $$ LOC: London $$ LOC: Paris",)),
        (Words(("a", "b"), ("O", "O")), "ner", "tag: a b", ("",)),
        (Choice("Where?", ("here", "there"), 1), "", "Where? (a) here (b) there", ("there",)),
        (TextPair("a", ("b", "c")), "sst2", "a", ("b", "c")),
    ],
)  # fmt: skip
def test_examples_in_words(example, task, source, targets):
    pair = text_forms.pair(example, task)
    assert (pair.source, pair.targets) == (source, targets)
    assert bool(pair.targets) == example.is_labelled()


def test_numbers_in_words():
    assert list(map(text_forms.number, ("2.6", "much", "", "nan", "1e999"))) == [2.6] + [None] * 4


def test_entities_come_back_from_words():
    written = text_forms.pair(NER).targets[0]
    assert text_forms.read_entities(written) == text_forms.entities(NER)
    assert text_forms.read_entities("PER: $$ nothing $$ : x $$LOC:  Rome ") == [("LOC", "Rome")]
    assert text_forms.read_entities("") == []


def test_tags_that_name_no_entity_are_refused():
    with pytest.raises(errors.UserError, match=r"^a\.conll:3: tag 'NOUN'"):
        text_forms.pair(Words(("a",), ("NOUN",), "a.conll:3"))


def test_more_choices_than_letters_are_refused():
    with pytest.raises(errors.UserError, match=r"^a\.jsonl:1: 27 choices"):
        text_forms.pair(Choice("Where?", tuple(map(str, range(27))), 0, where="a.jsonl:1"))


# Scores (t5/evaluation/metrics_test.py)


def test_bleu_and_rouge_of_the_same_and_of_nothing():
    texts = ["this is a test of it", "and this one is another test"]
    same = [[text] for text in texts]
    assert text_scores.bleu(same, texts) == pytest.approx(100)
    assert text_scores.bleu(same, ["", ""]) == 0
    assert text_scores.rouge(same, texts) == pytest.approx(dict.fromkeys(text_scores.ROUGES, 100))
    assert text_scores.rouge(same, ["", ""]) == dict.fromkeys(text_scores.ROUGES, 0)


def test_one_of_several_references_is_enough():
    references = [["x y z w v", "the cat sat on the mat"], ["a dog ran away fast"], ["u", "w", "v"]]
    predictions = ["the cat sat on the mat", "a dog ran away fast", "v"]
    assert text_scores.bleu(references, predictions) == pytest.approx(100)
    assert text_scores.rouge(references, predictions)["rougeL"] == pytest.approx(100)
    first = [own[:1] for own in references]
    assert text_scores.bleu(first, predictions) < 70
    assert text_scores.rouge(first, predictions)["rougeL"] == pytest.approx(100 / 3)


def test_squad_scores_of_written_answers():
    references = [["big moose", "hippo"], ["correct1"], ["correct2.1", "correct2.2"], ["a", "b"]]
    predictions = ["\u2018a big  Moose!\u2018", "wrong", "correct2.2", "c"]
    assert squad_scores.scores(references, predictions) == {"exact_match": 25, "f1": 35}


def test_spans():
    targets = [[("PER", "Ada"), ("LOC", "Rome"), ("LOC", "Rome")], []]
    found = [[("LOC", "Rome"), ("ORG", "Ada")], [("PER", "Bob")]]
    expected = {"precision": 100 / 3, "recall": 100 / 3, "f1": 100 / 3, "accuracy": 0}
    assert text_scores.spans(targets, found) == pytest.approx(expected)
    assert text_scores.spans([[], targets[0]], [[], targets[0]])["accuracy"] == 100


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(scores.importlib, "import_module", _absent)
    with pytest.raises(errors.UserError, match=r"^sacrebleu is not installed.*bertjax\[eval\]"):
        text_scores.bleu([["a"]], ["a"])


def _absent(name):
    raise ImportError(name)
