"""Replaced token detection: what is sampled, what counts as replaced, and what learns of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

from benchmarks import parity
from bertjax import errors, plugins, sharding
from bertjax import step as step_lib
from bertjax.__main__ import main
from bertjax.artifact import artifact, huggingface, loading
from bertjax.data.batches.rng import RowRandom, row_keys
from bertjax.models import electra
from bertjax.models.common import layers
from bertjax.objectives import replaced_token_detection as rtd
from tests.helpers import encoders, meshes, proofs, synthetic, tiny_model
from tests.parity_cases import electra as case

FIELDS = {
    "vocab_size": 100, "embedding_size": 16, "hidden_size": 32, "num_layers": 2, "num_heads": 8,
    "intermediate_size": 32, "generator_hidden_size": 24, "generator_num_heads": 2,
    "generator_intermediate_size": 40, "max_length": 16, "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}  # fmt: skip
B, L, P, V = 8, 8, 3, 128
CONFIG = rtd.Config()
GRADIENTS = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params), lambda grads, state, params: (grads, grads)
)


def _batch(seed=0):
    """Rows of 4 to 8 tokens with 0 to 3 masks (id 4)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, L + 1, B)
    used = np.arange(P) < (np.arange(B) % (P + 1))[:, None]
    positions = np.where(used, [1, 2, 3], 0).astype(np.int32)
    ids = rng.integers(5, 100, (B, L)).astype(np.int32)
    truth = np.where(used, np.take_along_axis(ids, positions, 1), 0).astype(np.int32)
    for row in range(B):
        ids[row, positions[row][used[row]]] = 4
    return {
        "input_ids": ids,
        "attention_mask": (np.arange(L) < lengths[:, None]).astype(np.int32),
        "masked_positions": positions,
        "masked_ids": truth,
        "masked_weights": used.astype(np.float32),
        "sample_seed": rng.integers(-(2**31), 2**31, B).astype(np.int32),
    }


def _params(model, seed=0):
    rng = np.random.default_rng(seed)

    def one(path, leaf):
        value = 0.3 * rng.standard_normal(leaf.shape, np.float32)
        if sharding.path_name(path) in ("embeddings/word/embedding", "mlm_head/bias"):
            value[model.config.vocab_size :] = 0
        return value + (getattr(path[-1], "key", "") == "scale")

    return jax.tree_util.tree_map_with_path(one, plugins.abstract_params(model))


@functools.cache
def _model(heads=("mlm", "rtd")):
    return plugins.model("electra", {**FIELDS, "heads": heads})


def _losses(params, batch):
    apply = functools.partial(_model().apply, {"params": params})
    found = rtd.loss(CONFIG, apply, batch)
    return {name: total / weight for name, (total, weight) in found.items()}


# --- sampling ------------------------------------------------------------------------------------


def test_samples_have_the_shares_of_the_softmax():
    logits = np.array([2.0, 1.0, 0.0, -1.0, -3.0, 1.5, -1e9], np.float32)
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, 5000).astype(np.int32)
    ids = np.asarray(rtd.sample(jnp.tile(logits, (5000, 8, 1)), seeds))
    shares = np.exp(logits) / np.exp(logits).sum()
    counts = np.bincount(ids.ravel(), minlength=7)
    assert counts[6] == 0
    chi_square = ((counts - ids.size * shares)[:6] ** 2 / (ids.size * shares)[:6]).sum()
    assert chi_square < 20.5, "of 5 degrees of freedom: 1 in 1000"
    same = (shares**2).sum()  # two slots of a row, and two rows, agree as often as chance has it
    assert (ids[:, 0] == ids[:, 1]).mean() == pytest.approx(same, abs=0.03)
    assert (ids[:-1] == ids[1:]).mean() == pytest.approx(same, abs=0.015)


def test_a_rare_token_is_sampled_as_often_as_it_should():
    # 1 in 2,000: a coarse uniform number would not do.
    logits = np.log(np.array([0.9995, 0.0005], np.float32))
    seeds = np.arange(40_000, dtype=np.int32)
    ids = np.asarray(rtd.sample(jnp.tile(logits, (40_000, 4, 1)), seeds))
    assert ids.sum() == pytest.approx(80, abs=36), "four standard deviations"


def test_a_sample_is_a_function_of_its_rows_seed():
    logits = np.random.default_rng(1).standard_normal((B, P, V)).astype(np.float32)
    seeds = _batch()["sample_seed"]
    whole = np.asarray(rtd.sample(logits, seeds))
    order = np.random.default_rng(2).permutation(B)[:5]
    np.testing.assert_array_equal(rtd.sample(logits[order], seeds[order]), whole[order])
    assert (np.asarray(rtd.sample(logits, seeds + 1)) != whole).mean() > 0.5


# --- what the discriminator sees and is asked ----------------------------------------------------


def _run_fakes(batch, sampled, rtd_logits):
    """The terms with a generator that is sure of `sampled` and these answers of the discriminator,
    and the ids that the discriminator saw."""
    seen = {}

    def apply(input_ids, attention_mask, masked_positions=None, *, heads_to_run):
        if heads_to_run == ("mlm",):
            return {"mlm_logits": 100.0 * jax.nn.one_hot(sampled, V)}
        seen["ids"] = np.asarray(input_ids)
        return {"rtd_logits": jnp.asarray(rtd_logits, jnp.float32)}

    found = rtd.loss(CONFIG, apply, batch)
    return {name: (float(s), float(w)) for name, (s, w) in found.items()}, seen["ids"]


def test_a_sample_that_is_the_original_counts_as_original():
    batch = _batch()
    truth, used = batch["masked_ids"], batch["masked_weights"] > 0
    sampled = truth.copy()
    sampled[3, 1] = 7 if truth[3, 1] != 7 else 8
    sampled[~used] = 9  # slots that are not used: nothing of them may be seen
    original, replaced = batch["input_ids"].copy(), np.zeros((B, L), bool)
    for row in range(B):
        at = batch["masked_positions"][row][used[row]]
        original[row, at] = truth[row][used[row]]
    replaced[3, batch["masked_positions"][3, 1]] = True
    real = batch["attention_mask"].astype(bool)

    found, seen = _run_fakes(batch, sampled, np.where(replaced, 3.0, -2.0))
    np.testing.assert_array_equal(seen == original, ~replaced)
    assert seen[replaced] == sampled[3, 1]
    nll = np.log1p(np.exp(-3.0)) + (real.sum() - 1) * np.log1p(np.exp(-2.0))
    assert found["rtd_loss"] == pytest.approx((nll, real.sum()), rel=1e-5)
    assert found["rtd_accuracy"] == (real.sum(), real.sum())
    assert found["rtd_recall"] == (1, 1)

    found, _ = _run_fakes(batch, sampled, np.full((B, L), -2.0))
    assert found["rtd_accuracy"] == (real.sum() - 1, real.sum())
    assert found["rtd_recall"] == (0, 1)


def test_rows_that_fill_up_a_batch_count_nothing():
    batch = _batch() | {"example_weights": np.array([1, 1, 1, 1, 1, 1, 1, 0], np.float32)}
    batch["masked_weights"][7] = 0
    found, _ = _run_fakes(batch, batch["masked_ids"], np.zeros((B, L)))
    assert found["rtd_loss"][1] == batch["attention_mask"][:7].sum()
    weights = rtd.normalizers(CONFIG, batch)
    assert {name: float(w) for name, w in weights.items()} == {
        name: found[name][1] for name in rtd.scales(CONFIG)
    }


def test_every_chosen_token_is_masked_and_every_row_has_its_seed():
    rng = RowRandom(row_keys(0, 0, np.arange(64)))
    ids = np.random.default_rng(0).integers(synthetic.FIRST, 200, (64, 16)).astype(np.int32)
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    made = rtd.transform(CONFIG, 16, synthetic.make_vocabulary(), batch, rng)
    seen = np.take_along_axis(made["input_ids"], made["masked_positions"], 1)
    assert (seen[made["masked_weights"] > 0] == synthetic.SPECIALS.mask).all()
    assert made["sample_seed"].dtype == np.int32 and len(set(made["sample_seed"])) == 64
    declared = rtd.features(CONFIG, 16)
    assert {n: (a.shape[1:], a.dtype) for n, a in made.items()} == declared
    rows = np.array([5, 2])
    again = rtd.transform(
        CONFIG, 16, synthetic.make_vocabulary(), {n: a[rows] for n, a in batch.items()},
        RowRandom(row_keys(0, 0, rows)),
    )  # fmt: skip
    np.testing.assert_array_equal(again["sample_seed"], made["sample_seed"][rows])


@pytest.mark.parametrize("wrong", [{"pair": "nsp"}, {"rtd_weight": -1.0}])
def test_configs_that_are_refused(wrong):
    with pytest.raises(errors.UserError, match=next(iter(wrong))):
        rtd.Config(**wrong)


# --- what learns ---------------------------------------------------------------------------------


def test_generator_learns_of_its_own_loss_alone_and_embeddings_of_both():
    params, batch = _params(_model()), _batch()

    @functools.partial(jax.jit, static_argnames="name")
    def gradients(params, name):
        return jax.grad(lambda p: _losses(p, batch)[name])(params)

    def moved(name):
        flat = artifact.flatten(gradients(params, name))
        return {path for path, leaf in flat.items() if np.abs(leaf).max() > 0}

    generator = {p for p in artifact.flatten(params) if p.startswith(("generator_", "mlm_head/"))}
    shared = {p for p in artifact.flatten(params) if p.startswith("embeddings/")}
    rest = set(artifact.flatten(params)) - generator - shared
    assert len(generator) > 20 and len(shared) == 5 and len(rest) > 20
    assert moved("mlm_loss") == generator | shared
    assert moved("rtd_loss") == rest | shared


@functools.cache
def _compiled(mesh_shape=(1, 1, 1), micro=1):
    mesh = meshes.of(*mesh_shape)
    loss = functools.partial(rtd.loss, CONFIG)
    normalizers = functools.partial(rtd.normalizers, CONFIG)
    schedule = optax.constant_schedule(0.5)
    function = jax.jit(
        step_lib.make_train_step(
            _model(), loss, normalizers, rtd.scales(CONFIG), GRADIENTS, schedule, micro
        )
    )
    state = step_lib.init_state(_params(_model()), GRADIENTS, jax.random.key(3))
    state = jax.device_put(state, sharding.state_shardings(mesh, state))
    with jax.set_mesh(mesh):
        lowered = function.lower(state, sharding.global_batch(mesh, B, _batch()), {})
        compiled = lowered.compile()
        new, report = compiled(state, sharding.global_batch(mesh, B, _batch()), {})
    report = {name: float(value) for name, value in report.items() if name != "terms"}
    return report, artifact.flatten(jax.device_get(new.opt_state)), compiled.as_text()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("mesh_shape", "micro"),
    proofs.all_but([((1, 1, 8), 1), ((2, 2, 2), 2)], ((2, 2, 2), 2)),
)
def test_neither_mesh_nor_micro_batches_change_loss_or_gradients(mesh_shape, micro):
    report, grads, _ = _compiled(mesh_shape, micro)
    expected_report, expected, _ = _compiled()
    assert report == pytest.approx(expected_report, rel=1e-5)
    assert 0 < report["rtd_recall"] < 1, "some tokens were replaced, and not all were found"
    for path in expected:
        # Gradients are large, up to 30, for the discriminator's loss counts 50 times.
        np.testing.assert_allclose(grads[path], expected[path], 1e-4, 2e-4, err_msg=path)


@pytest.mark.proof
def test_logits_over_a_split_vocabulary_are_never_put_together():
    _, _, text = _compiled((1, 1, 8))
    gathers = [line for line in text.splitlines() if " all-gather(" in line]
    assert not [line for line in gathers if f"{B},{P},{V}]" in line.split(" all-gather(")[0]]


# --- the model -----------------------------------------------------------------------------------


@pytest.mark.proof
def test_one_init_makes_all_parameters_and_a_call_runs_what_is_asked():
    model, batch = _model(), _batch()
    params = _params(model)
    names = {path.split("/")[0] for path in artifact.flatten(params)}
    assert names == {
        "embeddings", "project", "encoder", "rtd_head",
        "generator_project", "generator_encoder", "mlm_head",
    }  # fmt: skip
    everything = model.apply({"params": params}, batch["input_ids"])
    assert everything.keys() == {"last_hidden_state", "rtd_logits", "mlm_logits"}
    for heads in (("mlm",), ("rtd",)):
        out = model.apply({"params": params}, batch["input_ids"], heads_to_run=heads)
        assert f"{heads[0]}_logits" in out and len(out) == 1 + (heads == ("rtd",))
        for name in out:
            np.testing.assert_array_equal(out[name], everything[name])
    flops = {h: electra.flops_per_sequence(_model(h).config, 16, 2) for h in [("rtd",), ("mlm",)]}
    both = electra.flops_per_sequence(model.config, 16, 2)
    assert both > flops["rtd",] > both / 2 and flops["mlm",] > 0


def test_parts_give_the_outputs_of_the_whole():
    model, batch = _model(), _batch()
    params = _params(model)
    features = {name: batch[name] for name in ("input_ids", "attention_mask", "masked_positions")}
    whole = model.apply({"params": params}, **features)
    found = electra.parts({**FIELDS, "heads": ("mlm", "rtd")}, params)
    assert found.keys() == {"discriminator", "generator"}
    for name, output in (("discriminator", "rtd_logits"), ("generator", "mlm_logits")):
        fields, part = found[name]
        assert not [key for key in fields if key.startswith("generator_")]
        alone = plugins.model("electra", fields)
        shapes = {p: leaf.shape for p, leaf in artifact.flatten(part).items()}
        abstract = artifact.flatten(plugins.abstract_params(alone))
        assert shapes == {p: leaf.shape for p, leaf in abstract.items()}
        out = alone.apply({"params": part}, **features)
        np.testing.assert_allclose(out[output], whole[output], rtol=1e-6, atol=1e-6)
        assert electra.parts(fields, part) == {name: (fields, part)}


@pytest.mark.parametrize(
    ("part", "class_name"),
    [("discriminator", "ElectraForPreTraining"), ("generator", "ElectraForMaskedLM")],
)
@pytest.mark.parametrize("embedding_size", [16, 24])
def test_a_part_becomes_a_folder_of_theirs_and_comes_back(
    tmp_path, part, class_name, embedding_size
):
    both = encoders.make_artifact(
        "electra", embedding_size=embedding_size, generator_hidden_size=24, generator_num_heads=3
    )
    fields, params = electra.parts(both.fields, both.params)[part]
    model = dataclasses.replace(both, fields=fields, params=params)
    huggingface.write(model, tmp_path / "hf")
    read = huggingface.read(tmp_path / "hf")
    tiny_model.assert_same_params(read.params, params)
    assert read.fields == fields

    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    loaded, info = getattr(transformers, class_name).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], kind
    state = loaded.state_dict()
    for key, tensor in safetensors.numpy.load_file(tmp_path / "hf" / huggingface.WEIGHTS).items():
        np.testing.assert_array_equal(state[key].numpy(), tensor, err_msg=key)
    bare, info = transformers.AutoModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and bare.config.embedding_size == embedding_size


@pytest.mark.parametrize("variant", case.PART_COUNTS)
def test_parameters_of_the_full_size_parts(variant):
    model = plugins.model("electra", electra.VARIANTS[variant])
    fields = {f.name: getattr(model.config, f.name) for f in dataclasses.fields(model.config)}
    compute = {f.name for f in dataclasses.fields(layers.Compute)}
    fields = {name: value for name, value in fields.items() if name not in compute}
    params = plugins.abstract_params(model)
    for name, (_, part) in electra.parts(fields, params).items():
        count = artifact.num_params(part, model.config.vocab_size)
        assert count == case.PART_COUNTS[variant][name]
        if parity.transformers is not None:
            assert count == case.their_part_count(variant, name)


def test_sizes_that_are_refused():
    with pytest.raises(errors.UserError, match="generator_num_heads"):
        electra.Config(generator_hidden_size=10, generator_num_heads=3)
    with pytest.raises(errors.UserError, match="heads"):
        electra.Config(heads=("rtd", "mlm"))


@pytest.mark.proof
def test_export_writes_the_part_that_is_asked_for(tmp_path):
    """The discriminator by default, or the generator."""
    tokenizer = tiny_model.tokenizer()
    model = plugins.model("electra", {**electra.SMOKE, "vocab_size": tokenizer.size})
    how = dataclasses.asdict(layers.Compute())
    fields = {name: value for name, value in vars(model.config).items() if name not in how}
    params = jax.device_get(plugins.init_params(model, jax.random.key(0)))
    artifact.write(artifact.Artifact("electra", fields, params, tokenizer), tmp_path / "both")
    for part, heads in (("", ("rtd",)), ("generator", ("mlm",))):
        folder = str(tmp_path / f"hf{part}")
        main(["export", f"--model={tmp_path / 'both'}", f"--output={folder}", f"--part={part}"])
        found = loading.load(folder)
        assert found.fields["heads"] == heads
        tiny_model.assert_same_params(
            found.params, electra.parts(fields, params)[part or "discriminator"][1]
        )
    with pytest.raises(errors.UserError, match="must be one of discriminator, generator"):
        artifact.part(loading.load(tmp_path / "both"), "teacher")
