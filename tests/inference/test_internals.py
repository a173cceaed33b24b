"""Attention weights and hidden states of a loaded model, beside those of transformers."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import bertjax
from benchmarks import parity
from bertjax import errors
from bertjax.artifact import artifact, huggingface
from bertjax.inference import internals, pretrained
from bertjax.models.common import layers
from tests.helpers import encoders, proofs, tiny_model, tiny_t5

torch = parity.torch
needs_transformers = pytest.mark.skipif(
    parity.transformers is None, reason="transformers and torch are not installed"
)
CASES = parity.cases()
# A small shape of each family, and every part of a model that stores weights in another place. A
# name begins with that of the family.
SHAPES = {
    "bert": "4 x 64, gelu",
    "albert": "3 groups of 2, version 1",
    "roberta": "mini",  # its padding is [UNK] of the test's tokenizer, which is in no text
    "distilbert": list(CASES["distilbert"].SHAPES)[-1],
    "electra generator": "mini generator",
    "electra discriminator": "small discriminator, 3 layers",
    "modernbert": "2 of 4 global, other bases",
    "deberta": list(CASES["deberta"].SHAPES)[-1],
    "gpt2": list(CASES["gpt2"].SHAPES)[-1],
    "t5": list(CASES["t5"].SHAPES)[-1],
}
TEXTS = ["a b c d e f g h", "k l [MASK] n"]
TARGETS = ["q r s", "t u v w x"]
LONG = "the cat sat on the mat and a dog ran home"


def theirs(model, ids, decoder_ids):
    """{our field: their array} of one text."""
    inputs = {"input_ids": torch.tensor(ids)[None].long()}
    if decoder_ids is None:
        model = model.get_encoder() if model.config.is_encoder_decoder else model
    else:
        inputs["decoder_input_ids"] = torch.tensor(decoder_ids)[None].long()
    with torch.no_grad():
        out = model(**inputs, output_attentions=True, output_hidden_states=True)
    if decoder_ids is None:
        found = {"weights": out.attentions, "states": out.hidden_states}
    else:
        found = {
            "weights": out.encoder_attentions,
            "states": out.encoder_hidden_states,
            "decoder_weights": out.decoder_attentions,
            "decoder_states": out.decoder_hidden_states,
            "cross_weights": out.cross_attentions,
        }
    return {name: torch.stack(x)[:, 0].numpy() for name, x in found.items()}


def compare(name, folder, targets=None):
    """The largest differences of all fields over all texts. name: a key of SHAPES."""
    family = name.split()[0]
    model = CASES[family].theirs(CASES[family].SHAPES[SHAPES[name]])
    if family == "t5":  # as in parity_cases/modernbert.py: no norm follows on a residual sum
        with torch.no_grad():
            for parameter in (*model.encoder.block.parameters(), *model.decoder.block.parameters()):
                if parameter.ndim > 1:
                    parameter /= 1.5
    model.save_pretrained(folder)
    parity.write_vocabulary(folder)
    return differences(bertjax.load(folder), model, TEXTS, targets)


def differences(ours, model, texts, targets=None):
    """{field: the largest difference between our model and theirs over the texts}."""
    results = zip(ours.hidden_states(texts, targets), ours.attentions(texts, targets), strict=True)
    worst = {}
    for states, weights in results:
        assert states.tokens == weights.tokens
        expected = theirs(model, states.ids, states.decoder_ids)
        for name, array in expected.items():
            found = getattr(weights if name.endswith("weights") else states, name)
            assert found.shape == array.shape and found.dtype == np.float32
            worst[name] = max(worst.get(name, 0.0), float(np.abs(found - array).max()))
    return worst


@needs_transformers
@pytest.mark.parametrize("name", proofs.all_but(list(SHAPES), "bert", "albert", "t5"))
def test_weights_and_states_are_those_of_transformers(name, tmp_path):
    targets = TARGETS if name == "t5" else None
    worst = compare(name, tmp_path, targets)
    assert len(worst) == (5 if targets else 2)
    assert max(worst.values()) <= 1e-5, worst


@needs_transformers
def test_those_of_spanbert_are_those_of_bert_in_transformers(tmp_path):
    made = encoders.make_artifact("spanbert")
    # With weights of size 1 the attention is so sharp that the order of rounding shows.
    made = dataclasses.replace(made, params=jax.tree.map(lambda x: x / 2, made.params))
    huggingface.write(made, tmp_path)
    model = parity.transformers.BertModel.from_pretrained(
        tmp_path, attn_implementation="eager", add_pooling_layer=False
    )
    worst = differences(pretrained.Pretrained(made), model.eval(), ["a cat", LONG])
    assert len(worst) == 2 and max(worst.values()) <= 1e-5, worst


# The same without transformers


def bert(**compute):
    return pretrained.Pretrained(tiny_model.make(), layers.Compute(**compute))


def t5(version="1.0"):
    return pretrained.Pretrained(tiny_t5.make_artifact(version))




def test_the_results_hold_the_tokens_and_have_no_padding():
    model = bert()
    short, longer = model.attentions(["a cat", LONG])
    assert short.tokens[0] == "[CLS]" and short.tokens[-1] == "[SEP]"
    assert short.weights.shape == (2, 4, len(short.tokens), len(short.tokens))
    assert len(longer.tokens) > len(short.tokens)
    np.testing.assert_allclose(longer.weights.sum(-1), 1.0, atol=1e-5)
    states = model.hidden_states("a cat")
    assert states.tokens == short.tokens and states.ids.tolist() == short.ids.tolist()
    assert states.states.shape == (3, len(short.tokens), 16)
    assert states.states.dtype == short.weights.dtype == np.float32
    assert (short.decoder_tokens, short.decoder_weights, states.decoder_states) == ((), None, None)
    assert "[MASK]" in model.hidden_states("a [MASK] sat").tokens
    with pytest.raises(dataclasses.FrozenInstanceError):
        states.states = None


def test_a_text_is_the_same_alone_and_among_others(monkeypatch):
    model = bert()
    texts = ["a cat", LONG, "a dog ran home", "letters"]
    monkeypatch.setattr(internals, "BATCH_BYTES", 1)  # a batch for every text
    alone = model.attentions(texts)
    monkeypatch.undo()
    for one, other in zip(alone, model.attentions(texts), strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)
    assert model.hidden_states([]) == model.attentions([]) == []


def test_the_last_states_are_what_encode_pools():
    model = bert()
    states = model.hidden_states(LONG).states[-1]
    np.testing.assert_allclose(model.encode([LONG])[0], states.mean(axis=0), atol=1e-5)


def test_a_kernel_is_replaced_and_refuses_by_itself():
    model = bert(attention="splash", unroll_layers=True)
    expected = bert().attentions("a cat").weights
    np.testing.assert_allclose(model.attentions("a cat").weights, expected, atol=1e-5)
    ids = np.ones((1, 128), np.int32)
    with pytest.raises(errors.UserError, match="'splash': a kernel does not store the attention"):
        model.model.apply({"params": model.params}, ids, mutable=[layers.WEIGHTS])


def test_nothing_is_stored_unless_the_collection_is_mutable():
    model, ids = bert().model, np.ones((1, 4), np.int32)
    variables = jax.eval_shape(model.init, jax.random.key(0), ids)
    assert set(variables) == {"params"}

    def stored(*names):
        apply = functools.partial(model.apply, mutable=list(names))
        return artifact.flatten(jax.eval_shape(apply, variables, ids)[1])

    assert stored("intermediates") == {}
    (path,) = stored(layers.WEIGHTS, "intermediates")
    assert path == f"{layers.WEIGHTS}/encoder/layers/attention/weights"


def test_an_encoder_decoder_takes_targets():
    model = t5()
    alone, both = model.attentions("a cat"), model.attentions("a cat", "a dog ran")
    assert alone.decoder_weights is None and alone.cross_weights is None
    np.testing.assert_allclose(alone.weights, both.weights, atol=1e-6)
    length, target = len(both.tokens), len(both.decoder_tokens)
    assert both.weights.shape == (2, 3, length, length)
    assert both.decoder_weights.shape == (3, 3, target, target)
    assert both.cross_weights.shape == (3, 3, target, length)
    assert np.all(np.triu(both.decoder_weights, 1) == 0), "a token attends to no later token"
    states = model.hidden_states(["a cat"], ["a dog ran"])[0]
    assert states.decoder_states.shape == (4, target, 16)
    assert states.decoder_tokens == both.decoder_tokens


@pytest.mark.parametrize(
    ("texts", "targets", "message"),
    [
        ("cat " * 40, None, "has 40 tokens, but the model takes at most 38: shorten it"),
        ("a cat", "a dog", "targets: a bert model has no second stack that reads them"),
    ],
)
def test_what_does_not_fit_is_one_line(texts, targets, message):
    for look in (bert().attentions, bert().hidden_states):
        with pytest.raises(errors.UserError, match=message):
            look(texts, targets)
    with pytest.raises(errors.UserError, match="targets: 1 for 2 texts"):
        t5().attentions(["a", "b"], ["a"])


def test_a_notebook_shows_tables():
    model = bert()
    weights, states = model.attentions("a cat"), model.hidden_states("a cat")
    assert repr(weights) == f"<Attentions: 2 layers x 4 heads, {len(weights.tokens)} tokens>"
    assert repr(states) == f"<HiddenStates: {len(states.tokens)} tokens, 3 states of width 16>"
    assert "[CLS]" in weights._repr_html_() and "[SEP]" in states._repr_html_()
