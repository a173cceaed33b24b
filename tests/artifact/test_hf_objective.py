"""What a model was pretrained with travels with it: the same prompts and texts everywhere."""

import dataclasses
import json

import pytest

from bertjax import errors
from bertjax.artifact import artifact, huggingface
from bertjax.commands import export
from bertjax.inference import pretrained
from tests.helpers import downstream, encoders, scored, tiny_model

TEXTS = ["the cat sat", "a dog", "ran home and saw the"]
NEW = 6


def _made(family, kind, name):
    """A pretrained model; its vocabulary has more rows than the tokenizer has pieces."""
    fields = {"num_layers": 2, "vocab_size": tiny_model.tokenizer(kind).size + 110}
    if family == "t5":
        fields["num_decoder_layers"] = 2
    plain = pretrained.Pretrained(downstream.soft(encoders.make_artifact(family, kind, **fields)))
    return scored.trained_by(plain, name=name) if name else plain


def _prompts(model):
    return [model._prompt(text, NEW).tolist() for text in TEXTS]


@pytest.mark.parametrize(
    ("family", "kind", "name"),
    [
        ("gpt2", "bpe", "causal_lm"),
        ("gpt2", "wordpiece", "causal_lm"),
        ("gpt2", "unigram", "causal_lm"),
        ("gpt2", "bpe", "prefix_lm"),
        ("gpt2", "bpe", ""),
        ("t5", "unigram", "denoisers"),
        ("t5", "unigram", "prefix_lm"),
    ],
)
def test_the_same_continuation_everywhere(family, kind, name, tmp_path):
    model = _made(family, kind, name)
    wanted = model.generate(TEXTS, max_new_tokens=NEW)
    huggingface.write(model.source, tmp_path / "hf")
    artifact.write(model.source, tmp_path / "artifact")
    for read in (huggingface.read(tmp_path / "hf"), artifact.read(tmp_path / "artifact")):
        assert read.objective == model.source.objective
        assert read.tokenizer.fingerprint == model.tokenizer.fingerprint
        again = pretrained.Pretrained(read)
        assert _prompts(again) == _prompts(model)
        assert again.generate(TEXTS, max_new_tokens=NEW) == wanted
    starts = [ids[0] == model.tokenizer.specials.start for ids in _prompts(model)]
    assert all(starts) if family == "gpt2" and name else not any(starts)

    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert [tokenizer(text)["input_ids"] for text in TEXTS] == _prompts(model)
    content = json.loads((tmp_path / "hf/config.json").read_text())
    theirs = getattr(transformers, content["architectures"][0]).from_pretrained(tmp_path / "hf")
    found = []
    for text in TEXTS:
        inputs = tokenizer([text], return_tensors="pt")
        with torch.no_grad():
            ids = theirs.eval().generate(**inputs, max_new_tokens=NEW, do_sample=False)[0]
        new = ids[inputs["input_ids"].shape[1] :] if family == "gpt2" else ids[1:]
        found.append(model.tokenizer.decode(new.tolist()))
    if (family, name) != ("gpt2", "prefix_lm"):  # which transformers reads from left to right
        assert found == wanted


def test_the_export_says_what_transformers_reads_otherwise(tmp_path, capsys):
    for name, word in (("prefix_lm", "both directions"), ("causal_lm", "")):
        artifact.write(_made("gpt2", "bpe", name).source, tmp_path / "model")
        flags = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / name)]
        parser = export.argparse.ArgumentParser()
        export.add_flags(parser)
        export.run(parser.parse_args(flags))
        said = capsys.readouterr().out
        assert ("note:" in said) == bool(word) and word in said


def test_an_objective_that_is_none_is_one_line(tmp_path):
    huggingface.write(_made("gpt2", "bpe", "causal_lm").source, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for found in ("causal_lm", {"packing": True}, {"name": 3}):
        broken = content | {"bertjax": {"objective": found}}
        (tmp_path / "config.json").write_text(json.dumps(broken))
        with pytest.raises(errors.UserError, match="objective"):
            huggingface.read(tmp_path)
    newer = content | {"bertjax": {"objective": {"name": "causal_lm", "later": 1}}}
    (tmp_path / "config.json").write_text(json.dumps(newer))
    with pytest.raises(errors.UserError, match="later"):
        pretrained.Pretrained(huggingface.read(tmp_path)).generate("the", max_new_tokens=2)


def test_a_decoder_begins_with_its_own_token(tmp_path):
    """In generation here and in transformers, in scores, and in the rows of fine-tuning."""
    plain = _made("t5", "unigram", "")
    start = 7
    fields = plain.source.fields | {"decoder_start_id": start}
    model = pretrained.Pretrained(dataclasses.replace(plain.source, fields=fields))
    wanted = model.generate(TEXTS, max_new_tokens=NEW)
    assert wanted != plain.generate(TEXTS, max_new_tokens=NEW)
    huggingface.write(model.source, tmp_path)
    again = pretrained.Pretrained(huggingface.read(tmp_path))
    assert again.source.fields["decoder_start_id"] == start
    assert again.generate(TEXTS, max_new_tokens=NEW) == wanted
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, mine in zip(TEXTS, wanted, strict=True):
        with torch.no_grad():
            ids = theirs.generate(**tokenizer([text], return_tensors="pt"), max_new_tokens=NEW)[0]
        assert ids[0] == start and model.tokenizer.decode(ids[1:].tolist()) == mine
