"""A larger model that starts from a smaller one: tiled widths, repeated layers, more positions."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.artifact import artifact, growth
from tests.helpers import proofs, tiny_model, tiny_runs

# Sizes that grow by an integer, by family; the other sizes are those of the smoke config.
DOUBLED = {"hidden_size": 128, "num_heads": 4, "intermediate_size": 256}
MORE = {
    "albert": {"embedding_size": 64},
    "electra": {
        "embedding_size": 64,
        "generator_hidden_size": 64,
        "generator_num_heads": 2,
        "generator_intermediate_size": 128,
    },
}
INPUTS = ("input_ids", "decoder_input_ids")


def shapes_of(family, fields):
    flat = artifact.flatten(plugins.abstract_params(plugins.model(family, fields)))
    return {path: leaf.shape for path, leaf in flat.items()}


def random_model(family, seed=0, **fields):
    """A model of the smoke size with random parameters, also of biases and norms."""
    config = tiny_runs.make_config(family, "mlm" if family == "distilbert" else "")
    depth = {name: 1 for name in config.model if name.endswith("layers")}
    fields = {**config.model.to_dict(), **depth, **fields}
    rng = np.random.default_rng(seed)
    params = {
        path: rng.normal(0.5 * path.endswith("scale"), 0.1, shape).astype(np.float32)
        for path, shape in shapes_of(family, fields).items()
    }
    return artifact.Artifact(family, fields, artifact.unflatten(params), tiny_model.tokenizer())


def fresh_params(family, fields, value=0.0):
    shapes = shapes_of(family, fields)
    return artifact.unflatten({p: np.full(s, value, np.float32) for p, s in shapes.items()})


def grown(model, noise=0.0, **sizes):
    fields = {**model.fields, **sizes}
    larger = growth.grown(model, fields, fresh_params(model.family, fields, noise))
    return dataclasses.replace(larger, fields=fields)


def outputs(model):
    """The logits of a model on a few tokens, by name."""
    module = plugins.model(model.family, model.fields)
    ids = np.random.default_rng(1).integers(5, 200, (2, 8)).astype(np.int32)
    names = [name for name in INPUTS if name in plugins.family(model.family).INPUTS]
    inputs = dict.fromkeys(names, ids)
    if model.family == "spanbert":
        inputs["masked_positions"] = np.array([[3, 4], [5, 6]], np.int32)
        inputs["span_boundaries"] = np.array([[[2, 5]] * 2, [[4, 7]] * 2], np.int32)
    return {
        name: np.asarray(value)
        for name, value in jax.jit(module.apply)({"params": model.params}, **inputs).items()
        if name.endswith("logits")
    }


# From the authors' own test, tests/test_tiling.py of AnswerDotAI/ModernBERT.
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (2, 4, [2, 1, 2, 1]),
        (3, 5, [3, 1, 2, 3, 1]),
        (2, 6, [1, 2, 1, 2, 1, 2]),
        (3, 7, [2, 3, 1, 2, 3, 1, 2]),
        (4, 7, [4, 1, 2, 3, 4, 1, 2]),
        (3, 8, [2, 3, 1, 2, 3, 1, 2, 3]),
    ],
)
def test_widths_are_tiled_from_the_centre_as_in_modernbert(old, new, expected):
    assert (growth.centered(old, new) + 1).tolist() == expected


def test_layers_are_repeated_in_order():
    assert growth.repeated_layers(2, 4).tolist() == [0, 0, 1, 1]
    assert growth.repeated_layers(3, 4).tolist() == [0, 0, 1, 2]
    counts = np.bincount(growth.repeated_layers(22, 28))  # ModernBERT base to large
    assert len(counts) == 22 and set(counts) == {1, 2}


def test_a_norm_for_the_next_layer_stays_in_front_of_that_layer():
    for old, new in ((3, 4), (2, 4), (5, 8), (22, 28)):
        layers = growth.repeated_layers(old, new)
        norms = growth.repeated_layers(old, new, is_next=True)
        assert norms[-1] == old - 1  # the final norm
        for i in range(new - 1):  # old layer j > 0 reads the norm of old layer j - 1
            assert norms[i] == max(layers[i + 1] - 1, 0)


def test_positions_are_repeated_from_the_start_after_the_rows_of_padding():
    assert growth.repeated_positions(4, 10, 4).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    # RoBERTa: two rows for padding, then those of the positions.
    assert growth.repeated_positions(5, 9, 3).tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 2]


@pytest.mark.parametrize(
    "family",
    proofs.all_but(sorted({*tiny_runs.FAMILIES} - {"roberta"}), "bert", "modernbert", "t5"),
)
def test_a_model_of_twice_the_width_computes_the_same(family):
    small = random_model(family)
    large = grown(small, **DOUBLED, **MORE.get(family, {}))
    before, after = outputs(small), outputs(large)
    assert before and before.keys() == after.keys()
    for name, logits in before.items():
        assert logits[..., : tiny_runs.VOCAB_SIZE].std() > 1e-3
        np.testing.assert_allclose(after[name], logits, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("family", ["roberta", "gpt2"])
def test_a_longer_model_computes_the_same_for_short_texts(family):
    small = random_model(family)
    large = grown(small, max_length=150)
    for name, logits in outputs(small).items():
        np.testing.assert_allclose(outputs(large)[name], logits, atol=1e-5)
    table = large.params["embeddings"]["position"]["embedding"]
    length = small.fields["max_length"]
    np.testing.assert_array_equal(table[-150:][:length], table[-150:][length : 2 * length])


def test_heads_are_copied_as_a_whole():
    small = random_model("bert", num_heads=4)
    large = grown(small, hidden_size=96, num_heads=6)
    old, new = (m.params["encoder"]["layers"]["attention"]["query"]["bias"] for m in (small, large))
    np.testing.assert_array_equal(new, old[:, [3, 0, 1, 2, 3, 0]])


def test_kernels_that_become_wider_get_a_part_of_the_fresh_ones():
    """Without it, copies would have equal gradients and stay equal."""
    small = random_model("bert")
    for sizes, expected in ((DOUBLED, growth.NOISE), ({"num_layers": 2}, 0.0)):
        exact, noisy = (artifact.flatten(grown(small, n, **sizes).params) for n in (0.0, 1.0))
        for path, leaf in exact.items():
            added = expected * path.endswith("/kernel")
            np.testing.assert_allclose(noisy[path], leaf + added, atol=1e-6, err_msg=path)


def test_what_cannot_grow_is_refused():
    model = random_model("bert")
    fields = model.fields
    with pytest.raises(errors.UserError, match=r"hidden_size = 32: must be 64 or more.*init_from"):
        growth.check_fields(fields, {**fields, "hidden_size": 32})
    wide = {**fields, "hidden_size": 128}
    with pytest.raises(errors.UserError, match=r"heads of width 64.*init_from have width 32"):
        growth.check(model, wide, shapes_of("bert", wide))
    deberta = random_model("deberta", position_buckets=0)
    narrow = {**deberta.fields, "embedding_size": 32}  # from 0, which means hidden_size
    with pytest.raises(errors.UserError, match=r"word/embedding .*only from a smaller one"):
        growth.check(deberta, narrow, shapes_of("deberta", narrow))
    longer = {**deberta.fields, "max_length": 100}
    with pytest.raises(errors.UserError, match=r"relative_position.*only a table of absolute"):
        growth.check(deberta, longer, shapes_of("deberta", longer))


@pytest.mark.parametrize("family", ["electra", "deberta"])
@pytest.mark.parametrize(
    ("old", "new", "message"),  # old, new: widths of the embeddings and of the layers
    [
        ((64, 64), (64, 128), r"must equal config.model.hidden_size.*project/kernel would be ran"),
        ((64, 128), (128, 128), r"must differ from .*init_from; .*project/kernel would be lost"),
        ((64, 64), (128, 128), None),
        ((64, 128), (64, 256), None),
    ],
)
def test_a_projection_of_the_embeddings_that_only_one_model_has_is_refused(
    family, old, new, message
):
    """Electra-base has none: if only hidden_size grew, a random one would come after them."""

    def fields(widths):
        return {"embedding_size": widths[0], "hidden_size": widths[1], "num_heads": widths[1] // 32}

    small = random_model(family, heads=("rtd",), **fields(old))
    large = {**small.fields, **fields(new)}
    refused = pytest.raises(errors.UserError, match=message) if message else None
    with refused or contextlib.nullcontext():
        growth.check(small, large, shapes_of(family, large))


def test_a_projection_of_the_generator_alone_is_refused():
    sizes = {"embedding_size": 64, "hidden_size": 128, "generator_num_heads": 1}
    pair = random_model("electra", **sizes, generator_hidden_size=32)
    large = {**pair.fields, "generator_hidden_size": 64, "generator_num_heads": 2}
    with pytest.raises(errors.UserError, match=r"from config.model.generator_hidden_size, .* lost"):
        growth.check(pair, large, shapes_of("electra", large))
    without_generator = {**pair.fields, "heads": ("rtd",)}
    growth.check(pair, without_generator, shapes_of("electra", without_generator))
