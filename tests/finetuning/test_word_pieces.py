"""Pieces of words out of the ids of a whole text: the same ids and entities as in transformers."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax import errors
from bertjax.artifact import huggingface, loading
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import output_folder, predictor, rows, word_pieces
from bertjax.finetuning.examples import columns as columns_lib
from bertjax.finetuning.examples import readers, types
from bertjax.finetuning.task_types import tokens
from tests.helpers import downstream, tiny_model, toy_tasks
from tests.helpers.task_types import bind

Words = types.Words
LABELS = ["O", "B-X", "I-X"]
RAW = Words(
    ("Caf\u00e9", "dogs", ",", "\u4e2d\u6587", "U.N.", "cat"),
    ("B-X", "I-X", "O", "B-X", "B-X", "O"),
    text="Caf\u00e9 dogs,  \u4e2d\u6587 U.N. cat ",
)
SPACED = Words(tuple("the cat sat on a mat".split()), ("O", "B-X", "I-X", "O", "B-X", "I-X"))
KINDS = ["wordpiece", "bpe", "bpe without prefix", "unigram", "albert", "across words"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Every kind of tokenizer, by name."""
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {name: tiny_model.tokenizer(name) for name in ("wordpiece", "bpe", "unigram")}
    made["bpe"].save(folder / "bpe")
    file = folder / "bpe" / "tokenizer.json"
    spec = json.loads(file.read_text())
    spec["pre_tokenizer"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    file.write_text(json.dumps(spec))
    made["bpe without prefix"] = tokenizer_lib.load(file)
    made["unigram"].save(folder / "unigram")
    model = folder / "unigram" / "spiece.model"
    made["albert"] = tokenizer_lib.load(model, lowercase=True)
    made["across words"] = _across_words(folder)
    return made


def _across_words(folder):
    """SentencePiece whose pieces may hold the end of one word and the next one."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = folder / "text.txt"
    text.write_text("\n".join(tiny_model.TEXTS * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "across"), vocab_size=60, model_type="bpe",
        split_by_whitespace=False, minloglevel=2,
    )  # fmt: skip
    return tokenizer_lib.load(folder / "across.model")


@pytest.mark.parametrize("name", KINDS)
def test_pieces_are_those_of_the_whole_text(tokenizers, name):
    tokenizer = tokenizers[name]
    for example in (RAW, SPACED, Words(("the",) * 3, text=" thethe the")):
        (pieces,) = word_pieces.of_texts(tokenizer, [example])
        text = example.text or " ".join(example.words)
        assert [i for own in pieces for i in own.ids] == tokenizer.encode(text)
        assert [own.word + own.carried + 1 for own in pieces] == [
            *(own.word for own in pieces[1:]), len(example.words)
        ]  # fmt: skip
        assert all(0 <= own.first < own.start <= len(own.ids) for own in pieces)
    assert list(word_pieces.of_texts(tokenizer, [Words((), text="")])) == [[]]


def test_words_without_pieces_of_their_own_are_carried(tokenizers):
    (pieces,) = word_pieces.of_texts(tokenizers["across words"], [SPACED])
    assert any(own.carried for own in pieces), "a piece of this tokenizer spans words"
    (pieces,) = word_pieces.of_texts(tokenizers["wordpiece"], [Words(("\u00ad", "cat", "\u00ad"))])
    assert [(own.word, own.carried) for own in pieces] == [(1, 1)], "nothing reads the first one"


def test_lone_spaces_and_bytes_are_before_and_in_the_first_character(tokenizers):
    (pieces,) = word_pieces.of_texts(tokenizers["bpe"], [Words(("cat", "\u4e2d"))])
    assert pieces[1].start == 4 and pieces[1].first == 1, "a space and three bytes"
    example, lengths = Words(("cat", "\u4e2d"), ("O", "B-X")), rows.Lengths(20)
    (row,) = (
        bind(tokens, tokens.Config(), LABELS, tokenizer=tokenizers["bpe"], lengths=lengths)
        .encode([example])
        .rows
    )
    told = int(np.flatnonzero(row["words"])[1])
    assert row["loss_weights"][told - 1 : told + 3].tolist() == [1] * 4
    assert row["targets"][told - 1 : told + 3].tolist() == [0, 1, 2, 2], "O, B-X, I-X, I-X"


def test_raw_text_comes_with_the_words(tmp_path):
    file = tmp_path / "a.conll"
    file.write_text("# text = (cat)s\n(\tO\ncat\tB-X\n)s\tO\n\n# text = another\ndog\tO\n\na\tO\n")
    found = types.Words.of_conll(str(file), entities=True)
    assert [example.text for example in found] == ["(cat)s", "", ""], "only of its words"
    columns = columns_lib.Columns((("words",),), ("tags",))
    record = readers.Record("f:1", {"words": ["(", "cat"], "text": "(cat "})
    example = types.Words.of_record(record, columns)
    assert example.text == "(cat " and example.places() == [(0, 1), (1, 4)]


# --- predictions ---------------------------------------------------------------------------------


def _tagger(tokenizer, config):
    """A random model that tags words, as an artifact."""
    source = tiny_model.make(heads=("token_classifier",), num_labels=3, vocab_size=tokenizer.size)
    task = {"name": "ner", "kind": "tokens", "config": dataclasses.asdict(config),
            "labels": LABELS, "max_length": 40}  # fmt: skip
    return dataclasses.replace(downstream.soft(source), tokenizer=tokenizer, task=task)


@pytest.mark.parametrize("name", KINDS[:5])
def test_transformers_gives_each_word_the_same_tag(tokenizers, name, tmp_path):
    """In a raw text, by the first piece of the word."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source = _tagger(tokenizers[name], tokens.Config())
    huggingface.write(source, tmp_path)
    pipeline = transformers.pipeline("ner", str(tmp_path), ignore_labels=[])
    model = predictor.Predictor(source)
    for text in ("the cat, (a dog) sat.", "a cat's  mat", "dog"):
        (found,) = model.predict([text])
        visible = [token for token in pipeline(text) if token["word"].strip("\u2581\u0120")]
        for (start, _), tag, probability in zip(
            types.Words.cut(text).places(), found["tags"], found["probabilities"], strict=True
        ):
            first = next(token for token in visible if token["end"] > start)
            assert (first["entity"], first["score"]) == (tag, pytest.approx(probability, abs=1e-4))


def test_a_stored_config_without_the_field_means_words():
    config = tokens.Config(encoding="words")
    source = _tagger(tiny_model.tokenizer("bpe"), config)
    del source.task["config"]["encoding"]
    assert predictor.Predictor(source).task_type.config == config
    assert tokens.Config().encoding == "text"


def test_a_folder_of_an_earlier_version_is_resumed_with_words(tmp_path):
    source = tiny_model.make()
    toy_tasks.entities(tmp_path, count=1)
    config = toy_tasks.config("ner", "model", tmp_path, kind__encoding="words")
    output_folder.Folder(tmp_path / "out", config, source, {})
    file = tmp_path / "out" / output_folder.CONFIG
    content = json.loads(file.read_text())
    del content["config"]["kind.encoding"], content["checksum"]
    file.write_text(json.dumps(content))
    other = toy_tasks.config("ner", "model", tmp_path)
    with pytest.raises(errors.UserError, match=r"kind.encoding = 'text' \(there 'words'\)"):
        output_folder.Folder(tmp_path / "out", other, source, {})
    output_folder.Folder(tmp_path / "out", config, source, {})


def test_a_published_model_reads_whole_texts(tmp_path):
    source = dataclasses.replace(downstream.make("bert", "ForTokenClassification"), task=None)
    huggingface.write(source, tmp_path)
    assert loading.load(tmp_path).task["config"] == {"encoding": "text"}
