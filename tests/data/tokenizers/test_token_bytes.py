"""The bytes of each id add up to the bytes of the text, for every kind of tokenizer."""

import json

import pytest
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bertjax.data.tokenizers import tokenizer

TEXTS = ("the cat sat on the mat", "a dog ran home and saw the cat", "letters make many words") * 20
ACCENTS = "d\u00e9j\u00e0 vu \u2014 \u20ac5, \u4f60\u597d \U0001f642"
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def count(one, text):
    table = one.token_bytes()
    assert table.shape == (one.size,) and (table >= 0).all()
    assert not table[one.special_mask()].any()
    return int(table[one.encode(text)].sum())


def size(text):
    return len(text.encode())


def byte_level(folder):
    """Writes and loads a byte-level BPE of tokenizer.json, as of RoBERTa or ModernBERT."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])  # fmt: skip
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    library.train_from_iterator(TEXTS, trainer)
    library.add_tokens(["\u00fcber  all"])  # an added token is not written in the alphabet
    library.save(str(folder / "tokenizer.json"))
    return tokenizer.load(folder)


def gemma(folder):
    """Writes and loads a BPE with byte fallback and U+2581 for spaces, as of Gemma 2."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*SPECIALS, *bytes_, *"abcdefghijklmnopqrstuvwxyz", "\u2581", "\u2581t", "\u2581th"]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, [("\u2581", "t"), ("\u2581t", "h")],
        unk_token="<unk>", byte_fallback=True, fuse_unk=True,
    )  # fmt: skip
    library = tokenizers.Tokenizer(model)
    library.add_special_tokens(SPECIALS)
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "GemmaTokenizer"} | {
        f"{role}_token": piece
        for role, piece in zip(("bos", "pad", "eos", "unk", "mask"), SPECIALS, strict=True)
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.load(folder)


def test_of_byte_level_bpe_they_are_those_of_the_text(tmp_path):
    one = byte_level(tmp_path)
    for text in (TEXTS[0], ACCENTS, "  two\n\nlines ", "so \u00fcber  all here"):
        assert count(one, text) == size(text)


def test_of_bpe_with_byte_fallback_they_are_those_of_the_text(tmp_path):
    one = gemma(tmp_path)
    for text in (TEXTS[0], ACCENTS):
        assert count(one, text) == size(text)


def test_of_bytes_each_is_one():
    assert count(tokenizer.of_bytes(), ACCENTS) == size(ACCENTS)


def test_of_sentencepiece_they_are_those_of_the_text_after_its_first_space(shared_data):
    one = tokenizer.load(shared_data / "vocab" / "hf-test_sentencepiece.model")
    text = "This is  a test of spaces."
    assert count(one, text) == size(" " + " ".join(text.split()))


def test_of_sentencepiece_the_name_of_a_byte_is_one_byte(tmp_path):
    proto = sentencepiece_model_pb2.ModelProto()
    types = proto.SentencePiece
    rows = [("<unk>", types.UNKNOWN), ("\u2581", types.NORMAL), ("a", types.NORMAL)]
    rows += [(f"<0x{byte:02X}>", types.BYTE) for byte in range(256)]
    for piece, kind in rows:
        proto.pieces.add(piece=piece, score=-1.0, type=kind)
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id = 0, -1
    proto.trainer_spec.eos_id, proto.trainer_spec.pad_id = -1, -1
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.escape_whitespaces = True
    (tmp_path / "spiece.model").write_bytes(proto.SerializeToString())
    one = tokenizer.load(tmp_path)
    assert count(one, "a \u4f60 a") == size(" a \u4f60 a")


def wordpiece(folder, *pieces, lowercase=True):
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*specials, *pieces]) + "\n", "utf-8")
    return tokenizer.load(folder, lowercase=lowercase)


def test_of_wordpiece_the_start_of_a_word_counts_the_space_before_it(tmp_path):
    pieces = ("cat", "##s", "(", "\u2014", "\u4f60", "\u306e", "5", "de", "##\u00e9")
    one = wordpiece(tmp_path, *pieces, lowercase=False)
    table = dict(zip(pieces, one.token_bytes()[5:].tolist(), strict=True))
    assert table == {
        "cat": 4, "##s": 1, "(": 1, "\u2014": 3, "\u4f60": 3, "\u306e": 3, "5": 2, "de": 3,
        "##\u00e9": 2,
    }  # fmt: skip
    assert count(one, "cats\u2014cat") == size(" cats\u2014 cat")  # the dash has no space here
    assert count(one, "cat dog") == size(" cat")  # an unknown word has no bytes


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_of_english_prose_they_are_nearly_those_of_the_text(kind, shared_data):
    with open(shared_data / "pretrain" / "us_presidents.jsonl", encoding="utf-8") as file:
        texts = [" ".join(json.loads(next(file))["text"].split()) for _ in range(5)]
    one = tokenizer.train(kind, texts, 1000)
    table = one.token_bytes()
    found = sum(int(table[ids].sum()) for ids in one.encode_batch(texts))
    assert found == pytest.approx(sum(map(size, texts)), rel=5e-3)
