"""T5: relative positions, what may influence what, packing, the cache, the start."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.artifact import artifact
from bertjax.models import t5
from bertjax.models.common import positions
from tests.helpers import tiny_t5


@pytest.fixture(scope="module", params=tiny_t5.VERSIONS)
def bound(request):
    """A model of each version, applied to features by name; big queries, so attention matters."""
    model = plugins.model("t5", tiny_t5.VERSIONS[request.param])
    params = jax.tree.map(np.copy, tiny_t5.params(**tiny_t5.VERSIONS[request.param]))
    for stack in ("encoder", "decoder"):
        kernel = params[stack]["layers"]["attention"]["query"]["kernel"]
        params[stack]["layers"]["attention"]["query"]["kernel"] = 5.0 * kernel

    @functools.partial(jax.jit, static_argnames=("method", "length", "output_hidden_states"))
    def apply(*args, **features):
        return model.apply({"params": params}, *args, **features)

    return apply


def _buckets(distances, *sizes, bidirectional=True):
    distances = jnp.asarray(distances)
    return positions.relative_buckets(distances, *sizes, bidirectional=bidirectional).tolist()


def test_relative_buckets_of_t5x():
    """Values of t5x/examples/t5/layers.py for 32 buckets up to distance 128."""
    assert _buckets(range(21), 32, 128) == [
        0, 17, 18, 19, 20, 21, 22, 23, 24, 24, 24, 24, 25, 25, 25, 25, 26, 26, 26, 26, 26,
    ]  # fmt: skip
    assert _buckets(range(-1, -9, -1), 32, 128) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert _buckets(range(0, -21, -1), 32, 128, bidirectional=False) == [
        *range(16), 16, 16, 16, 17, 17,
    ]  # fmt: skip
    assert _buckets([1, 5, 400], 32, 128, bidirectional=False) == [0, 0, 0]
    assert _buckets([-128, -4000, 128, 4000], 32, 128) == [15, 15, 31, 31]


def test_relative_buckets_of_any_number_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    theirs = modeling.T5Attention._relative_position_bucket
    distances = np.arange(-300, 301)
    for buckets in (*range(4, 20), 30, 33, 64):
        for most in (33, 100, 128, 256):
            for bidirectional in (True, False):
                found = _buckets(distances, buckets, most, bidirectional=bidirectional)
                wanted = theirs(torch.tensor(distances), bidirectional, buckets, most).tolist()
                assert found == wanted, (buckets, most, bidirectional)


def test_relative_buckets_of_the_oracle_file(shared_data):
    stored = json.loads((shared_data / "oracle/t5_relative_position_buckets.json").read_text())
    distances = stored.pop("relative_position")
    del stored["comment"]
    for name, expected in stored.items():
        direction, buckets, most = name.split("_")
        found = _buckets(
            distances, int(buckets), int(most), bidirectional=direction == "bidirectional"
        )
        assert found == expected, name


def test_bias_and_its_gradient_are_those_of_a_lookup():
    table = jnp.asarray(np.random.default_rng(0).standard_normal((8, 3)), jnp.float32)
    queries, keys = jnp.arange(2, 7), jnp.arange(11)
    weights = jnp.cos(jnp.arange(3 * 5 * 11.0)).reshape(1, 3, 5, 11)

    def product(table):
        bias = positions.relative_bias(table, queries, keys, 9, bidirectional=True)
        return (bias * weights).sum(), bias

    def lookup(table):
        bucket = positions.relative_buckets(
            keys[None, :] - queries[:, None], 8, 9, bidirectional=True
        )
        bias = jnp.moveaxis(table[bucket], -1, 0)[None]
        return (bias * weights).sum(), bias

    (gradient, bias), (expected_gradient, expected) = (
        jax.grad(function, has_aux=True)(table) for function in (product, lookup)
    )
    np.testing.assert_array_equal(bias, expected)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)


def _influence(bound, features, of, seen):
    """[T, positions]: whether the logits at each place of the decoder depend on each embedding."""
    outputs = bound(**features)["logits"]
    found = np.zeros((outputs.shape[1], features[of].shape[1]), bool)
    for place in range(features[of].shape[1]):
        changed = dict(features)
        changed[of] = features[of].copy()
        changed[of][0, place] = changed[of][0, place] % (tiny_t5.VOCABULARY - 1) + 1
        found[:, place] = np.abs(bound(**changed)["logits"] - outputs)[0].max(-1) > 0
    return found[:, :seen]


@pytest.mark.proof
def test_decoder_depends_on_the_past_and_the_whole_input(bound):
    features = {"input_ids": tiny_t5.ids(1, 7), "decoder_input_ids": tiny_t5.ids(1, 6, seed=1)}
    past = _influence(bound, features, "decoder_input_ids", 6)
    np.testing.assert_array_equal(past, np.tril(np.ones((6, 6), bool)))
    assert _influence(bound, features, "input_ids", 7).all()


@pytest.mark.parametrize("version", tiny_t5.VERSIONS)
def test_no_gradient_from_the_future(version):
    fields = tiny_t5.VERSIONS[version]
    model, params = plugins.model("t5", fields), tiny_t5.params(**fields)
    ids = jnp.array([[3, 4, 5, 6, 7]])

    @jax.jit
    @jax.grad
    def gradient_of(table, at):
        changed = {**params, "embeddings": {"word": {"embedding": table}}}
        features = {"input_ids": jnp.array([[8, 9]]), "decoder_input_ids": ids}
        return model.apply({"params": changed}, **features)["last_hidden_state"][0, at].sum()

    for at in range(5):
        gradient = gradient_of(params["embeddings"]["word"]["embedding"], at)
        touched = set(np.flatnonzero(np.abs(gradient).max(1) > 0).tolist())
        assert touched == {8, 9, *range(3, 4 + at)}


def test_padding_of_the_input_is_not_seen(bound):
    features = {
        "input_ids": tiny_t5.ids(1, 8),
        "attention_mask": np.array([[1] * 5 + [0] * 3]),
        "decoder_input_ids": tiny_t5.ids(1, 4, seed=1),
    }
    seen = _influence(bound, features, "input_ids", 8)
    assert seen[:, :5].all() and not seen[:, 5:].any()
    short = {
        "input_ids": features["input_ids"][:, :5],
        "decoder_input_ids": features["decoder_input_ids"],
    }
    np.testing.assert_allclose(bound(**features)["logits"], bound(**short)["logits"], atol=1e-5)


@pytest.mark.proof
def test_padding_of_the_decoder_changes_nothing_and_an_empty_row_is_finite(bound):
    ids, decoder_ids = tiny_t5.ids(2, 6), tiny_t5.ids(2, 5, seed=1)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    padded = bound(ids, None, decoder_ids, mask)["logits"]
    np.testing.assert_allclose(padded[:, :3], bound(ids, None, decoder_ids)["logits"][:, :3],
                               atol=1e-5)  # fmt: skip
    empty = bound(ids, np.zeros_like(ids), decoder_ids, np.zeros_like(decoder_ids))
    assert all(np.isfinite(value).all() for value in empty.values())


def test_packed_rows_have_the_logits_of_their_examples(bound):
    sizes = ((5, 3), (4, 6), (7, 2))  # of the inputs and of what the decoder reads
    pairs = [(tiny_t5.ids(1, a, seed=a), tiny_t5.ids(1, b, seed=10 + b)) for a, b in sizes]

    def pack(rows, width):
        ids, segments, places = (np.zeros((1, width), np.int32) for _ in range(3))
        start = 0
        for number, row in enumerate(rows, 1):
            end = start + row.shape[1]
            ids[0, start:end], segments[0, start:end] = row, number
            places[0, start:end] = np.arange(row.shape[1])
            start = end
        return ids, segments, places

    ids, segments, places = pack([pair[0] for pair in pairs], 19)
    decoder_ids, decoder_segments, decoder_places = pack([pair[1] for pair in pairs], 13)
    packed = bound(
        input_ids=ids, segment_ids=segments, position_ids=places, decoder_input_ids=decoder_ids,
        decoder_segment_ids=decoder_segments, decoder_position_ids=decoder_places,
    )  # fmt: skip
    for number, (inputs, decoder_inputs) in enumerate(pairs, 1):
        alone = bound(inputs, decoder_input_ids=decoder_inputs)
        at, decoder_at = segments[0] == number, decoder_segments[0] == number
        for name, where in (
            ("logits", decoder_at), ("last_hidden_state", decoder_at),
            ("encoder_last_hidden_state", at),
        ):  # fmt: skip
            np.testing.assert_allclose(packed[name][0, where], alone[name][0], atol=1e-5)


def test_decoding_with_a_cache_is_decoding_at_once(bound):
    ids, decoder_ids = tiny_t5.ids(3, 8), tiny_t5.ids(3, 7, seed=1)
    mask = np.array([[1] * 8, [1] * 6 + [0] * 2, [1] * 2 + [0] * 6])
    expected = bound(ids, mask, decoder_ids)["logits"]
    cache = bound(ids, length=9, attention_mask=mask, method="start_cache")
    assert {x.shape[1] for x in cache.values()} == {3}, "the batch is the second axis of all"
    found, index = [], 0
    for count in (3, 1, 1, 2):
        step = decoder_ids[:, index : index + count]
        logits, new = bound(step, cache, index, method="decode_step")
        assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, cache)
        found, cache, index = [*found, logits], new, index + count
    np.testing.assert_allclose(np.concatenate(found, 1), expected, atol=1e-5)


@pytest.mark.proof
def test_encoder_alone(bound):
    ids = tiny_t5.ids(2, 6)
    alone = bound(ids, output_hidden_states=True)
    both = bound(ids, decoder_input_ids=tiny_t5.ids(2, 3), output_hidden_states=True)
    np.testing.assert_array_equal(alone["last_hidden_state"], both["encoder_last_hidden_state"])
    np.testing.assert_array_equal(alone["hidden_states"], both["encoder_hidden_states"])
    assert alone["hidden_states"].shape == (3, 2, 6, 16)
    assert both["hidden_states"].shape == (4, 2, 3, 16)
    np.testing.assert_array_equal(both["hidden_states"][-1], both["last_hidden_state"])


@pytest.mark.proof
def test_bfloat16_is_near_and_logits_are_float32():
    ids, decoder_ids = tiny_t5.ids(2, 9), tiny_t5.ids(2, 5)
    for fields in tiny_t5.VERSIONS.values():
        params = tiny_t5.params(**fields)
        logits = {}
        for dtype in ("float32", "bfloat16"):
            model = plugins.model("t5", fields, t5.layers.Compute(dtype=dtype, remat="full"))
            apply = functools.partial(model.apply, {"params": params})
            outputs = jax.jit(apply)(ids, None, decoder_ids)
            assert outputs["last_hidden_state"].dtype == dtype
            assert outputs["logits"].dtype == jnp.float32
            logits[dtype] = outputs["logits"][..., :tiny_t5.VOCABULARY]
            start, step = (
                functools.partial(apply, method=m) for m in ("start_cache", "decode_step")
            )
            cache = jax.eval_shape(lambda start=start: start(ids, 4))
            _, new = jax.eval_shape(step, ids[:, :1], cache, 0)
            assert new == cache
        assert 0 < np.abs(logits["bfloat16"] - logits["float32"]).max() < 0.15


@pytest.mark.proof
@pytest.mark.parametrize("variant", ["small", "v1_1_small"])
def test_start(variant):
    """Standard deviations of the released code, and a loss near that of the vocabulary."""
    sizes = {"hidden_size": 192, "intermediate_size": 320, "num_heads": 4, "head_dim": 32,
             "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 500}  # fmt: skip
    fields = {**t5.VARIANTS[variant], **sizes}
    model, flat = plugins.model("t5", fields), artifact.flatten(tiny_t5.params(**fields))
    config = model.config
    width, inner = config.hidden_size, config.num_heads * config.head_dim
    expected = {
        "query/kernel": (width * config.head_dim) ** -0.5,
        "key/kernel": width**-0.5,
        "value/kernel": width**-0.5,
        "out/kernel": inner**-0.5,
        "wi/kernel": width**-0.5,
        "wi_gate/kernel": width**-0.5,
        "wo/kernel": config.intermediate_size**-0.5,
        "lm_head/kernel": width**-0.5,
        "word/embedding": 1.0,
    }
    for path, array in flat.items():
        leaf = "/".join(path.split("/")[-2:])
        if leaf in expected:
            real = array[array != 0]  # but for the padding of the vocabulary
            assert real.std() == pytest.approx(expected[leaf], rel=0.02), path
    assert any("wi_gate" in path for path in flat) == (variant == "v1_1_small")
    ids = np.random.default_rng(0).integers(1, 500, (4, 40)).astype(np.int32)
    params = {"params": artifact.unflatten(flat)}
    logits = jax.jit(model.apply)(params, ids, None, ids[:, :20])["logits"]
    assert (logits[..., 500:] < -1e8).all()
    assert 0.5 < logits[..., :500].std() < 2.0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"activation": "gelu", "gated": True}, "activation = 'gelu'"),
        ({"heads": ("mlm",)}, r"heads = \('mlm',\)"),
        ({"relative_buckets": 3}, "relative_buckets = 3"),
        ({"relative_max_distance": 16}, "relative_max_distance = 16"),
        ({"num_decoder_layers": 0}, "num_decoder_layers = 0"),
        ({"head_dim": 0}, "head_dim = 0"),
    ],
)
def test_impossible_fields_are_named(fields, says):
    with pytest.raises(errors.UserError, match=says):
        t5.Config(**fields)


@pytest.mark.proof
def test_flops_are_the_products_of_the_compiled_model():
    fields = {**tiny_t5.VERSIONS["1.1"], "hidden_size": 128, "intermediate_size": 256}
    model = plugins.model("t5", fields, t5.layers.Compute(unroll_layers=True))
    params = plugins.abstract_params(model)
    ids, decoder_ids = (jax.ShapeDtypeStruct((1, n), jnp.int32) for n in (40, 24))

    def logits(params, ids, decoder_ids):
        return model.apply({"params": params}, ids, decoder_input_ids=decoder_ids)["logits"]

    counted = jax.jit(logits).lower(params, ids, decoder_ids).compile().cost_analysis()["flops"]
    assert t5.flops_per_sequence(model.config, 40, 24) == pytest.approx(counted, rel=0.08)
