"""The kernel `rows` beside the plain computation: values, gradients, masks, bias and dropout bits.

It runs in Pallas' interpreter on a CPU. The TPU compiler compiles it in
tests/planning/test_plan_kernels.py.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import device_groups, errors, hashing, plugins
from bertjax.models import bert
from bertjax.models.common import attention, kernels, layers, masks, row_attention
from tests.helpers import encoders, meshes, proofs, trees

B, L = 2, 256  # two chunks of 128 queries
FIELDS = {"hidden_size": 128, "num_heads": 2, "attention_dropout_rate": 0.2, "init_std": 0.1}


def _segments(length=L):
    """Two examples and padding, another border in each row; the second row has no padding."""
    ids = np.ones((B, length), np.int32)
    ids[0, 100:], ids[0, 200:], ids[1, 40:] = 2, 0, 2
    return ids


REAL = _segments() > 0
THIRDS = np.broadcast_to(np.arange(L) % 3 > 0, (B, L))
PREFIX = np.arange(L)[None] < np.array([[30], [130]])
MASKS = {
    "all": masks.Mask(),
    "padding": masks.padding(REAL),
    "segments": masks.segments(_segments(), _segments()),
    "segments and padding": masks.segments(_segments(), _segments()) & masks.padding(THIRDS),
    "causal": masks.causal() & masks.segments(_segments(), _segments()),
    "prefix": masks.prefix(PREFIX) & masks.padding(REAL),
    "local": masks.local(50) & masks.segments(_segments(), _segments()),
    "local off": masks.local(50, jnp.asarray(True)) & masks.padding(REAL),
    "local on": masks.local(50, jnp.asarray(False)) & masks.padding(REAL),
    "causal and local": masks.causal() & masks.local(50) & masks.padding(REAL),
}


def _value_and_grad(name, mask, *, bias=None, dtype="float32", real=REAL, **fields):
    """Sum of squared random products with the outputs; gradient by parameters, input, bias."""
    config = bert.Config(**{**FIELDS, **fields}, attention=name, dtype=dtype)
    module = attention.Attention(config, use_bias=False)
    x_BLD = jax.random.normal(jax.random.key(0), (*real.shape, config.hidden_size))
    params = module.init(jax.random.key(1), x_BLD[:, :2], masks.Mask(), True)["params"]
    weights_BLD = np.random.default_rng(1).standard_normal(x_BLD.shape).astype(np.float32)

    def total(params, x_BLD, bias):
        out_BLD = module.apply(
            {"params": params}, x_BLD.astype(dtype), mask, False,
            bias=bias, rngs={"dropout": jax.random.key(3)},
        )  # fmt: skip
        return jnp.sum(jnp.where(real[..., None], out_BLD * weights_BLD, 0.0) ** 2)

    inputs = (0, 1) if bias is None else (0, 1, 2)
    return jax.jit(jax.value_and_grad(total, argnums=inputs))(params, x_BLD, bias)


def _bias(num_heads=2):
    return jax.random.normal(jax.random.key(5), (1, num_heads, L, L))


@pytest.mark.parametrize("name", proofs.all_but(MASKS, "segments", "local on"))
def test_rows_agrees_with_xla_in_values_and_gradients(name):
    """With a bias, its gradient, and dropout: another dropout mask would change all values."""
    mask = MASKS[name]
    expected = _value_and_grad("xla", mask, bias=_bias())
    trees.assert_close(_value_and_grad("rows", mask, bias=_bias()), expected, 1e-4)


@pytest.mark.proof
@pytest.mark.parametrize("name", MASKS)
def test_in_bfloat16(name):
    expected = _value_and_grad("xla", MASKS[name], dtype="bfloat16")
    trees.assert_close(_value_and_grad("rows", MASKS[name], dtype="bfloat16"), expected, 2e-2)


@pytest.mark.proof
def test_a_mask_changes_what_rows_computes():
    """The comparison above would see a kernel that ignores its mask."""
    others = [mask for name, mask in MASKS.items() if name != "local off"]  # it is "padding"
    sums = [float(_value_and_grad("rows", mask)[0]) for mask in others]
    assert np.abs(np.diff(np.sort(sums))).min() > 1e-3


@pytest.mark.proof
def test_one_head_of_128():
    fields = {"num_heads": 1, "hidden_size": 128}
    expected = _value_and_grad("xla", MASKS["padding"], **fields)
    trees.assert_close(_value_and_grad("rows", MASKS["padding"], **fields), expected, 1e-4)


def test_the_dropout_bits_are_those_of_the_plain_computation():
    """With values that are a unit matrix, the outputs are the attention weights."""
    num_rows, heads, length, rate = 4, 1, 128, 0.3
    seed = jnp.uint32(7)
    zeros_BLNH = jnp.zeros((num_rows, length, heads, 128))
    value_BSNH = jnp.broadcast_to(jnp.eye(length)[None, :, None], zeros_BLNH.shape)
    extras = kernels.Extras(seed=seed, rate=rate)
    found = kernels.attend("rows", zeros_BLNH, zeros_BLNH, value_BSNH, masks.Mask(), extras)
    ones_BNLS = jnp.ones((num_rows, heads, length, length)) / length
    expected = layers.drop(ones_BNLS, rate, seed, bits_of=hashing.weight_bits)
    assert 0 < float((expected == 0).mean()) < 1
    np.testing.assert_allclose(found[:, :, 0], expected[:, 0], rtol=1e-6)


def test_bits_at_a_position_are_those_of_the_whole_array():
    seed, shape = jnp.uint32(9), (3, 4, 8)
    position = jnp.arange(32, dtype=jnp.uint32).reshape(4, 8)
    keys = hashing.row_keys(seed, 3)
    found = jnp.stack([hashing.bits_at(position, key) for key in keys])
    np.testing.assert_array_equal(found, hashing.hash_bits(seed, shape))


@pytest.mark.parametrize(
    ("rows", "fsdp", "tensor"),
    proofs.all_but([(2, 1, 2), (1, 2, 1), (1, 2, 2)], (1, 2, 2)),
)
def test_rows_on_a_mesh(rows, fsdp, tensor):
    """The same dropout and the whole gradient of the bias."""
    fields = {"hidden_size": 256, "num_heads": 4}
    mask, bias = MASKS["segments"] & masks.local(50, jnp.asarray(False)), _bias(4)
    expected = _value_and_grad("xla", mask, bias=bias, **fields)
    with jax.set_mesh(meshes.of(rows, fsdp, tensor)):
        found = _value_and_grad("rows", mask, bias=bias, **fields)
    trees.assert_close(found, expected, 1e-4)


def test_rows_in_each_group_of_devices():
    """A row of a group has the dropout that it has in the whole batch."""
    rng = np.random.default_rng(0)
    batch = {name: rng.standard_normal((4, 128, 256)).astype(np.float32) for name in ("x", "out")}

    def summed(name):
        config = bert.Config(
            hidden_size=256, num_heads=4, attention_dropout_rate=0.2, init_std=0.1, attention=name
        )
        module = attention.Attention(config, use_bias=False)
        params = module.init(jax.random.key(1), batch["x"][:, :2], masks.Mask(), True)["params"]

        def of_rows(batch, params):
            def total(params):
                rngs = {"dropout": jax.random.key(3)}
                out = module.apply({"params": params}, batch["x"], masks.Mask(), False, rngs=rngs)
                return jnp.sum(out * batch["out"])

            return jax.value_and_grad(total)(params)

        function = jax.jit(lambda *args: device_groups.sum_over_groups(of_rows, *args))
        return function(batch, params)

    expected = summed("xla")
    with jax.set_mesh(meshes.of(2, 1, 2)):
        found = summed("rows")
    trees.assert_close(found, expected, 1e-4)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["causal", "local on"])
def test_a_large_bias_is_read_in_blocks_of_queries(name, monkeypatch):
    monkeypatch.setattr(row_attention, "_BIAS_BYTES", 2**18)  # 128 of the 256 queries
    expected = _value_and_grad("xla", MASKS[name], bias=_bias())
    trees.assert_close(_value_and_grad("rows", MASKS[name], bias=_bias()), expected, 1e-4)


@pytest.mark.proof
def test_short_rows_share_a_grid_step():
    """Also a length that is not a multiple of a TPU's sublanes."""
    for length in (128, 100):
        real = _segments(length) > 0
        real[0, 70:] = False
        expected = _value_and_grad("xla", masks.padding(real), real=real)
        trees.assert_close(_value_and_grad("rows", masks.padding(real), real=real), expected, 1e-4)


@pytest.mark.proof
def test_a_row_of_padding_alone_is_finite():
    nothing = jnp.zeros((B, L), jnp.int32).at[1].set(1)
    for mask in (masks.padding(nothing), masks.segments(nothing, nothing) & masks.local(50)):
        found = _value_and_grad("rows", mask, real=np.ones((B, L), bool))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def _chosen(
    *, length=128, num_keys=None, heads=2, width=64, mask=None, bias=None, has_dropout=True
):
    query = jax.ShapeDtypeStruct((2, length, heads, width), jnp.float32)
    key = jax.ShapeDtypeStruct((2, num_keys or length, heads, width), jnp.float32)
    return kernels.chosen("auto", query, key, mask or masks.Mask(), bias, has_dropout=has_dropout)


def test_auto_chooses_rows_on_tpus_where_it_is_supported(monkeypatch):
    assert _chosen() == "xla", "on a CPU"
    device = types.SimpleNamespace(platform="tpu", device_kind="TPU v3")
    monkeypatch.setattr(kernels, "_device", lambda: device)
    assert _chosen() == "xla", "on a TPU before v4"
    device.device_kind = "TPU v5 lite"
    bias_1NLS = jnp.zeros((1, 2, 128, 128))
    for case in ({}, {"length": 512, "num_keys": 1024}, {"bias": bias_1NLS},
                 {"length": 114, "num_keys": 512}, {"heads": 1, "width": 128}):  # fmt: skip
        assert _chosen(**case) == "rows", case
    for case in ({"length": 200}, {"length": 2048}, {"length": 1}, {"heads": 3}, {"width": 32},
                 {"mask": masks.causal(jnp.int32(0))}, {"bias": lambda query, key: 0.0},
                 {"bias": jnp.zeros((2, 2, 128, 128))}):  # fmt: skip
        assert _chosen(**case) == "xla", case
    assert _chosen(length=2048, has_dropout=False) == "splash"
    with jax.set_mesh(meshes.of(1, 1, 1, 2)):
        assert _chosen() == "xla", "the length is split"
    with jax.set_mesh(meshes.of(1, 1, 2)):
        assert _chosen() == "xla", "one head of 64 on each device"
        assert _chosen(heads=4) == "rows"


@pytest.mark.parametrize(
    ("overrides", "key", "allowed"),
    [
        ({"model.num_heads": "24"}, "model.head_dim", "64 or 128"),
        ({"data.length": "200"}, "data.length", "a multiple of 128"),
    ],
)
def test_what_rows_does_not_support_is_an_error(overrides, key, allowed):
    overrides = {"attention": "rows", "phase2.num_steps": "0", **overrides}
    file = f"{meshes.__file__.rsplit('/tests/', 1)[0]}/configs/bert_base.py"
    with pytest.raises(errors.UserError, match=rf"^config\.{key} = .*must be .*{allowed}"):
        config_lib.load(file, overrides)


def test_what_a_call_cannot_have_is_an_error():
    x_BLNH = jnp.zeros((2, 128, 2, 64))
    for mask, bias, message in (
        (masks.causal(jnp.int32(0)), None, "without a cache"),
        (masks.Mask(), jnp.zeros((2, 2, 128, 128)), "the same array for all rows"),
    ):
        with pytest.raises(errors.UserError, match=f"'rows': .*{message}; use 'auto'"):
            kernels.attend("rows", x_BLNH, x_BLNH, x_BLNH, mask, kernels.Extras(bias))
    with pytest.raises(errors.UserError, match="length = 200 must be 64 to 128, or a multiple"):
        _value_and_grad("rows", masks.Mask(), real=np.ones((2, 200), bool))


@pytest.mark.proof
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("family", ["t5", "modernbert"])
def test_a_whole_model_computes_the_same(family, remat):
    """T5: bias, cross-attention to another length; ModernBERT: local layers in a loop."""
    fields = {"num_layers": 3, "hidden_size": 128, "num_heads": 2, "intermediate_size": 64}
    ids = np.random.default_rng(0).integers(5, 99, (B, 128))
    if family == "t5":
        fields |= {"vocab_size": 100, "num_decoder_layers": 2, "dropout_rate": 0.1}
        batch, name = {"input_ids": ids, "decoder_input_ids": ids[:, :64]}, "logits"
    else:
        fields |= {"max_length": 128, "local_window": 16, "attention_dropout_rate": 0.1}
        fields |= {"vocab_size": 100}
        batch, name = encoders.packed(((70, 50), (30, 98)), 128), "mlm_logits"
    params = plugins.init_params(plugins.model(family, fields), jax.random.key(0))

    def run(kernel):
        compute = layers.Compute(attention=kernel, remat=remat)
        model = plugins.model(family, fields, compute)

        def total(params):
            outputs = model.apply(
                {"params": params},
                **batch,
                deterministic=False,
                rngs={"dropout": jax.random.key(1)},
            )
            logits = outputs[name][..., :99]
            real = batch["segment_ids"] > 0 if "segment_ids" in batch else np.ones((B, 64), bool)
            return jnp.sum(jnp.where(real[..., None], jnp.sin(logits), 0.0))

        return jax.jit(jax.value_and_grad(total))(params)

    trees.assert_close(run("rows"), run("xla"), 1e-3)
