"""Extractive question answering: windows, alignment, the best answer, no answer, SQuAD's scores."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching, rows, squad_scores
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import extractive_qa
from tests.helpers import task_types, tiny_model
from tests.helpers.task_types import bind

Config = extractive_qa.Config
CONTEXT = "the cat sat on the mat and a dog ran home and saw the cat"
ASKED = {  # question -> (answer, which of its occurrences)
    "a dog ran": ("home", 0),
    "the cat sat on": ("the mat", 0),
    "a dog saw": ("the cat", 1),
}


def _questions(*, spaced=False):
    """The questions of ASKED about CONTEXT, and two that have no answer there."""
    context = CONTEXT.replace(" ", "  ") if spaced else CONTEXT
    found = []
    for number, (question, (answer, occurrence)) in enumerate(ASKED.items()):
        answer = answer.replace(" ", "  ") if spaced else answer
        start = -1
        for _ in range(occurrence + 1):
            start = context.index(answer, start + 1)
        found.append(examples_lib.Question(str(number), question, context, ((answer, start),)))
    for number, question in enumerate(("many letters", "words"), len(found)):
        found.append(examples_lib.Question(str(number), question, context, impossible=True))
    return found


def _encode(config, examples, tokenizer=None, length=64):
    tokenizer = tokenizer or tiny_model.tokenizer()
    return bind(extractive_qa, config, tokenizer=tokenizer, lengths=rows.Lengths(length)).encode(
        examples
    )


def _logits(encoded, said):
    """Outputs [rows, 2, L] of 0, and what `said(row)` gives: {(end, place): logit}."""
    length = max(len(row["input_ids"]) for row in encoded.rows)
    logits = np.zeros((len(encoded.rows), 2, length), np.float32)
    for number, row in enumerate(encoded.rows):
        for (end, place), value in said(row).items():
            logits[number, end, place] = value
    return {"span_logits": logits}


def _gold(row):
    return {(0, row["first"].argmax()): 9.0, (1, row["last"].argmax()): 9.0}


def _decode(config, examples, encoded, outputs):
    return bind(extractive_qa, config, tokenizer=tiny_model.tokenizer()).decode(
        examples, encoded, outputs
    )


# --- SQuAD's scores ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "predictions", "impossible", "exact", "f1"),
    [
        ("squad11_dev", "squad11_pred_bert_ensemble", False, 86.3128, 91.4505),
        ("squad11_dev", "squad11_pred_logreg", False, 43.7849, 53.9809),
        ("squad20_dev", "squad20_pred_bert", True, 70.6882, 73.3501),
    ],
)
def test_real_predictions_score_as_the_official_scorers_say(
    shared_data, data, predictions, impossible, exact, f1
):
    """Figures of ORACLES.md, section 8."""
    path = str(shared_data / "qa" / f"{data}.json")
    examples = examples_lib.Question.of_squad(path, impossible=impossible)
    said = json.loads((shared_data / "oracle" / f"{predictions}.json").read_text())
    references = [[text for text, _ in example.answers] for example in examples]
    found = squad_scores.scores(references, [said[e.id] for e in examples], impossible=impossible)
    assert round(found["exact_match"], 4) == exact
    assert round(found["f1"], 4) == f1
    if impossible:
        answered = np.mean([bool(answers) for answers in references])
        parts = answered * found["has_answer_f1"] + (1 - answered) * found["no_answer_accuracy"]
        np.testing.assert_allclose(parts, found["f1"])


def test_scores_are_those_of_t5s_tests():
    """google-research/text-to-text-transfer-transformer, t5/evaluation/metrics_test.py."""
    references = [["big moose", "hippo"], ["correct1"], ["correct2.1", "correct2.2"], ["a", "b"]]
    found = squad_scores.scores(
        references, ["\u2018a big  Moose!\u2018", "wrong", "correct2.2", "c"]
    )
    assert found == {"exact_match": 25.0, "f1": pytest.approx(35.0)}
    found = squad_scores.scores([["abc abd", "$$$$"]], ["abd"])
    assert found == {"exact_match": 0.0, "f1": pytest.approx(200 / 3)}


def test_articles_punctuation_and_case_do_not_count():
    assert squad_scores.normalized(" The U.S.A., an  Atlantic-power\n") == "usa atlanticpower"
    assert squad_scores.normalized("a thesis") == "thesis", "articles are whole words"
    assert squad_scores.f1("one one two", "one two two") == pytest.approx(2 / 3), "bags of words"


def test_only_silence_answers_a_question_without_an_answer():
    assert squad_scores.scores([[], [], ["x"]], ["", "x", ""], impossible=True) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 / 3),
        "has_answer_exact_match": 0.0,
        "has_answer_f1": 0.0,
        "no_answer_accuracy": 50.0,
    }


# (references, prediction) -> (exact match, F1) of evaluate-v1.1.py and of evaluate-v2.0.py, the
# official scorers of rajpurkar.github.io/SQuAD-explorer, run on these very strings.
NORMALIZED_TO_NOTHING = [
    (["the"], "The", (100, 0), (100, 100)),
    (["$", "the $"], "", (100, 0), (100, 100)),
    (["the", "cat"], "a cat", (100, 100), (100, 100)),
    (["x", "..."], "", (100, 0), (0, 0)),
    (["x", "..."], "x y", (0, 200 / 3), (0, 200 / 3)),
    (["cat"], "an", (0, 0), (0, 0)),
    (["The"], "cat", (0, 0), (0, 0)),
]


@pytest.mark.parametrize(("answers", "prediction", "first", "second"), NORMALIZED_TO_NOTHING)
def test_each_version_has_its_rules_for_what_normalizes_to_nothing(
    answers, prediction, first, second
):
    for impossible, (exact, f1) in ((False, first), (True, second)):
        found = squad_scores.scores([answers], [prediction], impossible=impossible)
        assert found["exact_match"] == exact
        assert found["f1"] == pytest.approx(f1)
    assert "no_answer_accuracy" not in found, "a question whose answer is an article has an answer"


@pytest.mark.parametrize("seed", range(8))
def test_best_threshold_is_that_of_all_thresholds(seed):
    rng = np.random.default_rng(seed)
    odds = rng.integers(-3, 4, 12).astype(float)  # many are equal
    answered = rng.random(12) < rng.random()
    scores = rng.integers(0, 5, 12) / 4 * answered

    def total(threshold):
        return np.where(odds > threshold, ~answered, scores).mean() * 100

    best = squad_scores.best_threshold(scores, answered, odds)
    assert best.score == pytest.approx(max(map(total, [odds.min() - 1, *odds])))
    for nudge in (-1e-6, 0.0, 1e-6):  # rounding moves no question to the other side
        assert total(best.threshold + nudge) == pytest.approx(best.score)


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "room", "stride"), [(0, 5, 2), (5, 5, 2), (23, 8, 3), (40, 7, 9)]
)
def test_windows_miss_no_short_answer(length, room, stride):
    found = list(extractive_qa.windows(length, room, stride))
    assert found[0][0] == 0 and found[-1][1] == length
    assert all(stop - start <= room for start, stop in found)
    half = room - max(min(stride, room // 2), 1)
    for first in range(length - half + 1):
        assert any(start <= first and first + half <= stop for start, stop in found), first
    starts = np.array([start for start, _ in found])
    assert set(np.diff(starts)) <= {min(stride, room // 2)}


def test_row_is_question_then_context():
    tokenizer = tiny_model.tokenizer()
    (example, *_) = _questions()
    encoded = _encode(Config(), [example])
    (row,), (answer, start) = encoded.rows, example.answers[0]
    cls, sep = tokenizer.specials.cls, tokenizer.specials.sep
    question, context = tokenizer.encode_batch([example.question, example.context])
    assert row["input_ids"].tolist() == [cls, *question, sep, *context, sep]
    assert row["token_type_ids"].tolist() == [0] * (len(question) + 2) + [1] * (len(context) + 1)
    assert row["char_starts"][row["first"].argmax()] == start
    assert row["char_stops"][row["last"].argmax()] == start + len(answer)
    assert row["first"].sum() == row["last"].sum() == 1
    assert not encoded.truncated[0]
    outside = [*range(len(question) + 2), len(row["input_ids"]) - 1]
    assert not row["char_stops"][outside].any()


@pytest.mark.parametrize(("form", "length"), [("wordpiece", 20), ("bpe", 22), ("unigram", 40)])
@pytest.mark.parametrize("spaced", [False, True])
def test_gold_tokens_cover_the_answer_in_every_window_that_holds_it(form, length, spaced):
    """Two blanks between words move characters and not tokens."""
    examples = _questions(spaced=spaced)
    encoded = _encode(
        Config(doc_stride=6, impossible=True), examples, tiny_model.tokenizer(form), length
    )
    held = np.zeros(len(examples), int)
    for row, owner in zip(encoded.rows, encoded.owners, strict=True):
        first, last = row["first"].argmax(), row["last"].argmax()
        if first == last == 0:
            continue
        held[owner] += 1
        (answer, start), context = examples[owner].answers[0], examples[owner].context
        said = context[row["char_starts"][first] : row["char_stops"][last]]
        assert said == answer and row["char_starts"][first] == start
    assert (held[:3] >= 1).all() and not held[3:].any()
    assert len(encoded.rows) > 2 * len(examples), "the context is cut"
    assert (np.diff(encoded.owners) >= 0).all()


def test_long_question_loses_its_end_and_says_so():
    example = _questions()[0]._replace(question="the cat sat on the mat")
    whole, cut = (_encode(Config(max_query_length=n), [example]) for n in (64, 3))
    assert cut.truncated.tolist() == [True] and whole.truncated.tolist() == [False]
    ids = whole.rows[0]["input_ids"]
    assert cut.rows[0]["input_ids"][:4].tolist() == ids[:4].tolist()
    with pytest.raises(errors.UserError, match=r"its context in a row of 8: raise config.max_l"):
        _encode(Config(), [example], length=8)


def test_questions_that_cannot_be_answered_need_the_other_task():
    examples = [question._replace(where="dev.json: question 3") for question in _questions()[-1:]]
    bind(extractive_qa, Config(impossible=True), task="dev.json").check(examples)
    with pytest.raises(errors.UserError, match=r"dev.json: question 3: .* --task=squad_v2"):
        bind(extractive_qa, Config(), task="dev.json").check(examples)


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [64, 24])
def test_gold_logits_give_the_answers_out_of_any_number_of_windows(length):
    examples = _questions(spaced=True)
    config = Config(impossible=True, doc_stride=4)
    encoded = _encode(config, examples, length=length)
    found = _decode(config, examples, encoded, _logits(encoded, _gold))
    assert [p["answer"] for p in found] == ["home", "the  mat", "the  cat", "", ""]
    assert [p["start"] for p in found[:3]] == [e.answers[0][1] for e in examples[:3]]
    assert found[3]["start"] is None and found[3]["null_odds"] > 0 > found[0]["null_odds"]
    scores = bind(extractive_qa, config).scores(examples, found)
    assert scores["exact_match"] == scores["f1"] == scores["best_f1"] == 100
    json.dumps(found)


def test_best_answers_are_those_of_a_search_through_all():
    examples = _questions()[:1]
    config = Config(max_answer_length=4, n_best=6, doc_stride=5)
    encoded = _encode(config, examples, length=20)
    assert len(encoded.rows) > 2
    rng = np.random.default_rng(0)
    outputs = _logits(encoded, lambda row: {})
    outputs["span_logits"] = rng.standard_normal(outputs["span_logits"].shape).astype(np.float32)
    scores = {}
    for row, (first, last) in zip(encoded.rows, outputs["span_logits"], strict=True):
        inside = np.flatnonzero(row["char_stops"])
        for i in inside:
            for j in inside[(inside >= i) & (inside < i + 4)]:
                span = row["char_starts"][i], row["char_stops"][j]
                scores[span] = max(scores.get(span, -np.inf), float(first[i]) + float(last[j]))
    best = sorted(scores, key=scores.get, reverse=True)[:6]
    (found,) = _decode(config, examples, encoded, outputs)
    assert [p["answer"] for p in found["n_best"]] == [CONTEXT[i:j] for i, j in best]
    chances = np.exp([scores[span] for span in best])
    np.testing.assert_allclose(
        [p["probability"] for p in found["n_best"]], chances / chances.sum(), rtol=1e-6
    )
    assert found["answer"] == found["n_best"][0]["answer"] and "null_odds" not in found


def test_null_odds_take_the_window_that_believes_least_in_no_answer():
    examples = _questions()[:1]
    config = Config(impossible=True, doc_stride=5)
    encoded = _encode(config, examples, length=20)
    beliefs = iter(np.arange(7.0, 99.0))
    outputs = _logits(encoded, lambda row: {(0, 0): next(beliefs), **_gold(row)})
    outputs["span_logits"][:, 1, 0] = 0
    (found,) = _decode(config, examples, encoded, outputs)
    lowest = min(outputs["span_logits"][:, 0, 0])
    assert found["null_odds"] == pytest.approx(lowest - 18.0)
    for threshold, answer in ((lowest - 18.0, "home"), (lowest - 18.5, "")):
        config = dataclasses.replace(config, null_threshold=float(threshold))
        (found,) = _decode(config, examples, encoded, outputs)
        assert found["answer"] == answer and found["n_best"][0]["answer"] == "home"


def test_tuned_threshold_gives_the_best_f1():
    examples = _questions()
    config = Config(impossible=True)
    encoded = _encode(config, examples)
    shy = iter([1.0, 4.0, 2.0, 6.0, 5.0])  # how much more it believes in no answer
    outputs = _logits(encoded, lambda row: {(0, 0): 18.0 + next(shy)} | _gold(row))
    for number in (3, 4):
        outputs["span_logits"][number, :, -2] = 9.0  # an answer, and a wrong one
        outputs["span_logits"][number, 1, 0] = 0.0
        outputs["span_logits"][number, 0, 0] = 18.0 + (6.0, 5.0)[number - 3]
    found = _decode(config, examples, encoded, outputs)
    scores = bind(extractive_qa, config).scores(examples, found)
    assert scores["f1"] == 40 and scores["best_f1"] == 100
    config = bind(extractive_qa, config).tuned(examples, found, {}).config
    assert config.null_threshold == scores["best_f1_threshold"] == pytest.approx(5.0)
    given = dataclasses.replace(config, tune_threshold=False, null_threshold=-3.0)
    assert bind(extractive_qa, given).tuned(examples, found, {}).config == given
    found = _decode(config, examples, encoded, outputs)
    assert bind(extractive_qa, config).scores(examples, found)["f1"] == 100
    assert bind(extractive_qa, Config()).tuned(examples, found, {}).config == Config()


def test_context_without_a_token_has_no_answer():
    examples = [examples_lib.Question("0", "the cat", "\u00ad")]
    for config in (Config(), Config(impossible=True)):
        encoded = _encode(config, examples)
        (found,) = _decode(config, examples, encoded, _logits(encoded, lambda row: {}))
        assert found["answer"] == "" and found["n_best"] == []


# --- training ------------------------------------------------------------------------------------


def test_loss_is_the_mean_of_both_ends_and_skips_what_is_not_known():
    examples = [*_questions(), examples_lib.Question("5", "the dog", CONTEXT)]
    config = Config(impossible=True)
    made, size = _encode(config, examples).rows, len(examples) + 1
    ((_, batch),) = batching.Batches(
        made, bind(extractive_qa, config).features(), rows.Lengths(64), size
    ).in_order()
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((*batch["input_ids"].shape, 2)).astype(np.float32)
    found = bind(extractive_qa, config).loss(
        lambda **_: {"span_logits": jnp.asarray(logits)}, batch
    )
    total = 0.0
    known = np.flatnonzero(batch["first"].any(axis=1) & (batch["example_weights"] > 0))
    for row in known:
        real = batch["attention_mask"][row].sum()
        for end, name in enumerate(("first", "last")):
            own = logits[row, :real, end]
            total += np.log(np.exp(own).sum()) - own[batch[name][row].argmax()]
    loss, weight = found["span_loss"]
    assert len(known) == weight == 5, "one is not known, and one row only fills up"
    assert bind(extractive_qa, config).normalizers(batch)["span_loss"] == 5
    assert loss == pytest.approx(total / 2, rel=1e-5)
    perfect = {"span_logits": 9.0 * jnp.stack([batch["first"], batch["last"]], axis=-1)}
    assert bind(extractive_qa, config).loss(lambda **_: perfect, batch)["span_accuracy"] == (5, 5)


@pytest.mark.proof
def test_a_model_learns_where_the_answers_are():
    examples, config = _questions(), Config(impossible=True, doc_stride=6)
    encoded = _encode(config, examples, length=20)
    assert len(encoded.rows) > len(examples)
    model, params = task_types.make(extractive_qa, config)
    batch = task_types.batch_of(extractive_qa, config, encoded)
    params, losses = task_types.fit(extractive_qa, config, model, params, batch, steps=120)
    assert losses[-1] < 0.1 < losses[0]
    outputs = task_types.outputs_of(extractive_qa, config, model, params, batch)
    found = _decode(config, examples, encoded, outputs)
    assert [p["answer"] for p in found] == ["home", "the mat", "the cat", "", ""]


def test_alignment_on_real_questions(shared_data):
    """What the gold tokens cover is the answer, but for words that a piece goes beyond."""
    path = str(shared_data / "qa/squad11_dev.json")
    examples = examples_lib.Question.of_squad(path, impossible=False)
    tokenizer = tokenizer_lib.load(str(shared_data / "vocab/bert-base-uncased-vocab.txt"))
    config = Config()
    encoded = _encode(config, examples, tokenizer, length=384)
    found = _decode(config, examples, encoded, _logits(encoded, _gold))
    assert all(p["answer"] in e.context for p, e in zip(found, examples, strict=True))
    assert bind(extractive_qa, config).scores(examples, found)["exact_match"] > 99
