"""Special tokens around texts: those of the training are those of the exported tokenizer."""

import dataclasses

import pytest
import tokenizers
from tokenizers import processors

from bertjax import errors
from bertjax.artifact import artifact, huggingface, loading
from bertjax.data.tokenizers import special_tokens, vocabulary
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import predictor, rows
from bertjax.finetuning.task_types import text_to_text
from tests.helpers import downstream, encoders, tiny_model

TEXTS = ("a dog ran home", "the cat sat on the mat", "")
GROUPS = [[a] for a in TEXTS] + [[a, b] for a in TEXTS for b in TEXTS]
TASK = {"name": "pair", "kind": "classification", "labels": ["no", "yes"], "max_length": 24,
        "config": {}, "num_texts": 2}  # fmt: skip


def _prepared(model, folder):
    """The model with a tokenizer that was saved before anybody knew which model it is for."""
    model.tokenizer.save(folder)
    return dataclasses.replace(model, tokenizer=tokenizer_lib.load(folder))


def _with(post_processor, folder):
    """A byte-level BPE with <s> and </s> that comes from elsewhere, with this around texts."""
    tiny_model.tokenizer("bpe").save(folder)
    file = str(folder / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(file)
    library.post_processor = post_processor
    library.save(file)
    return tokenizer_lib.load(folder)


def _exported(model, folder):
    huggingface.write(model, folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def _assert_same_rows(tokenizer, library, groups=GROUPS, *, types=False):
    form = rows.Form(tokenizer)
    for group, ids in zip(groups, rows.encode(tokenizer, groups), strict=True):
        row, theirs = form.enclose(ids, 64).row, library.encode(*group)
        assert row["input_ids"].tolist() == theirs.ids, group
        if types:
            assert row["token_type_ids"].tolist() == theirs.type_ids


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_an_exported_tokenizer_makes_the_rows_that_were_trained(family, tokenizer, tmp_path):
    heads = ("pooler", "classifier") if family == "bert" else ("classifier",)
    made = encoders.make_artifact(family, tokenizer, heads=heads, num_labels=2)
    model = _prepared(dataclasses.replace(made, task=TASK), tmp_path / "tokenizer")
    artifact.write(model, tmp_path / "model")  # one more stop on the way
    library = _exported(loading.load(tmp_path / "model"), tmp_path / "hf")
    _assert_same_rows(model.tokenizer, library, types=family == "bert")


def test_a_decoder_without_other_special_tokens_has_the_end_of_text_between_two(tmp_path):
    tokenizer = tiny_model.gpt2_tokenizer(tmp_path)
    heads = {"heads": ("classifier",), "num_labels": 2, "vocab_size": tokenizer.size}
    made = encoders.make_artifact("gpt2", **heads)
    library = _exported(dataclasses.replace(made, tokenizer=tokenizer, task=TASK), tmp_path / "hf")
    groups = [group for group in GROUPS if all(group)]
    _assert_same_rows(tokenizer, library, groups)
    assert library.encode("a", "b").tokens == ["a", "<|endoftext|>", "b"]


PROCESSORS = {
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True),
    "bert": processors.BertProcessing(("</s>", 2), ("<s>", 0)),
    "bytes": processors.ByteLevel(trim_offsets=True),
    "two": processors.Sequence([processors.ByteLevel(), processors.ByteLevel()]),
    "template": processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    ),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_what_a_tokenizer_came_with_stays_until_a_model_is_trained_otherwise(
    family, name, tmp_path
):
    tokenizer = _with(PROCESSORS[name], tmp_path / "tokenizer")
    assert tokenizer.pieces([0, 2]) == ["<s>", "</s>"]
    heads = ("pooler", "classifier") if family == "bert" else ("classifier",)
    made = encoders.make_artifact(family, "bpe", heads=heads, num_labels=2)
    model = dataclasses.replace(made, tokenizer=tokenizer)
    came = repr(PROCESSORS[name])
    assert repr(_exported(model, tmp_path / "hf").post_processor) == came
    elsewhere = {key: TASK[key] for key in TASK if key != "num_texts"}
    library = _exported(dataclasses.replace(model, task=elsewhere), tmp_path / "hf")
    assert repr(library.post_processor) == came
    library = _exported(dataclasses.replace(model, task=TASK), tmp_path / "hf")
    _assert_same_rows(tokenizer, library, types=family == "bert")
    same = family == "roberta" and name in ("roberta", "template")
    assert (repr(library.post_processor) == came) == same


@pytest.mark.parametrize(("family", "between"), [("bert", 1), ("roberta", 2), ("gpt2", 0)])
def test_a_pretrained_model_exports_what_its_family_reads(family, between, tmp_path):
    model = _prepared(encoders.make_artifact(family, "bpe"), tmp_path / "tokenizer")
    start, end = model.tokenizer.specials.cls, model.tokenizer.specials.sep
    ids = _exported(model, tmp_path / "hf").encode("a dog", "ran").ids
    assert ids.count(end) == between + (family != "gpt2")
    assert ids.count(start) == (family != "gpt2")


@pytest.mark.parametrize("separator", ["\n", " saw", "$A: $"])
@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe"])
def test_a_decoder_writes_in_transformers_what_it_writes_here(tokenizer, separator, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source = encoders.make_artifact("gpt2", tokenizer)
    config = text_to_text.Config(max_target_length=6, reader="causal", separator=separator)
    task = {"name": "text_to_text", "kind": "text_to_text", "labels": [], "max_length": 24,
            "num_texts": 0, "config": dataclasses.asdict(config)}  # fmt: skip
    model = predictor.Predictor(dataclasses.replace(downstream.soft(source), task=task))
    huggingface.write(model.source, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    library = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert library.model_max_length == 18
    texts, found = ["the cat", "a dog ran home", "letters", "many words " * 9], []
    for text in texts:
        inputs = library([text], truncation=True, return_tensors="pt")
        with torch.no_grad():
            ids = theirs.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
        found.append(model.source.tokenizer.decode(ids.tolist()).strip())
    ours = [prediction["text"] for prediction in model.predict(texts)]
    assert found == ours and len(set(ours)) > 1


def test_special_tokens_of_a_language_model():
    plain = vocabulary.Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
    gpt2 = vocabulary.Specials(pad=-1, unk=-1, cls=-1, sep=-1, mask=-1, bos=50, eos=50)
    t5 = vocabulary.Specials(pad=0, unk=2, cls=-1, sep=-1, mask=-1, eos=1)
    for specials, start, end in ((plain, 2, 3), (gpt2, 50, 50), (t5, 1, 1)):
        assert special_tokens.start_of_text(specials) == start
        assert special_tokens.end_of_text(specials) == end
        assert special_tokens.of_decoder(specials).around([7]).tolist() == [start, 7, end]
        assert special_tokens.of_decoder(specials, 9).around([7]).tolist() == [9, 7, end]
        assert special_tokens.of_encoder_decoder(specials).around([7]).tolist() == [7, end]
    assert special_tokens.of_encoder(plain).around([7]).tolist() == [2, 7, 3]
    assert special_tokens.of_encoder(gpt2).around([]).tolist() == []
    none = vocabulary.Specials(pad=0, unk=1, cls=-1, sep=-1, mask=-1)
    for function in (special_tokens.start_of_text, special_tokens.end_of_text):
        with pytest.raises(errors.UserError, match="tokenizer"):
            function(none)
