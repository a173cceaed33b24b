"""ModernBERT: who sees how far, rotary positions, where the norms stand, its two config.json."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.artifact import huggingface
from bertjax.models import modernbert
from bertjax.models.common import masks
from tests.helpers import encoders

L = 20
WINDOW = 6  # three tokens to either side


def _make(**fields):
    return encoders.make("modernbert", local_window=WINDOW, **fields)


@pytest.fixture(scope="module")
def made():
    return _make()


def _ids(rows=2, length=L, seed=0):
    return np.random.default_rng(seed).integers(5, 99, (rows, length), np.int32)


def _states(model, params, **batch):
    outputs = jax.jit(lambda: model.apply({"params": params}, **batch, output_hidden_states=True))()
    return jax.device_get(outputs["hidden_states"])


def _sensitivity(model, params):
    """bool[L, L]: whether the last state of place l has a gradient by the embedding of place s."""
    row = np.random.default_rng(1).standard_normal((1, L, 16)).astype(np.float32)
    mask, place = masks.Mask(), jnp.arange(L)[None]

    def asked(x_LLD):  # of row l, its place l
        states_LLD, _ = modernbert.Encoder(model.config).apply(
            {"params": params["encoder"]}, x_LLD, mask, place, deterministic=True, keep_hidden=False
        )
        return (states_LLD[jnp.arange(L), jnp.arange(L)] * row[0]).sum()

    gradient_LLD = jax.jit(jax.grad(asked))(jnp.tile(row, (L, 1, 1)))
    return np.asarray((gradient_LLD != 0).any(axis=-1))


def _silence_attention(params, layer):
    """The same without what the attention of one layer adds."""
    layers = params["encoder"]["layers"]
    out = layers["attention"]["out"]["kernel"].copy()
    out[layer] = 0.0
    attention = {**layers["attention"], "out": {"kernel": out}}
    return {**params, "encoder": {"layers": {**layers, "attention": attention}}}


@pytest.mark.parametrize("num_local", [1, 2])
def test_local_layers_do_not_see_past_the_window(num_local):
    model, params = _make(num_layers=1 + num_local)
    distance = abs(np.arange(L)[:, None] - np.arange(L))
    # The first layer is global: without its attention the others are alone.
    alone = _sensitivity(model, _silence_attention(params, 0))
    np.testing.assert_array_equal(alone, distance <= num_local * WINDOW // 2)
    assert _sensitivity(model, params).all()


def test_every_third_layer_is_global():
    model, params = _make(num_layers=4)
    local = _silence_attention(params, 0)
    assert _sensitivity(model, local).all(), "layer 3 sees everything"
    assert not _sensitivity(model, _silence_attention(local, 3)).all(), "layers 1 and 2 do not"


def test_local_and_global_layers_turn_by_their_own_angles(made):
    model, params = made
    batch = {"input_ids": _ids()}
    usual = _states(model, params, **batch)

    def first_change(**fields):
        other = _states(_make(**fields)[0], params, **batch)
        return int(np.argmax(abs(other - usual).max(axis=(1, 2, 3)) > 1e-4))

    assert first_change(global_theta=100.0) == 1
    assert first_change(local_theta=100.0) == 2


@pytest.mark.proof
def test_only_distances_between_positions_matter(made):
    model, params = made
    places = np.arange(L, dtype=np.int32)[None]
    batch = {"input_ids": _ids()}
    usual = _states(model, params, **batch)
    np.testing.assert_array_equal(usual, _states(model, params, **batch, position_ids=places))
    moved = _states(model, params, **batch, position_ids=places + 1000)
    np.testing.assert_allclose(moved, usual, atol=1e-3)  # the cosine of 1000 radians in float32
    wider = _states(model, params, **batch, position_ids=2 * places)
    assert abs(wider - usual)[1:].max() > 0.1


@pytest.mark.proof
def test_long_packed_examples_keep_their_windows(made):
    model, params = made
    batch = encoders.packed(((13, 7), (4, 16)), L)
    together = _states(model, params, **batch)
    for row, segments in enumerate(batch["segment_ids"]):
        for number in (1, 2):
            place = segments == number
            alone = _states(model, params, input_ids=batch["input_ids"][row : row + 1, place])
            np.testing.assert_allclose(together[:, row, place], alone[:, 0], atol=2e-5)


def test_the_first_layer_has_no_norm_and_the_last_one_two():
    model = encoders.make_artifact("modernbert", "bpe")
    tensors = huggingface.to_tensors(modernbert, model.params, model.fields["vocab_size"])
    norms = model.params["encoder"]["layers"]["next_norm"]["scale"]
    assert "layers.0.attn_norm.weight" not in "".join(tensors)
    for name, ours in (("layers.1.attn_norm", 0), ("layers.2.attn_norm", 1), ("final_norm", 2)):
        np.testing.assert_array_equal(tensors[f"model.{name}.weight"], norms[ours])
    assert not [name for name in tensors if name.endswith("bias")][1:], "only the vocabulary's"
    wide = tensors["model.layers.1.mlp.Wi.weight"]
    mlp = model.params["encoder"]["layers"]["mlp"]
    np.testing.assert_array_equal(wide[:24].T, mlp["wi"]["kernel"][1])
    np.testing.assert_array_equal(wide[24:].T, mlp["wi_gate"]["kernel"][1])


@pytest.mark.proof
def test_maps_to_the_residual_start_smaller():
    fields = {"hidden_size": 64, "intermediate_size": 64, "num_layers": 8}
    model = plugins.model("modernbert", {**encoders.FIELDS, **fields})
    layer = plugins.init_params(model, jax.random.key(0))["encoder"]["layers"]
    usual = float(layer["attention"]["value"]["kernel"].std())
    assert float(layer["mlp"]["wi_gate"]["kernel"].std()) == pytest.approx(usual, rel=0.05)
    for kernel in (layer["attention"]["out"]["kernel"], layer["mlp"]["wo"]["kernel"]):
        assert float(kernel.std()) == pytest.approx(usual / 4, rel=0.05)  # 1 / sqrt(2 * 8)


@pytest.mark.proof
@pytest.mark.parametrize("place", ["embedding", "attention", "mlp"])
def test_each_dropout_drops(made, place):
    _, params = made
    model, _ = _make(**{f"{place}_dropout_rate": 0.5})
    apply = jax.jit(
        lambda key: model.apply(
            {"params": params}, _ids(), deterministic=False, rngs={"dropout": key}
        )["last_hidden_state"]
    )
    a, b = apply(jax.random.key(0)), apply(jax.random.key(1))
    assert abs(a - b).max() > 0.01


@pytest.mark.parametrize(
    ("field", "value"), [("activation", "relu"), ("num_heads", 16), ("heads", ("pooler", "mlm"))]
)
def test_fields_that_it_cannot_have(field, value):
    with pytest.raises(errors.UserError, match=f"config.model.{field} = "):
        _make(**{field: value})


# --- config.json, which is another one in transformers 4 and 5 ------------------------------------


@pytest.fixture
def folder(tmp_path):
    fields = {"global_every": 2, "global_theta": 7e3, "local_theta": 50.0, "num_layers": 5}
    model = encoders.make_artifact("modernbert", "bpe", **fields)
    huggingface.write(model, tmp_path / "hf")
    return tmp_path / "hf"


def _configure(folder, **changes):
    content = json.loads((folder / "config.json").read_text()) | changes
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))


OLD = dict.fromkeys(("global_rope_theta", "local_rope_theta", "global_attn_every_n_layers"), ...)
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 7e3},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50},
}
TYPES = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]


def test_both_kinds_of_config_json_are_read(folder):
    old = huggingface.read(folder, with_params=False).fields
    assert (old["global_every"], old["global_theta"], old["local_theta"]) == (2, 7e3, 50.0)
    _configure(folder, **OLD, rope_parameters=ROPES, layer_types=TYPES)
    assert huggingface.read(folder, with_params=False).fields == old
    _configure(folder, rope_parameters=..., layer_types=...)
    usual = huggingface.read(folder, with_params=False).fields
    assert (usual["global_every"], usual["global_theta"], usual["local_theta"]) == (3, 16e4, 1e4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": TYPES[::-1][1:] + TYPES[:1]}, "layer_types"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type 'yarn'"),
        ({"global_rope_theta": "much"}, "'much'"),
        ({"norm_bias": True}, "norm_bias"),
        ({"classifier_activation": "relu"}, "classifier_activation"),
    ],
)
def test_config_json_of_another_model(folder, change, words):
    _configure(folder, **change)
    with pytest.raises(errors.UserError, match=words):
        huggingface.read(folder)


def test_transformers_reads_our_config_json(folder):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.layer_types == TYPES
    for kind, rope in ROPES.items():
        assert config.rope_parameters[kind]["rope_theta"] == rope["rope_theta"]
