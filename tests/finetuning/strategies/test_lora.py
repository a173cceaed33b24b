"""LoRA: the product it adds, its gradients by hand, and a trained model as a plain artifact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors, optimizer, plugins, sharding
from bertjax.artifact import artifact
from tests.helpers import encoders, strategy_runs, tiny_model

ALL = "query, key, value, out, wi, wo"
KERNEL = "encoder/layers/attention/query/kernel"


def _random(tree, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), tree)


@pytest.mark.parametrize(("family", "targets"), [("bert", "query,value"), ("t5", ALL)])
def test_starts_as_the_base_bit_for_bit(family, targets):
    method = strategy_runs.make("lora", family, targets=targets)
    _, params = strategy_runs.model_of(method, family)
    trained, frozen = method.split(params, jax.random.key(0))
    combined = method.combine(trained, frozen)
    assert jax.tree.structure(combined) == jax.tree.structure(params)
    assert strategy_runs.moved(params, combined) == set()
    flat = strategy_runs.named(trained)
    for path, leaf in flat.items():
        if path.endswith("lora_b"):
            assert (leaf == 0).all(), path
        if path.endswith("lora_a"):
            bound = leaf.shape[1] ** -0.5
            assert abs(leaf).max() <= bound and leaf.std() > 0.4 * bound, path
    kernels = {path.split("/")[-3] for path in flat if path.endswith("lora_a")}
    assert kernels == {name.strip() for name in targets.split(",")}
    if family == "t5":
        assert "decoder/layers/cross_attention/out/kernel/lora_b" in flat


def test_adds_alpha_over_rank_times_the_product_in_every_layer():
    method = strategy_runs.make("lora", rank=2, alpha=6.0, targets=ALL)
    _, params = strategy_runs.model_of(method)
    trained, frozen = method.split(params, jax.random.key(0))
    trained = _random(trained)
    combined = method.combine(trained, frozen)
    before, after = strategy_runs.named(params), strategy_runs.named(combined)
    added = {path: after[path] - before[path] for path in before}
    flat = strategy_runs.named(trained)
    for name in ("attention/query", "attention/out", "mlp/wi", "mlp/wo"):
        path = f"encoder/layers/{name}/kernel"
        product = 3.0 * np.einsum("lir,lro->lio", flat[f"{path}/lora_a"], flat[f"{path}/lora_b"])
        np.testing.assert_allclose(
            added[path], product.reshape(before[path].shape), rtol=1e-4, atol=1e-4, err_msg=path
        )
    assert added[KERNEL].shape == (3, 16, 2, 8)
    head = flat[f"{KERNEL}/lora_b"].reshape(3, 2, 2, 8)[1, :, 1]  # layer 1, head 1
    by_hand = 3.0 * flat[f"{KERNEL}/lora_a"][1] @ head
    np.testing.assert_allclose(added[KERNEL][1, :, 1], by_hand, rtol=1e-4, atol=1e-4)


@pytest.mark.proof
def test_gradients_are_those_by_hand():
    method = strategy_runs.make("lora", rank=2, alpha=6.0, targets="query,out,wo")
    model, params = strategy_runs.model_of(method)
    trained, frozen = method.split(params, jax.random.key(0))
    trained = {**trained, "encoder": jax.tree.map(lambda x: 0.1 * x, _random(trained["encoder"]))}
    rows = strategy_runs.batch(method)

    def loss(params):
        terms = strategy_runs.loss(lambda **kw: model.apply({"params": params}, **kw), rows)
        return terms["loss"][0]

    @jax.jit
    def both(trained, frozen):
        ours = jax.grad(lambda trained: loss(method.combine(trained, frozen)))(trained)
        return ours, jax.grad(loss)(method.combine(trained, frozen))

    ours, of_kernels = map(strategy_runs.named, both(trained, frozen))
    flat = strategy_runs.named(trained)
    found = [path for path in flat if path.endswith("lora_a")]
    assert len(found) == 3
    for path in found:
        kernel = path.removesuffix("/lora_a")
        a, b = flat[path], flat[f"{kernel}/lora_b"]
        whole = of_kernels[kernel].reshape(3, a.shape[1], b.shape[2])
        to_a = 3.0 * np.einsum("lio,lro->lir", whole, b)
        to_b = 3.0 * np.einsum("lio,lir->lro", whole, a)
        assert abs(to_a).max() > 1e-3 and abs(to_b).max() > 1e-3
        np.testing.assert_allclose(ours[path], to_a, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(ours[f"{kernel}/lora_b"], to_b, rtol=1e-3, atol=1e-4)
    for path in ("classifier/logits/kernel", "pooler/dense/bias"):
        np.testing.assert_allclose(ours[path], of_kernels[path], rtol=1e-3, atol=1e-5)


@pytest.mark.proof
def test_a_trained_model_is_a_plain_artifact_whose_kernels_differ_by_the_rank(tmp_path):
    method = strategy_runs.make("lora", rank=2)
    model, params = strategy_runs.model_of(method)
    first, *_, merged = strategy_runs.train(method, params)
    a, b = strategy_runs.named(first)[KERNEL], strategy_runs.named(merged)[KERNEL]
    changes = (b - a).reshape(3, 16, 16)
    assert [np.linalg.matrix_rank(change, tol=1e-5) for change in changes] == [2, 2, 2]

    tokenizer = tiny_model.tokenizer()
    source = encoders.make_artifact("bert", heads=("pooler", "classifier"), num_labels=3)
    fields = {**source.fields, **strategy_runs.fields("bert")}
    handed = artifact.Artifact("bert", fields, jax.device_get(merged), tokenizer)
    artifact.write(handed, tmp_path / "merged")
    again = artifact.read(tmp_path / "merged")
    assert plugins.model("bert", again.fields).config == model.config
    tiny_model.assert_same_params(again.params, merged)
    rows = strategy_runs.batch(method)["input_ids"]
    apply = jax.jit(lambda params: model.apply({"params": params}, rows)["class_logits"])
    trained, frozen = method.split(params, jax.random.key(1))
    np.testing.assert_array_equal(apply(again.params), apply(merged))
    assert abs(apply(again.params) - apply(method.combine(trained, frozen))).max() > 1e-2


@pytest.mark.parametrize(
    ("family", "knobs", "said"),
    [
        ("bert", {"targets": "query,wi_gate"}, "targets = 'query,wi_gate': must be some of the "
         "model's kernels, query, key, value, out, wi, wo"),
        ("bert", {"targets": "query,keys"}, "targets = 'query,keys': must be some of query, key"),
        ("bert", {"targets": ""}, "targets = '': must be some of query"),
        ("bert", {"rank": 0}, "rank = 0: must be 1 or more"),
        ("bert", {"alpha": 0.0}, "alpha = 0.0: must be above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(family, knobs, said):
    with pytest.raises(errors.UserError) as caught:
        method = strategy_runs.make("lora", family, **knobs)
        params = plugins.abstract_params(plugins.model(family, method.fields()))
        jax.eval_shape(lambda p: method.split(p, jax.random.key(0)), params)
    assert f"config.strategy.{said}" in str(caught.value)


def test_its_matrices_decay_and_lie_whole_on_every_device():
    method = strategy_runs.make("lora")
    _, params = strategy_runs.model_of(method)
    trained, _ = method.split(params, jax.random.key(0))
    mask = strategy_runs.named(optimizer.decay_mask(trained))
    assert mask[f"{KERNEL}/lora_a"] and mask[f"{KERNEL}/lora_b"] and not mask["pooler/dense/bias"]
    assert sharding.param_axes(f"{KERNEL}/lora_a") == ("layers", None, None)
