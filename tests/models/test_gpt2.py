"""GPT-2: its size, who sees whom, packed rows, and the cache against the full forward pass."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bertjax import errors, plugins
from bertjax.artifact import huggingface
from bertjax.models import gpt2
from bertjax.models.common import layers
from tests.helpers import encoders, tiny_model

V, L = 100, 12
FIELDS = {
    "vocab_size": V, "hidden_size": 16, "num_layers": 3, "num_heads": 4,
    "intermediate_size": 24, "max_length": 16,
}  # fmt: skip
RATES = ("dropout_rate", "embedding_dropout_rate", "attention_dropout_rate")


@pytest.fixture(scope="module")
def model():
    return plugins.model("gpt2", FIELDS)


@pytest.fixture(scope="module")
def params(model):
    """With kernels so large that every layer changes much."""
    fresh = plugins.init_params(model, jax.random.key(0))
    return jax.tree.map(lambda x: x * 10 if x.ndim > 1 else x, fresh)


@pytest.fixture(scope="module")
def forward(model):
    return jax.jit(lambda params, *inputs: model.apply({"params": params}, *inputs))


def _ids(rows, length=L, seed=0):
    return np.random.default_rng(seed).integers(0, V, (rows, length), np.int32)


@pytest.mark.parametrize(
    ("variant", "count"),
    [
        ("mini", 16_287_488),
        ("small", 124_439_808),
        ("medium", 354_823_168),
        ("large", 774_030_080),
        ("xl", 1_557_611_200),
    ],
)
def test_full_size_parameter_count(variant, count):
    config = gpt2.Config(**gpt2.VARIANTS[variant])
    stored = jax.tree.leaves(plugins.abstract_params(gpt2.Model(config)))
    padding = layers.padded_vocab_size(config.vocab_size) - config.vocab_size
    assert sum(math.prod(x.shape) for x in stored) - padding * config.hidden_size == count


@pytest.mark.proof
def test_maps_to_the_residual_start_smaller():
    fields = FIELDS | {"hidden_size": 64, "intermediate_size": 64, "num_layers": 8}
    params = plugins.init_params(plugins.model("gpt2", fields), jax.random.key(0))
    layer = params["decoder"]["layers"]
    usual = float(layer["attention"]["value"]["kernel"].std())
    assert float(layer["mlp"]["wi"]["kernel"].std()) == pytest.approx(usual, rel=0.05)
    for kernel in (layer["attention"]["out"]["kernel"], layer["mlp"]["wo"]["kernel"]):
        assert float(kernel.std()) == pytest.approx(usual / 4, rel=0.05)  # 1 / sqrt(2 * 8)


@pytest.fixture(scope="module")
def sensitivity(model, params):
    """Which places [L, L] of a row each place's state depends on, by the gradient.

    The row of the position table that a place reads stands for the place.
    """

    @jax.jit
    def gradient(inputs):
        def states(table):
            embeddings = params["embeddings"] | {"position": {"embedding": table}}
            outputs = model.apply({"params": params | {"embeddings": embeddings}}, **inputs)
            return outputs["last_hidden_state"][0] @ jnp.arange(1.0, 17.0)

        return jax.jacrev(states)(params["embeddings"]["position"]["embedding"])

    def run(**inputs):
        length = inputs["input_ids"].shape[1]
        return np.abs(gradient(inputs)[:, :length]).max(axis=-1) > 0

    return run


def test_no_gradient_from_the_future(sensitivity):
    np.testing.assert_array_equal(sensitivity(input_ids=_ids(1)), np.tri(L, dtype=bool))


# t5x/examples/t5/layers_test.py: input, segments, prefix, and what each place sees.
@pytest.mark.parametrize(
    ("segments", "prefix", "rows"),
    [
        ("111220", None, "100000 110000 111000 000100 000110"),
        ("111110", "111000", "111000 111000 111000 111100 111110"),
        ("1112220", "1101100", "1100000 1100000 1110000 0001100 0001100 0001110"),
    ],
)
def test_prefix_and_segments_decide_who_is_seen(sensitivity, segments, prefix, rows):
    inputs = {"input_ids": _ids(1, len(segments)), "segment_ids": np.array([[*map(int, segments)]])}
    if prefix is not None:
        inputs["prefix_mask"] = np.array([[*map(int, prefix)]])
    wanted = np.array([[*map(int, row)] for row in rows.split()], bool)
    found = sensitivity(**inputs)[: len(wanted)]  # what padding sees means nothing
    np.testing.assert_array_equal(found, wanted)


def test_packed_equals_unpacked(forward, params):
    """With a prefix each, and with the padding of both forms."""
    sizes, prefixes = (5, 3, 2), (2, 1, 2)
    alone = _ids(3, 6)
    mask = (np.arange(6) < np.array(sizes)[:, None]).astype(np.int32)
    prefix = (np.arange(6) < np.array(prefixes)[:, None]).astype(np.int32)
    wanted = forward(params, alone, mask, None, None, prefix)["logits"]

    def packed(x):
        return np.pad(np.concatenate([x[i, :n] for i, n in enumerate(sizes)]), (0, 2))[None]

    segments = packed(np.broadcast_to(np.arange(1, 4)[:, None], (3, 6)))
    places = packed(np.broadcast_to(np.arange(6), (3, 6)))
    found = forward(params, packed(alone), None, places, segments, packed(prefix))["logits"]
    found, wanted = np.asarray(found)[0, :10], np.asarray(wanted)[mask.astype(bool)]
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    no_prefix = forward(params, packed(alone), None, places, segments)["logits"]
    assert np.abs(np.asarray(no_prefix)[0, :10] - wanted).max() > 0.1


def test_cache_equals_full_forward(model, params, forward):
    """One row at a time without padding, and rows padded on the left, in steps of 5, 1, 1 ..."""
    ids, sizes = _ids(3), (12, 9, 6)
    pads = L - np.array(sizes)[:, None]
    mask = (np.arange(L) >= pads).astype(np.int32)
    places = np.maximum(np.arange(L) - pads, 0).astype(np.int32)

    @jax.jit
    def step(cache, ids, index, places):
        return model.apply(
            {"params": params}, ids, cache, index, mask, places, method="decode_step"
        )

    cache = model.apply({"params": params}, 3, L, method="start_cache")
    parts = []
    for start, stop in [(0, 5), *((i, i + 1) for i in range(5, L))]:
        logits, cache = step(cache, ids[:, start:stop], start, places[:, start:stop])
        parts.append(logits)
    found = np.concatenate(parts, axis=1)
    for row, size in enumerate(sizes):
        wanted = forward(params, ids[row : row + 1, L - size :])["logits"]
        np.testing.assert_allclose(found[row, L - size :], wanted[0], atol=2e-5)


@pytest.mark.proof
def test_rows_that_pad_the_vocabulary_are_never_predicted(model, params, forward):
    logits = forward(params, _ids(2))["logits"]
    assert logits.shape == (2, L, 128) and logits.dtype == jnp.float32
    assert (logits[..., V:] < -1e8).all() and (logits[..., :V] > -1e4).all()
    bare = plugins.model("gpt2", FIELDS | {"heads": ()})
    assert "logits" not in bare.apply({"params": params}, _ids(2))


def test_hidden_states_begin_with_the_embeddings_and_end_with_the_norm(model, params):
    out = model.apply({"params": params}, _ids(2), output_hidden_states=True)
    assert out["hidden_states"].shape == (4, 2, L, 16)
    np.testing.assert_array_equal(out["hidden_states"][-1], out["last_hidden_state"])
    tables = params["embeddings"]
    first = tables["word"]["embedding"][_ids(2)] + tables["position"]["embedding"][None, :L]
    np.testing.assert_allclose(out["hidden_states"][0], first, rtol=1e-6)


@pytest.mark.proof
@pytest.mark.parametrize("rate", RATES)
def test_every_dropout_rate_drops(params, rate):
    one = plugins.model("gpt2", FIELDS | dict.fromkeys(RATES, 0.0) | {rate: 0.5})

    def logits(deterministic):
        rngs = {"dropout": jax.random.key(1)}
        out = one.apply({"params": params}, _ids(1), deterministic=deterministic, rngs=rngs)
        return np.asarray(out["logits"])[..., :V]

    assert np.abs(logits(True) - logits(False)).max() > 0.1


def test_a_folder_as_it_was_published_is_read(tmp_path):
    """Names without prefix, the mask among the weights, no width of the MLP in config.json."""
    source = encoders.make_artifact("gpt2", "bpe", intermediate_size=64)
    huggingface.write(source, tmp_path)
    weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    plain = {name.removeprefix("transformer."): array for name, array in weights.items()}
    assert plain["h.0.attn.c_attn.weight"].shape == (16, 48)
    mask = np.tri(24, dtype=np.float32)[None, None]
    more = {f"h.{i}.attn.{name}": mask for i in range(3) for name in ("bias", "masked_bias")}
    safetensors.numpy.save_file(plain | more, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text()) | {"n_inner": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = huggingface.read(tmp_path)
    assert found.fields == source.fields
    tiny_model.assert_same_params(found.params, source.params)


def test_impossible_fields_are_named():
    with pytest.raises(errors.UserError, match=r"heads = \('mlm',\)"):
        gpt2.Config(heads=("mlm",))
    with pytest.raises(errors.UserError, match="num_heads = 5"):
        gpt2.Config(num_heads=5)
