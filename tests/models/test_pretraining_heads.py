"""Pretraining heads on every encoder: what they learn, pairs, and what an export keeps."""

import functools
import json

import jax
import numpy as np
import optax
import pytest

from bertjax import config as config_lib
from bertjax import errors, plugins
from bertjax.__main__ import main
from bertjax.artifact import artifact, huggingface
from bertjax.data.batches import rng
from bertjax.models.common import encoders as encoders_lib
from tests.helpers import encoders, proofs, synthetic, tiny_model

ENCODERS = [name for name in plugins.families() if plugins.family(name).KIND == "encoder"]
LENGTH = 32
VOCABULARY = synthetic.make_vocabulary()
SIZES = {
    "vocab_size": VOCABULARY.size, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
    "intermediate_size": 24, "max_length": LENGTH,
}  # fmt: skip


def chosen(tmp_path, family, variant="mini", **overrides):
    """The config of a file that names the family alone, with these overrides."""
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax import config as config_lib\n"
        f"def get_config(arg=''):\n    return config_lib.default({family!r}, {variant!r})\n"
    )
    overrides = {name.replace("__", "."): value for name, value in overrides.items()}
    if family == "modernbert" and overrides.get("objective.pair", "none") != "none":
        overrides["objective.packing"] = "False"  # its own objective packs single texts
    return config_lib.load(file, overrides)


def first_batch(objective, config):
    """Twelve rows of made-up text."""
    sampling = objective.sampling(config, LENGTH, VOCABULARY)
    window = sampling.window(synthetic.records(20))
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(0, 0, np.array([0]))))[:12]
    rows = sampling.assemble(window, table)
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(len(table))))
    return objective.transform(config, LENGTH, VOCABULARY, rows, random)


# --- every objective on every encoder ------------------------------------------------------------


@pytest.mark.parametrize("family", ENCODERS)
def test_one_changed_line_gives_the_heads(tmp_path, family):
    pooler = ("pooler",) if "pooler" in plugins.family(family).HEADS else ()
    changes = {
        ("mlm", "nsp"): (*pooler, "mlm", "nsp"),
        ("mlm", "sop"): (*pooler, "mlm", "sop"),
        ("span_boundary", "none"): ("mlm", "sbo"),
        ("replaced_token_detection", "none"): ("mlm", "rtd"),
    }
    for (objective, pair), heads in changes.items():
        config = chosen(tmp_path, family, objective__name=objective, objective__pair=pair)
        assert config.model.heads == heads, (objective, pair)
    config = chosen(tmp_path, family, objective__name="span_boundary", objective__pair="nsp")
    assert config.model.heads == (*pooler, "mlm", "nsp", "sbo")


def test_table_5_of_albert_is_three_values_of_one_key(tmp_path):
    heads = {
        pair: chosen(tmp_path, "albert", objective__pair=pair).model.heads
        for pair in ("none", "nsp", "sop")
    }
    assert heads["nsp"] == ("pooler", "mlm", "nsp") and heads["sop"] == ("pooler", "mlm", "sop")
    assert "nsp" not in heads["none"]


def test_heads_that_were_set_are_not_changed(tmp_path):
    with pytest.raises(errors.UserError, match=r"model.heads = .*: must be a tuple with 'nsp'"):
        chosen(tmp_path, "albert", model__heads="('mlm',)", objective__pair="nsp")
    kept = ("pooler", "mlm", "nsp", "sop")
    config = chosen(tmp_path, "bert", model__heads=str(kept), objective__pair="sop")
    assert config.model.heads == kept
    for objective in ("replaced_token_detection", "distillation"):
        with pytest.raises(errors.UserError, match=r"objective\.pair = 'sop': must be 'none'"):
            chosen(tmp_path, "bert", objective__name=objective, objective__pair="sop")


LEARNED = [
    ("albert", "mlm", "nsp", {"nsp_head", "pooler"}),  # token types
    ("modernbert", "mlm", "sop", {"sop_head"}),  # neither token types nor a pooler
    ("roberta", "span_boundary", "nsp", {"sbo_head", "nsp_head", "pooler"}),  # one type
    ("albert", "replaced_token_detection", "none", {"rtd_head", "generator_encoder"}),
]


@pytest.mark.parametrize(
    ("family", "objective", "pair", "trained"), proofs.all_but(LEARNED, LEARNED[1])
)
def test_the_loss_falls_and_every_parameter_of_the_heads_learns(
    tmp_path, family, objective, pair, trained
):
    chosen_config = chosen(tmp_path, family, objective__name=objective, objective__pair=pair)
    module, config = plugins.objective(objective), plugins.objective_config(chosen_config)
    dropout = [name for name in chosen_config.model if name.endswith("dropout_rate")]
    fields = {**SIZES, **dict.fromkeys(dropout, 0.0), "init_std": 0.1}
    model = plugins.model(family, {**fields, "heads": chosen_config.model.heads})
    batch, scales = first_batch(module, config), module.scales(config)
    optimizer = optax.adam(3e-3)

    def total(params):
        terms = module.loss(config, functools.partial(model.apply, {"params": params}), batch)
        losses = {name: terms[name][0] / terms[name][1] for name in scales}
        return sum(factor * losses[name] for name, factor in scales.items()), losses

    @jax.jit
    def step(params, state):
        (_, losses), grads = jax.value_and_grad(total, has_aux=True)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, losses, grads

    params = jax.jit(functools.partial(plugins.init_params, model))(jax.random.key(0))
    state = optimizer.init(params)
    params, state, first, grads = step(params, state)
    for _ in range(30):
        params, state, last, _ = step(params, state)
    for name in scales:
        assert last[name] < first[name] - 0.01, name
    assert trained <= set(grads)
    for path, leaf in artifact.flatten(grads).items():
        if path.split("/")[0] in trained and not path.endswith("key/bias"):
            assert np.abs(leaf).max() > 0, path


# --- pairs for replaced token detection ----------------------------------------------------------


def pair_of(family, **fields):
    """A pair with a generator of one layer and a discriminator of three."""
    return encoders.make_artifact(family, heads=("mlm", "rtd"), **fields)


@pytest.mark.parametrize("family", ["modernbert"])
def test_a_pair_is_split_into_two_models_of_its_family(family):
    whole = pair_of(family)
    ids = np.random.default_rng(0).integers(5, 50, (2, 8)).astype(np.int32)
    outputs = plugins.model(family, whole.fields).apply({"params": whole.params}, ids)
    for name, layers, heads in (("discriminator", 3, ("rtd",)), ("generator", 1, ("mlm",))):
        part = artifact.part(whole, name)
        assert part.fields == {**whole.fields, "num_layers": layers, "heads": heads}
        found = plugins.model(family, part.fields).apply({"params": part.params}, ids)
        logits = f"{heads[0]}_logits"
        np.testing.assert_allclose(found[logits], outputs[logits], rtol=1e-5, atol=1e-5)
    assert artifact.part(whole).fields["heads"] == ("rtd",)
    np.testing.assert_array_equal(
        artifact.part(whole, "generator").params["embeddings"]["word"]["embedding"],
        whole.params["embeddings"]["word"]["embedding"],
    )


def test_a_model_that_is_no_pair_has_no_parts():
    with pytest.raises(errors.UserError, match="--part=generator: bert has no parts"):
        artifact.part(tiny_model.make(heads=("mlm",)), "generator")


def test_generators_keep_the_groups_of_an_albert():
    albert = plugins.family("albert").Config(num_layers=12, num_groups=4, heads=("mlm", "rtd"))
    assert albert.generator_num_layers == albert.generator.num_layers == 4
    one_layer = plugins.family("bert").Config(num_layers=1, heads=("mlm", "rtd"))
    assert one_layer.generator.num_layers == 1
    assert plugins.family("deberta").Config(generator_num_layers=5).generator.num_layers == 5


# --- Hugging Face folders ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ENCODERS)
def test_every_parameter_has_a_name_of_theirs_or_is_dropped(family):
    module = plugins.family(family)
    named = {line[0] for line in module.HF_NAMES}
    pretraining = [head for head in module.HEADS if head in ("pooler", *encoders_lib.PRETRAINING)]
    for left_out in ("rtd", "mlm"):  # a pair is exported in parts
        heads = tuple(head for head in pretraining if head != left_out)
        fields = {**module.SMOKE, "heads": heads}
        paths = artifact.flatten(plugins.abstract_params(plugins.model(family, fields)))
        unnamed = {path for path in paths if path not in named}
        assert unnamed == {path for path in paths if path.startswith(module.HF_DROPPED)}
        for head in heads:
            if head not in ("pooler", "mlm"):
                theirs = any(path.startswith(f"{head}_head/") for path in named)
                assert theirs != (f"{head}_head/" in module.HF_DROPPED), head


@pytest.mark.parametrize(
    ("family", "heads", "class_name", "kept"),  # a folder of a SpanBERT is one of a BERT
    [
        ("albert", ("pooler", "mlm", "nsp"), "AlbertForPreTraining", ("pooler", "mlm")),
        ("spanbert", ("pooler", "nsp", "sbo"), "BertForNextSentencePrediction", ("pooler", "nsp")),
        ("bert", ("pooler", "mlm", "nsp", "sbo"), "BertForPreTraining", ("pooler", "mlm", "nsp")),
        ("modernbert", ("mlm", "sop"), "ModernBertForMaskedLM", ("mlm",)),
        ("roberta", ("rtd",), "RobertaModel", ()),
    ],
)
def test_a_folder_keeps_what_their_class_has_and_export_names_the_rest(
    tmp_path, capsys, family, heads, class_name, kept
):
    made = encoders.make_artifact(family, heads=heads)
    artifact.write(made, tmp_path / "artifact")
    again = artifact.read(tmp_path / "artifact")
    tiny_model.assert_same_params(again.params, made.params)
    assert main(["export", f"--model={tmp_path}/artifact", f"--output={tmp_path}/hf"]) == 0
    told = capsys.readouterr().out
    content = json.loads((tmp_path / "hf" / huggingface.CONFIG).read_text())
    assert content["architectures"] == [class_name]
    read = huggingface.read(tmp_path / "hf")
    assert read.family == family.removeprefix("span") and read.fields["heads"] == kept
    lost = {path for path in artifact.flatten(made.params) if path.split("_head/")[0] in heads
            and path.split("_head/")[0] not in kept}  # fmt: skip
    assert lost and f"lacks it: {', '.join(sorted(lost))}" in told.replace("\n", "")
    whole = {path: leaf for path, leaf in artifact.flatten(made.params).items() if path not in lost}
    tiny_model.assert_same_params(read.params, artifact.unflatten(whole))
