"""Reading CoNLL columns and SQuAD's JSON."""

import json
import os

import pytest

from bertjax import errors
from bertjax.finetuning import tasks
from bertjax.finetuning.examples.types import Words


def _words(tmp_path, *lines, entities=True):
    path = tmp_path / "a.conll"
    path.write_text("".join(f"{line}\n" for line in lines))
    return Words.of_conll(os.fspath(path), entities=entities)


def _tags(tmp_path, tags, **options):
    (sentence,) = _words(tmp_path, *(f"w {tag}" for tag in tags.split()), **options)
    return " ".join(sentence.tags)


# --- CoNLL ----------------------------------------------------------------------------------------


def test_sentences_of_conll_2003(tmp_path):
    found = _words(
        tmp_path,
        "-DOCSTART- -X- O O", "",
        "EU NNP B-NP B-ORG", "rejects VBZ B-VP O", "", "",
        "# O O O", "Peter NNP B-NP B-PER", "Blackburn NNP I-NP I-PER",
    )  # fmt: skip
    assert [sentence.words for sentence in found] == [
        ("EU", "rejects"),
        ("#", "Peter", "Blackburn"),
    ]
    assert [sentence.tags for sentence in found] == [("B-ORG", "O"), ("O", "B-PER", "I-PER")]
    assert [sentence.where.rpartition(":")[2] for sentence in found] == ["3", "7"]


def test_tabs_keep_odd_words_and_comments_go(tmp_path):
    (sentence,) = _words(tmp_path, "# sent_id = 4", "#\tO", "\u00a0\tO", "New York\tB-LOC")
    assert sentence.words == ("#", "\u00a0", "New York")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-A I-A B-A O", "O B-A I-A B-A O"),  # BIO2
        ("I-A I-A B-A O I-B", "B-A I-A B-A O B-B"),  # IOB1: B only where two of a type touch
        ("I-A I-B", "B-A B-B"),
        ("B-A E-A O S-B", "B-A I-A O B-B"),  # IOBES
        ("B-A I-A L-A U-A", "B-A I-A I-A B-A"),  # BILOU
        ("O O", "O O"),
    ],
)
def test_entities_come_out_in_bio2(tmp_path, tags, expected):
    assert _tags(tmp_path, tags) == expected


def test_the_scheme_is_that_of_the_whole_file(tmp_path):
    lines = ["Ada I-PER", "", "in O", "Oslo B-LOC"]
    with pytest.raises(errors.UserError, match=r"a\.conll:1: tag 'I-PER' continues .* has B-PER"):
        _words(tmp_path, *lines)


def test_other_tags_are_for_tasks_without_entities(tmp_path):
    assert _tags(tmp_path, "NOUN VERB", entities=False) == "NOUN VERB"
    assert _tags(tmp_path, "I-A O", entities=False) == "B-A O"
    with pytest.raises(errors.UserError, match=r"a\.conll:2: tag 'VERB' .* --task=tokens"):
        _tags(tmp_path, "O VERB")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a\tO", "b\tB-X", "c\tI-Y"], ":3: tag 'I-Y' continues an entity that has not begun"),
        (["a\tB-X", "b\tO", "c\tI-X"], ":3: tag 'I-X' continues"),
        (["a\tS-X", "b\tI-X"], ":2: tag 'I-X' continues"),
        (["a\tO", "b"], ":2: the number of columns is 1, but the lines above have 2"),
        (["a\tO", "\tO"], ":2: the first column, the word, is empty"),
        (["a\tO", "b\t "], ":2: no tag beside 'b'"),
        (["", ""], "a.conll: contains no sentences"),
        ([], "a.conll: the file is empty"),
    ],
)
def test_bad_conll_names_the_line(tmp_path, lines, expected):
    with pytest.raises(errors.UserError) as caught:
        _words(tmp_path, *lines)
    assert expected in str(caught.value)


def test_words_alone_have_no_tags(tmp_path):
    (sentence,) = _words(tmp_path, "Ada", "spoke")
    assert sentence.tags is None
    with pytest.raises(errors.UserError, match=r"a\.conll:1: has no 'tags'; train and dev need"):
        tasks.read(tasks.find("ner"), os.fspath(tmp_path / "a.conll"), "dev")


def test_words_in_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"tokens": ["Ada", "spoke"], "ner_tags": ["I-PER", "O"]}
    path.write_text(json.dumps(row) + "\n")
    (sentence,) = tasks.read(tasks.find("ner"), os.fspath(path), "train")
    assert sentence == Words(("Ada", "spoke"), ("B-PER", "O"), f"{path}:1")
    for change, expected in (
        ({"ner_tags": ["B-PER", "I-LOC"]}, "a.jsonl:1 word 2: tag 'I-LOC' continues"),
        ({"ner_tags": ["B-PER"]}, "a.jsonl:1: 2 words and 1 tags"),
        ({"tokens": ["Ada", 3]}, "a.jsonl:1: words and tags must be non-empty lists of"),
        ({"tokens": ["Ada", " "]}, "a.jsonl:1: a word of 'tokens' is empty"),
    ):
        path.write_text(json.dumps(row | change) + "\n")
        with pytest.raises(errors.UserError) as caught:
            tasks.read(tasks.find("ner"), os.fspath(path), "train")
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("file", "sentences", "entities"),
    [
        ("uner_ewt/dev", 2001, 966),
        ("wikigold/train", 1356, 2821),
        ("wnut17/test", 1287, 1079),
        ("snips_slots/dev", 700, 1794),
    ],
)
def test_real_entities(shared_data, file, sentences, entities):
    found = Words.of_conll(os.fspath(shared_data / "ner" / f"{file}.conll"), entities=True)
    assert len(found) == sentences
    assert sum(tag.startswith("B-") for one in found for tag in one.tags) == entities


# --- SQuAD ----------------------------------------------------------------------------------------

CONTEXT = "Ada Lovelace wrote notes in 1843."


def _qa(name="q1", text="Ada Lovelace", start=0, **others):
    return {
        "id": name,
        "question": "Who wrote?",
        "answers": [{"text": text, "answer_start": start}],
    } | others


def _questions(tmp_path, *qas, task="squad", split="train", context=CONTEXT):
    path = tmp_path / "a.json"
    paragraph = {"context": context, "qas": list(qas)}
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}))
    return tasks.read(tasks.find(task), os.fspath(path), split)


def test_questions_with_and_without_answers(tmp_path):
    impossible = _qa("q2", answers=[], is_impossible=True, plausible_answers=[{"text": "Ada"}])
    first, second = _questions(tmp_path, _qa(), impossible, task="squad_v2")
    assert (first.id, first.question, first.context) == ("q1", "Who wrote?", CONTEXT)
    assert first.answers == (("Ada Lovelace", 0),) and not first.impossible
    assert second.answers == () and second.impossible
    assert second.where == f"{tmp_path / 'a.json'} question q2"
    bare = {"id": "q3", "question": "When?"}
    (third,) = _questions(tmp_path, bare, split="test")
    assert third.answers == () and not third.impossible
    with pytest.raises(errors.UserError, match="question q3: has no 'answers'; other examples"):
        _questions(tmp_path, _qa(), bare, split="test")


@pytest.mark.parametrize(
    ("qas", "task", "expected"),
    [
        ([_qa(text="Ada Byron")], "squad", "question q1: the answer 'Ada Byron' is not in its "
         "context at character 0, where 'Ada Lovel' is; the context lacks it"),
        ([_qa(start=1)], "squad", "the context has it at 0"),
        ([_qa(start=-3, text="43.")], "squad", "the context has it at 30"),
        ([_qa(text=" ", start=3)], "squad", "question q1: an answer is empty"),
        ([_qa(), _qa()], "squad", "question q1: the id occurs twice"),
        ([_qa(question=" ")], "squad", "question q1: the question is empty"),
        ([_qa(answers=[])], "squad_v2", "question q1: has no 'answers'; train"),
        ([_qa(answers=[], is_impossible=True)], "squad", "--task=squad_v2"),
        ([_qa(is_impossible=True)], "squad_v2", "question q1: is_impossible is true, but"),
        ([_qa(answers=[{"text": "Ada"}])], "squad", "question q1: no 'answer_start'"),
        ([_qa(start="0")], "squad", "question q1: 'answer_start' is not a JSON integer"),
        ([{"id": "q1", "question": "Who?"}], "squad", "question q1: has no 'answers'; train"),
        ([{"question": "Who?"}], "squad", "article 0 paragraph 0: no 'id'"),
        ([], "squad", "a.json: contains no questions"),
    ],
)  # fmt: skip
def test_bad_questions_are_named(tmp_path, qas, task, expected):
    with pytest.raises(errors.UserError) as caught:
        _questions(tmp_path, *qas, task=task)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"data": [\n}', "a.json: line 2 is not JSON"),
        ('{"data": ' + "[" * 2_000 + "]" * 2_000 + "}", "a.json: is nested more than 64 levels"),
        ('{"data": ' + "9" * 5_000 + "}", "a.json: is not JSON: Exceeds the limit"),
        ("[]", "a.json: is a JSON list, not an object"),
        ('{"data": {}}', "a.json: 'data' is not a JSON list"),
        ("", "a.json: the file is empty"),
    ],
)
def test_bad_json(tmp_path, content, expected):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(errors.UserError) as caught:
        tasks.read(tasks.find("squad"), os.fspath(path), "train")
    assert expected in str(caught.value)


def test_one_question_a_line(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"id": "q1", "question": "When?", "context": CONTEXT}
    row["answers"] = {"text": ["1843"], "answer_start": [28]}
    other = row | {"id": "q2", "answers": {"text": [], "answer_start": []}}
    path.write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n")
    first, second = tasks.read(tasks.find("squad_v2"), os.fspath(path), "train")
    assert first.answers == (("1843", 28),) and second.impossible
    assert first.where == f"{path}:1 question q1"


@pytest.mark.parametrize(
    ("file", "task", "questions", "impossible"),
    [("squad11_dev", "squad", 1432, 0), ("squad20_dev", "squad_v2", 1177, 551)],
)
def test_real_questions(shared_data, file, task, questions, impossible):
    path = os.fspath(shared_data / "qa" / f"{file}.json")
    found = tasks.read(tasks.find(task), path, "dev")
    assert len(found) == questions and sum(q.impossible for q in found) == impossible
    assert all(q.context[start:].startswith(text) for q in found for text, start in q.answers)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Ada lives in London.\n", [("Ada", "lives", "in", "London", ".")]),
        ("I ran.\n\nHe flew home\n", [("I", "ran", "."), ("He", "flew", "home")]),
        ("I\nran\n\nHe\n", [("I", "ran"), ("He",)]),
        ("Ada B-PER\nran O\n", [("Ada", "ran")]),
        ("-DOCSTART-\n\nAda B-PER\nran O\n", [("Ada", "ran")]),
    ],
)
def test_a_text_a_line_is_cut_into_words(tmp_path, content, words):
    (tmp_path / "a.txt").write_text(content)
    found = tasks.read(tasks.find("ner"), str(tmp_path / "a.txt"), "test", scored=False)
    assert [example.words for example in found] == words


def test_tags_do_not_matter_where_nothing_is_scored(tmp_path):
    (tmp_path / "a.conll").write_text("Ada I-PER\nran NOUN\n")
    (tmp_path / "a.jsonl").write_text('{"words": ["Ada", "ran"], "tags": ["I-PER", "NOUN"]}\n')
    for name in ("a.conll", "a.jsonl"):
        (found,) = tasks.read(tasks.find("ner"), str(tmp_path / name), "test", scored=False)
        assert found[:2] == (("Ada", "ran"), None)
    (tmp_path / "a.conll").write_text("Ada I-PER\nran O\n")
    (found,) = tasks.read(tasks.find("ner"), str(tmp_path / "a.conll"), "test", scored=False)
    assert found.tags == ("B-PER", "O")


def test_a_row_that_lacks_its_tag_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_text("Ada B-PER\nran\n")
    for scored in (True, False):
        with pytest.raises(errors.UserError, match="columns is 1, but the lines above have 2"):
            tasks.read(tasks.find("ner"), str(tmp_path / "a.txt"), "test", scored=scored)
    (tmp_path / "a.txt").write_text("I ran.\nHe flew home\n")
    with pytest.raises(errors.UserError, match="columns is 3, but the lines above have 2"):
        tasks.read(tasks.find("ner"), str(tmp_path / "a.txt"), "test")


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("line", [1, 2])
def test_a_line_of_white_space_that_ends_no_sentence(tmp_path, line, scored):
    rows = ["Ada B-PER", "ran O"]
    rows.insert(line - 1, "\N{NO-BREAK SPACE}")
    (tmp_path / "a.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    said = {1: ":1: the first column, the word, is empty", 2: ":2: the number of columns is 0, but"}
    with pytest.raises(errors.UserError, match=said[line]):
        tasks.read(tasks.find("ner"), str(tmp_path / "a.txt"), "test", scored=scored)
