"""Tokenizers: rules, file forms, fingerprints, training, bad files, and the command."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

from bertjax import errors
from bertjax.data.tokenizers import library_model, tokenizer, word_cache
from tests.helpers import children

TOY = "[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing ,".split()
WORDS = (
    "the cat sat on a mat and the dog ran to the river where old men told long stories of the sea "
    "while Zoe's unwanted, running water (cold!) went down; 1234 nights later it was gone"
).split()


def write_vocab(folder, pieces, **config):
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "vocab.txt"


def texts(count=300, seed=0):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=12)) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def trained():
    sizes = {"wordpiece": 120, "bpe": 330, "unigram": 70}
    return {kind: tokenizer.train(kind, texts(), size) for kind, size in sizes.items()}


def test_wordpiece_vectors_of_bert(tmp_path):
    toy = tokenizer.load(write_vocab(tmp_path, TOY))
    assert toy.encode("UNwant\u00e9d,running") == [7, 4, 5, 10, 8, 9]
    assert toy.encode("") == []
    assert toy.pieces(toy.encode("unwanted running")) == "un ##want ##ed runn ##ing".split()
    assert toy.pieces(toy.encode("unwantedX running")) == "[UNK] runn ##ing".split()
    assert toy.encode("\xad") == []
    assert toy.specials == tokenizer.Specials(pad=-1, unk=0, cls=1, sep=2, mask=-1)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("ah\u535a\u63a8zz", {}, "ah \u535a \u63a8 zz"),
        (" \tHeLLo!how  \n Are yoU?  ", {}, "hello ! how are you ?"),
        (" \tHeLLo!how  \n Are yoU?  ", {"lowercase": False}, "HeLLo ! how Are yoU ?"),
        ("H\u00e9llo", {}, "hello"),
        ("H\u00e9llo", {"strip_accents": False}, "h\u00e9llo"),
        ("a\x05b\ufffdc \x0cd", {}, "abc d"),
        ("a$-`.b", {}, "a $ - ` . b"),
    ],
)
def test_basic_rules_of_bert(tmp_path, text, options, expected):
    pieces = "ah zz \u535a \u63a8 hello ! how are you ? HeLLo Are yoU h\u00e9llo abc d a b $ - ` ."
    path = write_vocab(tmp_path, ["[UNK]", *pieces.split()], do_lower_case=True)
    one = tokenizer.load(path, **options)
    assert " ".join(one.pieces(one.encode(text))) == expected


def test_byte_level_vector_of_gpt2(tmp_path):
    pieces = "l o w e r s t i d n \u0120 \u0120l \u0120n \u0120lo \u0120low er \u0120lowest "
    pieces = (pieces + "\u0120newer \u0120wider <unk> <|endoftext|>").split()
    vocab = {piece: i for i, piece in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text(
        "#version: 0.2\n\u0120 l\n\u0120l o\n\u0120lo w\ne r\n", "utf-8"
    )
    toy = tokenizer.load(tmp_path)
    assert toy.encode(" lower newer") == [14, 15, 10, 9, 3, 2, 15]
    assert toy.special_mask().nonzero()[0].tolist() == [19, 20]


def fuzz(seed, count):
    rng = random.Random(seed)
    alphabet = (
        "abcdefgABCXYZ  \t\n\r0123456789.,;:!?'\"-_()[]{}<>|/\\@#$%^&*+=~`"
        "\u2018\u2019\u201c\u201d\u2014\u2013\u2026\xa0\u3000\u2028\x0b\x0c\x1c\x85\xad\u200b"
        "\xe9\xc9\xfc\xdf\u0130\u03a3\u03c3\u0301\u0338\u302e\u2260\u037e\u1fef\u212a\u0387"
        "\u4e2d\u6587\uf900\u3042\u3001\u3002\uac00\u0e01\u0e33\u0627\U0001f600\U00020000\ufffd\x00"
    )
    words = ["don't", "'s", "[MASK]", "[SEP]", "<mask>", "\u2019s", "  ", "the", "The", "unwanted"]
    words += ["a" * 101, "caf\xe9", "na\xefve", "..."]
    for _ in range(count):
        parts = rng.choices([*alphabet, *words], k=rng.randrange(30))
        yield "".join(part + rng.choice(["", "", " "]) for part in parts)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_word_cache_gives_the_library_s_ids(kind, lowercase):
    sample = [*fuzz(1, 400), *texts(30)]
    size = {"wordpiece": 220, "bpe": 330}[kind]
    one = tokenizer.train(kind, sample, size, lowercase=lowercase)
    library = one._model.library
    if one._model._cache is None:  # lower-cased BPE goes to the library as it is
        assert (kind, lowercase) == ("bpe", True)
        return
    one._model._cache._cost_limit = 2000  # emptied now and then
    for start in range(0, 3000, 100):
        batch = list(fuzz(1000 + start, 100))
        expected = [e.ids for e in library.encode_batch(batch, add_special_tokens=False)]
        for text, ours, theirs in zip(batch, one.encode_batch(batch), expected, strict=True):
            assert ours == theirs, repr(text)


def test_every_character_that_the_cutter_parts_is_a_token_of_its_own():
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    cut = word_cache.wordpiece_chunks()
    for char in map(chr, [*range(0x3100), *range(0x3400, 0xA000, 16), *range(0xFF00, 0xFF70)]):
        text = f"a{char}b"
        words = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(text))
        if len(chunks := cut(text)) > 1:
            assert chunks == [word for word, _ in words], hex(ord(char))


def test_the_cache_stays_below_its_bound():
    calls = []

    def encode_words(words):
        calls.append(list(words))
        return [[len(word)] for word in words]

    cache = word_cache.WordCache(word_cache.wordpiece_chunks(), encode_words, cost=200)
    assert cache.encode_batch(["one two", "one"]) == [[3, 3], [3]]
    assert cache.encode_batch(["two three four"]) == [[3, 5, 4]]
    for i in range(50):
        assert cache.encode_batch([f"one word{i}"]) == [[3, len(f"word{i}")]]
    assert len(cache._ids) < 10
    assert calls[:2] == [["one", "two"], ["four", "three"]]


def test_special_tokens_in_a_text_are_plain_unless_asked_for(trained):
    for one in trained.values():
        mask, name = one.specials.mask, one.pieces([one.specials.mask])[0]
        text = f"the {name} sat on a {name}."
        assert mask not in one.encode(text)
        ids = one.encode(text, specials_in_text=True)
        assert [i for i, piece in enumerate(ids) if piece == mask] == [1, len(ids) - 2]
        assert ids[2:-2] == one.encode("sat on a")
        assert one.decode(ids).replace(" .", ".").split() == "the sat on a.".split()


def test_offsets_point_at_the_characters(trained):
    for kind, one in trained.items():
        text = "  The cat\u2019s  running,\nwater! "
        (ids, offsets), _ = one.encode_with_offsets([text, ""])
        assert ids == one.encode(text)
        assert len(ids) == len(offsets)
        covered = {i for start, stop in offsets for i in range(start, stop)}
        assert covered >= {i for i, char in enumerate(text) if not char.isspace()}, kind
        for start, stop in offsets:
            assert text[start:stop] == text[start:stop].strip() or not text[start:stop].strip()


def test_half_a_surrogate_pair_is_one_unknown_character(trained):
    for one in trained.values():
        assert one.encode("the \ud83d cat") == one.encode("the \ufffd cat")
        one.encode_with_offsets(["the \ud83d cat"])


def test_masks_and_vocabulary(trained):
    for kind, one in trained.items():
        table = one.vocabulary()
        assert table.size == one.size == len(table.continuations) == len(table.special_mask)
        assert table.specials == one.specials
        assert np.array_equal(np.flatnonzero(table.special_mask), np.arange(5))
        assert not (table.continuations & table.special_mask).any()
        ids = one.encode("the unwantedness of cats")
        starts = ~table.continuations[ids]
        assert starts[0] and starts.sum() == 4, kind


@pytest.mark.parametrize("kind", tokenizer.KINDS)
def test_training_is_deterministic_and_exact_in_size(trained, kind):
    one = trained[kind]
    again = tokenizer.train(kind, iter(texts()), one.size)
    assert again.fingerprint == one.fingerprint
    assert again.pieces(range(one.size)) == one.pieces(range(one.size))
    assert sorted({*vars(one.specials).values()} - {-1}) == [0, 1, 2, 3, 4]
    if kind == "wordpiece":
        assert one.pieces(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_casing_is_trained_in():
    for kind in tokenizer.KINDS:
        size = {"wordpiece": 90, "bpe": 300, "unigram": 60}[kind]
        lower = tokenizer.train(kind, texts(), size, lowercase=True)
        cased = tokenizer.train(kind, texts(), size, lowercase=False)
        assert lower.encode("ZOE went") == lower.encode("zoe went")
        assert cased.encode("Zoe went") != cased.encode("zoe went")
        assert lower.fingerprint != cased.fingerprint


@pytest.mark.parametrize("kind", tokenizer.KINDS)
@pytest.mark.parametrize(("size", "words"), [(8, "too small"), (50_000, "too large")])
def test_a_size_that_the_text_cannot_give_is_said(kind, size, words):
    with pytest.raises(errors.UserError, match=words) as caught:
        tokenizer.train(kind, texts(20), size)
    advice = int(str(caught.value).split("use vocab_size=")[1].split()[0])
    assert tokenizer.train(kind, texts(20), advice).size == advice


@pytest.mark.parametrize("kind", tokenizer.KINDS)
def test_saved_files_are_the_same_tokenizer_in_every_form(trained, kind, tmp_path):
    one = trained[kind]
    one.save(tmp_path, max_length=128)
    forms = {
        "wordpiece": ["", "vocab.txt", "tokenizer.json"],
        "bpe": ["", "vocab.json", "tokenizer.json"],
        "unigram": ["", "spiece.model"],
    }[kind]
    sample = [*fuzz(5, 50), *texts(20)]
    for form in forms:
        loaded = tokenizer.load(tmp_path / form)
        assert loaded.fingerprint == one.fingerprint, form
        assert loaded.encode_batch(sample) == one.encode_batch(sample)
        assert loaded.specials == one.specials


def test_the_fingerprint_covers_what_decides_the_ids(tmp_path):
    path = write_vocab(tmp_path, TOY)
    prints = {
        tokenizer.load(path).fingerprint,
        tokenizer.load(path, lowercase=False).fingerprint,
        tokenizer.load(path, strip_accents=False).fingerprint,
        tokenizer.load(write_vocab(tmp_path, [*TOY, "more"])).fingerprint,
    }
    assert len(prints) == 4
    write_vocab(tmp_path, TOY, do_lower_case=False)
    assert tokenizer.load(path).fingerprint in prints


def test_a_vocabulary_with_capitals_is_cased_without_being_told(tmp_path):
    path = write_vocab(tmp_path, [*TOY, "The", "the"])
    assert tokenizer.load(path).encode("The") == [len(TOY)]
    write_vocab(tmp_path, [*TOY, "The", "the"], do_lower_case=True)
    assert tokenizer.load(path).encode("The") == [len(TOY) + 1]


@pytest.mark.parametrize("kind", tokenizer.KINDS)
def test_transformers_loads_the_folder(trained, kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    one = trained[kind]
    one.save(tmp_path, max_length=77)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs.model_max_length == 77
    for role, i in vars(one.specials).items():
        assert getattr(theirs, f"{role}_token_id") == (i if i >= 0 else None)
    cls, sep = one.specials.cls, one.specials.sep
    name = theirs.mask_token
    for text in [*texts(10, seed=3), "Zoe\u2019s caf\xe9", f"the {name} sat on a {name}"]:
        ids = one.encode(text, specials_in_text=True)
        assert theirs(text)["input_ids"] == [cls, *ids, sep]
    pair = theirs("the cat", "the dog")
    first, second = one.encode("the cat"), one.encode("the dog")
    assert pair["input_ids"] == [cls, *first, sep, *second, sep]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("vocab.txt", b"", "vocab.txt: the file is empty"),
        ("vocab.txt", b"[UNK]\nthe\ncat\nthe\n", "line 4 repeats the piece 'the' of line 2"),
        ("vocab.txt", b"[UNK]\n\nthe\n", "line 2 is blank"),
        ("vocab.txt", b"the\ncat\n", r"contains no \[UNK\]"),
        ("vocab.txt", b"[UNK]\nthe\n\xff\xfe\n", "line 3 is not UTF-8"),
        ("vocab.json", b'{"a": 0}', "also needs merges.txt"),
        ("tokenizer.json", b'{"a": \n0', "tokenizer.json: line 2 is not JSON"),
        ("tokenizer.json", b'{"model": {"type": "WordLevel"}}', "its model is 'WordLevel'"),
        ("tokenizer.json", b'{"model": {"type": "BPE"}}', "cannot be read as a tokenizer"),
        ("spiece.model", b"nonsense", "spiece.model: cannot be read as a tokenizer"),
    ],
)
def test_bad_files_are_one_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(errors.UserError, match=message) as caught:
            tokenizer.load(path)
        assert str(tmp_path) in str(caught.value)


def test_a_device_or_a_folder_is_no_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").mkdir()
    for path, why in ((tmp_path, "is not a file; give a folder"), ("/dev/zero", "is a device")):
        with pytest.raises(errors.UserError, match=why):
            tokenizer.load(path)


def test_a_bad_merge_is_named_by_its_line(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na c\n")
    with pytest.raises(errors.UserError, match=r"merges.txt: line 3"):
        tokenizer.load(tmp_path)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(errors.UserError, match="contains no tokenizer"):
        tokenizer.load(tmp_path)
    with pytest.raises(errors.UserError, match="absent: not found; give a folder"):
        tokenizer.load(tmp_path / "absent")


def test_rules_do_not_change_with_settings_that_newer_libraries_add():
    assert library_model._settings({"type": "A", "new": False, "dropout": 0.1, "x": None}) == {
        "type": "A"
    }


def bertjax(*args):
    return subprocess.run(
        [sys.executable, "-m", "bertjax", "tokenizer", *args],
        cwd=children.ROOT,
        capture_output=True,
        text=True,
    )


def test_the_command(tmp_path):
    corpus = tmp_path / "text.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()))
    output = tmp_path / "tok"
    flags = [f"--input={corpus}", "--kind=wordpiece", f"--output={output}"]
    first = bertjax(*flags, "--vocab_size=120")
    assert first.returncode == 0, first.stderr
    assert "300 documents" in first.stdout
    fingerprint = tokenizer.load(output).fingerprint
    assert fingerprint in first.stdout
    assert fingerprint == tokenizer.train("wordpiece", texts(), 120).fingerprint
    assert sorted(os.listdir(tmp_path)) == ["text.jsonl", "tok"]

    again = bertjax(*flags, "--vocab_size=120")
    assert again.returncode == 0 and "already present" in again.stdout
    other = bertjax(*flags, "--vocab_size=110")
    assert other.returncode == 2
    progress, error = other.stderr.splitlines()
    assert progress.startswith("bertjax: training a wordpiece tokenizer on 0.0 MB of 1 source")
    assert error == (
        f"bertjax: error: {output}: contains another tokenizer; remove it or give another --output"
    )
    assert tokenizer.load(output).fingerprint == fingerprint


@pytest.mark.parametrize("kind", tokenizer.KINDS)
def test_the_command_names_a_bad_line_and_writes_nothing(tmp_path, kind):
    corpus = tmp_path / "text.jsonl"
    corpus.write_text('{"text": "some words"}\n{"text": \n')
    failed = bertjax(
        f"--input={corpus}", f"--kind={kind}", "--vocab_size=300", f"--output={tmp_path / 'tok'}"
    )
    assert failed.returncode == 2
    _progress, error = failed.stderr.splitlines()
    assert error.startswith("bertjax: error: ") and "text.jsonl line 2" in error
    assert os.listdir(tmp_path) == ["text.jsonl"]


def test_a_sample_is_spread_over_the_input(tmp_path):
    corpus = tmp_path / "text.jsonl"
    lines = [json.dumps({"text": f"part{i // 100} " + "word " * 20}) for i in range(1000)]
    corpus.write_text("\n".join(lines))
    done = bertjax(
        f"--input={corpus}", "--kind=bpe", "--vocab_size=265", "--max_bytes=20000",
        f"--output={tmp_path / 'tok'}",
    )
    assert done.returncode == 0, done.stderr
    assert "sampled evenly" in done.stdout
    read = int(done.stdout.split(" bytes")[0].split()[-1].replace(",", ""))
    assert 10_000 < read <= 20_000


PROMPTS = "the {0}.", "{0} word", "({0})", "the{0}cat", "{0}", "the {0} {0}!", "{0}. the"


@pytest.mark.parametrize("kind", tokenizer.KINDS)
def test_a_mask_before_punctuation_has_the_same_ids_in_transformers(trained, kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    one = trained[kind]
    one.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    again = tokenizer.load(tmp_path)
    for prompt in PROMPTS:
        text = prompt.format(theirs.mask_token)
        ids = one.encode(text, specials_in_text=True)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids, text
        assert again.encode(text, specials_in_text=True) == ids
    dot = one.encode(f"the {theirs.mask_token}.", specials_in_text=True)[2:]
    assert one.pieces(dot) == ["."]
