"""Special tokens around texts: those of the training are those of the exported tokenizer."""

import dataclasses

import pytest
import tokenizers

from bertjax.artifact import artifact, huggingface, loading
from bertjax.data import tokenizer as tokenizer_lib
from bertjax.finetuning import predictor, rows
from bertjax.finetuning.kinds import text_to_text
from tests import downstream, encoders

TEXTS = ("a dog ran home", "the cat sat on the mat", "")
GROUPS = [[a] for a in TEXTS] + [[a, b] for a in TEXTS for b in TEXTS]
TASK = {"name": "pair", "kind": "classification", "labels": ["no", "yes"], "max_length": 24,
        "config": {}}  # fmt: skip


def _prepared(model, folder):
    """The model with a tokenizer that was saved before anybody knew which model it is for."""
    model.tokenizer.save(folder)
    return dataclasses.replace(model, tokenizer=tokenizer_lib.load(folder))


def _exported(model, folder):
    huggingface.write(model, folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_an_exported_tokenizer_makes_the_rows_that_were_trained(family, tokenizer, tmp_path):
    heads = ("pooler", "classifier") if family == "bert" else ("classifier",)
    made = encoders.make_artifact(family, tokenizer, heads=heads, num_labels=2)
    model = _prepared(dataclasses.replace(made, task=TASK), tmp_path / "tokenizer")
    artifact.write(model, tmp_path / "model")  # one more stop on the way
    library = _exported(loading.load(tmp_path / "model"), tmp_path / "hf")
    form = rows.Form(model.tokenizer)
    for group, ids in zip(GROUPS, rows.encode(model.tokenizer, GROUPS), strict=True):
        row, theirs = form.enclose(ids, 64).row, library.encode(*group)
        assert row["input_ids"].tolist() == theirs.ids, group
        if family == "bert":
            assert row["token_type_ids"].tolist() == theirs.type_ids


@pytest.mark.parametrize(("family", "between"), [("bert", 1), ("roberta", 2), ("gpt2", 0)])
def test_a_pretrained_model_exports_what_its_family_reads(family, between, tmp_path):
    model = _prepared(encoders.make_artifact(family, "bpe"), tmp_path / "tokenizer")
    start, end = model.tokenizer.specials.cls, model.tokenizer.specials.sep
    ids = _exported(model, tmp_path / "hf").encode("a dog", "ran").ids
    assert ids.count(end) == between + (family != "gpt2")
    assert ids.count(start) == (family != "gpt2")


@pytest.mark.parametrize("separator", ["\n", " saw", "the cat"])
@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe"])
def test_a_decoder_writes_in_transformers_what_it_writes_here(tokenizer, separator, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source = encoders.make_artifact("gpt2", tokenizer)
    config = text_to_text.Config(max_target_length=6, reader="causal", separator=separator)
    task = {"name": "text_to_text", "kind": "text_to_text", "labels": [], "max_length": 24,
            "config": dataclasses.asdict(config)}  # fmt: skip
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
