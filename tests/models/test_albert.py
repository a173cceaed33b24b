"""ALBERT: what is shared, how it is grouped, and its folder for transformers."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import parity
from bertjax import errors, plugins
from bertjax.artifact import artifact, huggingface
from bertjax.models import albert
from bertjax.models.common import layers, masks, post_norm
from tests.helpers import encoders, tiny_model

SIZES = {
    "vocab_size": 40, "embedding_size": 6, "hidden_size": 16, "num_heads": 2,
    "intermediate_size": 24, "max_length": 12, "num_layers": 4,
}  # fmt: skip


def random_params(module, *args, **kwargs):
    """Of a Linen module, large enough that all of them matter."""
    init = functools.partial(module.init, **kwargs)
    flat = artifact.flatten(jax.eval_shape(init, jax.random.key(0), *args)["params"])
    rng = np.random.default_rng(0)
    return artifact.unflatten(
        {
            path: 0.3 * rng.standard_normal(leaf.shape, np.float32) + path.endswith("scale")
            for path, leaf in flat.items()
        }
    )


def unshared(params, config):
    """The parameters of BERT's encoder, which has its own for every layer, with equal values."""
    uses = config.num_layers // config.num_groups
    return {"layers": jax.tree.map(lambda x: jnp.repeat(x, uses, 0), params["layers"]["layer"])}


def encoder_inputs(config):
    x_BLD = jax.random.normal(jax.random.key(1), (2, 5, config.hidden_size))
    mask = masks.padding(jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    return x_BLD, mask


@pytest.mark.parametrize(
    ("num_groups", "how"),
    [
        (1, {}),
        (1, {"unroll_layers": True}),
        (1, {"remat": "full"}),
        (2, {"unroll_layers": True}),
        (2, {"remat": "full"}),
    ],
)
def test_gradient_of_a_shared_layer_is_the_sum_over_its_uses(num_groups, how):
    config = albert.Config(**SIZES, num_groups=num_groups, **how)
    shared, stack = albert.Encoder(config), post_norm.Encoder(config)
    inputs = encoder_inputs(config)
    flags = {"deterministic": True, "keep_hidden": True}
    params = random_params(shared, *inputs, **flags)
    weights = jax.random.normal(jax.random.key(2), (config.num_layers, 2, 5, 16))

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.value_and_grad, argnums=1)
    def gradient(encoder, params):
        return jnp.sum(encoder.apply({"params": params}, *inputs, **flags)[1] * weights)

    copies = unshared(params, config)
    value, grads = gradient(shared, params)
    other, each = gradient(stack, copies)
    np.testing.assert_allclose(value, other, rtol=1e-5)
    uses = config.num_layers // num_groups
    grads, each = artifact.flatten(grads["layers"]["layer"]), artifact.flatten(each["layers"])
    scale = max(np.abs(grad).max() for grad in grads.values())
    for path, grad in grads.items():
        by_use = each[path].reshape(num_groups, uses, *each[path].shape[1:])
        np.testing.assert_allclose(grad, by_use.sum(axis=1), atol=1e-5 * scale, err_msg=path)
        if path != "attention/key/bias":  # which softmax does not feel
            assert np.abs(by_use[:, 0] - by_use[:, 1]).max() > 1e-3 * np.abs(grad).max(), path


def test_a_single_group_needs_no_loop():
    """With the attention weights, a loop over the one group computes the same states."""
    config = albert.Config(**SIZES, unroll_layers=True)
    encoder, inputs = albert.Encoder(config), encoder_inputs(config)
    flags = {"deterministic": True, "keep_hidden": True}
    variables = {"params": random_params(encoder, *inputs, **flags)}
    last, hidden = encoder.apply(variables, *inputs, **flags)
    looped, weights = encoder.apply(variables, *inputs, mutable=layers.WEIGHTS, **flags)
    np.testing.assert_allclose(looped[0], last, atol=1e-6)
    np.testing.assert_allclose(looped[1], hidden, atol=1e-6)
    assert jax.tree.leaves(weights)[0].shape[:2] == (1, config.num_layers)


def test_group_of_a_layer():
    """Layer i is that of group i * num_groups // num_layers: equal runs, in order."""
    config = albert.Config(**{**SIZES, "num_layers": 6}, num_groups=3)
    encoder, inputs = albert.Encoder(config), encoder_inputs(config)
    flags = {"deterministic": True, "keep_hidden": True}
    params = random_params(encoder, *inputs, **flags)
    run = jax.jit(lambda params: encoder.apply({"params": params}, *inputs, **flags)[1])
    whole = run(params)
    for group in range(3):
        factor = np.where(np.arange(3) == group, 1.1, 1.0).astype(np.float32)
        changed = jax.tree.map(lambda x, f=factor: (x.T * f).T, params)
        hidden = run(changed)
        differs = np.abs(hidden - whole).max(axis=(1, 2, 3)) > 1e-3
        assert differs.tolist() == [layer * 3 // 6 >= group for layer in range(6)]


class Noise(nn.Module):
    """A layer whose out is what dropout leaves of ones."""

    config: albert.Config

    @nn.compact
    def __call__(self, carry, _):
        return carry, layers.Dropout(0.5)(jnp.ones(64), deterministic=False)


def test_dropout_differs_from_use_to_use():
    config = albert.Config(**SIZES)
    again = layers.stack(Noise, config, 4, 0, shared=True)(config)
    _, kept = again.apply({}, jnp.zeros(()), None, rngs={"dropout": jax.random.key(0)})
    assert len({row.tobytes() for row in np.asarray(kept)}) == 4


@pytest.mark.parametrize(("variant", "count"), [("base", 11_683_584), ("xxlarge", 222_595_584)])
def test_published_sizes_of_the_bare_encoder(variant, count):
    assert parity.our_count("albert", variant, heads=("pooler",)) == count


def test_shared_layers_are_one_in_memory():
    shapes = {
        path: leaf.shape
        for path, leaf in artifact.flatten(
            plugins.abstract_params(albert.Model(albert.Config(**albert.VARIANTS["xxlarge"])))
        ).items()
    }
    assert shapes["encoder/layers/layer/mlp/wi/kernel"] == (1, 4096, 16384)
    assert shapes["embeddings/word/embedding"] == (30080, 128)
    assert shapes["embeddings/project/kernel"] == (128, 4096)
    assert shapes["mlm_head/transform/kernel"] == (4096, 128)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_groups": 3}, "num_groups = 3: must be a divisor of config.model.num_layers = 4"),
        ({"heads": ("mlm", "sop")}, "'sop' needs the head 'pooler'"),
        ({"heads": ("pooler", "lm")}, "must be a tuple of pooler, mlm, nsp, sop"),
        ({"embedding_size": 0}, "embedding_size = 0"),
    ],
)
def test_impossible_fields_are_named(fields, message):
    with pytest.raises(errors.UserError, match=message):
        albert.Config(**{**SIZES, **fields})


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (("pooler", "mlm", "sop"), "AlbertForPreTraining"),
        (("mlm",), "AlbertForMaskedLM"),
        (("pooler",), "AlbertModel"),
    ],
)
@pytest.mark.parametrize("num_groups", [1, 3])
def test_folder_comes_back_and_loads_in_transformers(tmp_path, heads, name, num_groups):
    fields = {"heads": heads, "num_groups": num_groups, "embedding_size": 6}
    model = encoders.make_artifact("albert", "unigram", **fields)
    huggingface.write(model, tmp_path / "hf")
    again = huggingface.read(tmp_path / "hf")
    assert again.fields == model.fields
    tiny_model.assert_same_params(again.params, model.params)
    content = json.loads((tmp_path / "hf/config.json").read_text())
    assert content["architectures"] == [name] and content["num_hidden_groups"] == num_groups
    transformers = pytest.importorskip("transformers")
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert theirs.config.hidden_act == "gelu_pytorch_tanh"
