"""DeBERTa: scores by distance, buckets, the convolution, the mask decoder, its config."""

import functools
import math

import jax
import numpy as np
import pytest

from benchmarks import parity
from bertjax import errors, plugins
from bertjax.artifact import artifact, huggingface
from bertjax.models import deberta
from bertjax.models.common import disentangled
from tests.helpers import encoders, tiny_model
from tests.parity_cases import deberta as case
from tests.parity_cases import roberta

L = 20
PACKED = encoders.packed(((9, 4, 7), (11, 6), (20,)), L)


@functools.cache
def _make(**fields):
    return encoders.make("deberta", position_buckets=8, **fields)


def _apply(model, params, batch, **flags):
    return jax.device_get(jax.jit(lambda: model.apply({"params": params}, **batch, **flags))())


# --- distances -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (32, 70), (16, 1000), (4, 32)])
def test_buckets_are_those_of_transformers(buckets, longest):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.deberta_v2 import modeling_deberta_v2

    distance = np.arange(1 - longest, longest)
    theirs = modeling_deberta_v2.make_log_bucket_position(torch.tensor(distance), buckets, longest)
    ours = disentangled.log_buckets(distance, buckets, longest)
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert (ours[-1], ours[0]) == (buckets - 1, 1 - buckets)


@pytest.mark.parametrize("terms", [("c2p",), ("p2c",), ("c2p", "p2c")])
@pytest.mark.parametrize("buckets", [0, 4])
def test_bias_is_the_sum_of_the_products_by_distance(terms, buckets):
    batch, length, heads, width, longest = 2, 7, 3, 4, 5
    rng = np.random.default_rng(0)
    rows = 2 * (buckets or longest)
    query, key = rng.standard_normal((2, batch, length, heads, width), np.float32)
    tables = {t: rng.standard_normal((rows, heads, width), np.float32) for t in terms}
    found = disentangled.bias(query, key, tables, disentangled.table_rows(length, buckets, longest))
    expected = np.zeros((batch, heads, length, length))
    for i in range(length):
        for j in range(length):
            bucket = np.array(i - j)
            if buckets:
                bucket = disentangled.log_buckets(bucket, buckets, longest)
            row = min(max(bucket + rows // 2, 0), rows - 1)
            for term in terms:
                x = query[:, i] if term == "c2p" else key[:, j]
                expected[:, :, i, j] += (x * tables[term][row]).sum(-1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_order_of_the_tokens_matters_only_by_distances():
    model, params = _make()
    ids = np.random.default_rng(0).integers(5, 99, (1, L), np.int32)
    states = _apply(model, params, {"input_ids": ids})["last_hidden_state"]
    swapped = _apply(model, params, {"input_ids": ids[:, ::-1]})["last_hidden_state"]
    assert abs(states - swapped[:, ::-1]).max() > 0.1
    mask = np.arange(L)[None] >= 5  # five places further to the right
    moved = np.where(mask, np.roll(ids, 5, axis=1), 0)
    batch = {"input_ids": moved, "attention_mask": mask.astype(np.int32)}
    later = _apply(model, params, batch)["last_hidden_state"]
    batch = {"input_ids": ids[:, :-5]}
    np.testing.assert_allclose(
        later[:, 5:], _apply(model, params, batch)["last_hidden_state"], atol=2e-5
    )


# --- the convolution -----------------------------------------------------------------------------


def test_convolution_does_not_see_other_examples_or_padding():
    model, params = _make(conv_kernel_size=5)
    together = _apply(model, params, PACKED)["last_hidden_state"]
    for row, segments in enumerate(PACKED["segment_ids"]):
        for number in range(1, segments.max() + 1):
            place = np.flatnonzero(segments == number)
            alone = _apply(model, params, {"input_ids": PACKED["input_ids"][row : row + 1, place]})
            np.testing.assert_allclose(
                together[row, place], alone["last_hidden_state"][0], atol=2e-5
            )


def test_convolution_is_added_after_the_first_layer():
    model, params = _make(conv_kernel_size=3)
    silent = params["encoder"] | {"conv": jax.tree.map(np.zeros_like, params["encoder"]["conv"])}
    a, b = (
        _apply(model, {**params, "encoder": encoder}, PACKED, output_hidden_states=True)
        for encoder in (params["encoder"], silent)
    )
    np.testing.assert_array_equal(a["hidden_states"][0], b["hidden_states"][0])
    assert abs(a["hidden_states"][1] - b["hidden_states"][1]).max() > 0.1


# --- the mask decoder ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_layers", [1, 3])
def test_mask_decoder_is_the_last_layer_applied_twice(num_layers):
    """Beside transformers' layers, in the order of EnhancedMaskDecoder of microsoft/DeBERTa."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    shape = case.SHAPES["mini"] | {"num_hidden_layers": num_layers, "hidden_size": 64}
    theirs = case.theirs(shape)
    batch = roberta.masked_batch(shape["vocab_size"], shape["max_position_embeddings"], 0)
    tensors = {name: tensor.detach().numpy() for name, tensor in theirs.state_dict().items()}
    fields = {
        "vocab_size": 1000, "hidden_size": 64, "num_layers": num_layers, "num_heads": 4,
        "intermediate_size": 1024, "max_length": 70, "position_buckets": 32, "heads": ("mlm",),
    }  # fmt: skip
    plain = plugins.model("deberta", fields)
    params = huggingface.from_tensors(deberta, plugins.abstract_params(plain), tensors)
    places = np.random.default_rng(0).standard_normal((70, 64), np.float32)
    params["decoder_position"] = {"embedding": places}
    model = plugins.model("deberta", fields | {"enhanced_mask_decoder": True})
    features = {name: batch[name] for name in ("input_ids", "attention_mask")}
    ours = _apply(model, params, features)["mlm_logits"][..., :1000]

    encoder = theirs.deberta.encoder
    with torch.no_grad():
        inputs = {name: torch.tensor(value).long() for name, value in features.items()}
        memory = theirs.deberta(**inputs, output_hidden_states=True).hidden_states[-2]
        query = memory + torch.tensor(places)
        for _ in range(2):
            query, _ = encoder.layer[-1](
                memory,
                encoder.get_attention_mask(inputs["attention_mask"]),
                query_states=query,
                relative_pos=encoder.get_rel_pos(memory),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        expected = theirs.cls(query).numpy()
    real = batch["attention_mask"].astype(bool)
    np.testing.assert_allclose(ours[real], expected[real], atol=parity.TOLERANCE)
    other = _apply(plain, params, features)["mlm_logits"][..., :1000]
    assert abs(other[real] - expected[real]).max() > 1


def test_mask_decoder_with_dropout_and_remat_trains():
    model, params = _make(enhanced_mask_decoder=True, dropout_rate=0.1, remat="full")

    def loss(params, rng):
        rngs = {"dropout": rng}
        out = model.apply({"params": params}, **PACKED, deterministic=False, rngs=rngs)
        return jax.nn.log_softmax(out["mlm_logits"])[..., 7].mean()

    a, b = (jax.jit(jax.value_and_grad(loss))(params, jax.random.key(i)) for i in (0, 1))
    assert math.isfinite(a[0]) and a[0] != b[0]
    for path, leaf in artifact.flatten(a[1]).items():
        assert np.isfinite(leaf).all(), path
    assert abs(a[1]["decoder_position"]["embedding"]).max() > 0


def test_mask_decoder_is_not_exported_to_transformers(tmp_path):
    model = encoders.make_artifact("deberta", heads=("mlm",), enhanced_mask_decoder=True)
    with pytest.raises(errors.UserError, match=r"no enhanced mask decoder.*--format=artifact"):
        huggingface.write(model, tmp_path / "hf")
    artifact.write(model, tmp_path / "artifact")
    tiny_model.assert_same_params(artifact.read(tmp_path / "artifact").params, model.params)


# --- the config ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_terms": ("p2c", "c2p")}, "model.position_terms.*in this order"),
        ({"position_buckets": 7}, "model.position_buckets"),
        ({"conv_kernel_size": 4}, "model.conv_kernel_size"),
        ({"conv_activation": "swish"}, "model.conv_activation"),
        ({"enhanced_mask_decoder": True, "position_biased_input": True}, "must be False"),
        ({"attention": "splash"}, "attention"),
    ],
)
def test_fields_that_are_refused(fields, message):
    with pytest.raises(errors.UserError, match=message):
        deberta.Config(**fields)
