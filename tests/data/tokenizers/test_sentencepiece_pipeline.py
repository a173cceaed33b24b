"""Exported SentencePiece models of every sort give native SentencePiece's ids in transformers."""

import io
import json
import unicodedata

import pytest
import sentencepiece

from bertjax import errors
from bertjax.data.tokenizers import tokenizer

WORDS = "the quick brown fox jumps over 1234 lazy dogs, and \u00e9t\u00e9 \u1ecd\u0301 caf\u00e9!"
NASTY = [
    "", "  ", " ", "  double  spaces ", "\ttab\tand\n newline\r\n", "trailing   ", "   leading",
    "emoji \U0001f600\U0001f44d\U0001f3fd ok", "\u2603 \u2603\u2603 x", "\u2581a \u2581",
    "x\u00a0y\u2003z\u200bw", "<sep>a <sep> b<sep>", "# a #b", "a#", "<0x41> x",
    "o\u0323\u0300 O\u0323\u0300 \u1ecc\u0300 \u00f3\u0323", "a\u0301\u0323 a\u0323\u0301",
    "\ufb01nal \u2460 \uff21\uff22", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\u0301 mark first",
    "\u039f\u0394\u039f\u03a3 \u03a3", "\u0130stanbul", "zero\u200dwidth", "----- ..... aaaaaa",
]  # fmt: skip
SORTS = {
    "plain": {},
    "lowercase": {"normalization_rule_name": "nmt_nfkc_cf"},
    "identity": {"normalization_rule_name": "identity"},
    "byte_fallback": {"byte_fallback": True, "vocab_size": 360},
    "bpe": {"model_type": "bpe"},
    "char": {"model_type": "char"},
    "no dummy prefix": {"add_dummy_prefix": False},
    "whitespace as suffix": {"treat_whitespace_as_suffix": True},
    "extra whitespace": {"remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": ["<sep>", "#"]},
    "symbols of bpe": {"user_defined_symbols": ["<sep>", "#"], "model_type": "bpe"},
}


def trained(folder, **options):
    model = io.BytesIO()
    options = {"vocab_size": 70, "hard_vocab_limit": options.get("model_type") == "bpe"} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS, "the dog and the fox", "lazy dogs jump"] * 20),
        model_writer=model, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2, **options,
    )  # fmt: skip
    (folder / "spiece.model").write_bytes(model.getvalue())
    return tokenizer.load(folder / "spiece.model")


@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_has_native_ids_in_transformers(sort, tmp_path):
    transformers = pytest.importorskip("transformers")
    one = trained(tmp_path, **SORTS[sort])
    one.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    texts = [*NASTY, *(unicodedata.normalize("NFD", text) for text in NASTY)]
    for text in [*texts, WORDS, WORDS.upper()]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == one.encode(text), text


@pytest.fixture(scope="module")
def languages(shared_data):
    """Lines of 36 languages: each twelfth, and each third with marks that nothing composes.

    NOTE: among them are lines whose ids differ in a pipeline of the model's table alone: 16 of the
    lower-cased model, 2 of the plain one and 2 of ALBERT's.
    """
    with open(shared_data / "pretrain" / "udhr.jsonl", encoding="utf-8") as file:
        lines = [line for row in file for line in json.loads(row)["text"].split("\n")]

    def marked(line):
        composed = unicodedata.normalize("NFC", line)
        return any(unicodedata.category(char)[0] == "M" for char in composed)

    lines = enumerate(dict.fromkeys(lines))
    return [line for i, line in lines if i % 12 == 0 or (i % 3 == 1 and marked(line))]


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["lowercase", "plain", "albert"])
def test_thirty_six_languages_have_native_ids_in_transformers(
    kind, languages, shared_data, tmp_path
):
    transformers = pytest.importorskip("transformers")
    if kind == "albert":
        path = shared_data / "vocab" / "albert-v2-spiece.model"
        one = tokenizer.load(path, lowercase=True)
    else:
        one = tokenizer.train("unigram", languages, 1000, lowercase=kind == "lowercase")
    one.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ids = theirs(languages, add_special_tokens=False)["input_ids"]
    pairs = zip(languages, one.encode_batch(languages), ids, strict=True)
    other = [text for text, ours, found in pairs if ours != found]
    assert len(other) <= 1, other  # sums of equal scores, in float32 and in float64


def test_what_the_library_cannot_repeat_is_refused(tmp_path):
    with pytest.raises(errors.UserError, match="SentencePiece model of words cannot be exported"):
        trained(tmp_path, model_type="word", vocab_size=20).save(tmp_path / "word", exported=True)
    cased = {"user_defined_symbols": ["<SEP>"], "normalization_rule_name": "nmt_nfkc_cf"}
    with pytest.raises(errors.UserError, match="the symbol '<SEP>' of this SentencePiece model"):
        trained(tmp_path, **cased).save(tmp_path / "symbol", exported=True)
