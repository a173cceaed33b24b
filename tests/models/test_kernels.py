"""The attention kernels beside the plain computation, and what they cannot do is refused.

Splash runs in Pallas' interpreter on a CPU. cuDNN needs a GPU: without one, what it is asked is
given to the plain version of the same function of JAX.
"""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import errors, experiment, plugins
from bertjax.models import bert
from bertjax.models.common import attention, kernels, layers, masks
from tests.helpers import encoders, meshes, proofs, trees

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
B, L = 2, 384  # three blocks of 128
FIELDS = {"hidden_size": 32, "num_heads": 2, "attention_dropout_rate": 0.0, "init_std": 0.5}


def _segments():
    """Two examples and padding, another border in each row; the second row has no padding."""
    ids = np.ones((B, L), np.int32)
    ids[0, 150:], ids[0, 300:], ids[1, 40:] = 2, 0, 2
    return ids


def _real(segment_ids):
    return segment_ids[:, :, None] > 0


MASKS = {
    "all": masks.Mask(),
    "padding": masks.padding(_segments() > 0),
    "segments": masks.segments(_segments(), _segments()),
    "causal": masks.causal() & masks.segments(_segments(), _segments()),
    "local": masks.local(50) & masks.segments(_segments(), _segments()),
    "causal and local": masks.causal() & masks.local(50) & masks.padding(_segments() > 0),
}


def _value_and_grad(name, mask, params, x_BLD, real_BL1):
    """Sum of random products with the real outputs, and its gradient by parameters and input."""
    module = attention.Attention(bert.Config(**FIELDS, attention=name), use_bias=False)
    weights_BLD = np.random.default_rng(1).standard_normal(x_BLD.shape).astype(np.float32)

    def total(params, x_BLD):
        out_BLD = module.apply({"params": params}, x_BLD, mask, False)
        return jnp.sum(jnp.where(real_BL1, out_BLD, 0.0) * weights_BLD)

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(params, x_BLD)


@functools.cache
def _inputs():
    x_BLD = jax.random.normal(jax.random.key(0), (B, L, FIELDS["hidden_size"]))
    module = attention.Attention(bert.Config(**FIELDS, attention="splash"), use_bias=False)
    params = module.init(jax.random.key(1), x_BLD[:, :2], masks.Mask(), True)["params"]
    return params, x_BLD


@pytest.mark.parametrize("name", proofs.all_but(MASKS, "causal and local", "segments"))
def test_splash_agrees_with_xla_in_values_and_gradients(name):
    mask = MASKS[name]
    params, x_BLD = _inputs()
    real = _real(_segments())
    expected = _value_and_grad("xla", mask, params, x_BLD, real)
    found = _value_and_grad("splash", mask, params, x_BLD, real)
    trees.assert_close(found, expected, 1e-4)


@pytest.mark.proof
def test_a_mask_changes_what_splash_computes():
    """The comparison above would see a kernel that ignores its mask."""
    params, x_BLD = _inputs()
    real = _real(_segments())
    sums = [float(_value_and_grad("splash", m, params, x_BLD, real)[0]) for m in MASKS.values()]
    assert np.abs(np.diff(np.sort(sums))).min() > 1e-2


@pytest.mark.parametrize(
    ("rows", "fsdp", "tensor"),
    proofs.all_but([(2, 1, 2), (1, 2, 2), (1, 1, 2)], (1, 2, 2)),
)
def test_splash_on_a_mesh(rows, fsdp, tensor):
    params, x_BLD = _inputs()
    mask, real = MASKS["local"], _real(_segments())
    expected = _value_and_grad("splash", mask, params, x_BLD, real)
    with jax.set_mesh(meshes.of(rows, fsdp, tensor)):
        found = _value_and_grad("splash", mask, params, x_BLD, real)
    trees.assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("remat", proofs.all_but(["none", "full"], "full"))
def test_the_scanned_layers_of_modernbert_choose_their_mask(remat):
    batch = encoders.packed(((70, 50), (30, 98)), 128)
    fields = {"num_layers": 4, "max_length": 128, "local_window": 16}
    _, params = encoders.make("modernbert", **fields)
    real = _real(batch["segment_ids"])

    def run(name):
        compute = layers.Compute(attention=name, remat=remat)
        model = plugins.model("modernbert", {**encoders.FIELDS, **fields}, compute)

        def total(params):
            logits_BLV = model.apply({"params": params}, **batch)["mlm_logits"]
            return jnp.sum(jnp.where(real, jnp.sin(logits_BLV[..., :99]), 0.0))

        return jax.jit(jax.value_and_grad(total))(params)

    trees.assert_close(run("splash"), run("xla"), 1e-3)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["splash", "xla"])
def test_a_row_of_padding_alone_is_finite(name):
    params, x_BLD = _inputs()
    nothing = jnp.zeros((B, L), jnp.int32).at[1].set(1)
    for mask in (masks.padding(nothing), masks.segments(nothing, nothing) & masks.local(50)):
        found = _value_and_grad(name, mask, params, x_BLD, np.ones((B, L, 1), bool))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_cudnn_is_asked_for_what_xla_computes(mask, monkeypatch):
    plain, asked = jax.nn.dot_product_attention, []

    def in_its_place(*args, implementation, **options):
        asked.append(implementation)
        return plain(*args, **options, implementation="xla")

    monkeypatch.setattr(jax.nn, "dot_product_attention", in_its_place)
    params, x_BLD = _inputs()
    real = _real(_segments())
    found = _value_and_grad("cudnn", mask, params, x_BLD, real)
    expected = _value_and_grad("xla", mask, params, x_BLD, real)
    trees.assert_close(found, expected, 1e-4)
    assert asked == ["cudnn"]


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="cuDNN runs on a GPU")
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_cudnn_agrees_with_xla_on_a_gpu(mask):
    params, x_BLD = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _inputs())
    real = _real(_segments())
    trees.assert_close(
        _value_and_grad("cudnn", mask, params, x_BLD, real),
        _value_and_grad("xla", mask, params, x_BLD, real), 5e-2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "overrides", "key", "allowed"),
    [
        ("modernbert_base", {"attention": "flash"}, "attention", "auto, xla, rows, splash, cudnn"),
        ("bert_base", {"attention": "splash"}, "model.attention_dropout_rate", "0.0"),
        ("bert_base", {"attention": "cudnn"}, "model.attention_dropout_rate", "0.0"),
        (
            "modernbert_base",
            {"attention": "splash", "data.length": "1000"},
            "data.length",
            "a multiple of 128",
        ),
        ("t5_small", {"attention": "splash"}, "attention", "xla"),
        ("t5_small", {"attention": "cudnn"}, "attention", "xla"),
        (
            "gpt2_small",
            {
                "attention": "splash",
                "objective.name": "prefix_lm",
                "model.attention_dropout_rate": "0.0",
            },
            "attention",
            "xla",
        ),
        ("modernbert_base", {"attention": "cudnn", "dtype": "float32"}, "dtype", "bfloat16"),
        (
            "modernbert_base",
            {"attention": "cudnn", "model.num_heads": "64"},
            "model.num_heads",
            "8, 16",
        ),
    ],
)
def test_what_a_kernel_cannot_do_is_refused_before_anything_is_compiled(
    file, overrides, key, allowed
):
    with pytest.raises(errors.UserError, match=rf"^config\.{key} = .*must be .*{allowed}"):
        config_lib.load(f"{CONFIGS}/{file}.py", overrides)


@pytest.mark.parametrize("name", ["splash", "cudnn"])
def test_a_kernel_is_refused_where_its_devices_are_not(name):
    config = config_lib.load(f"{CONFIGS}/modernbert_base.py", {"attention": name})
    match = r"config\.attention = .*must be auto or xla on a cpu"
    with pytest.raises(errors.UserError, match=match):
        experiment.check_mesh(config, meshes.of(1))


def test_a_mesh_that_splits_the_length_is_refused():
    params, x_BLD = _inputs()
    with (
        jax.set_mesh(meshes.of(1, 1, 1, 2)),
        pytest.raises(errors.UserError, match="'xla' if the mesh axis 'sequence' is larger"),
    ):
        _value_and_grad("splash", masks.Mask(), params, x_BLD, True)


@pytest.mark.parametrize(
    "inputs", [{"bias": 0.0}, {"bias": lambda query, key: 0.0}, {"deterministic": False}]
)
def test_a_bias_or_dropout_is_refused_in_the_module_too(inputs):
    params, x_BLD = _inputs()
    config = dataclasses.replace(bert.Config(**FIELDS), attention="splash")
    if "deterministic" in inputs:
        config = dataclasses.replace(config, attention_dropout_rate=0.1)
    module = attention.Attention(config, use_bias=False)
    with pytest.raises(errors.UserError, match="attention bias or attention dropout; use 'xla'"):
        module.apply(
            {"params": params}, x_BLD, masks.Mask(), inputs.get("deterministic", True),
            bias=inputs.get("bias"), rngs={"dropout": jax.random.key(0)},
        )  # fmt: skip


@pytest.mark.parametrize("mask", [masks.prefix(_segments()), masks.causal(np.int32(3))])
def test_a_mask_that_splash_does_not_have_is_refused(mask):
    query_BLNH = jnp.zeros((B, L, 2, 16))
    with pytest.raises(errors.UserError, match="does not support a prefix or a cache; use 'xla'"):
        kernels.attend("splash", query_BLNH, query_BLNH, query_BLNH, mask)


def test_a_length_that_splash_does_not_have_is_refused():
    query_BLNH = jnp.zeros((B, 100, 2, 16))
    with pytest.raises(errors.UserError, match="length 100 must be a multiple of 128"):
        kernels.attend("splash", query_BLNH, query_BLNH, query_BLNH, masks.Mask())
