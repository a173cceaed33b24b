"""`bertjax evaluate` on held-out data: runs of different mask rates compared at one rate."""

import json

import pytest

from bertjax import __main__, config
from bertjax.artifact import artifact
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
    model = scored.make(family, vocab_size=tokenizer.size, **heads).source
    run = config.default(family, "tiny" if family == "bert" else "small", objective)
    run.model.update(model.fields)
    run.objective.update(fields)
    found = artifact.Artifact(
        family, model.fields, model.params, tokenizer, config=run.to_dict()
    )
    artifact.write(found, folder)
    return folder


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
