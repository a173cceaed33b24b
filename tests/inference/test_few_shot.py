"""Prompts for a loaded model: what it writes, which choice it takes, and `bertjax predict`."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.artifact import artifact, huggingface
from bertjax.commands import predict
from bertjax.inference import generation, pretrained, prompting
from bertjax.models.common import layers
from tests.helpers import encoders, tiny_model

SHOWN = [("2 + 2", "4"), ("{text} + 5", "8")]


def _make(family, kind, **fields):
    tokenizer = tiny_model.tokenizer(kind)
    size = int(max(tokenizer.sentinels) + 1) if family == "t5" else tokenizer.size
    model, params = encoders.make(family, vocab_size=size, max_length=64, **fields)
    compute = dataclasses.asdict(layers.Compute())
    whole = {k: v for k, v in dataclasses.asdict(model.config).items() if k not in compute}
    return artifact.Artifact(family, whole, jax.device_get(params), tokenizer)


@pytest.fixture(scope="module")
def gpt():
    return pretrained.Pretrained(_make("gpt2", "bpe"))


@pytest.fixture(scope="module")
def t5():
    return pretrained.Pretrained(_make("t5", "unigram", num_decoder_layers=2, head_dim=8))


# Writing


def test_a_decoder_goes_on_with_the_prompt(gpt):
    prompts = ["the cat", "a dog ran home and"]
    alone = [gpt.generate(prompt, max_new_tokens=7)[0] for prompt in prompts]
    assert gpt.generate(prompts, max_new_tokens=7) == alone and alone[0] != alone[1]
    prompt = np.array(gpt.tokenizer.encode("the cat"))
    ids = gpt.model.apply({"params": gpt.params}, prompt[None])["logits"][0, -1].argmax()
    assert gpt.generate("the cat", max_new_tokens=1) == [gpt.tokenizer.decode([ids])]


def test_a_decoder_trained_here_begins_with_the_start_of_text(gpt):
    start = gpt.tokenizer.specials.bos
    source = _make("gpt2", "bpe")
    ours = pretrained.Pretrained(
        artifact.Artifact(**{**vars(source), "objective": {"name": "causal_lm"}})
    )
    name = gpt.tokenizer.pieces([start])[0]

    def written(model, prompt):
        return model.generate(prompt, max_new_tokens=12)

    assert written(ours, "the cat") == written(gpt, name + "the cat") != written(gpt, "the cat")
    assert written(ours, name + "the cat") == written(ours, "the cat")
    assert written(ours, "") == written(gpt, "") == written(gpt, name)


def test_a_decoder_trained_on_prefixes_reads_them_without_direction(gpt):
    def made_by(**objective):
        return pretrained.Pretrained(dataclasses.replace(_make("gpt2", "bpe"), objective=objective))

    causal, prefix = made_by(name="causal_lm", packing=False), made_by(name="prefix_lm")
    prompts = ["the cat sat on", "a dog ran home and"]
    assert causal.generate(prompts, max_new_tokens=9) != prefix.generate(prompts, max_new_tokens=9)


def test_an_encoder_decoder_answers(t5):
    texts = t5.generate(["the <extra_id_0> sat", "a dog"], max_new_tokens=6, num_beams=2)
    assert len(texts) == 2 and texts[0] != texts[1]
    top, (first, *_) = t5.tokenizer.sentinels[0], t5.tokenizer.encode("the", specials_in_text=True)
    ids = t5._prompt("the <extra_id_0>", 6)
    assert ids[0] == first and ids[-2] == top and ids[-1] == t5.tokenizer.specials.sep


def test_a_sentinel_typed_for_a_model_without_sentinels_is_said(gpt):
    bert = pretrained.Pretrained(tiny_model.make())
    small = _make("t5", "unigram", num_decoder_layers=2, head_dim=8)
    small = dataclasses.replace(small, fields=small.fields | {"vocab_size": small.tokenizer.size})
    message = r"'the <extra_id_7> \[MASK\]' contains <extra_id_7>.*and no sentinels"
    for ask in (gpt.generate, pretrained.Pretrained(small).generate, bert.fill_mask):
        with pytest.raises(errors.UserError, match=message):
            ask("the <extra_id_7> [MASK]")


@pytest.mark.proof
def test_options_reach_the_decoding(gpt):
    greedy = gpt.generate("the cat", max_new_tokens=12)
    assert gpt.generate("the cat", max_new_tokens=12, temperature=3.0, seed=1) != greedy
    assert gpt.generate("the cat", max_new_tokens=12, temperature=3.0, top_k=1) == greedy


def test_what_cannot_be_written_is_said(gpt, t5):
    bert = pretrained.Pretrained(tiny_model.make())
    with pytest.raises(errors.UserError, match="this bert model cannot generate text"):
        bert.generate("the cat")
    with pytest.raises(errors.UserError, match="has 2 tokens and max_new_tokens is 63"):
        gpt.generate("cat cat", max_new_tokens=63)
    with pytest.raises(errors.UserError, match="the model takes at most 64"):
        t5.generate("the cat sat " * 20)
    with pytest.raises(errors.UserError, match="num_beams = 0"):
        gpt.generate("the cat", num_beams=0)


# Choosing


def test_few_shot_prompt():
    assert prompting.few_shot(SHOWN, "1 + 6", instruction="Add.") == (
        "Add.\n\nInput: 2 + 2\nOutput: 4\n\nInput: {text} + 5\nOutput: 8\n\nInput: 1 + 6\nOutput:"
    )
    short = prompting.few_shot(SHOWN, "x", template="{text} =\n {label}", separator="; ")
    assert short == "2 + 2 =\n 4; {text} + 5 =\n 8; x ="
    assert prompting.few_shot([], "x", template="{text}? {label}") == "x?"
    for template in ("{text}", "{label}", "{label} {text}", "{text} {label}."):
        with pytest.raises(errors.UserError, match="template = "):
            prompting.few_shot(SHOWN, "x", template=template)


def _log_p(model, ids, start):
    """Of each id but the first, by the plain forward pass."""
    logits = np.float64(model.model.apply({"params": model.params}, np.array([ids]))["logits"][0])
    logits = logits[:-1] - np.log(np.exp(logits[:-1]).sum(-1, keepdims=True))
    return logits[np.arange(len(ids) - 1), ids[1:]][start:]


def test_choices_are_scored_by_log_probability(gpt):
    encode, start = gpt.tokenizer.encode, gpt.tokenizer.specials.bos
    prompts, choices = ["the cat", "a dog ran"], ["sat", "ran home and saw the cat", "words"]
    plain = prompting.choose(gpt, prompts, choices, normalize=False)
    fair = prompting.choose(gpt, prompts, choices)
    for prompt, one, other in zip(prompts, plain, fair, strict=True):
        known = len(encode(prompt))
        terms = [_log_p(gpt, [start, *encode(f"{prompt} {c}")], known) for c in choices]
        np.testing.assert_allclose(one.scores, [t.sum() for t in terms], rtol=1e-4)
        np.testing.assert_allclose(other.scores, [t.mean() for t in terms], rtol=1e-4)
        for found in (one, other):
            assert found.index == np.argmax(found.scores) and found.text == choices[found.index]
        assert np.argmin(one.scores) == 1  # the longest


@pytest.mark.proof
@pytest.mark.parametrize("space", [" ", "\n\n"])
def test_white_space_at_the_end_of_a_prompt_counts_with_the_choice(gpt, space):
    start, encode = gpt.tokenizer.specials.bos, gpt.tokenizer.encode
    choices, known = ["sat", "ran home"], len(encode("the cat"))
    (found,) = prompting.choose(gpt, ["the cat" + space], choices)
    terms = [_log_p(gpt, [start, *encode(f"the cat{space}{c}")], known) for c in choices]
    np.testing.assert_allclose(found.scores, [t.mean() for t in terms], rtol=1e-4)


@pytest.mark.proof
def test_each_prompt_may_have_its_own_choices(gpt, t5):
    for model in (gpt, t5):
        own = prompting.choose(model, ["the cat", "a dog"], [["sat", "ran"], ["home"]])
        assert [len(choice.scores) for choice in own] == [2, 1]
        together = prompting.choose(model, ["the cat"], ["sat", "ran"])
        np.testing.assert_allclose(own[0].scores, together[0].scores, rtol=1e-5)
    assert prompting.choose(gpt, [], ["sat"]) == []


def test_choices_that_cannot_be_scored(gpt):
    with pytest.raises(errors.UserError, match="no choice may be empty"):
        prompting.choose(gpt, ["the cat"], ["sat", " "])
    with pytest.raises(errors.UserError, match=r"prompts, 2, differs from .* choice lists, 1: "):
        prompting.choose(gpt, ["the cat", "a dog"], [["sat"]])
    with pytest.raises(errors.UserError, match="lists of texts"):
        prompting.choose(gpt, "the cat", ["sat"])
    with pytest.raises(errors.UserError, match="bert model cannot generate text"):
        prompting.choose(pretrained.Pretrained(tiny_model.make()), ["the cat"], ["sat"])


# The command


def _predict(capsys, *words):
    code = command_line.main(["predict", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_predict_goes_on_with_prompts(tmp_path, capsys, gpt):
    artifact.write(gpt.source, tmp_path / "art")
    huggingface.write(gpt.source, tmp_path / "hf")
    options = ("--max_new_tokens=5", "--num_beams=2", "--length_penalty=0.5")
    wanted = gpt.generate(["the", "a"], max_new_tokens=5, num_beams=2, length_penalty=0.5)
    for name in ("art", "hf"):
        words = (f"--model={tmp_path / name}", "--prompt=the", "--prompt=a", *options)
        code, out, _ = _predict(capsys, *words)
        assert code == 0
        assert out == "".join(f"{p}\n  {t}\n" for p, t in zip(("the", "a"), wanted, strict=True))


def test_predict_tells_which_choice_goes_on(tmp_path, capsys, gpt):
    artifact.write(gpt.source, tmp_path / "art")
    words = (f"--model={tmp_path / 'art'}", "--prompt=the", "--choice=cat sat", "--choice=dog")
    code, out, _ = _predict(capsys, *words)
    (found,) = prompting.choose(gpt, ["the"], ["cat sat", "dog"])
    assert code == 0 and out.startswith(f"the\n  {found.text} {max(found.scores):.3f}   ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt=the", "--top=3"), "--top can only be used with --text"),
        (("--text=the [MASK]", "--num_beams=3"), "--num_beams can only be used with --prompt"),
        (("--prompt=the", "--choice=cat", "--num_beams=3"), "without --choice"),
        (("--text=the [MASK]",), "no masked language model head"),
        (("--prompt=the", "--top_p=0.9"), "top_p = 0.9: must be 1 unless temperature"),
    ],
)
def test_predict_says_what_does_not_fit(tmp_path, capsys, gpt, words, message):
    artifact.write(gpt.source, tmp_path / "art")
    code, _, err = _predict(capsys, f"--model={tmp_path / 'art'}", *words)
    (error,) = [line for line in err.splitlines() if not line.startswith("reading ")]
    assert code == 2 and message in error


def test_flags_are_options(capsys):
    fields = vars(generation.Options())
    assert set(predict.OPTIONS) <= set(fields)
    assert f"default: {fields['max_new_tokens']}" in predict.OPTIONS["max_new_tokens"][1]
