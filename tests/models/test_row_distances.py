"""DeBERTa's terms for distances in the kernel `rows`, beside the plain computation."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from bertjax import config as config_lib
from bertjax import errors, plugins
from bertjax.models import deberta
from bertjax.models.common import (
    attention,
    disentangled,
    kernels,
    layers,
    masks,
    row_attention,
    row_distances,
)
from tests.helpers import encoders, meshes, proofs, trees

B, L, BUCKETS = 2, 256, 8  # two chunks of 128 queries
FIELDS = {"hidden_size": 128, "num_heads": 2, "attention_dropout_rate": 0.2, "init_std": 0.1}
SEGMENTS = np.ones((B, L), np.int32)
SEGMENTS[0, 100:], SEGMENTS[0, 200:], SEGMENTS[1, 40:] = 2, 0, 2
REAL = SEGMENTS > 0
MASKS = {"padding": masks.padding(REAL), "segments": masks.segments(SEGMENTS, SEGMENTS)}


def _value_and_grad(name, *, terms=disentangled.TERMS, mask="segments", dtype="float32", **fields):
    """Sum of squared random products with the outputs; gradient by parameters, input and tables."""
    config = deberta.Config(**{**FIELDS, **fields}, attention=name, dtype=dtype)
    module = attention.Attention(config, use_bias=False)
    x_BLD = jax.random.normal(jax.random.key(0), (B, L, config.hidden_size))
    params = module.init(jax.random.key(1), x_BLD[:, :2], masks.Mask(), True)["params"]
    shape = 2 * BUCKETS, config.num_heads, config.head_dim
    tables = {
        term: 0.3 * jax.random.normal(jax.random.key(number), shape)
        for number, term in enumerate(terms)
    }
    weights_BLD = np.random.default_rng(1).standard_normal(x_BLD.shape).astype(np.float32)
    rows_T = disentangled.table_rows(L, BUCKETS, L)

    def total(params, x_BLD, tables):
        tables = {term: table.astype(dtype) for term, table in tables.items()}
        out_BLD = module.apply(
            {"params": params}, x_BLD.astype(dtype), MASKS[mask], False,
            bias=disentangled.Terms(tables, rows_T), rngs={"dropout": jax.random.key(3)},
        )  # fmt: skip
        return jnp.sum(jnp.where(REAL[..., None], out_BLD * weights_BLD, 0.0) ** 2)

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(params, x_BLD, tables)


@pytest.mark.parametrize(
    ("terms", "mask"),
    proofs.all_but(
        [(disentangled.TERMS, "segments"), (("c2p",), "padding"), (("p2c",), "padding")],
        (("c2p",), "padding"), (("p2c",), "padding"),
    ),
)  # fmt: skip
def test_rows_agrees_with_xla_in_values_and_gradients(terms, mask):
    """With dropout: another dropout mask would change all values."""
    expected = _value_and_grad("xla", terms=terms, mask=mask)
    trees.assert_close(_value_and_grad("rows", terms=terms, mask=mask), expected, 1e-4)


@pytest.mark.proof
def test_in_bfloat16():
    _, expected = _value_and_grad("xla", dtype="bfloat16")
    _, found = _value_and_grad("rows", dtype="bfloat16")
    trees.assert_close(found, expected, 3e-2)


@pytest.mark.proof
def test_on_a_mesh():
    """The gradients of the tables are those of all rows."""
    fields = {"hidden_size": 256, "num_heads": 4}
    expected = _value_and_grad("xla", **fields)
    with jax.set_mesh(meshes.of(2, 1, 2)):
        trees.assert_close(_value_and_grad("rows", **fields), expected, 1e-4)


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize(("shift", "step"), [(0, 1), (-7, 1), (129, -1)])
def test_each_row_is_rotated_by_another_amount(strided, shift, step):
    """As TPUs do from v5 on, and as TPUs v4 and the interpreter of the other tests do."""
    x = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    options = row_attention.Options(64, interpret=True, strided=strided)
    row = types.SimpleNamespace(call=types.SimpleNamespace(options=options))

    def kernel(x_ref, out_ref):
        out_ref[...] = row_distances._rotated(row, x_ref[...], shift, step)

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    found = pl.pallas_call(kernel, out_shape=out, interpret=True)(x)
    expected = np.stack([np.roll(row, shift + step * place) for place, row in enumerate(x)])
    np.testing.assert_array_equal(found, expected)


def test_auto_chooses_rows_on_tpus(monkeypatch):
    def chosen(length=128, mask=MASKS["padding"]):
        x = jax.ShapeDtypeStruct((2, length, 2, 64), jnp.float32)
        terms = disentangled.Terms({}, np.zeros(2 * length - 1, int))
        return kernels.chosen("auto", x, x, mask, terms, has_dropout=True)

    assert chosen() == "xla", "on a CPU"
    device = types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    monkeypatch.setattr(kernels, "_device", lambda: device)
    assert chosen() == chosen(512) == chosen(1024) == "rows"
    assert chosen(100) == chosen(2048) == chosen(mask=masks.local(16)) == "xla"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"attention": "rows", "data.length": "96"}, "data.length = 96: must be a multiple of 128"),
        ({"attention": "splash"}, "attention = 'splash': must be 'auto', 'xla' or 'rows'"),
    ],
)
def test_what_has_no_kernel_is_an_error(overrides, message):
    file = f"{meshes.__file__.rsplit('/tests/', 1)[0]}/configs/deberta_v3_base.py"
    with pytest.raises(errors.UserError, match=f"^config.{message}"):
        config_lib.load(file, overrides)


@pytest.mark.proof
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_whole_model_computes_the_same(remat):
    """With packed rows, the mask decoder and its attention to a memory."""
    fields = {
        "num_layers": 2, "hidden_size": 128, "num_heads": 2, "intermediate_size": 64,
        "max_length": 128, "vocab_size": 100, "position_buckets": 16, "heads": ("mlm",),
        "enhanced_mask_decoder": True, "dropout_rate": 0.1, "attention_dropout_rate": 0.1,
    }  # fmt: skip
    batch = encoders.packed(((70, 50), (30, 98)), 128)
    params = plugins.init_params(plugins.model("deberta", fields), jax.random.key(0))

    def run(kernel):
        model = plugins.model("deberta", fields, layers.Compute(attention=kernel, remat=remat))

        def total(params):
            rngs = {"dropout": jax.random.key(1)}
            outputs = model.apply({"params": params}, **batch, deterministic=False, rngs=rngs)
            real = batch["segment_ids"] > 0
            return jnp.sum(jnp.where(real[..., None], jnp.sin(outputs["mlm_logits"]), 0.0))

        return jax.jit(jax.value_and_grad(total))(params)

    trees.assert_close(run("rows"), run("xla"), 1e-3)
