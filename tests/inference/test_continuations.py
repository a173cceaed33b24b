"""Scores of continuations against plain loops over single unpadded rows."""

import numpy as np
import pytest

from bertjax.inference import scoring
from tests.helpers import scored

TEXTS = ["the cat sat on the mat", "a dog", "", "mats made the dogs run"]
CONTEXTS = ["the cat", "the cat ", "", "a dog ran", "the cat\n\n"]
CONTINUATIONS = [" sat on the mat", "sat on the mat", "a dog", " home", "sat"]


def test_continuations_of_a_decoder():
    model = scored.make("gpt2", "bpe")
    scores = scoring.log_likelihood_of_continuations(model, CONTEXTS, CONTINUATIONS)
    assert scores.sums[0] == pytest.approx(scores.sums[1])
    start = model.tokenizer.specials.bos
    for score, count, a, b in zip(*scores, CONTEXTS, CONTINUATIONS, strict=True):
        known = len(scored.encode(model, a.rstrip()))
        steps = scored.causal_loop(model, scored.encode(model, a + b), start)[known:]
        assert score == pytest.approx(sum(steps), abs=2e-3)
        assert count == len(steps)


def test_a_token_across_the_border_belongs_to_the_continuation():
    model = scored.make("gpt2", "bpe")
    known, whole = scored.encode(model, "the c"), scored.encode(model, "the cat")
    assert known[:1] == whole[:1] and known[1] != whole[1]  # " c" and " cat"
    (score,), (count,) = scoring.log_likelihood_of_continuations(model, ["the c"], ["at"])
    steps = scored.causal_loop(model, whole, model.tokenizer.specials.bos)[1:]
    assert score == pytest.approx(sum(steps), abs=2e-3) and count == len(steps)


@pytest.mark.proof
def test_a_decoder_trained_on_prefixes_reads_contexts_without_direction():
    causal = scored.make("gpt2", "bpe")
    model = scored.trained_by(causal, name="prefix_lm")
    start = model.tokenizer.specials.bos
    scores = scoring.log_likelihood_of_continuations(model, CONTEXTS, CONTINUATIONS)
    for score, a, b in zip(scores.sums, CONTEXTS, CONTINUATIONS, strict=True):
        ids, known = scored.encode(model, a + b), len(scored.encode(model, a.rstrip()))
        seen = [[1] * (known + 1) + [0] * (len(ids) - known - 1)]  # the start and the context
        logits = scored.apply(model, "logits", input_ids=[[start, *ids[:-1]]], prefix_mask=seen)[0]
        steps = scored.log_softmax(logits)[np.arange(len(ids)), ids][known:]
        assert score == pytest.approx(steps.sum(), abs=2e-3)
    others = scoring.log_likelihood_of_continuations(causal, CONTEXTS, CONTINUATIONS)
    assert (np.abs(scores.sums - others.sums) > 0.01).tolist() == [True, True, False, True, True]
    np.testing.assert_allclose(  # no context: the same
        scoring.log_likelihoods(model, TEXTS), scoring.log_likelihoods(causal, TEXTS), atol=2e-3
    )


@pytest.mark.proof
def test_answers_of_an_encoder_decoder():
    model = scored.make("t5", "unigram")
    specials = model.tokenizer.specials
    contexts, answers = ["the cat sat", "a dog ran home and saw"], ["on the mat", "a"]
    scores = scoring.log_likelihood_of_continuations(model, contexts, answers)
    for score, count, context, answer in zip(*scores, contexts, answers, strict=True):
        read, written = scored.encode(model, context), scored.encode(model, answer)
        logits = scored.apply(
            model, "logits", input_ids=[[*read, specials.sep]],
            decoder_input_ids=[[specials.pad, *written]],
        )[0]  # fmt: skip
        steps = scored.log_softmax(logits)[np.arange(len(written) + 1), [*written, specials.sep]]
        assert score == pytest.approx(steps.sum(), abs=2e-3) and count == len(steps)
