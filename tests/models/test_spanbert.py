"""SpanBERT: the boundary head is that of the paper, and what it sees is the two boundaries."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from benchmarks import parity
from bertjax import errors, plugins
from bertjax.artifact import artifact, huggingface
from bertjax.data.batches import rng
from bertjax.models import spanbert
from bertjax.objectives import mlm, span_boundary
from tests.helpers import encoders, synthetic, tiny_model

LENGTH = 48
VOCABULARY = synthetic.make_vocabulary()
SIZES = {
    "vocab_size": VOCABULARY.size, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
    "intermediate_size": 24, "max_length": LENGTH, "max_span_tokens": 5,
    "dropout_rate": 0.0, "attention_dropout_rate": 0.0,
}  # fmt: skip
CONFIG = span_boundary.Config()
MODEL = plugins.model("spanbert", SIZES)


@functools.cache
def params():
    """Random ones, large enough that all of them matter."""
    flat = artifact.flatten(plugins.abstract_params(MODEL))
    random = np.random.default_rng(0)
    return artifact.unflatten(
        {
            path: 0.3 * random.standard_normal(leaf.shape, np.float32) + path.endswith("scale")
            for path, leaf in flat.items()
        }
    )


@functools.cache
def batch():
    """A dozen rows of made-up text with hidden spans."""
    sampling = span_boundary.sampling(CONFIG, LENGTH, VOCABULARY)
    window = sampling.window(synthetic.records(20))
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(0, 0, np.array([0]))))[:12]
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(len(table))))
    rows = sampling.assemble(window, table)
    return span_boundary.transform(CONFIG, LENGTH, VOCABULARY, rows, random)


def heads_only(x_BLD):
    """An apply of the loss whose encoder has said x_BLD."""

    def both(model, masked_positions, span_boundaries):
        words = model.embeddings.word
        hidden = jnp.take_along_axis(x_BLD, masked_positions[:, :, None], axis=1)
        return {
            "mlm_logits": model.mlm_head(hidden, words),
            "sbo_logits": model.sbo_head(x_BLD, masked_positions, span_boundaries, words),
        }

    def apply(masked_positions, span_boundaries, **inputs):
        return MODEL.apply({"params": params()}, masked_positions, span_boundaries, method=both)

    return apply


def state_gradient(name, made):
    """|gradient| of a loss term by the encoder's state at each position: [B, L]."""
    x_BLD = jax.random.normal(jax.random.key(0), (len(made["input_ids"]), LENGTH, 16))

    @jax.jit
    @jax.grad
    def gradient(x_BLD):
        return span_boundary.loss(CONFIG, heads_only(x_BLD), made)[name][0]

    return np.abs(gradient(x_BLD)).max(axis=2)


def test_the_boundary_loss_of_a_span_sees_its_two_boundaries_alone():
    made = batch()
    for row in range(4):
        slots = np.flatnonzero(made["masked_weights"][row])
        around = made["span_boundaries"][row]
        for left, right in np.unique(around[slots], axis=0).tolist():
            of_span = (around == (left, right)).all(axis=1)
            weights = np.zeros_like(made["masked_weights"])
            weights[row] = of_span
            seen = state_gradient("sbo_loss", made | {"masked_weights": weights})
            assert np.argwhere(seen).tolist() == [[row, left], [row, right]]


def test_the_other_loss_sees_the_hidden_positions_alone():
    made = batch()
    seen = state_gradient("mlm_loss", made)
    for row in range(len(seen)):
        used = made["masked_weights"][row] > 0
        assert np.flatnonzero(seen[row]).tolist() == made["masked_positions"][row][used].tolist()


def _norm(x, of):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * of["scale"] + of["bias"]


def _gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def test_the_head_is_that_of_the_paper():
    """Equations of section 2.2, token by token in NumPy."""
    made = batch()
    outputs = jax.jit(MODEL.apply)(
        {"params": params()},
        made["input_ids"],
        made["attention_mask"],
        masked_positions=made["masked_positions"],
        span_boundaries=made["span_boundaries"],
    )
    states, head = np.asarray(outputs["last_hidden_state"], np.float64), params()["sbo_head"]
    second, words = head["mlm_head"], params()["embeddings"]["word"]["embedding"]
    used = np.argwhere(made["masked_weights"])
    beyond = 0
    for row, slot in used.tolist():
        left, right = made["span_boundaries"][row, slot]
        place = made["masked_positions"][row, slot] - left  # i - s + 1, from 1 on
        beyond += place > 5
        at = head["position"]["embedding"][min(place, 5) - 1]
        h = np.concatenate([states[row, left], states[row, right], at])
        h = _norm(_gelu(h @ head["dense"]["kernel"] + head["dense"]["bias"]), head["norm"])
        h = h @ second["transform"]["kernel"] + second["transform"]["bias"]
        h = _norm(_gelu(h), second["norm"])
        logits = (words @ h + second["bias"])[: VOCABULARY.size]
        found = outputs["sbo_logits"][row, slot, : VOCABULARY.size]
        np.testing.assert_allclose(found, logits, atol=2e-4)
    assert beyond > 0
    assert outputs["sbo_logits"][..., VOCABULARY.size :].max() < -1e8


def test_the_loss_is_the_sum_of_both_over_the_hidden_tokens():
    made = batch()
    apply = functools.partial(MODEL.apply, {"params": params()})
    terms = jax.jit(lambda made: span_boundary.loss(CONFIG, apply, made))(made)
    alone = jax.jit(lambda made: mlm.loss(CONFIG, apply, made))(made)
    np.testing.assert_allclose(terms["mlm_loss"][0], alone["mlm_loss"][0], rtol=1e-6)
    assert set(terms) == {"mlm_loss", "mlm_accuracy", "sbo_loss", "sbo_accuracy"}
    assert span_boundary.scales(CONFIG) == {"mlm_loss": 1.0, "sbo_loss": 1.0}
    count = made["masked_weights"].sum()
    weights = span_boundary.normalizers(CONFIG, made)
    assert weights["mlm_loss"] == weights["sbo_loss"] == terms["sbo_loss"][1] == count
    nothing = made | {"masked_weights": np.zeros_like(made["masked_weights"])}
    terms = jax.jit(lambda made: span_boundary.loss(CONFIG, apply, made))(nothing)
    assert terms["sbo_loss"] == (0, 0)


def test_without_boundaries_the_head_is_there_and_silent():
    made = jax.eval_shape(MODEL.init, jax.random.key(0), jnp.ones((1, 2), jnp.int32))["params"]
    assert made["sbo_head"]["dense"]["kernel"].shape == (48, 16)
    outputs = jax.jit(MODEL.apply)({"params": params()}, jnp.ones((1, 4), jnp.int32))
    assert "sbo_logits" not in outputs and outputs["mlm_logits"].shape == (1, 4, 256)


@pytest.mark.skipif(parity.transformers is None, reason="transformers is not installed")
@pytest.mark.parametrize(("variant", "layers", "width"), [("base", 12, 768), ("large", 24, 1024)])
def test_without_the_head_it_has_the_size_of_bert(variant, layers, width):
    config = parity.transformers.BertConfig(
        vocab_size=28996,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    theirs = parity.count_parameters(lambda: parity.transformers.BertForMaskedLM(config))
    assert parity.our_count("spanbert", variant, heads=("mlm",)) == theirs
    maps, norms, places, bias = 4 * width**2 + 2 * width, 4 * width, 80 * width, 28996
    assert parity.our_count("spanbert", variant) == theirs + maps + norms + places + bias


def test_heads_are_checked():
    with pytest.raises(errors.UserError, match="a tuple of pooler, mlm, nsp, sop, sbo"):
        spanbert.Config(heads=("mlm", "lm"))


def test_folder_is_one_of_bert_without_the_boundary_head(tmp_path):
    made = encoders.make_artifact("spanbert")
    huggingface.write(made, tmp_path / "hf")
    content = json.loads((tmp_path / "hf/config.json").read_text())
    assert content["model_type"] == "bert" and content["architectures"] == ["BertForMaskedLM"]

    again = huggingface.read(tmp_path / "hf")
    assert again.family == "bert" and again.fields["heads"] == ("mlm",)
    whole = dict(made.params)
    whole.pop("sbo_head")
    tiny_model.assert_same_params(again.params, whole)

    transformers = pytest.importorskip("transformers")
    _, info = transformers.BertForMaskedLM.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
