"""BERT: its size, what padding may not do, what dropout does, and heads on chosen positions."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import device_groups, errors, hashing, plugins
from bertjax.models import bert
from bertjax.models.common import activations, layers, norms, post_norm
from tests.helpers import meshes

FIELDS = {
    "vocab_size": 100, "hidden_size": 16, "num_layers": 3, "num_heads": 4,
    "intermediate_size": 24, "max_length": 12,
}  # fmt: skip
B, L, P = 4, 8, 3
LENGTHS = np.array([8, 5, 2, 7])
MASK = (np.arange(L) < LENGTHS[:, None]).astype(np.int32)


@pytest.fixture(scope="module")
def model():
    return plugins.model("bert", FIELDS)


@pytest.fixture(scope="module")
def params(model):
    return plugins.init_params(model, jax.random.key(0))


@pytest.fixture(scope="module")
def louder(params):
    """The same with larger kernels, so that every layer changes much."""
    return jax.tree.map(lambda x: x * 10 if x.ndim > 1 else x, params)


@pytest.fixture(scope="module")
def apply(model):
    """Every output at every position and at `positions`, and the gradient of the real positions'
    states by the parameters."""

    @jax.jit
    def run(params, ids, mask, types, positions):
        def states(params):
            x = model.apply({"params": params}, ids, mask, types, output_hidden_states=True)
            states_BLD = x["last_hidden_state"]
            # A plain sum over D is zero after a layer norm, and so is its gradient.
            weights_D = jnp.arange(states_BLD.shape[-1])
            return (states_BLD * weights_D[None, None] * mask[:, :, None]).sum(), x

        (_, whole), grads = jax.value_and_grad(states, has_aux=True)(params)
        chosen = model.apply({"params": params}, ids, mask, types, masked_positions=positions)
        return whole, chosen, grads

    return run


def _inputs(seed=0):
    rng = np.random.default_rng(seed)
    ids = np.where(MASK, rng.integers(5, 99, (B, L)), 0).astype(np.int32)
    types = (np.arange(L) > LENGTHS[:, None] // 2).astype(np.int32)
    positions = np.sort(rng.integers(0, LENGTHS[:, None], (B, P)), axis=1).astype(np.int32)
    return ids, MASK, types, positions


# Turc et al. (arXiv 1908.08962) round these to 4.4, 11.3, 29.1, 41.7, 110.1 and 335 or 340 million.
@pytest.mark.parametrize(
    ("variant", "count"),
    [
        ("tiny", 4_433_468),
        ("mini", 11_267_900),
        ("small", 29_058_876),
        ("medium", 41_668_412),
        ("base", 110_106_428),
        ("large", 336_226_108),
    ],
)
def test_full_size_parameter_count(variant, count):
    config = bert.Config(**bert.VARIANTS[variant])
    params = plugins.abstract_params(bert.Model(config))
    padding = layers.padded_vocab_size(config.vocab_size) - config.vocab_size
    stored = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    assert stored - padding * (config.hidden_size + 1) == count
    assert set(bert.VARIANTS) == {"tiny", "mini", "small", "medium", "base", "large"}


def test_heads_are_there_as_asked():
    def names(heads):
        return set(plugins.abstract_params(plugins.model("bert", {**FIELDS, "heads": heads})))

    encoder = {"embeddings", "encoder"}
    assert names(()) == encoder
    assert names(("mlm",)) == encoder | {"mlm_head"}
    assert names(("pooler", "nsp")) == encoder | {"pooler", "nsp_head"}


@pytest.mark.parametrize(("size", "rows"), [(1, 128), (128, 128), (129, 256), (30522, 30592)])
def test_vocabulary_is_padded_to_the_lanes(size, rows):
    assert layers.padded_vocab_size(size) == rows


@pytest.mark.proof
def test_initial_values(params):
    table = np.asarray(params["embeddings"]["word"]["embedding"])
    assert table.shape == (128, 16)
    assert (table[100:] == 0).all() and (table[:100] != 0).any(axis=1).all()
    # As in the authors' code: normal(0.02) cut at two standard deviations, which leaves 0.88 of it.
    assert abs(table[:100].std() - 0.0176) < 0.001 and 0.038 < abs(table).max() <= 0.04
    kernels = params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    assert kernels.shape == (3, 16, 24) and not np.array_equal(kernels[0], kernels[1])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


def test_padding_of_the_vocabulary_is_never_predicted(apply, params):
    # Even where every real piece has a bias that speaks against it.
    bias = np.where(np.arange(128) < 100, -1e4, 1e4).astype(np.float32)
    against = {**params, "mlm_head": {**params["mlm_head"], "bias": bias}}
    whole, chosen, _ = apply(against, *_inputs())
    for logits in (whole["mlm_logits"], chosen["mlm_logits"]):
        assert logits.shape[-1] == 128 and logits.dtype == jnp.float32
        assert (logits.argmax(-1) < 100).all()
        assert (jax.nn.softmax(logits)[..., 100:] == 0).all()


def test_hidden_states_go_from_the_embeddings_to_the_last_layer(apply, louder):
    ids, mask, types, positions = _inputs()
    whole, _, _ = apply(louder, ids, mask, types, positions)
    states = whole["hidden_states"]
    assert states.shape == (4, B, L, 16)
    np.testing.assert_array_equal(states[-1], whole["last_hidden_state"])
    embeddings = louder["embeddings"]
    x = embeddings["word"]["embedding"][ids] + embeddings["token_type"]["embedding"][types]
    x = np.asarray(x + embeddings["position"]["embedding"][None, :L])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(states[0], x, rtol=1e-4, atol=1e-5)
    for i in range(3):
        assert abs(states[i + 1] - states[i]).max() > 0.1


def test_masked_positions_give_the_logits_that_stand_there(apply, louder):
    *inputs, positions = _inputs()
    whole, chosen, _ = apply(louder, *inputs, positions)
    there = np.take_along_axis(np.asarray(whole["mlm_logits"]), positions[:, :, None], axis=1)
    assert chosen["mlm_logits"].shape == (B, P, 128)
    np.testing.assert_allclose(chosen["mlm_logits"], there, rtol=1e-5, atol=1e-5)
    for name in ("nsp_logits", "pooled_output"):
        np.testing.assert_allclose(chosen[name], whole[name], rtol=1e-5, atol=1e-6)


def test_what_stands_in_the_padding_changes_nothing(apply, louder):
    ids, mask, types, positions = _inputs()
    other_ids, other_types = np.where(mask, ids, 77), np.where(mask, types, 0)
    a, _, _ = apply(louder, ids, mask, types, positions)
    b, _, _ = apply(louder, other_ids.astype(np.int32), mask, other_types, positions)
    real = mask.astype(bool)
    np.testing.assert_array_equal(a["last_hidden_state"][real], b["last_hidden_state"][real])
    np.testing.assert_array_equal(a["nsp_logits"], b["nsp_logits"])
    assert abs(a["last_hidden_state"] - b["last_hidden_state"]).max() > 0.1


def test_no_gradient_flows_from_padding(apply, louder):
    ids, mask, types, positions = _inputs()
    ids = np.where(mask, ids, 77).astype(np.int32)
    ids = np.where(mask & (ids == 77), 78, ids)
    lengths = np.minimum(LENGTHS, 5)  # positions 5, 6 and 7 are padding in every row
    mask = (np.arange(L) < lengths[:, None]).astype(np.int32)
    _, _, grads = apply(louder, ids, mask, types, positions)
    embeddings = grads["embeddings"]
    assert (embeddings["position"]["embedding"][5:] == 0).all()
    assert (embeddings["word"]["embedding"][77] == 0).all()
    assert (abs(embeddings["position"]["embedding"][:5]).max(-1) > 0).all()
    assert abs(embeddings["word"]["embedding"][ids[0, 0]]).max() > 0


def test_activations():
    x = np.linspace(-4, 4, 41).astype(np.float32)
    exact = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    cubic = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    expected = {
        "gelu": exact,
        "gelu_tanh": 0.5 * x * (1 + np.tanh(cubic)),
        "relu": np.maximum(x, 0),
    }
    assert expected.keys() == activations.FUNCTIONS.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(activations.FUNCTIONS[name](x), values, atol=2e-6)
    assert abs(expected["gelu"] - expected["gelu_tanh"]).max() > 1e-4, "two different functions"


@pytest.mark.proof
@pytest.mark.parametrize(("name", "approximate"), [("gelu", False), ("gelu_tanh", True)])
def test_activations_keep_their_slope_alone(name, approximate):
    activation = activations.FUNCTIONS[name]
    x = jnp.linspace(-6, 6, 101)
    slopes = jax.vmap(jax.grad(lambda v: jax.nn.gelu(v, approximate=approximate)))(x)
    np.testing.assert_allclose(jax.vmap(jax.grad(activation))(x), slopes, atol=1e-5)
    half = x.astype(jnp.bfloat16)
    kept = jax.tree.leaves(jax.linearize(activation, half)[1])
    assert [(leaf.shape, leaf.dtype) for leaf in kept] == [(x.shape, jnp.bfloat16)]
    np.testing.assert_allclose(
        np.asarray(activation(half), np.float32), activation(half.astype(jnp.float32)), rtol=2**-8
    )


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("use_bias", [True, False])
def test_norms_have_the_slopes_of_their_formula(centred, use_bias):
    draw = np.random.default_rng(0)
    x, slope = draw.normal(2.0, 3.0, (2, 5, 5, 8)).astype(np.float32)[:, :3]
    scale, bias = draw.normal(size=(2, 8)).astype(np.float32)

    def formula(x, scale, bias):
        wide = x - x.mean(-1, keepdims=True) if centred else x
        size = jnp.sqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
        normed = wide / size * scale[None, None]
        return normed if bias is None else normed + bias[None, None]

    def ours(x, scale, bias):
        return norms.normalize(x, scale, bias, 1e-6, centred)

    arguments = (x, scale, bias if use_bias else None)
    for value, expected in zip(
        jax.tree.leaves(jax.vjp(ours, *arguments)[1](slope)),
        jax.tree.leaves(jax.vjp(formula, *arguments)[1](slope)),
        strict=True,
    ):
        np.testing.assert_allclose(value, expected, atol=2e-5)
    half = x.astype(jnp.bfloat16)
    kept = jax.tree.leaves(jax.vjp(lambda x: ours(x, *arguments[1:]), half)[1])
    large = [leaf for leaf in kept if leaf.size >= x.size]
    assert [leaf.dtype for leaf in large] == [jnp.bfloat16]


def test_layer_norm_is_float32_inside():
    x = (1000 + jnp.arange(8.0)).astype(jnp.bfloat16)[None]
    norm = layers.LayerNorm(1e-12)
    y = norm.apply(norm.init(jax.random.key(0), x), x)
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean()) / wide.std()
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=0.01, atol=0.01)


def test_fields_are_checked_where_a_model_is_made():
    with pytest.raises(errors.UserError, match=r"config.model.num_heads = 3: must be a divisor"):
        plugins.model("bert", {**FIELDS, "num_heads": 3})
    with pytest.raises(errors.UserError, match=r"config.family = 'nope': must be one of albert,"):
        plugins.family("nope")


# --- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_rate_and_keeps_the_mean(rate):
    x = jnp.ones((64, 40, 50))
    dropout = layers.Dropout(rate)
    y = np.asarray(dropout.apply({}, x, False, rngs={"dropout": jax.random.key(1)}))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)
    deviation = math.sqrt(rate * (1 - rate))
    for axes, count in (((0, 1, 2), 1), ((1, 2), 64), ((0, 2), 40), ((0, 1), 50)):
        share = 1 - kept.mean(axis=axes)
        limit = 5 * deviation / math.sqrt(x.size / count)
        assert abs(share - rate).max() < limit, axes
    assert dropout.apply({}, x, True) is x and layers.Dropout(0.0).apply({}, x, False) is x


def test_hash_bits_are_fair_and_independent():
    bits = np.asarray(hashing.hash_bits(jnp.uint32(7), (32, 8, 128)))
    assert len(np.unique(bits)) > bits.size * 0.999
    for bit in range(32):
        share = ((bits >> bit) & 1).mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(bits.size), bit
    signs = 2.0 * (bits >> 31) - 1
    rows = signs.reshape(32, -1)
    agreement = rows @ rows.T / rows.shape[1] - np.eye(32)
    assert abs(agreement).max() < 6 / math.sqrt(rows.shape[1])
    for shift in (1, 2, 64):
        assert abs((rows[:, shift:] * rows[:, :-shift]).mean()) < 5 / math.sqrt(rows.size)


def test_weight_bits_are_fair_and_independent():
    """Also those of two queries that share a hash."""
    shape = (4, 2, 200, 160)
    bits = np.asarray(hashing.weight_bits(jnp.uint32(7), shape))
    for bit in range(16, 32):  # those that dropout needs
        share = ((bits >> bit) & 1).mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(bits.size), bit
    dropped = (bits < np.uint32(0.1 * 2**32)) - 0.1
    for distance in (1, 63, hashing.PAIR, 65, 2 * hashing.PAIR):
        products = dropped[:, :, distance:] * dropped[:, :, :-distance]
        assert abs(products.mean()) < 5 * 0.09 / math.sqrt(products.size), distance
    part = hashing.weight_bits(jnp.uint32(7), (1, *shape[1:]), first_row=jnp.int32(3))
    np.testing.assert_array_equal(part, bits[3:])


def test_groups_of_devices_drop_other_rows_and_the_same_of_a_table():
    x, seed = np.ones((8, 64), np.float32), jnp.uint32(7)

    def of_rows(batch):
        rows = layers.drop(batch["x"], 0.5, seed)
        start = device_groups.first_row(len(rows)), 0
        whole = jax.lax.dynamic_update_slice(jnp.zeros(x.shape), rows, start)
        return whole, layers.drop(jnp.asarray(x), 0.5, seed, has_rows=False)

    with jax.set_mesh(meshes.of(4, 2)):
        rows, table = jax.jit(lambda batch: device_groups.sum_over_groups(of_rows, batch))({"x": x})
    expected = layers.drop(x, 0.5, seed)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(table, 4 * expected)


def test_hash_bits_of_later_rows_are_those_of_the_whole_array():
    whole, rest = hashing.hash_bits(jnp.uint32(7), (8, 6)), (3, 6)
    found = hashing.hash_bits(jnp.uint32(7), rest, first_row=jnp.int32(5))
    np.testing.assert_array_equal(found, whole[5:])


@pytest.mark.proof
def test_dropout_keeps_places_independently_at_any_distance():
    """Two rounds of mixing give places that lie 4096 or 20480 apart a correlation of 0.5 to 1%."""
    size, rate, seeds = 2**21, 0.1, 4
    bits = np.asarray(hashing.hash_bits_by_row(jnp.arange(seeds), (seeds, size)))
    kept = (bits >= np.uint32(rate * 2**32)).astype(np.float32) - (1 - rate)
    place = np.arange(size)
    error = 1 / math.sqrt(seeds * size / 2)  # a pair is met twice
    for distance in (1, 768, 4096, 12288, 16384, 20480, 1048592):
        other = kept[:, place ^ distance]
        assert abs((kept * other).mean()) < 5 * error * rate * (1 - rate), distance


@pytest.mark.proof
def test_rows_never_share_their_bits_in_another_order():
    """Keys that differ in low bits only move the places about, if they are used once."""
    bits = np.sort(np.asarray(hashing.hash_bits(jnp.uint32(3), (8192, 512))), axis=None)
    expected = bits.size**2 / 2**33  # pairs that are equal by chance; with moved places twice that
    assert (bits[1:] == bits[:-1]).sum() < 1.1 * expected


class _Masks(nn.Module):
    """In the place of a layer: what two dropouts of it keep of ones."""

    config: object
    deterministic: bool

    @nn.compact
    def __call__(self, x, per_layer, mask):
        ones = jnp.ones_like(x)
        first = layers.Dropout(0.5, name="first")(ones, self.deterministic)
        return x, jnp.stack([first, layers.Dropout(0.5, name="second")(ones, self.deterministic)])


@pytest.mark.proof
def test_dropout_differs_by_layer_place_step_and_row():
    encoder = post_norm.Encoder(bert.Config(**FIELDS), _Masks)
    x, mask = jnp.zeros((8, 4, 16)), jnp.ones((8, 1, 4), bool)

    def kept(step):
        rng = jax.random.fold_in(jax.random.key(0), step)
        _, masks = encoder.apply({}, x, mask, deterministic=False, keep_hidden=True,
                                 rngs={"dropout": rng})  # fmt: skip
        return np.asarray(masks) != 0  # [layer, place, row, L, D]

    one = kept(0)
    np.testing.assert_array_equal(one, kept(0))
    both = np.stack([one, kept(1)])  # [step, layer, place, row, L, D]
    drawn = 2.0 * both.reshape(2 * 3 * 2 * 8, -1) - 1
    agreement = drawn @ drawn.T / drawn.shape[1] - np.eye(len(drawn))
    assert abs(agreement).max() < 0.75, "two masks of 64 fair coins, of 4,560 pairs"
    assert abs(agreement.mean()) < 0.01
