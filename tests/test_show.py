"""Pictures of batches: every token once, what is hidden below it, masks as the models obey them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import plugins, show
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from tests.helpers import synthetic

WORDS = ["".join(letters) for letters in itertools.product("abcdef", repeat=3)] * 3
LENGTH = 32


@functools.cache
def tokenizer():
    return tokenizer_lib.train("wordpiece", [" ".join(WORDS)], vocab_size=200)


def batch_of(name, **fields):
    """One batch of an objective on made-up records."""
    module, vocabulary = plugins.objective(name), tokenizer().vocabulary()
    config = module.Config(**fields)
    stream = synthetic.batches_of(
        synthetic.Dataset(synthetic.records(20)),
        module.sampling(config, LENGTH, vocabulary),
        functools.partial(module.transform, config, LENGTH, vocabulary),
        batch_size=8,
        seed=0,
    )
    return stream.batch(0)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_masked_tokens_have_what_they_hide_below_them():
    batch = batch_of("mlm", pair="none")
    used = batch["masked_weights"][0] > 0
    pieces = tokenizer().pieces(batch["input_ids"][0][batch["attention_mask"][0] > 0])
    hidden = tokenizer().pieces(batch["masked_ids"][0][used])
    found = texts(show.tokens(tokenizer(), batch))
    for piece in set(pieces + hidden):
        assert found.count(piece) >= pieces.count(piece) + hidden.count(piece), piece
    assert "masked" in found and "row 0" in found


def test_padding_is_counted_instead_of_drawn():
    batch = batch_of("mlm", pair="none", cross_documents=False)
    row = int(batch["attention_mask"].sum(axis=1).argmin())
    padding = LENGTH - int(batch["attention_mask"][row].sum())
    assert padding > 0
    assert f"{padding} x padding" in texts(show.tokens(tokenizer(), batch, [row]))


def test_a_decoder_has_its_targets_below():
    batch = batch_of("span_corruption")
    found = texts(show.tokens(tokenizer(), batch))
    assert (
        found.count("<extra_id_0>") == 3 * (batch["input_ids"][0] == tokenizer().sentinels[0]).sum()
    )
    assert "encoder reads" in found and "decoder reads" in found


def test_titles_tell_the_labels_of_a_row():
    batch = batch_of("mlm", pair="nsp")
    label = batch["next_sentence_label"][3]
    assert f"row 3, next_sentence_label {label}" in texts(show.tokens(tokenizer(), batch, [3]))


@pytest.mark.parametrize(
    ("objective", "fields", "names"),
    [
        ("mlm", {"pair": "none"}, ["encoder"]),
        ("causal_lm", {}, ["decoder"]),
        ("prefix_lm", {}, ["decoder"]),
        ("span_corruption", {}, ["encoder", "decoder", "decoder to encoder"]),
    ],
)
def test_attention_has_a_picture_for_each_mask(objective, fields, names):
    figure = show.attention(batch_of(objective, **fields), 1, "title")
    assert [axes.get_title(loc="left") for axes in figure.axes] == names


@pytest.mark.parametrize("objective", ["mlm", "causal_lm", "prefix_lm"])
def test_the_mask_is_the_one_that_the_model_obeys(objective):
    """A token moves the state of exactly the tokens that see it, in a model of one layer."""
    fields = {"pair": "none", "packing": True} if objective == "mlm" else {}
    batch = {n: v[:2] for n, v in batch_of(objective, **fields).items()}
    family = "roberta" if objective == "mlm" else "gpt2"
    sizes = plugins.family(family).SMOKE | {"num_layers": 1, "vocab_size": 256}
    model = plugins.model(family, {**sizes, "heads": ()})
    params = plugins.init_params(model, jax.random.key(0))
    names = ("input_ids", "segment_ids", "position_ids", "prefix_mask")
    inputs = {name: batch[name] for name in names if name in batch}

    def states(ids):
        return model.apply({"params": params}, **{**inputs, "input_ids": ids})["last_hidden_state"]

    before = states(inputs["input_ids"])
    (mask,) = show.attention_masks(batch).values()
    seen = np.broadcast_to(mask.dense(LENGTH, LENGTH), (2, LENGTH, LENGTH))
    for place in (0, 5, LENGTH // 2, LENGTH - 1):
        ids = jnp.asarray(inputs["input_ids"]).at[:, place].set(255)
        moved = np.abs(states(ids) - before).max(axis=-1) > 1e-7
        expected = seen[:, :, place].copy()
        expected[:, place] = True  # a token moves its own state in any case
        real = batch["segment_ids"] > 0
        np.testing.assert_array_equal(moved & real, expected & real)
