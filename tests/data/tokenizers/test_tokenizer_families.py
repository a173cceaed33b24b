"""Tokenizers of T5, ByT5, GPT-2 and RoBERTa: ends of text, sentinels, what transformers loads.

The published ids of RoBERTa are not among them: they need fairseq's dict.txt.
"""

import json
import os
import pathlib
import string
import subprocess
import sys

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2
from tokenizers import pre_tokenizers

from bertjax import errors
from bertjax.data.prepared import prepare, store
from bertjax.data.tokenizers import tokenizer
from bertjax.data.tokenizers.vocabulary import Specials
from tests.helpers import corpora

ROOT = pathlib.Path(__file__).resolve().parents[3]
TEXTS = ["the cat sat on the mat", "a dog ran home and saw the cat", "letters make many words"] * 20
HELLO = "this is a test \U0001f917 \u4f60\u597d"
HELLO_BYTES = (
    "119 107 108 118 35 108 118 35 100 35 119 104 118 119 35 243 162 167 154 35 231 192 163 232 "
    "168 192"
)


@pytest.fixture(scope="module")
def trained():
    sizes = {"wordpiece": 60, "bpe": 280, "unigram": 28}
    return {kind: tokenizer.train(kind, TEXTS, size) for kind, size in sizes.items()}


@pytest.fixture(scope="module")
def t5_folder(shared_data, tmp_path_factory):
    """A T5 tokenizer of 1000 pieces: <pad> 0, </s> 1, <unk> 2, as in the published ones."""
    folder = tmp_path_factory.mktemp("t5")
    data = (shared_data / "vocab" / "hf-test_sentencepiece.model").read_bytes()
    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    assert [p.piece for p in model.pieces[:3]] == ["<unk>", "<s>", "</s>"]
    types = model.SentencePiece
    for i, (piece, kind) in enumerate(
        [("<pad>", types.CONTROL), ("</s>", types.CONTROL), ("<unk>", types.UNKNOWN)]
    ):
        model.pieces[i].piece, model.pieces[i].type = piece, kind
    model.trainer_spec.pad_id, model.trainer_spec.eos_id = 0, 1
    model.trainer_spec.unk_id, model.trainer_spec.bos_id = 2, -1
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_bpe(folder, pieces, merges, **config):
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.load(folder)


def test_every_trained_tokenizer_serves_every_objective(trained):
    for kind, one in trained.items():
        roles = vars(one.specials)
        assert all(roles[role] >= 0 for role in ("pad", "unk", "cls", "sep", "mask")), kind
        assert len(one.sentinels) == 100
        assert one.sentinels[[0, 99]].tolist() == [one.size + 99, one.size], kind
    assert trained["bpe"].specials == Specials(cls=0, pad=1, sep=2, unk=3, mask=4, bos=0, eos=2)
    assert trained["wordpiece"].specials.eos == trained["unigram"].specials.eos == -1


def test_ends_of_text_by_name_and_by_config(tmp_path):
    pieces = ["<unk>", "a", "<|endoftext|>", "[EOS]", "<s>"]
    named = write_bpe(tmp_path, pieces, [], eos_token={"content": "[EOS]"}, bos_token="a")
    assert (named.specials.bos, named.specials.eos) == (1, 3)
    other = tmp_path / "plain"
    other.mkdir()
    plain = write_bpe(other, pieces, [])
    assert (plain.specials.bos, plain.specials.eos) == (4, 2)
    assert plain.specials.sep == -1
    assert plain.special_mask().tolist() == [True, False, True, False, True]


def test_the_fingerprint_covers_the_ends_of_text(tmp_path):
    pieces = ["<unk>", "a", "b", "<|endoftext|>"]
    prints = [write_bpe(tmp_path, pieces, []).fingerprint]
    for config in ({"eos_token": "a"}, {"bos_token": "a"}, {"eos_token": "b"}):
        prints.append(write_bpe(tmp_path, pieces, [], **config).fingerprint)
    assert len(set(prints)) == 4
    said = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}  # what the pieces say
    assert write_bpe(tmp_path, pieces, [], **said).fingerprint == prints[0]


def test_ends_that_batches_have_anyway_leave_the_fingerprint(tmp_path):
    pieces = ["<unk>", "a", "[CLS]", "[SEP]"]
    one = write_bpe(tmp_path, pieces, [])
    named = write_bpe(tmp_path, pieces, [], bos_token="[CLS]", eos_token="[SEP]")  # as in ALBERT
    assert (one.specials.eos, named.specials.eos) == (-1, 3)
    assert named.fingerprint == one.fingerprint


def test_the_fingerprint_covers_the_sentinels(tmp_path):
    pieces = ["<unk>", "a", "</s>"]
    few, many, usual = (write_bpe(tmp_path, pieces, [], extra_ids=n) for n in (10, 20, 100))
    assert len({few.fingerprint, many.fingerprint, usual.fingerprint}) == 3
    assert write_bpe(tmp_path, pieces, [], eos_token="</s>").fingerprint == usual.fingerprint
    few.save(tmp_path / "again", kind="encoder_decoder")
    for form in ("tokenizer.json", "vocab.json"):
        again = tokenizer.load(tmp_path / "again" / form)
        assert again.sentinels.tolist() == list(range(12, 2, -1)), form
        assert again.fingerprint == few.fingerprint, form


def _bytes(folder, **config):
    content = {"tokenizer_class": "ByT5Tokenizer", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return tokenizer.load(folder)


# As earlier versions wrote it, all of it; and as the folders of google/byt5-* have it.
EARLIER_BYTES = {
    "pad_token": "<pad>", "unk_token": "<unk>", "sep_token": "</s>", "eos_token": "</s>",
    "model_input_names": ["input_ids", "attention_mask"], "extra_ids": 125,
}  # fmt: skip
PUBLISHED_BYTES = {
    "eos_token": {"content": "</s>", "__type": "AddedToken"}, "unk_token": {"content": "<unk>"},
    "pad_token": {"content": "<pad>"}, "extra_ids": 125,
    "additional_special_tokens": [f"<extra_id_{i}>" for i in range(125)],
}  # fmt: skip


def test_sentinels_of_bytes_are_those_of_byt5_and_earlier_folders_keep_theirs(tmp_path):
    new = tokenizer.of_bytes()
    assert new.sentinels.tolist() == list(range(258, 158, -1))
    published = _bytes(tmp_path, **PUBLISHED_BYTES)
    assert published.sentinels.tolist() == new.sentinels.tolist()
    assert published.fingerprint == new.fingerprint
    earlier = _bytes(tmp_path, **EARLIER_BYTES)
    assert earlier.sentinels.tolist() == list(range(259, 384))
    assert earlier.fingerprint != new.fingerprint
    fewer = _bytes(tmp_path, **EARLIER_BYTES | {"extra_ids": 10})
    assert len(fewer.sentinels) == 10
    assert len({one.fingerprint for one in (new, earlier, fewer)}) == 3
    for one in (new, earlier, fewer):
        one.save(tmp_path / "again")
        again = tokenizer.load(tmp_path / "again")
        assert again.sentinels.tolist() == one.sentinels.tolist()
        assert again.fingerprint == one.fingerprint
    with pytest.raises(errors.UserError, match="first_sentinel = 7: must be 258 or 259"):
        _bytes(tmp_path, first_sentinel=7)


def test_fingerprints_stay_what_they_were(shared_data, tmp_path):
    """Runs and prepared data hold them. Taken before ends of text and sentinels were covered."""
    prints = {
        "bytes": "c9c7ec208010a130dc64d80dcca11946d7f5f1fff7c323f3d220454ce2a223be",
        "bpe": "a68703660a190910efcd9d1725c4f4a0c1ca20543ee9c4f20717dfbff3f2a89d",
        "hf-test_sentencepiece": "ec1e472ecc962187d48cc7138ae799a53f2a7b1eca7cbc2764373651e60f4a21",
        "sentencepiece-test_model": (
            "f4a9bf47811ad824211e5bf3061a160ea24d3c7b1db3fd1f919d3e68e44a3dd5"
        ),
    }
    found = {"bytes": _bytes(tmp_path, **EARLIER_BYTES)}
    (tmp_path / "tokenizer_config.json").unlink()
    found["bpe"] = write_bpe(tmp_path, ["<unk>", "a", "<|endoftext|>"], [])
    for name in list(prints)[2:]:
        found[name] = tokenizer.load(shared_data / "vocab" / f"{name}.model")
    assert {name: one.fingerprint for name, one in found.items()} == prints


def test_toy_byte_pairs_of_gpt2(tmp_path):
    pieces = "l o w e r s t i d n _ _l _n _lo _low er _lowest _newer _wider <unk> <|endoftext|>"
    merges = ["_ l", "_l o", "_lo w", "e r"]
    space = "\u0120"
    toy = write_bpe(
        tmp_path,
        pieces.replace("_", space).split(),
        [merge.replace("_", space) for merge in merges],
        add_prefix_space=True,
    )
    ids = toy.encode("lower newer")
    assert ids == [14, 15, 10, 9, 3, 2, 15]
    assert toy.pieces(ids) == f"{space}low er {space} n e w er".split()
    assert toy.specials.unk == 19 and toy.specials.bos == toy.specials.eos == 20
    assert toy.encode("a<|endoftext|>", specials_in_text=True)[-1] == 20


def test_gpt2_has_one_special_token(shared_data, tmp_path):
    vocab = shared_data / "vocab"
    (tmp_path / "vocab.json").write_bytes((vocab / "gpt2-encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((vocab / "gpt2-vocab.bpe").read_bytes())
    gpt2 = tokenizer.load(tmp_path)
    end = 50256
    assert gpt2.specials == Specials(-1, -1, -1, -1, -1, bos=end, eos=end)
    assert gpt2.sentinels[0] == 50257 + 99
    assert gpt2.encode("Hello world!<|endoftext|>", specials_in_text=True) == [15496, 995, 0, end]


def test_sentinels_of_seqio(shared_data, tmp_path):
    model = shared_data / "vocab" / "seqio-test-sentencepiece.model"
    (tmp_path / "spiece.model").write_bytes(model.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 10}))
    one = tokenizer.load(tmp_path)
    assert one.size == 26 and one.sentinels.tolist() == list(range(35, 25, -1))
    text, ids = "<extra_id_0> <extra_id_1> v <extra_id_9>", [35, 34, 3, 25, 26]
    assert one.encode(text, specials_in_text=True) == ids
    assert one.decode(ids) == text
    assert one.decode([25]) == "v"
    assert one.pieces([35, 26]) == ["<extra_id_0>", "<extra_id_9>"]
    assert not set(one.encode(text)) & set(one.sentinels.tolist())  # typed by a user: plain text
    assert one.fingerprint != tokenizer.load(model).fingerprint  # a hundred of them
    one.save(tmp_path / "again")
    again = tokenizer.load(tmp_path / "again")
    assert again.sentinels.tolist() == one.sentinels.tolist()
    assert again.fingerprint == one.fingerprint


def test_a_hundred_sentinels_above_the_test_model_of_transformers(shared_data):
    plain = tokenizer.load(shared_data / "vocab" / "hf-test_sentencepiece.model")
    assert plain.size == 1000
    assert plain.sentinels.tolist() == list(range(1099, 999, -1))
    text = "This is<extra_id_0> test"
    assert plain.encode(text, specials_in_text=True) == [285, 46, 1099, 170, 382]
    assert plain.vocabulary().sentinels is plain.sentinels


def test_sentinels_that_are_pieces_of_mt5(shared_data, tmp_path):
    data = (shared_data / "vocab" / "hf-test_sentencepiece.model").read_bytes()
    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    for i in (2, 1, 0):
        kind = model.SentencePiece.USER_DEFINED
        model.pieces.add(piece=f"\u2581<extra_id_{i}>", score=0.0, type=kind)
    (tmp_path / "spiece.model").write_bytes(model.SerializeToString())
    one = tokenizer.load(tmp_path)
    assert one.size == 1003 and one.sentinels.tolist() == [1002, 1001, 1000]
    assert one.special_mask()[1000:].all()


def test_sentinels_of_a_pipeline_are_no_pieces(t5_folder, tmp_path):
    t5 = tokenizer.load(t5_folder)
    t5.save(tmp_path, kind="encoder_decoder")
    pipeline = tokenizer.load(tmp_path / "tokenizer.json")
    assert pipeline.size == t5.size == 1000
    assert pipeline.sentinels.tolist() == t5.sentinels.tolist()
    assert pipeline.specials == t5.specials
    assert pipeline.encode(TEXTS[0]) == t5.encode(TEXTS[0])
    assert pipeline.decode([*t5.encode("a cat"), 1099]) == "a cat <extra_id_0>"
    again = tmp_path / "again"
    pipeline.save(again, kind="encoder_decoder")
    assert tokenizer.load(again).fingerprint == pipeline.fingerprint


@pytest.mark.parametrize("kind", ["encoder", "encoder_decoder"])
def test_transformers_loads_t5(t5_folder, tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    t5 = tokenizer.load(t5_folder)
    assert t5.specials == Specials(pad=0, unk=2, cls=-1, sep=1, mask=-1, eos=1)
    t5.save(tmp_path, kind=kind, token_types=False, max_length=512)
    assert tokenizer.load(tmp_path).fingerprint == t5.fingerprint
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for text in TEXTS[:3]:
        assert dict(theirs(text)) == {
            "input_ids": [*t5.encode(text), 1],
            "attention_mask": [1] * (len(t5.encode(text)) + 1),
        }
    assert theirs.eos_token_id == 1 and theirs.pad_token_id == 0
    if kind == "encoder_decoder":
        assert len(theirs) == 1100
        ids = theirs("the cat <extra_id_0> on<extra_id_99>")["input_ids"]
        assert ids[-2:] == [1000, 1] and 1099 in ids


@pytest.mark.parametrize("kind", tokenizer.KINDS)
def test_transformers_loads_a_trained_tokenizer_for_each_kind_of_model(trained, tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    one = trained[kind]
    text = "the cat sat"
    ends = {
        "gpt2": ("decoder", [], []),
        "t5": ("encoder_decoder", [], [one.specials.sep]),
        "roberta": ("encoder", [one.specials.cls], [one.specials.sep]),
    }
    for family, (model_kind, first, last) in ends.items():
        folder = tmp_path / family
        one.save(folder, kind=model_kind, token_types=False)
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        assert set(theirs(text)) == {"input_ids", "attention_mask"}, family
        assert theirs(text)["input_ids"] == [*first, *one.encode(text), *last], family
        if family == "t5":
            assert theirs.convert_tokens_to_ids("<extra_id_0>") == one.sentinels[0]
        again = tokenizer.load(folder)
        assert again.fingerprint == one.fingerprint and again.size == one.size
        assert again.sentinels.tolist() == one.sentinels.tolist()


def test_bytes():
    one = tokenizer.of_bytes()
    assert (one.kind, one.size) == ("bytes", 259)
    assert one.specials == Specials(pad=0, unk=2, cls=-1, sep=1, mask=-1, eos=1)
    ids = [int(i) for i in HELLO_BYTES.split()]
    assert one.encode(HELLO) == ids
    assert one.decode(ids) == HELLO
    assert one.decode([0, *ids[:4], 500, 243, 1]) == "this"  # out of range, half of a character
    assert one.decode([107, 35, 258, 35, 108]) == "h <extra_id_0> i"
    assert one.encode("h <extra_id_0> i", specials_in_text=True) == [107, 35, 258, 35, 108]
    assert one.encode("<extra_id_99>", specials_in_text=True) == [159]
    foreign = "na\u00efve \u4f60\u597d"  # holds bytes that are sentinels in other places
    letters = "Z\u00fcrich \u00ff"  # how ByT5Tokenizer writes the pieces of two sentinels
    assert one.encode(letters, specials_in_text=True) == one.encode(letters)
    assert one.encode("a </s> b", specials_in_text=True) == [100, 1, 101]  # as ByT5Tokenizer does
    assert set(one.encode(foreign)) & set(one.sentinels.tolist())
    assert one.decode(one.encode(foreign)) == foreign
    assert not one.special_mask()[one.encode(foreign)].any()
    assert one.reserved_sentinels.tolist() == list(range(258, 247, -1))
    assert one.encode("\ud83e") == one.encode("\ufffd")
    ids, offsets = one.encode_with_offsets(["\u4f60a"])[0]
    assert offsets == [(0, 1)] * 3 + [(1, 2)] and len(ids) == 4
    starts = ~one.continuations()
    begin = {one.decode([i]) for i, start in enumerate(starts) if start and 2 < i < 248}
    assert begin == set("\t\n\x0b\x0c\r " + string.punctuation)


def test_special_tokens_of_bytes_keep_the_spaces_if_the_files_say_so(tmp_path):
    (tmp_path / "published").mkdir()
    one = _bytes(tmp_path / "published", **PUBLISHED_BYTES)
    assert one.encode("a </s> b", specials_in_text=True) == [100, 35, 1, 35, 101]
    assert one.fingerprint == tokenizer.of_bytes().fingerprint
    one.save(tmp_path / "saved", kind="encoder_decoder", token_types=False)
    again = tokenizer.load(tmp_path / "saved")
    assert again.encode("a </s> b", specials_in_text=True) == [100, 35, 1, 35, 101]


def test_transformers_loads_bytes(tmp_path):
    transformers = pytest.importorskip("transformers")
    one = tokenizer.of_bytes()
    one.save(tmp_path, kind="encoder_decoder", token_types=False)
    assert tokenizer.load(tmp_path).fingerprint == one.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(theirs).__name__ == "ByT5Tokenizer"
    assert theirs(HELLO)["input_ids"] == [*one.encode(HELLO), 1]
    theirs.save_pretrained(str(tmp_path / "theirs"))
    loaded = tokenizer.load(tmp_path / "theirs")
    assert loaded.fingerprint == one.fingerprint
    assert loaded.sentinels.tolist() == one.sentinels.tolist()


def test_a_config_alone_is_a_tokenizer_of_bytes_only(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    with pytest.raises(errors.UserError, match="contains no tokenizer"):
        tokenizer.load(tmp_path)
    with pytest.raises(errors.UserError, match="its class is T5Tokenizer, which needs one of"):
        tokenizer.load(tmp_path / "tokenizer_config.json")


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "trained"])
def test_prepared_sentences_keep_the_space_between_them(kind, trained, tmp_path):
    one = {"bytes": tokenizer.of_bytes(), "trained": trained["bpe"]}.get(kind)
    if kind == "gpt2":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        one = write_bpe(tmp_path, [*alphabet, "<|endoftext|>"], [])
    assert one.keeps_spaces() == (kind != "trained")
    texts = corpora.documents(20)
    corpora.write_jsonl(tmp_path / "corpus.jsonl", texts)
    one.save(tmp_path / "tokenizer")
    prepare.prepare(
        [str(tmp_path / "corpus.jsonl")], str(tmp_path / "tokenizer"), str(tmp_path / "prepared"),
        workers=1, heldout_fraction=0.1,
    )  # fmt: skip
    dataset = store.open_dataset(str(tmp_path / "prepared"), "train")
    tokens = np.concatenate([record.tokens for record in dataset.read([0])])
    text = one.decode(tokens)
    whole = [document for document in texts if document in text]
    assert len(whole) >= 10


def bertjax(*args):
    command = [sys.executable, "-m", "bertjax", "tokenizer", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_command_writes_bytes_without_text(tmp_path):
    output = tmp_path / "tok"
    done = bertjax("--kind=bytes", f"--output={output}")
    assert done.returncode == 0, done.stderr
    assert "bytes, 259 pieces" in done.stdout
    assert tokenizer.load(output).fingerprint == tokenizer.of_bytes().fingerprint
    size = bertjax("--kind=bytes", "--vocab_size=300", f"--output={tmp_path / 'b'}")
    assert size.returncode == 2 and "--vocab_size cannot be used with --kind=bytes" in size.stderr
    text = bertjax("--kind=bpe", "--vocab_size=300", f"--output={tmp_path / 'c'}")
    assert text.returncode == 2 and "--kind=bpe needs --input" in text.stderr
    assert sorted(os.listdir(tmp_path)) == ["tok"]
