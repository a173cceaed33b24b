"""Strategies: what moves and what does not, at which rate and from when, and what it costs."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors, optimizer, plugins, sharding
from bertjax import step as step_lib
from bertjax.artifact import artifact
from bertjax.finetuning import strategies
from bertjax.finetuning.strategies import base
from tests.helpers import encoders, meshes, proofs, strategy_runs

LABELS = {"num_labels": 2}
BERT = {"heads": ("pooler", "classifier"), **LABELS}
HEAD = r"^(pooler|classifier)/"

# What moves of which tiny model, as a regular expression on "path" or "path[layer]".
CASES = {
    ("full", "bert"): ({}, "."),
    ("features", "roberta"): ({}, HEAD),
    ("partial", "bert"): ({"frozen_layers": 2}, HEAD + r"|\[2\]$"),
    ("partial", "t5"): ({"frozen_layers": 1}, r"^encoder/.*\[[12]\]|^decoder/.*\[1\]|final_norm/"),
    ("partial", "albert"): ({"frozen_layers": 0}, HEAD + "|/layers/"),
    ("layerwise", "albert"): ({"decay": 0.5}, "."),
    ("gradual", "roberta"): ({}, "."),  # at last
    ("adapters", "bert"): ({"adapter_size": 4}, HEAD + "|adapter/|norm/"),
    ("adapters", "t5"): ({"adapter_size": 4}, "adapter/|norm/"),
    ("lora", "bert"): ({"rank": 2}, HEAD + "|/(query|value)/kernel"),
    ("lora", "albert"): ({"rank": 2, "targets": "wi, wo"}, HEAD + "|/w[io]/kernel"),
    ("prompts", "roberta"): ({"length": 4}, HEAD + "|^embeddings/word/"),
    ("prompts", "t5"): ({"length": 4}, "^embeddings/word/"),
    ("bitfit", "bert"): ({}, HEAD + r"|/bias(\[\d\])?$"),
}  # fmt: skip


def test_every_strategy_is_tested():
    assert {name for name, _ in CASES} == set(strategies.names())


TRAINED = [("features", "roberta"), ("partial", "bert"), ("partial", "t5"), ("adapters", "t5"),
           ("lora", "albert"), ("prompts", "roberta"), ("bitfit", "bert")]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "family"), proofs.all_but(TRAINED, ("partial", "bert"), ("lora", "albert"))
)
def test_after_three_steps_that_moved_which_should_and_nothing_else(name, family):
    knobs, expected = CASES[name, family]
    method = strategy_runs.make(name, family, **knobs)
    _, params = strategy_runs.model_of(method, family)
    first, *_, last = strategy_runs.train(method, params, family)
    every = strategy_runs.paths(params)
    assert strategy_runs.moved(first, last) == {path for path in every if re.search(expected, path)}


# The first case of each strategy; the other cases are proofs.
@pytest.mark.parametrize(
    ("name", "family"), proofs.all_but(CASES, *{case[0]: case for case in reversed(CASES)}.values())
)
def test_what_is_trained_reaches_what_should_move_and_nothing_else(name, family):
    knobs, expected = CASES[name, family]
    method = strategy_runs.make(name, family, **knobs)
    _, params = strategy_runs.model_of(method, family)
    trained, frozen = method.split(params, jax.random.key(1))
    changed = method.combine(jax.tree.map(lambda leaf: leaf + 1, trained), frozen)
    every = strategy_runs.paths(params)
    found = strategy_runs.moved(method.combine(trained, frozen), changed)
    assert found == {path for path in every if re.search(expected, path)}


@pytest.mark.parametrize(("name", "family"), CASES)
def test_starts_as_the_model_and_keeps_state_for_what_it_trains_alone(name, family):
    knobs, _ = CASES[name, family]
    method = strategy_runs.make(name, family, **knobs)
    _, params = strategy_runs.model_of(method, family)
    trained, frozen = method.split(params, jax.random.key(1))
    start, whole = strategy_runs.named(method.combine(trained, frozen)), strategy_runs.named(params)
    assert start.keys() == whole.keys()
    for path in start.keys() - ({"embeddings/word/embedding"} if name == "prompts" else set()):
        np.testing.assert_array_equal(start[path], whole[path], err_msg=path)

    tx = method.optimizer(optimizer.Config(), 20_000, 10)
    state = jax.tree_util.tree_leaves_with_path(tx.init(trained))
    moments = [sharding.path_name(path) for path, leaf in state if leaf.ndim]
    of_trained = set(strategy_runs.named(trained))
    assert len(moments) == 2 * len(of_trained)
    assert {re.split("/(?:mu|nu)/", path)[1] for path in moments} == of_trained

    cost = strategies.memory(trained, frozen, tx)
    counts = strategies.counts(trained, frozen, 10**9)
    assert cost["gradients"] == 4 * counts["trained"]
    assert cost["parameters"] == 4 * counts["total"]
    scalars = 4 * (len(state) - len(moments))
    assert cost["optimizer"] == 8 * counts["trained"] + scalars


@pytest.mark.parametrize("name", ["prompts", "lora"])
def test_what_is_frozen_does_not_depend_on_the_seed(name):
    method = strategy_runs.make(name)
    model, first = strategy_runs.model_of(method)
    fresh = plugins.init_params(model, jax.random.key(5))
    drawn = {  # what a start draws anew for each seed: heads, rows of new pieces
        path: leaf for path, leaf in strategy_runs.named(fresh).items() if re.search(HEAD, path)
    }
    second = {**strategy_runs.named(first), **drawn}
    table = second["embeddings/word/embedding"].copy()
    table[encoders.FIELDS["vocab_size"] :] = 7.0
    second["embeddings/word/embedding"] = table
    trees = [
        method.split(params, jax.random.key(seed))
        for seed, params in enumerate((first, artifact.unflatten(second)))
    ]
    a, b = (strategy_runs.named(frozen) for _, frozen in trees)
    assert a.keys() == b.keys()
    if name == "lora":  # which adds no rows: what fills the table up is the model's own
        a, b = ({**x, "embeddings/word/embedding": None} for x in (a, b))
    for path, leaf in a.items():
        np.testing.assert_array_equal(leaf, b[path], err_msg=path)
    a, b = (strategy_runs.named(trained) for trained, _ in trees)
    assert all((a[path] != b[path]).any() for path in a if path.endswith(("kernel", "lora_a")))


@pytest.mark.proof
def test_prompts_are_rows_of_pieces_in_a_table_that_has_room():
    method = strategy_runs.make("prompts", length=40)
    size = encoders.FIELDS["vocab_size"]
    assert method.prompt_ids() == tuple(range(size, size + 40))
    assert method.fields()["vocab_size"] == size + 40
    _, params = strategy_runs.model_of(method)
    trained, frozen = method.split(params, jax.random.key(0))
    rows = trained["embeddings"]["word"]["embedding"]
    table = method.combine(trained, frozen)["embeddings"]["word"]["embedding"]
    assert table.shape == params["embeddings"]["word"]["embedding"].shape == (256, 16)
    np.testing.assert_array_equal(table[size : size + 40], rows)
    np.testing.assert_array_equal(table[size + 40 :], 0.0)
    words = {tuple(row) for row in np.asarray(table[:size])}
    assert all(tuple(row) in words for row in np.asarray(rows))
    assert len({tuple(row) for row in np.asarray(rows)}) > 20


def _updates(method, params, **options):
    trained, _ = method.split(params, jax.random.key(0))
    config = optimizer.Config(schedule="constant", warmup_steps=0, **options)
    tx = method.optimizer(config, 100, 10)
    rng = np.random.default_rng(0)
    gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), trained)
    update = jax.jit(lambda *trees: tx.update(trees[0], tx.init(trees[1]), trees[1])[0])
    return strategy_runs.named(update(gradients, trained))


@pytest.mark.parametrize("name", proofs.all_but(optimizer.OPTIMIZERS, "adamw", "adafactor"))
def test_rates_by_layer_are_exact(name):
    plain = strategy_runs.make("full")
    layered = strategy_runs.make("layerwise", rate=5.0, decay=0.5)
    _, params = strategy_runs.model_of(plain)
    before, after = (_updates(method, params, name=name) for method in (plain, layered))
    for path, update in before.items():
        if re.search(HEAD, path):
            factor = 5.0
        elif "/layers/" in path:  # three layers
            factor = np.array([0.25, 0.5, 1.0]).reshape(-1, *(1 for _ in update.shape[1:]))
        else:
            assert path.startswith("embeddings/")
            factor = 0.125
        np.testing.assert_allclose(after[path], factor * update, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", ["lora", "partial", "bitfit"])
def test_the_rate_of_the_head_is_its_own_in_every_strategy(name):
    once, five = strategy_runs.make(name), strategy_runs.make(name, rate=5.0)
    _, params = strategy_runs.model_of(once)
    before, after = (_updates(method, params) for method in (once, five))
    for path, update in before.items():
        factor = 5.0 if re.search(HEAD, path) else 1.0
        np.testing.assert_allclose(after[path], factor * update, rtol=1e-6, err_msg=path)


def test_heights_count_from_the_head():
    def height(path, *shape):
        return base.heights(path, shape, 6).squeeze().tolist()

    assert height("classifier/logits/kernel", 8, 2) == height("pooler/dense/bias", 8) == 0
    assert height("encoder/layers/mlp/wi/kernel", 3, 8, 8) == [3, 2, 1]
    assert height("decoder/layers/mlp/wi/kernel", 2, 8, 8) == [2, 1], "beside the encoder"
    assert height("encoder/final_norm/scale", 8) == height("final_norm/bias", 8) == 1
    assert height("lm_head/kernel", 8, 8) == 1
    below = ("embeddings/word/embedding", "project/kernel", "encoder/relative_bias/embedding")
    assert {height(path, 8, 8) for path in below} == {7}


@pytest.mark.proof
def test_layers_begin_to_move_at_their_epoch():
    method = strategy_runs.make("gradual")
    _, params = strategy_runs.model_of(method)
    states = strategy_runs.train(method, params, steps=8, steps_per_epoch=2)
    every = strategy_runs.paths(params)
    upper = [HEAD + r"|\[2\]$", HEAD + r"|\[[12]\]$", HEAD + r"|\[\d\]$", "."]
    for step in range(8):
        expected = {path for path in every if re.search(upper[step // 2], path)}
        assert strategy_runs.moved(states[step], states[step + 1]) == expected, step


def test_what_never_moves_is_told():
    method = strategy_runs.make("gradual")
    _, params = strategy_runs.model_of(method)  # of three layers
    assert "the embeddings are never trained" in method.notes(params, 3)[0]
    assert "embeddings and the lowest 2 of 3 layers are never trained" in method.notes(params, 1)[0]
    assert method.notes(params, 4) == strategy_runs.make("full").notes(params, 1) == []


@pytest.mark.proof
def test_a_layer_that_joins_takes_steps_of_the_usual_size():
    method = strategy_runs.make("gradual", layers_per_epoch=3)
    _, params = strategy_runs.model_of(method)
    states = strategy_runs.train(method, params, steps=12, steps_per_epoch=10, weight_decay=0.0)
    path = "embeddings/norm/scale"
    values = [strategy_runs.named(state)[path] for state in states]
    steps = [abs(b - a).max() for a, b in itertools.pairwise(values)]
    assert steps[:10] == [0.0] * 10 and 0 < max(steps[10:]) <= 1.5e-2, "the rate is 1e-2"


@pytest.mark.parametrize("name", strategies.names())
def test_every_array_of_a_state_has_its_place_on_a_mesh(name):
    trained, frozen, method = strategy_runs.abstract("bert", name, strategy_runs.fields("bert"))
    tx = method.optimizer(optimizer.Config(), 20_000, 10)
    state = jax.eval_shape(lambda p: step_lib.init_state(p, tx, jax.random.key(0)), trained)
    places = sharding.state_shardings(meshes.of(2, 2, 2), state)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path((trained, frozen)):
        assert len(sharding.param_axes(sharding.path_name(path))) == leaf.ndim


def test_on_a_mesh_it_is_the_same_step():
    method = strategy_runs.make("lora")
    _, params = strategy_runs.model_of(method)
    trained, frozen = method.split(params, jax.random.key(0))
    step, _, tx = strategy_runs.trainer(method)
    state = step_lib.init_state(trained, tx, jax.random.key(0))
    rows, base = strategy_runs.batch(method), {"base": frozen}
    _, alone = step(state, rows, base)
    mesh = meshes.of(2, 2, 2)
    state = jax.device_put(state, sharding.state_shardings(mesh, state))
    base = jax.device_put(base, sharding.state_shardings(mesh, {"params": base})["params"])
    rows = jax.device_put(rows, sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
        after, spread = step(state, rows, base)
    for key in ("loss", "grad_norm"):
        np.testing.assert_allclose(spread[key], alone[key], rtol=1e-4)
    assert strategy_runs.named(after.params).keys() == strategy_runs.named(trained).keys()


BODIES = [  # of the published models, without the head
    ("lora", "roberta", {"heads": ("classifier",), **LABELS}, 12 * 2 * 2 * 8 * 768),  # their 0.3M
    ("bitfit", "bert", BERT, 102_144),  # 0.09% of BERT base
    ("adapters", "bert", BERT, 24 * (2 * 768 * 64 + 64 + 768) + 25 * 2 * 768),
    ("prompts", "bert", BERT, 20 * 768),
    ("features", "bert", BERT, 0),
    ("partial", "bert", BERT, 10 * 7_087_872),
    ("full", "bert", BERT, 109_482_240 - 768 * 769),
]  # fmt: skip


@pytest.mark.parametrize(("name", "family", "fields", "number"), BODIES)
def test_numbers_trained_of_the_body_of_base(name, family, fields, number):
    whole = {**plugins.family(family).VARIANTS["base"], "vocab_size": 30522, **fields}
    trained, frozen, method = strategy_runs.abstract(family, name, whole)
    size = method.fields()["vocab_size"]
    heads = {top: tree for top, tree in trained.items() if top in base.HEADS}
    assert heads
    counts = strategies.counts(trained, frozen, size)
    assert counts["trained"] - strategies.counts(heads, {}, size)["trained"] == number
    plain, _, _ = strategy_runs.abstract(family, "full", whole)
    extra = number if name in ("lora", "prompts") else 0
    extra += 24 * (2 * 768 * 64 + 64 + 768) if name == "adapters" else 0
    assert counts["total"] == strategies.counts(plain, {}, 30522)["trained"] + extra


def test_a_pooler_that_nobody_reads_is_not_trained():
    fields = {**encoders.FIELDS, "heads": ("pooler", "token_classifier"), **LABELS}
    trained, frozen, _ = strategy_runs.abstract("bert", "features", fields)
    assert set(trained) == {"token_classifier"} and "pooler" in frozen


def test_nothing_to_train_is_refused():
    with pytest.raises(errors.UserError, match="frozen_layers = 2: must be fewer, so that"):
        strategy_runs.abstract("bert", "partial", {**encoders.FIELDS, "heads": (), "num_layers": 2})


@pytest.mark.parametrize(
    ("name", "family", "knobs", "said"),
    [
        ("partial", "bert", {"frozen_layers": 4}, "frozen_layers = 4: must be at most 3"),
        (
            "partial",
            "t5",
            {"frozen_layers": 3},
            "frozen_layers = 3: must be at most 2, the layers of the decoder",
        ),
        (
            "partial",
            "albert",
            {},
            "frozen_layers = 2: must be at most 1, the layers of the encoder "
            "(a shared layer counts once)",
        ),
        ("partial", "bert", {"frozen_layers": -1}, "frozen_layers = -1: must be 0 or more"),
        ("layerwise", "bert", {"decay": 0.0}, "decay = 0.0: must be above 0 and at most 1"),
        ("layerwise", "bert", {"decay": 1.5}, "decay = 1.5: must be above 0 and at most 1"),
        ("gradual", "bert", {"layers_per_epoch": 0}, "layers_per_epoch = 0: must be 1 or more"),
        ("adapters", "bert", {"adapter_size": 0}, "adapter_size = 0: must be 1 or more"),
        ("prompts", "bert", {"length": 0}, "length = 0: must be 1 or more"),
        ("bitfit", "t5", {}, "name = 'bitfit': must be another strategy: the model has no biases"),
        ("features", "t5", {}, "name = 'features': must be another strategy"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_key(name, family, knobs, said):
    with pytest.raises(errors.UserError) as caught:
        method = strategy_runs.make(name, family, **knobs)
        params = plugins.abstract_params(plugins.model(family, method.fields()))
        jax.eval_shape(lambda p: method.split(p, jax.random.key(0)), params)
    assert f"config.strategy.{said}" in str(caught.value)


def test_unknown_names_and_knobs_are_refused():
    with pytest.raises(errors.UserError, match=r"config.strategy.name = 'Lora': must be one of ad"):
        strategies.default("Lora")
    with pytest.raises(errors.UserError, match="the strategy 'lora' needs"):
        strategies.make({"name": "lora", **strategies.default("partial")}, encoders.FIELDS)
