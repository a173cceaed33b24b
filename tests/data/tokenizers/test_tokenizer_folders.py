"""Tokenizers in folders as the Hub has them: defaults of classes, fairseq's ids, added tokens."""

import errno
import json
import os
import random
import re
import shutil

import pytest
import sentencepiece
import tokenizers
from etils import epath
from sentencepiece import sentencepiece_model_pb2

from bertjax import errors
from bertjax.data.tokenizers import tokenizer

WORDS = "The Quick Brown Fox jumps over the lazy dog. Caf\u00e9 \u00c9tude, 1,234 souls! \u4f60"


def write(folder, **files):
    """Writes JSON files, "tokenizer_config" for tokenizer_config.json; returns the folder."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def real_lines(shared_data, count=2000):
    with open(shared_data / "pretrain" / "us_presidents.jsonl", encoding="utf-8") as file:
        lines = [line for row in file for line in re.split(r"(?<=[.])\s", json.loads(row)["text"])]
    return [WORDS, *random.Random(0).sample(lines, count)]


@pytest.fixture
def albert_folder(shared_data, tmp_path):
    folder = write(
        tmp_path / "albert",
        tokenizer_config={"model_max_length": 512},
        config={"model_type": "albert"},
    )
    shutil.copy(shared_data / "vocab" / "albert-v2-spiece.model", folder / "spiece.model")
    return folder


@pytest.fixture(scope="module")
def fairseq_model(tmp_path_factory):
    """A SentencePiece model of XLM-R's form: <unk>, <s>, </s>, then pieces."""
    prefix = str(tmp_path_factory.mktemp("spm") / "m")
    texts = ["the cat sat on the mat", "a dog ran home", "letters make many words"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=prefix, vocab_size=24, minloglevel=2
    )
    with open(prefix + ".model", "rb") as file:
        return file.read()


def fairseq_folder(folder, data, model_type):
    write(folder, config={"model_type": model_type})
    (folder / "sentencepiece.bpe.model").write_bytes(data)
    return folder


def test_published_albert_is_lower_cased_by_the_default_of_its_class(albert_folder, shared_data):
    told = tokenizer.load(shared_data / "vocab" / "albert-v2-spiece.model", lowercase=True)
    for drop in ("", "tokenizer_config.json"):  # which may be absent
        (albert_folder / drop).unlink() if drop else None
        one = tokenizer.load(albert_folder)
        assert one.fingerprint == told.fingerprint
        assert one.encode("The Quick Caf\u00e9") == one.encode("the quick cafe")
        assert one.specials.unk not in one.encode("The Quick Brown Fox")
    cased = write(albert_folder, tokenizer_config={"do_lower_case": False, "keep_accents": True})
    assert tokenizer.load(cased).encode("the Fox") != told.encode("the Fox")


def test_albert_ids_are_those_of_transformers(albert_folder, shared_data):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(albert_folder))
    # transformers 5 puts a space behind the user-defined pieces of a model without tokenizer.json,
    # and its fast classes do not cut "1," as ALBERT does.
    plain = re.compile(r"[A-Za-z][A-Za-z ,]{9,}[a-z][.]").fullmatch
    texts = [line for line in real_lines(shared_data) if plain(line)]
    assert len(texts) > 20
    one = tokenizer.load(albert_folder)
    assert one.kind == "unigram" and one.size == 30000
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert one.encode_batch(texts) == expected


def test_bert_folders_have_the_defaults_of_their_class(tmp_path):
    pieces = ["[UNK]", "[CLS]", "[SEP]", "the", "The", "fox", "Fox"]
    (write(tmp_path, config={"model_type": "electra"}) / "vocab.txt").write_text("\n".join(pieces))
    assert tokenizer.load(tmp_path).encode("The Fox") == [3, 5]
    write(tmp_path, tokenizer_config={"do_lower_case": False})
    assert tokenizer.load(tmp_path).encode("The Fox") == [4, 6]
    # A class with rules of its own overrides those of tokenizer.json, as in transformers.
    cased = tokenizer.load(tmp_path / "vocab.txt", lowercase=False)
    cased.save(tmp_path / "saved")
    write(tmp_path / "saved", tokenizer_config={}, config={"model_type": "bert"})
    assert tokenizer.load(tmp_path / "saved").encode("The Fox") == [3, 5]
    write(tmp_path / "saved", tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    assert tokenizer.load(tmp_path / "saved" / "tokenizer.json").encode("The Fox") == [4, 6]


@pytest.mark.parametrize("model_type", ["xlm-roberta", "camembert"])
def test_fairseq_ids_are_those_of_transformers(tmp_path, fairseq_model, model_type):
    transformers = pytest.importorskip("transformers")
    folder = fairseq_folder(tmp_path / "slow", fairseq_model, model_type)
    one = tokenizer.load(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert one.size == len(theirs) == (26 if model_type == "xlm-roberta" else 29)
    assert one.pieces(range(one.size)) == theirs.convert_ids_to_tokens(range(one.size))
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(one.specials, role) == getattr(theirs, f"{role}_token_id"), role
    texts = ["the cat sat on a mat", "Z\u00fcrich, the dog", "  many  words ", ""]
    for text in texts:
        assert one.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert one.encode_with_offsets([text])[0][0] == one.encode(text)
    assert one.decode(one.encode("the cat sat")) == "the cat sat"
    for kind in ("encoder", "decoder"):
        one.save(tmp_path / kind, kind=kind, token_types=False)
        again = tokenizer.load(tmp_path / kind)
        assert again.fingerprint == one.fingerprint
        assert again.encode_batch(texts) == one.encode_batch(texts)
        loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / kind))
        assert loaded(texts[0], add_special_tokens=False)["input_ids"] == one.encode(texts[0])


@pytest.fixture(scope="module")
def deberta_model(tmp_path_factory):
    """A SentencePiece model of DeBERTa-v2's form: [PAD], [CLS], [SEP], [UNK], then pieces."""
    prefix = str(tmp_path_factory.mktemp("spm") / "m")
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    ids = {f"{role}_id": i for i, role in enumerate(names)}
    texts = ["The cat sat on the mat, (1,234) times!", "a Dog ran home", "caf\u00e9 \uff21"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=prefix, vocab_size=34, minloglevel=2,
        **ids, **{f"{role}_piece": piece for role, piece in names.items()},
    )  # fmt: skip
    with open(prefix + ".model", "rb") as file:
        return file.read()


def deberta_folder(folder, data, **options):
    """A folder as those of microsoft/deberta-v3-base and its sisters."""
    options = {"do_lower_case": False, "vocab_type": "spm", **options}
    write(folder, config={"model_type": "deberta-v2"}, tokenizer_config=options)
    (folder / "spm.model").write_bytes(data)
    return folder


def test_debertas_mask_follows_its_pieces(tmp_path, deberta_model):
    transformers = pytest.importorskip("transformers")
    folder = deberta_folder(tmp_path / "slow", deberta_model)
    one = tokenizer.load(folder)
    assert vars(one.specials) == {
        "pad": 0, "cls": 1, "sep": 2, "unk": 3, "mask": 34, "bos": -1, "eos": -1
    }  # fmt: skip
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert one.size == len(theirs) == 35
    texts = ["The cat sat on a mat", "Z\u00fcrich, the Dog (1,234)", "  many  words ", ""]
    for text in texts:
        assert one.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        found = theirs(f"{text} [MASK] a")["input_ids"]
        ids = one.encode(f"{text} [MASK] a", specials_in_text=True)
        assert [1, *ids, 2] == found and 34 in found
    assert 34 not in one.encode("[MASK]")
    one.save(tmp_path / "saved", max_length=24, token_types=False, exported=True)
    again = tokenizer.load(tmp_path / "saved")
    assert again.fingerprint == one.fingerprint
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    wide = "\uff21 caf\u00e9"  # transformers 5 does not read the model's table of characters
    for text in (*texts, wide):
        assert loaded(text)["input_ids"] == [1, *one.encode(text), 2]
    assert one.specials.unk not in one.encode(wide)
    added = write(folder, added_tokens={"[MASK]": 34})  # as transformers 4 saves the slow class
    assert tokenizer.load(added).specials.mask == 34


@pytest.mark.parametrize("option", ["do_lower_case", "split_by_punct"])
def test_rules_of_deberta_that_its_model_lacks_are_refused(tmp_path, deberta_model, option):
    one = tokenizer.load(deberta_folder(tmp_path / "plain", deberta_model))
    folder = deberta_folder(tmp_path / "other", deberta_model, **{option: True})
    with pytest.raises(errors.UserError, match=rf"{option} = true is not supported"):
        tokenizer.load(folder)
    one.save(tmp_path / "saved", exported=True)  # whose rules are all in tokenizer.json
    shutil.copy(tmp_path / "saved" / "tokenizer.json", folder)
    assert tokenizer.load(folder).encode("The Dog") == one.encode("The Dog")


def test_fairseq_pieces_of_an_unknown_model_are_refused(tmp_path, fairseq_model):
    folder = fairseq_folder(tmp_path / "a", fairseq_model, "xlm-roberta")
    prints = {tokenizer.load(folder).fingerprint}
    prints.add(tokenizer.load(write(folder, config={"model_type": "camembert"})).fingerprint)
    assert len(prints) == 2
    for model_type, message in (
        ("roberta", "its class is RobertaTokenizer, which needs"),
        ("t5", "its ids depend on its model"),
        ("mbart", "model_type 'mbart'"),
    ):
        write(folder, config={"model_type": model_type})
        with pytest.raises(errors.UserError, match=message):
            tokenizer.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(errors.UserError, match="its ids depend on its model"):
        tokenizer.load(folder / "sentencepiece.bpe.model")
    data = sentencepiece_model_pb2.ModelProto.FromString(fairseq_model)
    data.pieces[1].piece = "other"
    fairseq_folder(folder, data.SerializeToString(), "xlm-roberta")
    with pytest.raises(errors.UserError, match="its first 3 pieces must be special"):
        tokenizer.load(folder)


ADDED = [
    {"id": 30000, "content": "<new>", "special": False, "normalized": False},
    {"id": 30001, "content": "CamelCase", "special": False, "single_word": True,
     "normalized": True},
    {"id": 30002, "content": "<ent>", "special": True, "normalized": False},
    {"id": 30003, "content": "<gap>", "special": False, "lstrip": True, "rstrip": True,
     "normalized": True},
]  # fmt: skip
TEXTS = ["a <new> fox", "a<new>b", "camelcase CAMELCASE xCamelCase", "a <ent> b", "in <gap> on"]


def test_added_tokens_beside_sentencepiece_are_kept(albert_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(albert_folder))
    for entry in ADDED:
        flags = {key: value for key, value in entry.items() if key != "id"}
        special = flags.pop("special")
        theirs.add_tokens([tokenizers.AddedToken(**flags)], special_tokens=special)
    theirs.save_pretrained(str(tmp_path / "saved"))
    shutil.copy(albert_folder / "spiece.model", tmp_path / "saved")
    decoder = {str(entry["id"]): {**entry, "__type": "AddedToken"} for entry in ADDED}
    slow = write(albert_folder, tokenizer_config={"added_tokens_decoder": decoder})
    for folder in (tmp_path / "saved", slow):
        one = tokenizer.load(folder)
        assert one.size == 30004 and one.pieces([30000, 30002]) == ["<new>", "<ent>"]
        assert one.special_mask()[30002] and not one.special_mask()[30000]
        assert 30002 not in one.encode(TEXTS[3])  # special tokens in a text are plain unless asked
        for text in TEXTS[:3] + TEXTS[4:]:
            ids = one.encode(text)
            assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
            assert one.encode_with_offsets([text])[0][0] == ids
        assert one.decode(one.encode("fox <new> a")) == "fox<new> a"
        one.save(folder / "ours")
        assert tokenizer.load(folder / "ours").fingerprint == one.fingerprint
        assert tokenizer.load(folder / "ours").encode_batch(TEXTS) == one.encode_batch(TEXTS)


def test_added_tokens_lie_above_the_sentinels_of_t5(shared_data, tmp_path):
    folder = write(tmp_path, config={"model_type": "t5"}, added_tokens={"<new>": 1100})
    shutil.copy(shared_data / "vocab" / "hf-test_sentencepiece.model", folder / "spiece.model")
    one = tokenizer.load(folder)
    assert one.size == 1101 and one.sentinels.tolist() == list(range(1099, 999, -1))
    assert one.encode("This<new>") == [*one.encode("This"), 1100]
    one.save(tmp_path / "again", kind="encoder_decoder")
    assert tokenizer.load(tmp_path / "again").fingerprint == one.fingerprint
    write(folder, added_tokens={"<new>": 1105})
    with pytest.raises(errors.UserError, match="no token has id 1000"):
        tokenizer.load(folder)


def test_added_tokens_beside_a_vocabulary_of_words(tmp_path):
    (write(tmp_path) / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\nfox\n")
    plain = tokenizer.load(tmp_path)
    write(tmp_path, added_tokens={"[E1]": 5, "fox-trot": 6}, special_tokens_map={
        "additional_special_tokens": ["[E1]"]
    })  # fmt: skip
    one = tokenizer.load(tmp_path)
    assert one.size == 7 and one.special_mask().tolist() == [True, True, True, False, False,
                                                            True, False]  # fmt: skip
    assert one.encode("a fox-trot") == [3, 6] != plain.encode("a fox-trot")
    assert one.encode("a [E1]", specials_in_text=True) == [3, 5]
    assert one.fingerprint != plain.fingerprint
    one.save(tmp_path / "again")
    assert tokenizer.load(tmp_path / "again").fingerprint == one.fingerprint
    write(tmp_path, added_tokens={"[E1]": 9})
    with pytest.raises(errors.UserError, match=r"'\[E1\]' has id 9, but 5 in the vocabulary"):
        tokenizer.load(tmp_path)


def test_tokenizer_json_counts_where_its_pieces_are_others(albert_folder, tmp_path):
    one = tokenizer.load(albert_folder)
    one.save(tmp_path / "both")
    spec = json.loads((tmp_path / "both" / "tokenizer.json").read_text())
    spec["model"]["vocab"][500][0] = "\u2581zebrafish"
    write(tmp_path / "both", tokenizer=spec)
    other = tokenizer.load(tmp_path / "both")
    assert other.pieces([500]) == ["\u2581zebrafish"]
    assert other.fingerprint != one.fingerprint


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "MyOwnTokenizer", "PhobertTokenizer"])
def test_a_tokenizer_class_that_is_not_known_is_refused(tmp_path, name):
    (write(tmp_path) / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\na\n")
    for file in ("tokenizer_config", "config"):
        write(tmp_path, **{file: {"tokenizer_class": name}})
        with pytest.raises(errors.UserError, match=f"{name}.*does not support"):
            tokenizer.load(tmp_path)
        (tmp_path / f"{file}.json").unlink()
    write(tmp_path, tokenizer_config={"tokenizer_class": "LlamaTokenizer"})
    with pytest.raises(errors.UserError, match="LlamaTokenizer, which needs one of"):
        tokenizer.load(tmp_path)


def test_damaged_files_are_one_line(tmp_path, shared_data):
    rng = random.Random(0)
    sources = {"spiece.model": (shared_data / "vocab/hf-test_sentencepiece.model").read_bytes()}
    trained = tokenizer.train("wordpiece", ["the cat sat on the mat"] * 20, 30)
    trained.save(tmp_path / "w")
    tokenizer.train("bpe", ["the cat sat on the mat"] * 20, 265).save(tmp_path / "b")
    for folder, name in (("w", "vocab.txt"), ("w", "tokenizer.json"), ("b", "vocab.json"),
                         ("b", "merges.txt"), ("b", "tokenizer.json")):  # fmt: skip
        sources[f"{folder}/{name}"] = (tmp_path / folder / name).read_bytes()
    for name, data in sources.items():
        for trial in range(25):
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 3, 30))):
                damaged[rng.randrange(min(len(damaged), 4000))] = rng.randrange(256)
            if trial % 5 == 4:
                damaged = damaged[: rng.randrange(len(damaged))]
            file = tmp_path / name
            file.write_bytes(damaged)
            try:
                tokenizer.load(file)
            except errors.UserError as error:
                assert str(tmp_path) in str(error)
        (tmp_path / name).write_bytes(data)
    hostile = json.loads((tmp_path / "b" / "tokenizer.json").read_text())
    for change in (
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": None}, {"added_tokens": 3}, {"added_tokens": [{"id": 2**40, "content": "x"}]},
    ):  # fmt: skip
        write(tmp_path / "b", tokenizer=hostile | change)
        with pytest.raises(errors.UserError, match=r"tokenizer\.json"):
            tokenizer.load(tmp_path / "b" / "tokenizer.json")


def test_a_write_that_fails_names_the_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(type(epath.Path(tmp_path)), "write_bytes", fail)
    with pytest.raises(errors.UserError, match=r"tokenizer_config\.json: cannot be written"):
        tokenizer.of_bytes().save(tmp_path)


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 30), ("bpe", 265), ("unigram", 20)])
def test_a_tokenizer_json_that_does_not_name_the_type_of_its_model(kind, size, tmp_path):
    """As bert-base-uncased, gpt2 and t5-small have it on the Hub."""
    trained = tokenizer.train(kind, ["the cat sat on the mat", "a dog ran"] * 20, size)
    trained.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    del content["model"]["type"]
    old = write(tmp_path / "old", tokenizer=content)
    loaded = tokenizer.load(old)
    assert loaded.encode("the dog sat") == tokenizer.load(file).encode("the dog sat")
    del content["model"]
    with pytest.raises(errors.UserError, match="its model is None"):
        tokenizer.load(write(tmp_path / "none", tokenizer=content))
