"""DistilBERT: its parameters are those of a BERT, so that it can start as layers of its teacher."""

import jax
import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.artifact import artifact
from tests.helpers import encoders

IDS = np.random.default_rng(0).integers(5, 99, (3, 8), np.int32)
MASK = (np.arange(8) < np.array([[8], [5], [2]])).astype(np.int32)


def _outputs(model, params):
    return jax.jit(lambda: model.apply({"params": params}, IDS, MASK, output_hidden_states=True))()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_with_layers_of_a_bert_it_has_the_states_of_a_bert(depth):
    """The first `depth` layers of one, whose token types add nothing."""
    teacher, params = encoders.make("bert", num_layers=5)
    params["embeddings"]["token_type"]["embedding"] *= 0.0
    student = plugins.model("distilbert", {**encoders.FIELDS, "num_layers": depth})
    own = artifact.flatten(plugins.abstract_params(student))
    theirs = artifact.flatten(params)
    assert own.keys() < theirs.keys()
    start = {p: theirs[p][:depth] if "/layers/" in p else theirs[p] for p in own}
    assert all(start[path].shape == leaf.shape for path, leaf in own.items())
    ours = _outputs(student, artifact.unflatten(start))
    expected = _outputs(teacher, params)
    np.testing.assert_allclose(
        ours["hidden_states"], expected["hidden_states"][: depth + 1], atol=1e-5
    )
    if depth == 5:
        np.testing.assert_allclose(ours["mlm_logits"], expected["mlm_logits"], atol=1e-4)


def test_has_no_token_types_and_no_pooler():
    model, params = encoders.make("distilbert")
    assert set(params) == {"embeddings", "encoder", "mlm_head"}
    assert set(params["embeddings"]) == {"word", "position", "norm"}
    assert set(_outputs(model, params)) == {"last_hidden_state", "hidden_states", "mlm_logits"}
    typed = model.apply({"params": params}, IDS, token_type_ids=np.ones_like(IDS))
    plain = model.apply({"params": params}, IDS)
    np.testing.assert_array_equal(typed["mlm_logits"], plain["mlm_logits"])


@pytest.mark.parametrize("heads", [("pooler", "mlm"), ("nsp", "mlm"), ("mlm", "lm")])
def test_heads_that_it_cannot_have(heads):
    with pytest.raises(errors.UserError, match=r"config.model.heads = "):
        encoders.make("distilbert", heads=heads)
