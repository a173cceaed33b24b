"""Attention weights and hidden states of a loaded model, beside those of transformers."""


import numpy as np
import pytest

import bertjax
from benchmarks import parity

torch = parity.torch
needs_transformers = pytest.mark.skipif(
    parity.transformers is None, reason="transformers and torch are not installed"
)
CASES = parity.cases()
# A small shape of each family, and every part of a model that stores weights in another place.
SHAPES = {
    "bert": "4 x 64, gelu",
    "albert": "3 groups of 2, version 1",
    "roberta": list(CASES["roberta"].SHAPES)[-1],
    "distilbert": list(CASES["distilbert"].SHAPES)[-1],
    "electra": "mini generator",
    "modernbert": "2 of 4 global, other bases",
    "deberta": list(CASES["deberta"].SHAPES)[-1],
    "gpt2": list(CASES["gpt2"].SHAPES)[-1],
    "t5": list(CASES["t5"].SHAPES)[-1],
}
TEXTS = ["a b c d e f g h", "k l [MASK] n"]
TARGETS = ["q r s", "t u v w x"]


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


def compare(family, folder, targets=None):
    """The largest differences of all fields over all texts."""
    model = CASES[family].theirs(CASES[family].SHAPES[SHAPES[family]])
    model.save_pretrained(folder)
    parity.write_vocabulary(folder)
    ours = bertjax.load(folder)
    results = zip(
        ours.hidden_states(TEXTS, targets), ours.attentions(TEXTS, targets), strict=True
    )
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
@pytest.mark.parametrize("family", SHAPES)
def test_weights_and_states_are_those_of_transformers(family, tmp_path):
    targets = TARGETS if family == "t5" else None
    worst = compare(family, tmp_path, targets)
    assert len(worst) == (5 if targets else 2)
    print(family, worst)
    assert max(worst.values()) <= 1e-5, worst
