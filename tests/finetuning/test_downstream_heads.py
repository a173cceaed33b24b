"""The heads of fine-tuning, adapters, and how a checkpoint becomes a model with them."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax import errors, plugins, sharding
from bertjax.artifact import artifact, loading
from bertjax.finetuning import initial_model
from bertjax.models.common import heads as heads_lib
from tests.helpers import downstream, encoders, proofs

FAMILIES = [name for name in plugins.families() if name != "t5"]
some_families = pytest.mark.parametrize(
    "family", proofs.all_but(FAMILIES, "bert", "modernbert", "gpt2")
)
KEY = jax.random.key(3)


@functools.cache
def _source(family):
    return downstream.soft(encoders.make_artifact(family, "bpe"))


def _start(family, heads, key=KEY, labels=(), **fields):
    name, fields, params = initial_model.model(_source(family), heads, fields, key, labels=labels)
    return plugins.model(name, fields), artifact.flatten(params)


@functools.cache
def _with_all(family):
    return _start(family, () if family == "t5" else heads_lib.DOWNSTREAM, num_labels=3)


@functools.partial(jax.jit, static_argnames=("model",))
def _forward(model, flat, batch):
    return model.apply({"params": artifact.unflatten(flat)}, **batch)


L = downstream.L
BATCH = downstream.batch(_source("bert").tokenizer)
SIZES = {"classifier": (4, 3), "token_classifier": (4, L, 3), "span": (4, L, 2)}


@some_families
def test_heads_say_what_they_should(family):
    model, flat = _with_all(family)
    assert set(heads_lib.DOWNSTREAM) <= set(model.config.heads)
    outputs = _forward(model, flat, BATCH)
    for head, name in downstream.OUTPUTS.items():
        assert outputs[name].shape == SIZES[head] and outputs[name].dtype == np.float32
        moved = {
            path: leaf + 0.1 if path.startswith(f"{head}/") else leaf for path, leaf in flat.items()
        }
        for other, theirs in _forward(model, moved, BATCH).items():
            same = np.array_equal(theirs, outputs[other])
            assert same == (other != name), (head, other)


def test_modernberts_classifier_reads_the_mean_where_the_config_says_so():
    """Also of a checkpoint that is fine-tuned here: the field is the model's."""
    source = _source("modernbert")
    fields = source.fields | {"classifier_pooling": "mean"}
    source = dataclasses.replace(source, fields=fields)
    name, fields, params = initial_model.model(source, ("classifier",), {"num_labels": 3}, KEY)
    model, flat = plugins.model(name, fields), artifact.flatten(params)
    outputs = _forward(model, flat, BATCH)
    real_BL1 = BATCH["attention_mask"][..., None] > 0
    mean = np.mean(outputs["last_hidden_state"], axis=1, where=real_BL1)
    np.testing.assert_allclose(outputs["class_features"], mean, atol=1e-6)
    alone = model.apply({"params": params}, outputs["class_features"], method="classify")
    np.testing.assert_allclose(alone, outputs["class_logits"], atol=1e-5)


@some_families
def test_features_are_classified_without_the_encoder(family):
    model, flat = _with_all(family)
    outputs = _forward(model, flat, BATCH)
    of_head = {p: leaf for p, leaf in flat.items() if p.split("/")[0] in ("pooler", "classifier")}
    params = {"params": artifact.unflatten(of_head)}
    alone = model.apply(params, outputs["class_features"], deterministic=True, method="classify")
    np.testing.assert_allclose(alone, outputs["class_logits"], atol=1e-5)


@some_families
def test_the_whole_sequence_decides_the_class_and_padding_does_not(family):
    """The first token's answer in encoders, the last one's, which alone has seen all, in GPT-2."""
    model, flat = _with_all(family)
    real = BATCH["attention_mask"] > 0
    base = _forward(model, flat, BATCH)["class_logits"]
    padded = BATCH | {"input_ids": np.where(real, BATCH["input_ids"], 7)}
    np.testing.assert_allclose(_forward(model, flat, padded)["class_logits"], base, atol=1e-6)
    for place in (0, 3):  # of the first two rows
        ids = BATCH["input_ids"].copy()
        ids[:2, place] = 9
        changed = _forward(model, flat, BATCH | {"input_ids": ids})["class_logits"]
        moved = abs(changed - base).max(axis=1)
        assert (moved[:2] > 1e-5).all() and (moved[2:] < 1e-6).all(), place


@pytest.mark.parametrize("family", proofs.all_but(FAMILIES, "bert", "albert", "gpt2"))
def test_heads_drop_out_where_their_classes_do(family):
    model, flat = _with_all(family)
    rates = {name: 0.0 for name in vars(model.config) if name.endswith("dropout_rate")}
    calm = type(model)(dataclasses.replace(model.config, **rates))
    params, features = {"params": artifact.unflatten(flat)}, np.ones((2, 16), np.float32)

    def drops(model):
        say = functools.partial(model.apply, params, features, method="classify")
        noisy = say(deterministic=False, rngs={"dropout": KEY})
        return not np.array_equal(say(), noisy)

    assert drops(model) == (family not in ("gpt2", "modernbert"))
    assert drops(calm) == (family in ("albert", "distilbert"))  # these have rates of their own


@pytest.mark.parametrize("family", proofs.all_but(plugins.families(), "bert", "t5"))
def test_fresh_adapters_change_next_to_nothing_and_then_much(family):
    batch = BATCH | ({"decoder_input_ids": BATCH["input_ids"]} if family == "t5" else {})
    model, flat = _with_all(family)
    wider, whole = _start(family, model.config.heads, num_labels=3, adapter_size=4)
    new = set(whole) - set(flat)
    assert all("/adapter/" in path for path in new)
    for path, leaf in flat.items():
        if path.split("/")[0] not in (*heads_lib.DOWNSTREAM, "pooler"):
            np.testing.assert_array_equal(whole[path], leaf)
    parts = {"albert": 2, "t5": 3 * 2 + 6 * 3}.get(family, 3 * 2)  # of all layers
    assert sum(whole[path].size for path in new) == parts * (2 * 16 * 4 + 16 + 4)
    for path in new:
        assert len(sharding.param_axes(path)) == whole[path].ndim and whole[path].std() < 2e-3
    base = _forward(model, flat, batch)["last_hidden_state"]
    small = _forward(wider, whole, batch)["last_hidden_state"]
    assert 0 < abs(small - base).max() < 0.01
    loud = {path: leaf * 1000 if path in new else leaf for path, leaf in whole.items()}
    assert abs(_forward(wider, loud, batch)["last_hidden_state"] - base).max() > 0.1


# --- from a checkpoint ---------------------------------------------------------------------------


@some_families
def test_the_encoder_is_the_checkpoints_and_the_head_is_drawn(family):
    source = _source(family)
    part = artifact.flatten(artifact.part(source).params)
    model, flat = _start(family, ("classifier",), num_labels=3)
    _, other = _start(family, ("classifier",), jax.random.key(4), num_labels=3)
    wanted = {"pooler"} if "pooler" in model.config.heads else set()
    assert {path.split("/")[0] for path in flat} & {"mlm_head", "rtd_head", "nsp_head"} == set()
    assert wanted == ({"pooler"} if family in ("bert", "albert", "spanbert") else set())
    for path, leaf in flat.items():
        if path in part:
            np.testing.assert_array_equal(leaf, part[path])
        elif path.endswith("logits/kernel"):
            assert (leaf != other[path]).any() and 0.005 < leaf.std() < 0.03
    body = [path for path in flat if path.split("/")[0] in ("embeddings", "encoder", "decoder")]
    assert body and all(path in part for path in body)


@pytest.mark.parametrize("layout", [heads_lib.PLAIN, heads_lib.Layout(activation="tanh")])
def test_a_fresh_head_deviates_as_it_does_in_transformers(layout):
    config = encoders.make("bert", init_std=0.05)[0].config
    head = heads_lib.Downstream(config, num_labels=400, layout=layout)
    params = head.init(KEY, np.zeros((1, 500), np.float32), deterministic=True)["params"]
    kernels = [each["kernel"] for each in params.values()]
    assert len(kernels) == 1 + bool(layout.activation)
    for kernel in kernels:  # 200,000 draws
        assert kernel.std() == pytest.approx(0.05, rel=0.01)


def test_modernberts_heads_start_with_its_mlm_head():
    _, flat = _start("modernbert", ("span",))
    theirs = artifact.flatten(_source("modernbert").params)
    for name in ("transform/kernel", "norm/scale"):
        np.testing.assert_array_equal(flat[f"span/{name}"], theirs[f"mlm_head/{name}"])


def test_a_head_stays_only_for_the_same_kind_and_labels():
    source = downstream.make("bert", "ForSequenceClassification")
    own = source.params["classifier"]["logits"]["kernel"]

    def kernel(labels, heads=("classifier",), count=3, kind="classification"):
        params = initial_model.model(source, heads, {"num_labels": count}, KEY, kind, labels)[2]
        return params["classifier"]["logits"]["kernel"]

    np.testing.assert_array_equal(kernel(downstream.LABELS), own)
    assert (kernel(downstream.LABELS[::-1]) != own).any()
    assert (kernel(downstream.LABELS, kind="multiple_choice") != own).any()
    assert kernel(["a", "b"], count=2).shape == (16, 2)


def test_no_heads_keep_what_writes_text_and_leave_the_pooler():
    for family, heads in (
        ("gpt2", ("lm",)),
        ("t5", ("lm",)),
        ("bert", ("pooler",)),
        ("roberta", ()),
    ):
        model, flat = _start(family, ())
        assert model.config.heads == heads
        assert not any(path.startswith("mlm_head") for path in flat)


def test_a_decoder_that_classified_writes_again():
    source = encoders.make_artifact("gpt2", "bpe")
    name, fields, params = initial_model.model(source, ("classifier",), {"num_labels": 3}, KEY)
    assert fields["heads"] == ("classifier",)
    classifier = dataclasses.replace(source, fields=fields, params=params)
    _, fields, params = initial_model.model(classifier, (), {}, KEY)
    assert fields["heads"] == ("lm",) and name == "gpt2"
    downstream.assert_same_params(params, source.params)


def test_roberta_reads_the_pooler_for_multiple_choice():
    model, flat = _start("roberta", ("pooler", "classifier"), num_labels=1)
    assert model.config.heads == ("pooler", "classifier")
    assert "classifier/transform/kernel" not in flat and "pooler/dense/kernel" in flat
    model, _ = _start("distilbert", ("pooler", "classifier"), num_labels=1)
    assert model.config.heads == ("classifier",)


def test_rows_of_new_pieces_are_drawn_and_the_old_ones_stay():
    source = _source("bert")
    pieces = source.fields["vocab_size"]
    old = source.params["embeddings"]["word"]["embedding"]
    for more in (20, 200):  # within the rows of padding, and beyond
        _, flat = _start("bert", ("classifier",), num_labels=2, vocab_size=pieces + more)
        table = flat["embeddings/word/embedding"]
        assert len(table) == -(-(pieces + more) // 128) * 128
        np.testing.assert_array_equal(table[:pieces], old[:pieces])
        assert (abs(table[pieces : pieces + more]).max(axis=1) > 0).all()
        assert not table[pieces + more :].any()


@pytest.mark.parametrize(
    ("family", "heads", "fields", "word"),
    [
        ("t5", ("classifier",), {"num_labels": 2}, "no head classifier"),
        ("bert", ("lm",), {}, "no head lm"),
        ("bert", ("classifier",), {}, "num_labels"),
        ("bert", ("classifier",), {"num_labels": 2, "hidden_size": 32}, "shape"),
        ("bert", ("classifier",), {"num_labels": 2, "vocab_size": 40}, "vocab_size"),
        ("bert", ("classifier",), {"num_labels": 2, "depth": 1}, "depth"),
        ("bert", ("classifier",), {"num_labels": 2, "adapter_size": -1}, "adapter_size"),
    ],
)
def test_what_cannot_start_is_one_line(family, heads, fields, word):
    with pytest.raises(errors.UserError, match=word) as caught:
        _start(family, heads, **fields)
    assert "\n" not in str(caught.value)


def test_a_classifier_without_its_pooler_is_refused():
    for family in ("bert", "spanbert", "albert"):
        with pytest.raises(errors.UserError, match="needs the head 'pooler'"):
            plugins.model(family, {"heads": ("classifier",), "num_labels": 2})


def test_pooling_of_the_first_parameters_is_not_replaced_in_silence():
    source = encoders.make_artifact("modernbert", classifier_pooling="mean")
    with pytest.raises(errors.UserError, match=r"classifier_pooling.*set it to 'mean'"):
        loading.check_fields(source, source.fields | {"classifier_pooling": "cls"})
