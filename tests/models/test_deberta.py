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
from tests.helpers import downstream, encoders, tiny_model
from tests.parity_cases import deberta as case
from tests.parity_cases import roberta

L = 20
PACKED = encoders.packed(((9, 4, 7), (11, 6), (20,)), L)


@functools.cache
def _make(**fields):
    return encoders.make("deberta", position_buckets=8, **fields)


@functools.cache
def _jitted(model, **flags):
    apply = functools.partial(model.apply, **flags)
    return jax.jit(lambda params, batch: apply({"params": params}, **batch))


def _apply(model, params, batch, **flags):
    return jax.device_get(_jitted(model, **flags)(params, batch))


def _alone():
    """(row, places, batch) of every packed example: the first row of the batch, padded."""
    for row, segments in enumerate(PACKED["segment_ids"]):
        for number in range(1, segments.max() + 1):
            place = np.flatnonzero(segments == number)
            ids, mask = np.zeros((2, 3, L), np.int32)
            ids[0, : len(place)] = PACKED["input_ids"][row, place]
            mask[0, : len(place)] = 1
            yield row, place, {"input_ids": ids, "attention_mask": mask}


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
    rows_T = disentangled.table_rows(length, buckets, longest)
    found = disentangled.Terms(tables, rows_T)(query, key)
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


@pytest.mark.proof
def test_order_of_the_tokens_matters_only_by_distances():
    model, params = _make(heads=("mlm",))
    ids = np.random.default_rng(0).integers(5, 99, (1, L), np.int32)
    mask = (np.arange(L)[None] < L - 5).astype(np.int32)
    batches = [
        (ids, mask),
        (np.roll(ids, 5, axis=1), np.roll(mask, 5, axis=1)),  # further to the right
        (np.concatenate([ids[:, L - 6 :: -1], ids[:, L - 5 :]], axis=1), mask),
    ]
    states, later, swapped = (
        _apply(model, params, {"input_ids": ids, "attention_mask": mask})["last_hidden_state"]
        for ids, mask in batches
    )
    np.testing.assert_allclose(later[:, 5:], states[:, :-5], atol=2e-5)
    assert abs(states[:, : L - 5] - swapped[:, L - 6 :: -1]).max() > 0.1


# --- the convolution -----------------------------------------------------------------------------


def test_convolution_of_the_first_layer_sees_only_its_own_example():
    model, params = _make(conv_kernel_size=5, heads=("mlm",))
    keep = {"output_hidden_states": True}
    together = _apply(model, params, PACKED, **keep)
    for row, place, batch in _alone():
        alone = _apply(model, params, batch, **keep)["last_hidden_state"][0, : len(place)]
        np.testing.assert_allclose(together["last_hidden_state"][row, place], alone, atol=2e-5)
    silent = jax.tree.map(np.zeros_like, params["encoder"]["conv"])
    params = {**params, "encoder": {**params["encoder"], "conv": silent}}
    without = _apply(model, params, PACKED, **keep)["hidden_states"]
    np.testing.assert_array_equal(without[0], together["hidden_states"][0])
    assert abs(without[1] - together["hidden_states"][1]).max() > 0.1


# --- the mask decoder ----------------------------------------------------------------------------


@pytest.mark.proof
def test_mask_decoder_is_the_last_layer_applied_twice():
    """Beside transformers' layers, in the order of EnhancedMaskDecoder of microsoft/DeBERTa."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    shape = case.SHAPES["mini"] | {"num_hidden_layers": 3, "hidden_size": 64}
    theirs = case.theirs(shape)
    batch = roberta.masked_batch(shape["vocab_size"], shape["max_position_embeddings"], 0)
    tensors = {name: tensor.detach().numpy() for name, tensor in theirs.state_dict().items()}
    fields = {
        "vocab_size": 1000, "hidden_size": 64, "num_layers": 3, "num_heads": 4,
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


@pytest.mark.proof
def test_mask_decoder_with_dropout_and_remat_trains():
    model, params = _make(
        enhanced_mask_decoder=True, dropout_rate=0.1, remat="full", heads=("mlm",), num_layers=1
    )

    def loss(params, rng):
        rngs = {"dropout": rng}
        out = model.apply({"params": params}, **PACKED, deterministic=False, rngs=rngs)
        return jax.nn.log_softmax(out["mlm_logits"])[..., 7].mean()

    function = jax.jit(jax.value_and_grad(loss))
    a, b = (function(params, jax.random.key(i)) for i in (0, 1))
    assert math.isfinite(a[0]) and a[0] != b[0]
    for path, leaf in artifact.flatten(a[1]).items():
        assert np.isfinite(leaf).all(), path
    assert abs(a[1]["decoder_position"]["embedding"]).max() > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"enhanced_mask_decoder": True}, r"no enhanced mask decoder.*--format=artifact"),
        ({"conv_kernel_size": 3, "conv_activation": "gelu_tanh"},
         r"conv_activation = 'gelu_tanh': an export can have tanh, gelu, relu"),
    ],
)  # fmt: skip
def test_what_transformers_lacks_is_not_exported_to_it(tmp_path, fields, message):
    model = encoders.make_artifact("deberta", heads=("mlm",), **fields)
    with pytest.raises(errors.UserError, match=message):
        huggingface.write(model, tmp_path / "hf")
    artifact.write(model, tmp_path / "artifact")
    tiny_model.assert_same_params(artifact.read(tmp_path / "artifact").params, model.params)


# --- a generator and a discriminator -------------------------------------------------------------


@functools.cache
def _pair():
    model, params = _make(generator_num_layers=2, enhanced_mask_decoder=True, num_layers=2)
    flat = artifact.flatten(jax.device_get(params))
    assert not flat["embeddings/word/embedding"].any(), (
        "the discriminator starts at the generator's"
    )
    rng = np.random.default_rng(1)
    table = flat["embeddings/word/embedding"]
    flat["embeddings/word/embedding"] = rng.standard_normal(table.shape, np.float32)
    return model, artifact.unflatten(flat)


FEATURES = PACKED | {"masked_positions": np.array([[0, 3], [2, 9], [19, 1]], np.int32)}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("output", "trained"),
    [
        ("rtd_logits", ("embeddings/", "encoder/", "rtd_head/")),
        ("mlm_logits",
         ("generator_embeddings/", "generator_encoder/", "mlm_head/", "decoder_position/")),
    ],
)  # fmt: skip
def test_each_loss_trains_its_own_model_and_table_of_words(output, trained):
    """Section 3.3 of the paper; with ELECTRA's sharing both losses change one table."""
    model, params = _pair()

    def loss(params):
        return jax.nn.softplus(model.apply({"params": params}, **FEATURES)[output][..., :50]).sum()

    gradients = artifact.flatten(jax.jit(jax.grad(loss))(params))
    found = {path.split("/")[0] + "/" for path, leaf in gradients.items() if np.any(leaf)}
    assert found == set(trained)


@pytest.mark.proof
def test_parts_of_a_pair_give_the_outputs_of_the_whole():
    model, params = _pair()
    whole = _apply(model, params, FEATURES)
    fields = encoders.FIELDS | {
        "position_buckets": 8, "generator_num_layers": 2, "enhanced_mask_decoder": True,
        "num_layers": 2,
    }  # fmt: skip
    found = deberta.parts(fields, params)
    assert list(found) == ["discriminator", "generator"]
    for name, output in (("discriminator", "rtd_logits"), ("generator", "mlm_logits")):
        part_fields, part = found[name]
        alone = plugins.model("deberta", part_fields)
        abstract = artifact.flatten(plugins.abstract_params(alone))
        assert {p: leaf.shape for p, leaf in artifact.flatten(part).items()} == {
            p: leaf.shape for p, leaf in abstract.items()
        }
        out = _apply(alone, part, FEATURES)
        np.testing.assert_allclose(out[output], whole[output], rtol=1e-5, atol=1e-4)
        assert deberta.parts(part_fields, part) == {name: (part_fields, part)}
    shapes = deberta.parts(fields, plugins.abstract_params(model))
    for name, (_, part) in found.items():
        assert jax.tree.structure(shapes[name][1]) == jax.tree.structure(part)


@pytest.mark.proof
def test_replaced_tokens_are_predicted_in_a_packed_row_as_alone():
    model, params = _pair()
    together = _apply(model, params, PACKED, heads_to_run=("rtd",))
    assert together.keys() == {"last_hidden_state", "rtd_logits"}
    for row, place, batch in _alone():
        alone = _apply(model, params, batch, heads_to_run=("rtd",))["rtd_logits"][0, : len(place)]
        np.testing.assert_allclose(together["rtd_logits"][row, place], alone, atol=1e-4)
    generator = jax.eval_shape(_jitted(model, heads_to_run=("mlm",)), params, PACKED)
    assert generator.keys() == {"mlm_logits"}


@pytest.mark.proof
def test_the_discriminator_becomes_a_folder_of_transformers(tmp_path):
    pair = encoders.make_artifact("deberta", heads=("mlm", "rtd"), generator_num_layers=2)
    pair = downstream.soft(pair)
    part = artifact.part(pair)
    assert part.fields["heads"] == ("rtd",)
    huggingface.write(part, tmp_path / "hf")
    assert huggingface.dropped(part) and all("rtd_head/" in p for p in huggingface.dropped(part))
    read = huggingface.read(tmp_path / "hf")
    assert read.fields["heads"] == ()
    words = (
        pair.params[name]["word"]["embedding"] for name in ("embeddings", "generator_embeddings")
    )
    np.testing.assert_array_equal(read.params["embeddings"]["word"]["embedding"], sum(words))

    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    features = downstream.batch(pair.tokenizer)
    with torch.no_grad():
        inputs = {name: torch.tensor(value).long() for name, value in features.items()}
        expected = theirs(**inputs).last_hidden_state.numpy()
    model = plugins.model("deberta", pair.fields)
    ours = _apply(model, pair.params, features)["last_hidden_state"]
    real = features["attention_mask"].astype(bool)
    np.testing.assert_allclose(ours[real], expected[real], atol=parity.TOLERANCE)


# --- the config ----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", case.MLM_COUNTS)
def test_parameters_of_the_full_size_without_a_discriminator(variant):
    count = case.MLM_COUNTS[variant]
    assert parity.our_count("deberta", variant, ("mlm",)) == count
    if parity.transformers is not None:
        assert case.their_mlm_count(variant) == count


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
