"""`bertjax evaluate` on held-out data: runs of different mask rates compared at one rate."""

import json
import math

import jax
import numpy as np
import pytest

from bertjax import __main__, config
from bertjax.artifact import artifact
from bertjax.data.prepared import prepare, store
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from tests.helpers import corpora, scored


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("corpus"))


def score(model, corpus, capsys, *flags):
    """(exit code, what it prints, the numbers)."""
    file = model / "numbers.json"
    code = __main__.main(
        ["evaluate", f"--model={model}", f"--data={corpus / 'prepared'}", "--length=40",
         "--max_samples=16", "--batch_size=16", f"--json={file}", *flags]
    )  # fmt: skip
    out, err = capsys.readouterr()
    return code, out + err, json.loads(file.read_text()) if code == 0 else {}


def write(folder, corpus, family="bert", objective="mlm", **fields):
    """Writes the random parameters of a run of `objective`."""
    tokenizer = tokenizer_lib.load(corpus / "tokenizer")
    heads = {"heads": ("mlm",)} if family == "bert" else {}
    size = tokenizer.size + 100 * (family == "t5")  # its sentinels
    model = scored.make(family, vocab_size=size, **heads).source
    run = config.default(family, "tiny" if family == "bert" else "small", objective)
    run.model.update(model.fields)
    run.objective.update(fields)
    found = artifact.Artifact(
        family, model.fields, model.params, tokenizer, config=run.to_dict(),
        objective=run.objective.to_dict(),
    )  # fmt: skip
    artifact.write(found, folder)
    return folder


@pytest.mark.proof
def test_runs_of_two_mask_rates_compare_at_one(corpus, tmp_path, capsys):
    rates = {rate: write(tmp_path / str(rate), corpus, pair="none", mask_rate=rate)
             for rate in (0.15, 0.4)}  # fmt: skip
    code, out, own = score(rates[0.15], corpus, capsys)
    assert code == 0, out
    assert ", mask rate 0.15\n" in out and own["mask_rate"] == 0.15
    assert "warning: " in out and "to rank models by small differences" in " ".join(out.split())
    code, out, other = score(rates[0.4], corpus, capsys)
    assert code == 0 and other["mask_rate"] == 0.4
    assert other["unigram_loss"] != own["unigram_loss"]
    code, out, same = score(rates[0.4], corpus, capsys, "--mask_rate=0.15")
    assert code == 0 and ", mask rate 0.15 (trained with 0.4)\n" in out
    assert same == own


def test_a_model_that_masks_nothing_has_no_mask_rate(corpus, tmp_path, capsys):
    model = write(tmp_path / "gpt2", corpus, "gpt2", "causal_lm")
    code, out, _ = score(model, corpus, capsys, "--mask_rate=0.15")
    (error,) = [line for line in out.splitlines() if not line.startswith("reading ")]
    assert code == 2 and "--mask_rate=0.15" in error and "causal_lm" in error


@pytest.mark.parametrize("rate", ["0", "1.5", "-0.1", "nan"])
def test_a_rate_is_a_share(rate, capsys):
    assert __main__.main(["evaluate", "--model=m/", "--data=d/", f"--mask_rate={rate}"]) == 2
    assert "must be above 0 and at most 1" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_models_of_different_tokenizers_compare_by_bits_per_byte(kind, tmp_path, capsys):
    """A decoder whose parameters are 0 needs log2(V) bits for each token of the text."""
    texts = corpora.documents(40)
    corpora.write_jsonl(tmp_path / "corpus.jsonl", texts)
    tokenizer = tokenizer_lib.of_bytes()
    if kind == "bpe":
        tokenizer = tokenizer_lib.train("bpe", texts, 300)
    tokenizer.save(tmp_path / "tokenizer")
    prepare.prepare([str(tmp_path / "corpus.jsonl")], str(tmp_path / "tokenizer"),
                    str(tmp_path / "prepared"), workers=1, heldout_fraction=0)  # fmt: skip
    source = scored.make("gpt2", vocab_size=tokenizer.size).source
    zeros = jax.tree.map(np.zeros_like, source.params)
    artifact.write(artifact.Artifact("gpt2", source.fields, zeros, tokenizer), tmp_path / "model")
    file = tmp_path / "numbers.json"
    flags = [f"--model={tmp_path / 'model'}", f"--data={tmp_path / 'prepared'}", f"--json={file}"]
    assert __main__.main(["evaluate", *flags]) == 0
    values = json.loads(file.read_text())
    assert f"  bits_per_byte   {values['bits_per_byte']:>10.4f}\n" in capsys.readouterr().out
    data = store.open_dataset(str(tmp_path / "prepared"), "train")
    tokens = data.num_tokens + data.num_documents  # each document has an end
    bits = math.log2(tokenizer.size) * tokens / sum(len(text) for text in texts)
    assert values["lm_loss"] == pytest.approx(math.log(tokenizer.size), rel=1e-5)
    assert values["bits_per_byte"] == pytest.approx(bits, rel=5e-3)


OBJECTIVES = {
    "bert": ("mlm", {"mask_rate": 0.3, "pair": "none"}, "mlm on rows of 40 tokens, mask rate 0.3"),
    "t5": ("denoisers", {}, "denoisers on rows of 40 tokens"),
    "gpt2": ("prefix_lm", {}, "prefix_lm on rows of 40 tokens"),
}


@pytest.mark.parametrize("family", OBJECTIVES)
def test_an_exported_folder_is_scored_as_the_run_is(family, corpus, tmp_path, capsys):
    objective, fields, title = OBJECTIVES[family]
    model = write(tmp_path / "run", corpus, family, objective, **fields)
    flags = [f"--model={model}", f"--output={tmp_path / 'hf'}"]
    assert __main__.main(["export", *flags]) == 0
    capsys.readouterr()
    code, out, of_run = score(model, corpus, capsys)
    assert code == 0 and title in out, out
    code, out, of_folder = score(tmp_path / "hf", corpus, capsys)
    assert code == 0 and title in out, out
    assert of_folder == pytest.approx(of_run, rel=1e-5)
