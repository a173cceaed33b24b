"""One contract for all families and objectives: what each of them says of itself is so."""

import dataclasses
import functools
import inspect
import math

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import errors, experiment, plugins
from bertjax import phases as phases_lib
from bertjax.artifact import artifact, hf_config
from bertjax.models.common import layers
from bertjax.objectives import mlm
from tests import test_config
from tests.helpers import proofs, tiny_runs

PAIRS = tiny_runs.pairs()
OBJECTIVES = sorted({name for kind in ("encoder", "decoder", "encoder_decoder")
                     for name in plugins.objectives_of(kind)})  # fmt: skip
# The head that no other family has: these objectives are of one family alone.
OWN_HEADS = {"span_boundary": {"sbo"}, "replaced_token_detection": {"rtd"}}
# Distillation reads the logits that mlm trains, so three encoders stand for all.
DISTILLED = ("bert", "distilbert", "modernbert")
TRAINED = [pair for pair in PAIRS if pair[1] != "distillation" or pair[0] in DISTILLED]


def _all_but(kept):
    return proofs.all_but([(pair,) for pair in TRAINED], *((pair,) for pair in kept))


# One pair of each family and one of each objective; the other pairs are proofs.
REPRESENTATIVES = {**{pair[0]: pair for pair in TRAINED}, **{pair[1]: pair for pair in TRAINED}}
# Train steps take long to compile: a pair of each kind of model, and both objectives that train
# two models.
STEPPED = [("bert", "mlm"), ("electra", "replaced_token_detection"), ("gpt2", "causal_lm"),
           ("modernbert", "distillation"), ("t5", "span_corruption")]  # fmt: skip
takes_steps = pytest.mark.parametrize("run", _all_but(STEPPED), ids="-".join, indirect=True)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return tiny_runs.write_teacher(tmp_path_factory.mktemp("teacher") / "artifact")


@pytest.fixture(scope="module", params=_all_but(REPRESENTATIVES.values()), ids="-".join)
def run(request, teacher):
    return tiny_runs.Run(tiny_runs.make_config(*request.param, teacher))


@functools.cache
def _two_steps(run):
    """(first report, its gradients, second report, parameters after it)."""
    first, state = run.step(run.batch(0))
    gradients = tiny_runs.gradients(state)
    second, state = run.step(run.batch(1), state)
    return first, gradients, second, artifact.flatten(jax.device_get(state.params))


def _main(run):
    return next(iter(run.experiment.scales))


# --- every family on every objective -------------------------------------------------------------


@pytest.mark.parametrize("family", tiny_runs.FAMILIES)
def test_another_objective_is_one_changed_word(family):
    for objective in plugins.objectives_of(plugins.family(family).KIND):
        lacking = tiny_runs.lacking_heads(family, objective)
        assert lacking in (set(), OWN_HEADS.get(objective)), objective
        if not lacking:
            config_lib.validate(config_lib.default(family, "mini", objective))


def test_every_objective_trains_some_family():
    assert {objective for _, objective in PAIRS} == set(OBJECTIVES)
    assert {family for family, _ in PAIRS} == set(tiny_runs.FAMILIES)


def _assert_as_declared(of, phase, batch):
    declared = of.objective.features(of.objective_config, phase.length)
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
        name: ((tiny_runs.BATCH_SIZE, *shape), np.dtype(dtype))
        for name, (shape, dtype) in declared.items()
    }
    for name in set(batch) & {"input_ids", "decoder_input_ids", "masked_ids", "targets"}:
        assert batch[name].min() >= 0 and batch[name].max() < tiny_runs.VOCAB_SIZE, name
    (weights,) = (batch[name] for name in tiny_runs.WEIGHTS if name in batch)
    assert weights.shape[1] == of.objective.predictions(of.objective_config, phase.length)


def test_batch_has_the_features_that_are_declared(run):
    _assert_as_declared(run.experiment, run.phase, run.batch(0))


def test_and_so_has_a_batch_packed_the_other_way(run):
    config = config_lib.from_dict(run.experiment.config.to_dict())
    config.objective.packing = not config.objective.packing
    if "pair" in config.objective:
        config.objective.pair = "none"
    of, (phase,) = experiment.Experiment(config), phases_lib.of(config)
    batch = of.stream(tiny_runs.DATA, tiny_runs.VOCABULARY, phase).batch(0)
    assert ("segment_ids" in batch) == config.objective.packing != ("attention_mask" in batch)
    _assert_as_declared(of, phase, batch)


@takes_steps
def test_first_loss_is_that_of_a_guess_and_steps_are_finite(run):
    first, _, second, _ = _two_steps(run)
    # Logits of T5 start with a variance of 1, which costs half a nat, more or less.
    t5 = plugins.family_of(run.experiment.model).KIND == "encoder_decoder"
    guess = math.log(tiny_runs.VOCAB_SIZE) + (0.5 if t5 else 0.0)
    assert first[_main(run)] == pytest.approx(guess, abs=0.5 if t5 else 0.25)
    for report in (first, second):
        assert all(map(math.isfinite, report.values())) and report["skipped"] == 0


@takes_steps
def test_losses_are_those_that_are_scaled_and_normalized(run):
    of, batch = run.experiment, run.eval_batch(tiny_runs.BATCH_SIZE)
    terms, _ = run.evaluate(batch)
    weights = of.objective.normalizers(of.objective_config, batch)
    assert list(of.scales) == [name for name in of.scales if name in weights and name in terms]
    assert weights.keys() == of.scales.keys()
    for name, weight in weights.items():
        assert terms[name][1] == float(weight) > 0, name
    report = _two_steps(run)[0]
    total = sum(factor * report[name] for name, factor in of.scales.items())
    assert report["loss"] == pytest.approx(total, rel=1e-5)
    assert terms.keys() <= report.keys()


@takes_steps
def test_every_parameter_of_every_layer_has_a_gradient(run):
    gradients = _two_steps(run)[1]
    assert gradients.keys() == artifact.flatten(run.params()).keys()
    largest = max(np.abs(leaf).max() for leaf in gradients.values())
    for path, leaf in gradients.items():
        stacked = leaf if "/layers/" in path else leaf[None]
        of_layers = np.abs(stacked).reshape(len(stacked), -1).max(axis=1) / largest
        # The same for all keys of a query, which softmax undoes; DeBERTa's queries of positions see
        # what it adds to a key.
        if path.endswith("key/bias") and run.experiment.config.family != "deberta":
            assert of_layers.max() < 1e-6, path
        else:
            assert of_layers.min() > 1e-6, path


@takes_steps
def test_rows_that_pad_the_vocabulary_stay_zero_and_are_never_predicted(run):
    after = _two_steps(run)[3]
    padded = 0
    for path, leaf in after.items():
        real = artifact.real_shape(path, leaf.shape, tiny_runs.VOCAB_SIZE)
        beyond = np.ones(leaf.shape, bool)
        beyond[tuple(map(slice, real))] = False
        padded += beyond.sum()
        assert not leaf[beyond].any(), path
        assert np.any(leaf[~beyond] != artifact.flatten(run.params())[path][~beyond]), path
    assert padded
    _, logits = run.evaluate(run.eval_batch(tiny_runs.BATCH_SIZE))
    assert logits
    for scores in logits:
        assert scores.dtype == np.float32
        assert scores[..., tiny_runs.VOCAB_SIZE :].max() < 0.99 * layers.MASKED
        assert np.abs(scores[..., : tiny_runs.VOCAB_SIZE]).max() < 100


def test_rows_that_fill_an_evaluation_batch_add_nothing(run):
    whole, start = run.eval_batch(tiny_runs.BATCH_SIZE), run.eval_batch(5)
    np.testing.assert_array_equal(start["example_weights"], np.arange(tiny_runs.BATCH_SIZE) < 5)
    rest = {name: value.copy() for name, value in whole.items()}
    for name, value in rest.items():
        value[:5] = start[name][-1]
    parts = [run.evaluate(batch)[0] for batch in (start, rest)]
    for name, (total, weight) in run.evaluate(whole)[0].items():
        found = sum(part[name] for part in parts)
        np.testing.assert_allclose(found, (total, weight), 1e-5, 1e-5, err_msg=name)


def test_flops_are_those_of_the_products_in_the_forward_pass(run):
    of = run.experiment
    predictions = of.objective.predictions(of.objective_config, run.phase.length)
    told = sum(
        plugins.family_of(model).flops_per_sequence(
            tiny_runs.with_whole_windows(model.config), run.phase.length, predictions
        )
        for model in (of.model, *of.frozen_models.values())
    )
    counted = tiny_runs.matmul_flops(run.traced_eval.jaxpr.jaxpr)
    assert told == pytest.approx(counted / tiny_runs.BATCH_SIZE, rel=0.02)


# --- what a file has to say ----------------------------------------------------------------------


@pytest.mark.parametrize("family", tiny_runs.FAMILIES)
def test_family_has_all_that_others_ask_of_it(family):
    module = plugins.family(family)
    fields = {field.name for field in dataclasses.fields(module.Config)}
    assert issubclass(module.Config, layers.Compute)
    assert {"vocab_size", "max_length", "heads"} <= fields
    assert module.KIND in ("encoder", "decoder", "encoder_decoder")
    assert set(module.INPUTS) <= set(inspect.signature(module.Model.__call__).parameters)
    assert module.OBJECTIVE["name"] in plugins.objectives_of(module.KIND)
    own = plugins.objective(module.OBJECTIVE["name"]).Config
    assert set(module.OBJECTIVE) - {"name"} <= {field.name for field in dataclasses.fields(own)}
    mini = module.Config(**module.VARIANTS["mini"])
    assert (mini.num_layers, mini.hidden_size, mini.num_heads) == (4, 256, 4)
    assert set(module.SMOKE) <= fields
    for variant in module.VARIANTS.values():
        small = module.Config(**{**variant, **module.SMOKE})
        assert (small.num_layers, small.hidden_size, small.max_length) == (2, 64, 64)


def test_every_model_type_has_one_family_that_reads_what_it_writes():
    readers = list(hf_config.readers())
    assert len(readers) == len(dict(readers))
    assert dict(readers).keys() >= {"bert", "mt5", "camembert", "xlm-roberta"}
    assert set(dict(readers).values()) == set(plugins.families())
    for name in plugins.families():
        written = plugins.family(name).HF_CONFIG["model_type"]
        assert dict(readers)[written] == ("bert" if name == "spanbert" else name)


def test_a_folder_is_read_by_the_family_that_declares_its_model_type(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "camembert"}')
    assert hf_config.read(file)[1] == "roberta"
    file.write_text('{"model_type": "another"}')
    with pytest.raises(errors.UserError, match=r"'another' is not supported; .* xlm-roberta$"):
        hf_config.read(file)
    monkeypatch.setattr(plugins.family("gpt2"), "HF_MODEL_TYPES", ("gpt2", "another"))
    assert hf_config.read(file)[1] == "gpt2"


@pytest.mark.parametrize("family", tiny_runs.FAMILIES)
def test_hugging_face_tables_name_every_parameter(family):
    module = plugins.family(family)
    own = {field.name for field in dataclasses.fields(module.Config)}
    assert {"model_type", "fields", "fixed", "architectures"} <= module.HF_CONFIG.keys()
    assert set(module.HF_CONFIG["fields"].values()) <= own
    assert isinstance(module.HF_TIED, dict) and isinstance(module.HF_SKIPPED, tuple)
    assert isinstance(module.HF_PREFIX, str)
    named = {line[0] for line in module.HF_NAMES}
    dropped = getattr(module, "HF_DROPPED", ())
    exported = list(module.HF_CONFIG["architectures"])
    for heads in exported:
        if any(set(heads) < set(other) for other in exported):
            continue
        fields = {**module.SMOKE, "heads": heads}
        params = plugins.abstract_params(plugins.model(family, fields))
        unnamed = set(artifact.flatten(params)) - named
        assert all(path.startswith(dropped) for path in unnamed), unnamed


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective_has_all_that_others_ask_of_it(name):
    module, pattern = plugins.objective(name), mlm
    assert set(module.KINDS) <= {"encoder", "decoder", "encoder_decoder"}
    for function in ("predictions", "heads", "scales", "features", "sampling", "transform",
                     "normalizers", "loss"):  # fmt: skip
        asked = list(inspect.signature(getattr(pattern, function)).parameters)
        there = inspect.signature(getattr(module, function)).parameters
        assert list(there)[: len(asked)] == asked, function
    made = module.Config()
    assert dataclasses.is_dataclass(made) and made.__dataclass_params__.frozen
    assert list(module.scales(made)) and all(f > 0 for f in module.scales(made).values())


# --- configs -------------------------------------------------------------------------------------

MINI = next(path for path in test_config.CONFIGS if path.stem == "mini")


def test_every_family_has_a_config_of_its_own():
    configs = [config_lib.load(str(path)) for path in test_config.CONFIGS]
    assert {config.family for config in configs} == set(tiny_runs.FAMILIES)


@pytest.mark.parametrize("family", tiny_runs.FAMILIES)
def test_every_family_has_a_mini(family):
    config = config_lib.load(f"{MINI}:{family}")
    assert config.family == family and config.topology == "v5e-1"
    assert (config.model.num_layers, config.model.hidden_size) == (4, 256)


@pytest.mark.parametrize("arg", ["", ":smoke"])
@pytest.mark.parametrize("path", test_config.CONFIGS, ids=lambda path: path.stem)
def test_text_can_be_sampled_at_every_length_of_a_config(path, arg):
    config = config_lib.load(f"{path}{arg}")
    of = experiment.Experiment(config)
    for phase in phases_lib.of(config):
        of.sampling(phase.length, tiny_runs.VOCABULARY)
        assert of.objective.features(of.objective_config, phase.length)
