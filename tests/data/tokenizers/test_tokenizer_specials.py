"""Special tokens in texts have the same ids here, in transformers and in what is exported."""

import dataclasses
import io
import json
import shutil

import pytest
import sentencepiece

from bertjax import errors
from bertjax.artifact import artifact, huggingface
from bertjax.data.tokenizers import tokenizer
from tests.helpers import tiny_model

TEXTS = ["the cat sat on the mat.", "a dog ran home!", "letters make (many) words"] * 20
PROMPTS = (
    "the {0}.", "{0} dog", "({0})", "the{0}cat", "{0}", "the {0} {0}!", "{0}. the",
    "a </s> b", "a [SEP]b", "dog </s>", "the <pad>.", "<s> a </s> </s>.",
)  # fmt: skip
# model_type -> the file that transformers reads, and how its SentencePiece model is trained
SENTENCEPIECE = {
    "albert": ("spiece.model", {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
                                "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}),
    "t5": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "xlm-roberta": ("sentencepiece.bpe.model", {}),
    "camembert": ("sentencepiece.bpe.model", {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def sentencepiece_model(**options):
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=file, minloglevel=2,
        hard_vocab_limit=False, **{"vocab_size": 60} | options,
    )  # fmt: skip
    return file.getvalue()


@pytest.fixture(scope="module")
def bpe():
    return tokenizer.train("bpe", TEXTS, 280)


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def assert_equal_everywhere(folder, transformers, tmp_path, kind="encoder"):
    """Compares the ids of the prompts with transformers', in the folder and in what we save."""
    one = tokenizer.load(folder)
    shutil.rmtree(tmp_path / "ours", ignore_errors=True)
    one.save(tmp_path / "ours", kind=kind)
    again = tokenizer.load(tmp_path / "ours")
    assert again.fingerprint == one.fingerprint
    load = transformers.AutoTokenizer.from_pretrained
    theirs, exported = load(str(folder)), load(str(tmp_path / "ours"))
    for prompt in PROMPTS:
        text = prompt.format(theirs.mask_token or "<extra_id_3>")
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert one.encode(text, specials_in_text=True) == ids, text
        assert again.encode(text, specials_in_text=True) == ids, text
        assert exported(text, add_special_tokens=False)["input_ids"] == ids, text
        assert one.specials.mask < 0 or one.specials.mask not in one.encode(text)
    return one


@pytest.mark.parametrize("model_type", SENTENCEPIECE)
def test_what_follows_a_special_token_begins_a_word_in_published_sentencepiece(
    model_type, transformers, tmp_path
):
    name, options = SENTENCEPIECE[model_type]
    kind = "encoder_decoder" if model_type == "t5" else "encoder"
    alone = write(tmp_path / "alone", config={"model_type": model_type})
    (alone / name).write_bytes(sentencepiece_model(**options))
    one = assert_equal_everywhere(alone, transformers, tmp_path, kind)
    mask = one.pieces([one.specials.mask])[0] if kind == "encoder" else "<extra_id_3>"
    dot = one.pieces(one.encode(f"the {mask}.", specials_in_text=True))[-2:]
    assert dot == ["\u2581", "."]
    # tokenizer.json alone, and beside the model
    theirs = transformers.AutoTokenizer.from_pretrained(str(alone))
    theirs.save_pretrained(str(tmp_path / "fast"))
    write(tmp_path / "fast", config={"model_type": model_type})
    assert_equal_everywhere(tmp_path / "fast", transformers, tmp_path, kind)
    shutil.copy(alone / name, tmp_path / "fast" / "spiece.model")
    config = json.loads((tmp_path / "fast" / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    write(tmp_path / "fast", tokenizer_config=config)
    assert_equal_everywhere(tmp_path / "fast", transformers, tmp_path, kind)


@pytest.mark.parametrize("prefix", [True, False])
def test_byte_bpe_follows_add_prefix_space_of_its_folder(bpe, prefix, transformers, tmp_path):
    bpe.save(tmp_path / "trained")
    spec = json.loads((tmp_path / "trained" / "tokenizer.json").read_text())
    spec["pre_tokenizer"] = spec["pre_tokenizer"]["pretokenizers"][-1] | {
        "add_prefix_space": prefix
    }
    folder = write(
        tmp_path / "roberta",
        tokenizer=spec,
        tokenizer_config={"add_prefix_space": prefix},
        config={"model_type": "roberta"},
    )
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / "trained" / name, folder)
    one = assert_equal_everywhere(folder, transformers, tmp_path)
    dot = one.pieces(one.encode("the <mask>.", specials_in_text=True))
    assert dot[-2:] == (["\u0120", "."] if prefix else ["<mask>", "."])
    assert one.pieces(one.encode("a </s>", specials_in_text=True))[-2:] == ["\u0120", "</s>"]
    assert (one.fingerprint == bpe.fingerprint) == prefix  # plain text has the same ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_what_follows_a_special_token_begins_no_word_in_our_own(kind, bpe, transformers, tmp_path):
    one = bpe if kind == "bpe" else tokenizer.train("unigram", TEXTS, 30)
    one.save(tmp_path / "trained")
    assert_equal_everywhere(tmp_path / "trained", transformers, tmp_path)
    again = tokenizer.load(tmp_path / "ours")
    mask = one.pieces([one.specials.mask])[0]
    for each in (one, again):
        ids = each.encode(f"the {mask}.", specials_in_text=True)
        assert each.pieces(ids)[-2:] == [mask, "."]


def test_no_text_spells_a_special_token_of_a_unigram_pipeline(tmp_path):
    trained = tokenizer.train("unigram", TEXTS, 30)
    trained.save(tmp_path)
    (tmp_path / "spiece.model").unlink()
    one = tokenizer.load(tmp_path)
    for name in ("[MASK]", "[CLS]", "<pad>"):
        text, i = f"the {name} cat, {name}", one.encode(name, specials_in_text=True)
        assert len(i) == 1 and i[0] not in one.encode(text)
        assert one.encode(text, specials_in_text=True).count(i[0]) == 2
        ids, _ = one.encode_with_offsets([text])[0]
        assert ids == one.encode(text) == trained.encode(text)
    assert one.decode(one.encode("the cat")) == "the cat"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word", "vocab_size": 15}, "a SentencePiece model of words"),
        ({"user_defined_symbols": ["<SEP>"], "normalization_rule_name": "nmt_nfkc_cf"},
         "the symbol '<SEP>'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model_type", ["", "t5"])
def test_artifacts_hold_models_that_transformers_cannot_repeat(
    options, message, model_type, tmp_path
):
    folder = write(tmp_path / "t", **{"config": {"model_type": model_type}} if model_type else {})
    controls = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
                "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}  # fmt: skip
    (folder / "spiece.model").write_bytes(sentencepiece_model(**controls, **options))
    one = tokenizer.load(folder)
    model = dataclasses.replace(tiny_model.make(vocab_size=one.size), tokenizer=one)
    artifact.write(model, tmp_path / "a")
    artifact.write(artifact.read(tmp_path / "a"), tmp_path / "b")
    again = artifact.read(tmp_path / "b").tokenizer
    assert again.fingerprint == one.fingerprint
    for text in (*TEXTS[:3], "the [MASK].", "a <SEP> b", "many  dogs"):
        assert again.encode(text) == one.encode(text)
        ids = one.encode(text, specials_in_text=True)
        assert again.encode(text, specials_in_text=True) == ids
    with pytest.raises(errors.UserError, match=message) as caught:
        huggingface.write(artifact.read(tmp_path / "a"), tmp_path / "hf")
    assert "\n" not in str(caught.value) and not (tmp_path / "hf").exists()
