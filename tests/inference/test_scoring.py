"""Scores of texts against plain loops over single unpadded rows, and BLiMP by the command."""

import argparse
import json

import numpy as np
import pytest

from bertjax import __main__ as main
from bertjax import config, errors
from bertjax.artifact import artifact, huggingface
from bertjax.commands import evaluate
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.inference import blimp, scoring
from tests.helpers import corpora, proofs, scored, tiny_model

TEXTS = ["the cat sat on the mat", "a dog", "", "mats made the dogs run"]


@pytest.fixture(scope="module")
def bert():
    return scored.make("bert", heads=("mlm",))


def masked_loop(model, text, within_word=False):
    specials = model.tokenizer.specials
    ids = [specials.cls, *scored.encode(model, text), specials.sep]
    continues = model.tokenizer.continuations()
    rows, total = [], 0.0
    for place in range(1, len(ids) - 1):
        hidden = list(ids)
        hidden[place] = specials.mask
        behind = place + 1
        while within_word and behind < len(ids) - 1 and continues[ids[behind]]:
            hidden[behind] = specials.mask
            behind += 1
        rows.append(hidden)
    logits = scored.apply(model, "mlm_logits", input_ids=rows) if rows else []
    for place, row in enumerate(logits, start=1):
        total += scored.log_softmax(row[place])[ids[place]]
    return total


@pytest.mark.parametrize("kind", proofs.all_but(["wordpiece", "bpe"], "wordpiece"))
@pytest.mark.parametrize("within_word", [False, True])
def test_pseudo_log_likelihood_is_the_plain_loop(kind, within_word):
    model = scored.make("bert", kind, heads=("pooler", "mlm", "nsp"))
    scores = scoring.log_likelihoods(model, TEXTS, within_word=within_word)
    expected = [masked_loop(model, text, within_word) for text in TEXTS]
    np.testing.assert_allclose(scores, expected, atol=2e-3)
    assert scores[2] == 0.0 and scores[0] < scores[1] < 0
    assert scoring.describe(model) == "pseudo-log-likelihood"


def test_hiding_the_rest_of_a_word_changes_only_words_in_several_pieces(bert):
    plain = scoring.log_likelihoods(bert, TEXTS)
    within = scoring.log_likelihoods(bert, TEXTS, within_word=True)
    continues = bert.tokenizer.continuations()
    several = [any(continues[scored.encode(bert, text)]) for text in TEXTS]
    assert several == [False, True, False, True]
    assert (np.abs(plain - within) > 1e-3).tolist() == several


def test_a_score_does_not_depend_on_the_other_texts(bert, monkeypatch):
    alone = [scoring.log_likelihoods(bert, [text])[0] for text in TEXTS]
    monkeypatch.setattr(scoring, "TOKENS", 40)  # several batches, the last one filled up
    np.testing.assert_allclose(scoring.log_likelihoods(bert, TEXTS * 2), alone * 2, atol=1e-3)


@pytest.mark.proof
def test_the_discriminator_scores_every_token_in_one_pass():
    model = scored.make("electra", heads=("mlm", "rtd"))
    specials = model.tokenizer.specials
    expected = []
    for text in TEXTS:
        ids = [specials.cls, *scored.encode(model, text), specials.sep]
        logits = scored.apply(model, "rtd_logits", input_ids=[ids])[0]
        expected.append(-np.log1p(np.exp(logits[1:-1].astype(np.float64))).sum())
    np.testing.assert_allclose(scoring.log_likelihoods(model, TEXTS), expected, atol=1e-3)
    assert scoring.describe(model) == "log probability of being original"


@pytest.mark.proof
def test_the_likelihood_of_a_decoder_is_the_plain_loop():
    model = scored.make("gpt2", "bpe")
    specials = model.tokenizer.specials
    expected = [
        sum(scored.causal_loop(model, [*scored.encode(model, text), specials.eos], specials.bos))
        for text in TEXTS
    ]
    np.testing.assert_allclose(scoring.log_likelihoods(model, TEXTS), expected, atol=2e-3)


def test_a_decoder_scores_as_gpt2_of_transformers_does(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = scored.make("gpt2", "bpe")
    huggingface.write(model.source, tmp_path / "hf")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(str(tmp_path / "hf")).eval()
    specials = model.tokenizer.specials
    for text, score in zip(TEXTS, scoring.log_likelihoods(model, TEXTS), strict=True):
        ids = torch.tensor([[specials.bos, *scored.encode(model, text), specials.eos]])
        with torch.no_grad():
            loss = theirs(ids, labels=ids).loss
        assert score == pytest.approx(-float(loss) * (ids.shape[1] - 1), abs=2e-3)


@pytest.mark.parametrize(
    ("kind", "objective", "modes"),
    [
        ("unigram", {"name": "denoisers"}, 1),
        pytest.param("unigram", None, 0, marks=pytest.mark.proof),
        pytest.param("bytes", None, 0, marks=pytest.mark.proof),
        pytest.param(
            "unigram", {"name": "denoisers", "mode_tokens": False}, 0, marks=pytest.mark.proof
        ),
    ],
)
def test_an_encoder_decoder_writes_single_tokens_behind_a_sentinel(kind, objective, modes):
    model = scored.make("t5", kind, max_length=60)
    mode = model.tokenizer.sentinels[-3:][:modes].tolist()  # the one for R
    if objective:
        model = scored.trained_by(model, **objective)
    specials, sentinel = model.tokenizer.specials, int(model.tokenizer.sentinels[0])
    end = specials.eos if specials.eos >= 0 else specials.sep
    expected = []
    for text in TEXTS:
        ids, total = scored.encode(model, text), 0.0
        rows = [[*mode, *ids[:i], sentinel, *ids[i + 1 :], end] for i in range(len(ids))]
        if rows:
            read = [[specials.pad, sentinel]] * len(rows)
            logits = scored.apply(model, "logits", input_ids=rows, decoder_input_ids=read)
            total = sum(scored.log_softmax(row[1])[i] for row, i in zip(logits, ids, strict=True))
        expected.append(total)
    np.testing.assert_allclose(scoring.log_likelihoods(model, TEXTS), expected, atol=5e-3)
    with pytest.raises(errors.UserError, match="with special tokens, but the model takes at most "
                                               "60"):
        scoring.log_likelihoods(model, ["cat " * 70])


@pytest.mark.proof
def test_an_encoder_decoder_that_never_saw_a_sentinel_writes_the_whole_text():
    bare = scored.make("t5", "unigram", vocab_size=tiny_model.tokenizer("unigram").size)
    model = scored.trained_by(bare, name="prefix_lm", kind="encoder_decoder")
    specials = model.tokenizer.specials
    expected = []
    for text in TEXTS:
        ids = [*scored.encode(model, text), specials.sep]
        read = {"input_ids": [[specials.sep]], "decoder_input_ids": [[specials.pad, *ids[:-1]]]}
        logits = scored.apply(model, "logits", **read)[0]
        expected.append(scored.log_softmax(logits)[np.arange(len(ids)), ids].sum())
    np.testing.assert_allclose(scoring.log_likelihoods(model, TEXTS), expected, atol=5e-3)
    assert scoring.describe(model) == "log-likelihood"
    with pytest.raises(errors.UserError, match="with special tokens, but the model takes at most "
                                               "41"):
        scoring.log_likelihoods(model, ["the cat sat on the mat " * 10])


def test_rows_are_in_one_bucket_each_and_lengths_close(bert):
    rng = np.random.default_rng(0)
    column = [np.arange(size) + 5 for size in rng.integers(1, 41, 100)]
    seen = []
    for rows, (ids,), (real,) in scoring._buckets(bert, column):
        assert ids.shape[1] <= bert.max_length == 40
        for row, row_ids, row_real in zip(rows, ids, real, strict=True):
            assert row_ids[row_real].tolist() == column[row].tolist()
            assert len(row_ids) < len(column[row]) + max(4, len(column[row]) / 4)
        seen += rows.tolist()
    assert sorted(seen) == list(range(100))
    assert list(scoring._buckets(bert, [])) == []


def test_what_cannot_be_scored_is_said(bert):
    long = "the cat sat on the mat " * 10  # 60 words
    with pytest.raises(errors.UserError, match="tokens, but the model takes at most 38: shorten "
                                               "it"):
        scoring.log_likelihoods(bert, [long])
    for family in ("gpt2", "t5"):
        with pytest.raises(errors.UserError, match="with special tokens, but the model takes at "
                                                   "most 4"):
            scoring.log_likelihoods(scored.make(family), [long])
    with pytest.raises(errors.UserError, match="has no head that scores text"):
        scoring.log_likelihoods(scored.make("bert", heads=("pooler",)), ["a"])
    with pytest.raises(errors.UserError, match="this bert model cannot generate text"):
        scoring.log_likelihood_of_continuations(bert, ["a"], ["b"])
    with pytest.raises(errors.UserError, match="within_word needs a masked language model"):
        scoring.log_likelihoods(scored.make("gpt2"), ["a"], within_word=True)
    small = scored.make("t5", "unigram", vocab_size=tiny_model.tokenizer("unigram").size)
    with pytest.raises(errors.UserError, match="sentinel 0 has id 127"):
        scoring.log_likelihoods(small, ["a dog"])


# BLiMP


def write_pairs(path, count=6):
    """Two paradigms of one phenomenon and one of another."""
    paradigms = {"island": "islands", "anaphor": "anaphora", "adjunct": "islands"}
    lines = [
        {"uid": uid, "term": term, "good": f"the cat saw {'a dog ' * i}", "bad": f"cat the saw {i}"}
        for uid, term in paradigms.items()
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_accuracy_counts_the_pairs_whose_good_sentence_is_likelier(monkeypatch, tmp_path):
    pairs = blimp.read(write_pairs(tmp_path / "blimp.jsonl"))
    scores = np.zeros((18, 2))
    scores[:6, 0] = 1.0  # all of island
    scores[6:9, 0] = 1.0  # half of anaphor; the rest are ties, which are not right
    scores[12:, 1] = 1.0
    monkeypatch.setattr(scoring, "log_likelihoods", lambda *_, within_word: scores.ravel())
    found = blimp.evaluate(None, pairs)
    assert found.by_uid == {"adjunct": 0.0, "anaphor": 0.5, "island": 1.0}
    assert found.by_term == {"anaphora": 0.5, "islands": 0.5}
    assert (found.overall, found.pairs) == (0.5, 18)
    assert blimp.table(found, pairs).splitlines() == [
        f"{name:<60} {value}"
        for name, value in [
            ("all 18 pairs", "0.5000"),
            ("  anaphora", "0.5000"),
            ("    anaphor", "0.5000"),
            ("  islands", "0.5000"),
            ("    adjunct", "0.0000"),
            ("    island", "1.0000"),
        ]
    ]


def test_the_original_names_and_the_first_pairs_of_each_paradigm(tmp_path):
    line = {"UID": "u", "linguistics_term": "t", "sentence_good": "a", "sentence_bad": "b"}
    (tmp_path / "a.jsonl").write_text((json.dumps(line) + "\n") * 3 + "\n")
    assert blimp.read(tmp_path / "a.jsonl", 2) == [blimp.Pair("u", "t", "a", "b")] * 2
    pairs = blimp.read(write_pairs(tmp_path / "b.jsonl"), 4)
    assert len(pairs) == 12 and [pair.uid for pair in pairs[3:5]] == ["island", "anaphor"]


def test_blimp_itself(shared_data):
    pairs = blimp.read(shared_data / "probes" / "blimp.jsonl")
    assert len(pairs) == 45_000 and len({pair.uid for pair in pairs}) == 45


def bertjax(capsys, *args):
    code = main.main(["evaluate", *args])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("family", proofs.all_but(["bert", "gpt2"], "bert"))
def test_the_command(family, bert, tmp_path, capsys):
    model = bert if family == "bert" else scored.make("gpt2", "bpe")
    artifact.write(model.source, tmp_path / "model")
    file, numbers = write_pairs(tmp_path / "blimp.jsonl"), tmp_path / "numbers.json"
    code, out, err = bertjax(
        capsys, f"--model={tmp_path / 'model'}", f"--task=blimp:{file}", "--max_pairs=5",
        f"--json={numbers}",
    )  # fmt: skip
    assert code == 0, err
    stored = json.loads(numbers.read_text())
    pairs = blimp.read(file, 5)
    good = scoring.log_likelihoods(model, [pair.good for pair in pairs])
    bad = scoring.log_likelihoods(model, [pair.bad for pair in pairs])
    assert stored["pairs"] == 15
    assert stored["overall"] == pytest.approx((good > bad).mean())
    assert f"all 15 pairs{stored['overall']:>55.4f}" in out
    assert scoring.describe(model) in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not found; give a JSON lines file of BLiMP"),
        ("", "the file is empty"),
        ("\n\n", "contains no pairs"),
        ('\n{"uid": "\udcff"}', "blimp.jsonl:2: is not UTF-8"),
        ('{"uid": "u", "term": "t", "good": "a", "bad": "b"}\n{"uid"\n', "jsonl:2: is not JSON"),
        ("[" * 100_000, "blimp.jsonl:1: is nested more than"),
        ('{"uid": ' + "9" * 5_000 + "}", "blimp.jsonl:1: is not JSON"),
        ('{"uid": "u", "term": "t", "good": "a"}\n', "blimp.jsonl:1: has no text under 'bad'"),
        ('["a"]\n', "blimp.jsonl:1: is a JSON list"),
    ],
)
def test_a_bad_file_is_one_line(content, message, tmp_path, capsys):
    file = tmp_path / "blimp.jsonl"
    if content is not None:
        file.write_text(content, errors="surrogateescape")
    code, out, err = bertjax(capsys, "--model=none", f"--task=blimp:{file}")
    assert (code, out) == (2, "")
    assert message in err and str(file) in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give either --data or --task"),
        (["--data=d", "--task=blimp:f"], "give either --data or --task"),
        (["--task=glue"], "--task=glue: must be blimp:FILE"),
        (["--task=blimp:f", "--max_pairs=0"], "--max_pairs=0: must be 1 or more"),
        (["--data=d", "--batch_size=0"], "--batch_size=0: must be 1 or more"),
        (["--task=blimp:f", "--length=0"], "--length can only be used with --data"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    code, _, err = bertjax(capsys, "--model=none", *flags)
    assert code == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("family", "loss"),
    proofs.all_but(
        [("bert", "mlm_loss"), ("gpt2", "lm_loss"), ("t5", "lm_loss")], ("bert", "mlm_loss")
    ),
)
def test_heldout_data_for_a_model_without_a_run(family, loss, tmp_path, capsys):
    folder = corpora.make(tmp_path, 60)
    tokenizer = tokenizer_lib.load(folder / "tokenizer")
    heads = {"heads": ("mlm",)} if family == "bert" else {}
    source = scored.make(family, vocab_size=tokenizer.size + 100, **heads).source
    source = artifact.Artifact(family, source.fields, source.params, tokenizer)
    artifact.write(source, tmp_path / "model")
    code, out, err = bertjax(
        capsys, f"--model={tmp_path / 'model'}", f"--data={folder / 'prepared'}", "--length=40",
        "--max_samples=16", "--batch_size=16", f"--json={tmp_path / 'numbers.json'}",
    )  # fmt: skip
    assert code == 0, err
    values = json.loads((tmp_path / "numbers.json").read_text())
    gain = values["unigram_loss"] - values[loss]
    assert f"{-gain:.2f} nats per predicted token worse" in out  # random parameters


def test_a_student_is_scored_without_its_teacher():
    run = config.default("distilbert", "base", "distillation")
    run.objective.update(mask_rate=0.2, teacher="gone/")
    student = artifact.Artifact("distilbert", dict(run.model), None, None, config=run.to_dict())
    flags = argparse.Namespace(
        model="student/", length=32, batch_size=8, max_samples=5, mask_rate=None
    )
    found = evaluate._config(student, flags)
    config.validate(found)
    assert (found.objective.name, found.objective.mask_rate) == ("mlm", 0.2)
    assert "teacher" not in found.objective and found.data.length == 32
