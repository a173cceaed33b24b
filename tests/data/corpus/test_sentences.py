"""The sentence splitters: what ends a sentence in novels, textbooks and other languages."""

import pytest

from bertjax.data.corpus import sentences

# "|" marks where the rules must split, and nowhere else.
PROSE = [
    "He sat down.| She did not.| Why should she?",
    "Mr. Pickwick met Mrs. Bardell and Dr. Slammer in St. Albans.| They dined.",
    "It was Messrs. Dodson and Fogg, of Freeman's Court.| Sam stared.",
    "The Rev. Mr. Stiggins sighed; Capt. Boldwig and Lt. Tappleton laughed.",
    "J. R. R. Tolkien read E. M. Forster.| George W. Bush did not.",
    "'So do I.| The rain has stopped,' he said.",
    "You and I.| We shall see.",
    "He was born on Jan. 5, 1812, and died in Dec. 1870.| He wrote much.",
    "See Fig. 3 and Vol. II, pp. 12 to 15, of No. 5.| Nothing else helps.",
    "Will you come?| No.| I will not.",
    '"No.| I will not."',
    "The U.S. Army left the U.S.| The war went on.| A U.S. Senator wept.",
    "Use a small step, e.g. 0.01, i.e. One hundredth, cf. Newton.",
    "Pi is 3.14159 and e is 2.718.| Both are irrational.",
    "It cost $3.50.| Too much!| Far too much!",
    '"Stop!" cried the man.| "Stop, thief!"| Everybody ran.',
    '"What is it?" she asked.| "I don\u2019t know."| He turned.',
    "\u201cYou are late.\u201d| \u201cI know.\u201d| They went in.",
    "(He had never been there.)| Then he went.",
    "He said that (see p. 4) was all.| The end.",
    "We... we do not know... perhaps.| But wait...| Who knows?",
    "Well . . . perhaps not.| She rose.",
    "She paused\u2026 then spoke.| He waited\u2026| Nothing came.",
    "What?!| Never!!| Impossible.",
    "He arrived at 5 p.m. on Monday.| She left at 6 a.m.| They never met.",
    "She holds a Ph.D. from Yale.| He has a B.Sc. and an M.D. degree.",
    "Smith, Jones, etc. were there.| Apples, pears, etc.| They were sold.",
    "John Smith, Jr. spoke first.| Acme Inc. was sold to Bell Co. in May.",
    "1. Mix the acid.",
    "IV. The Treaty of Ghent",
    "It was in 1999.| The year after was better.",
    "The value is 7.35.| Acid is below it.",
    "He couldn't.| She didn't.| That was Michael's.| It was.",
    "Plessy v. Ferguson was overturned in Brown v. Board of Education.| All cheered.",
    "The city grew.[12]| Trade followed.[3][4]| War came.",
    "Read https://www.bls.gov.| There are tables.",
    "the file setup.py is read. it is short.",
    "\u00c9mile partit. \u00e9tait-ce vrai ?| Non.",
    "M. Dupont et Mme. Durand sont venus.| Ils sont partis.",
    "\u4ed6\u6765\u4e86\u3002|\u4f60\u597d\u5417\uff1f|\u6211\u5f88\u597d\uff01",
    "\u541b\u306f\u8ab0\u3060\u3002\u300d|\u300c\u3048\u3063\uff01\u300d\u3068\u9a5a\u3044\u305f\u3002",
    "\u092f\u0939 \u0918\u0930 \u0939\u0948\u0964| \u0935\u0939 \u0906\u092f\u093e\u0964",
    "lobster from the Atlantic Ocean .| It is blue .",
]


@pytest.mark.parametrize("marked", PROSE)
def test_rules_split_prose_where_a_reader_would(marked):
    expected = [piece.strip() for piece in marked.split("|")]
    assert sentences.rules(marked.replace("|", "")) == expected


def test_a_blank_line_ends_a_sentence_whatever_stands_around_it():
    text = "CHAPTER I\n\nMr.\n \nthe end. \r\n\r\nand more\n\n\n"
    assert sentences.rules(text) == ["CHAPTER I", "Mr.", "the end.", "and more"]


def test_a_wrapped_line_is_one_sentence_with_single_spaces():
    assert sentences.rules("It was\na dark   and\r\nstormy night. The\nrain fell.") == [
        "It was a dark and stormy night.",
        "The rain fell.",
    ]


def test_lines_and_paragraphs():
    text = " one. two\n\nthree\nfour \n"
    assert sentences.SPLITTERS["lines"](text) == ["one. two", "three", "four"]
    assert sentences.SPLITTERS["none"](text) == [" one. two", "\n\nthree\nfour \n"]


@pytest.mark.parametrize(
    "text",
    ["", "a", "\n\na", "a\n\n", "a\n \n\n  b\n\tc\r\n\r\nd \n \n", "def f():\n\n\n    return 1\n"],
)
def test_the_pieces_of_none_are_the_document(text):
    pieces = sentences.SPLITTERS["none"](text)
    assert "".join(pieces) == text and not any(piece.isspace() for piece in pieces)


def test_sentences_are_joined_as_their_script_is_written():
    chinese = sentences.rules("\u4ed6\u6765\u4e86\u3002\u4f60\u597d\u5417\uff1f Yes. No.")
    assert sentences.spaced(chinese) == [
        "\u4ed6\u6765\u4e86\u3002", "\u4f60\u597d\u5417\uff1f", "Yes.", " No.",
    ]  # fmt: skip
    assert sentences.spaced([]) == []


@pytest.mark.parametrize("name", sentences.SPLITTERS)
@pytest.mark.parametrize("text", ["", " \n\n\t", "\n", "...", "?", "a", ". . .", "\u3002", '."'])
def test_no_splitter_gives_an_empty_sentence_or_loses_text(name, text):
    found = sentences.SPLITTERS[name](text)
    assert all(found) and "".join("".join(found).split()) == "".join(text.split())


RUNS = [".", "\n", " ", "?!", "\u3002", '"', "A.", "A. B", "1. ", ". ", "\n "]


@pytest.mark.parametrize("run", RUNS)
def test_long_runs_of_marks_take_linear_time(run):
    # Quadratic behaviour would not end within the life of the test run.
    found = sentences.rules("x" + run * 300_000 + "y")
    assert "".join("".join(found).split()) == "".join(("x" + run * 300_000 + "y").split())


def test_no_text_is_lost_on_real_prose(shared_data):
    text = (shared_data / "oracle" / "botchan.txt").read_text("utf-8")
    found = sentences.rules(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert 20 < sum(map(len, found)) / len(found) < 200
