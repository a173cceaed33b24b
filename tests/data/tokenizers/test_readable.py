"""Pieces of bytes are shown as the text that the bytes are, wherever pieces are shown."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax import __main__, show
from bertjax.data.tokenizers import tokenizer
from bertjax.inference import pretrained
from tests.helpers import tiny_model

GERMAN = "Die Glocke l\u00e4utete sch\u00f6n f\u00fcr gro\u00dfe \u00c4pfel \U0001f600"
SIZE = 303  # every word of it is one piece


@pytest.fixture(scope="module")
def german():
    return tokenizer.train("bpe", [GERMAN] * 50, SIZE)


def test_whole_characters_are_text_and_parts_of_one_are_escaped(german):
    assert german.readable(german.encode(GERMAN)) == [
        "\u0120Die", "\u0120Glocke", "\u0120l\u00e4utete", "\u0120sch\u00f6n", "\u0120f\u00fcr",
        "\u0120gro\u00dfe", "\u0120\u00c4pfel", "\u0120\U0001f600",
    ]  # fmt: skip
    unseen = german.readable(german.encode("\u20ac\n"))
    assert "".join(unseen) == "\u0120\\xe2\\x82\\xac\\n"
    assert german.readable([german.specials.mask]) == german.pieces([german.specials.mask])


def test_byte_tokens_are_letters_or_escapes():
    of_bytes = tokenizer.of_bytes()
    ids = [*of_bytes.encode("a \u00e4"), of_bytes.specials.eos]
    assert of_bytes.readable(ids) == ["a", " ", "\\xc3", "\\xa4", "</s>"]


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 50), ("unigram", 30)])
def test_other_pieces_are_shown_as_they_are(kind, size):
    one = tokenizer.train(kind, [GERMAN.lower()] * 50, size)
    ids = range(one.size)
    assert one.readable(ids) == one.pieces(ids)


def test_guesses_for_a_mask(german):
    model = tiny_model.make(vocab_size=german.size)
    bert = pretrained.Pretrained(dataclasses.replace(model, tokenizer=german))
    (fills,) = bert.fill_mask("Die <mask>", top=german.size)
    assert [fill.piece for fill in fills] == german.readable([fill.id for fill in fills])
    assert "\u0120l\u00e4utete" in {fill.piece for fill in fills}


def test_pictures_of_a_batch(german):
    ids = np.array([german.encode(GERMAN)])
    figure = show.tokens(german, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert "\u0120l\u00e4utete" in [text.get_text() for text in figure.axes[0].texts]


def test_the_example_of_the_command(tmp_path, capsys):
    corpus = tmp_path / "text.jsonl"
    corpus.write_text((json.dumps({"text": GERMAN}) + "\n") * 50)
    flags = [f"--input={corpus}", "--kind=bpe", f"--vocab_size={SIZE}", f"--output={tmp_path}/tok"]
    assert not __main__.main(["tokenizer", *flags])
    assert "\u0120l\u00e4utete \u0120sch\u00f6n" in capsys.readouterr().out
