"""Masked language modelling on packed rows: whole pieces, and the loss of unpacked rows."""

import functools

import jax
import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.data.batches.rng import RowRandom, row_keys
from bertjax.objectives import mlm
from tests.helpers import synthetic

LENGTH = 32
CONFIG = mlm.Config(pair="none", packing=True, mask_rate=0.3)
WORDS = synthetic.make_vocabulary()
FAMILIES = ("bert", "roberta", "modernbert", "distilbert")


def _sampled():
    sampling = mlm.sampling(CONFIG, LENGTH, WORDS)
    window = sampling.window(synthetic.records(6))
    table = sampling.segment(window, RowRandom(row_keys(0, 0, np.array([0]))))
    return window, sampling.assemble(window, table)


def _masked():
    _, batch = _sampled()
    rng = RowRandom(row_keys(1, 0, np.arange(len(batch["input_ids"]))))
    return mlm.transform(CONFIG, LENGTH, WORDS, batch, rng)


def _unpacked(batch):
    """One segment a row, its predictions with it."""
    rows = {name: [] for name in (*mlm.features(mlm.Config(pair="none", mask_rate=0.3), LENGTH),)}
    for i, segments in enumerate(batch["segment_ids"]):
        for number in range(1, segments.max() + 1):
            place = np.flatnonzero(segments == number)
            row = {name: np.zeros(LENGTH, np.int32) for name in ("input_ids", "attention_mask")}
            row["input_ids"][: len(place)] = batch["input_ids"][i, place]
            row["attention_mask"][: len(place)] = 1
            here = np.isin(batch["masked_positions"][i], place) & (batch["masked_weights"][i] > 0)
            row["masked_positions"] = np.where(here, batch["masked_positions"][i] - place[0], 0)
            row["masked_ids"] = batch["masked_ids"][i]
            row["masked_weights"] = here.astype(np.float32)
            for name, value in row.items():
                rows[name].append(value)
    return {name: np.stack(value) for name, value in rows.items()}


def test_features_are_those_declared():
    batch = _masked()
    declared = mlm.features(CONFIG, LENGTH)
    assert batch.keys() == declared.keys()
    for name, (shape, dtype) in declared.items():
        assert batch[name].shape[1:] == shape and batch[name].dtype == dtype, name


def test_rows_are_whole_pieces_between_cls_and_sep():
    window, batch = _sampled()
    specials = synthetic.SPECIALS
    text = []
    for ids, segments in zip(batch["input_ids"], batch["segment_ids"], strict=True):
        assert (ids[segments == 0] == specials.pad).all()
        for number in range(1, segments.max() + 1):
            piece = ids[segments == number]
            assert piece[0] == specials.cls and piece[-1] == specials.sep and len(piece) > 2
            text.append(piece[1:-1])
    assert (batch["position_ids"].max(axis=1) < LENGTH).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(text)), np.sort(window.tokens))
    assert (batch["segment_ids"] > 0).mean() > 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_is_that_of_the_rows_unpacked(family):
    packed = _masked()
    separate = _unpacked(packed)
    assert len(separate["input_ids"]) > len(packed["input_ids"])
    fields = plugins.family(family).SMOKE | {"vocab_size": 200, "heads": ("mlm",)}
    fields |= {"pad_id": 0} if family == "roberta" else {}
    model = plugins.model(family, fields)
    params = jax.tree.map(lambda x: 3 * x, plugins.init_params(model, jax.random.key(0)))

    @jax.jit
    def loss(params, batch):
        def total(params):
            apply = functools.partial(model.apply, {"params": params})
            terms = mlm.loss(CONFIG, apply, batch)
            return terms["mlm_loss"][0] / terms["mlm_loss"][1]

        return jax.value_and_grad(total)(params)

    one, ours = loss(params, packed)
    other, theirs = loss(params, separate)
    assert abs(one - other) < 1e-5 and one > 5
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_pairs_are_not_packed():
    with pytest.raises(errors.UserError, match=r"config.objective.packing = True: must be false"):
        mlm.Config(pair="nsp", packing=True)


def test_streams_of_packed_rows():
    dataset = synthetic.Dataset(synthetic.records(6))
    stream = synthetic.batches_of(
        dataset,
        mlm.sampling(CONFIG, LENGTH, WORDS),
        lambda batch, rng: mlm.transform(CONFIG, LENGTH, WORDS, batch, rng),
        batch_size=8,
        seed=0,
    )
    whole, half = stream.batch(3), stream.batch(3, slice(0, 4))
    for name in whole:
        np.testing.assert_array_equal(whole[name][:4], half[name])
