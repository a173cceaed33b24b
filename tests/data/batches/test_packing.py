"""Pieces in rows: every token once, rows full, batches laid out as by seqio's converters."""

import functools

import numpy as np
import pytest

from bertjax.data.batches import layout, loader, packing, rng
from bertjax.objectives import causal_lm, denoisers, prefix_lm, span_corruption
from tests.helpers import synthetic

LENGTH = 64
VOCABULARY = synthetic.make_vocabulary()
OBJECTIVES = {
    "causal_lm": (causal_lm, {}),
    "prefix_lm": (prefix_lm, {}),
    "prefix_lm_encoder": (prefix_lm, {"kind": "encoder_decoder"}),
    "span_corruption": (span_corruption, {}),
    "denoisers": (denoisers, {"mode_tokens": False}),
}
each_objective = pytest.mark.parametrize("name", OBJECTIVES)
each_layout = pytest.mark.parametrize("packed", [True, False])


def objective(name, packed):
    module, fields = OBJECTIVES[name]
    return module, module.Config(packing=packed, **fields)


def window_random(epoch: int = 0) -> rng.RowRandom:
    return rng.RowRandom(rng.row_keys(0, epoch, np.array([0])))


def table_of(name, packed, records, length=LENGTH, epoch=0):
    """The sampling of an objective, the window of the records and its table."""
    module, config = objective(name, packed)
    sampling = module.sampling(config, length, VOCABULARY)
    window = sampling.window(records)
    return sampling, window, sampling.segment(window, window_random(epoch))


def make_stream(name, packed, batch_size=16, seed=0):
    module, config = objective(name, packed)
    return synthetic.batches_of(
        synthetic.Dataset(synthetic.records(40)),
        module.sampling(config, LENGTH, VOCABULARY),
        functools.partial(module.transform, config, LENGTH, VOCABULARY),
        batch_size=batch_size,
        seed=seed,
        window_tokens=4000,
    )


def pieces(*texts):
    """Rows of pieces as (tokens, sizes)."""
    sizes = np.zeros((len(texts), max(map(len, texts))), np.int64)
    for row, text in enumerate(texts):
        sizes[row, : len(text)] = [len(piece) for piece in text]
    return np.array([token for row in texts for piece in row for token in piece]), sizes


# Layout, as in seqio's feature_converters_test: pad 0, EOS 1


def rows_of(batch):
    return {name: value[0].astype(int).tolist() for name, value in batch.items()}


def test_encoder_decoder_unpacked():
    batch = layout.encoder_decoder(
        pieces([[9, 4, 3, 8, 1]]), pieces([[3, 9, 4, 1]]), (7, 5), 0, packing=False
    )
    assert rows_of(batch) == {
        "input_ids": [9, 4, 3, 8, 1, 0, 0],
        "attention_mask": [1, 1, 1, 1, 1, 0, 0],
        "decoder_input_ids": [0, 3, 9, 4, 1],
        "decoder_attention_mask": [1, 1, 1, 1, 0],
        "targets": [3, 9, 4, 1, 0],
        "loss_weights": [1, 1, 1, 1, 0],
    }


def test_encoder_decoder_packed():
    inputs, targets = [[7, 8, 5, 1], [8, 4, 9, 3, 1]], [[3, 9, 1], [4, 1]]
    batch = layout.encoder_decoder(pieces(inputs), pieces(targets), (10, 7), 0, packing=True)
    assert rows_of(batch) == {
        "input_ids": [7, 8, 5, 1, 8, 4, 9, 3, 1, 0],
        "segment_ids": [1, 1, 1, 1, 2, 2, 2, 2, 2, 0],
        "position_ids": [0, 1, 2, 3, 0, 1, 2, 3, 4, 0],
        "decoder_input_ids": [0, 3, 9, 0, 4, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 2, 2, 0, 0],
        "decoder_position_ids": [0, 1, 2, 0, 1, 0, 0],
        "targets": [3, 9, 1, 4, 1, 0, 0],
        "loss_weights": [1, 1, 1, 1, 1, 0, 0],
    }
    apart = layout.encoder_decoder(
        pieces(*[[piece] for piece in inputs]), pieces(*[[piece] for piece in targets]), (7, 3), 0,
        packing=True,
    )  # fmt: skip
    assert apart["segment_ids"].tolist() == [[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]]
    assert apart["targets"].tolist() == [[3, 9, 1], [4, 1, 0]]


def test_language_model():
    packed = layout.lay_out_targets(*pieces([[3, 9, 1], [4, 1]]), 6, 0, start=0, packing=True)
    assert rows_of(packed) == {
        "input_ids": [0, 3, 9, 0, 4, 0],
        "segment_ids": [1, 1, 1, 2, 2, 0],
        "position_ids": [0, 1, 2, 0, 1, 0],
        "targets": [3, 9, 1, 4, 1, 0],
        "loss_weights": [1, 1, 1, 1, 1, 0],
    }
    plain = rows_of(layout.lay_out_targets(*pieces([[3, 9, 1]]), 5, 0, start=0, packing=False))
    assert plain["targets"] == [3, 9, 1, 0, 0] and plain["input_ids"] == [0, 3, 9, 1, 0]
    assert plain["loss_weights"] == plain["attention_mask"] == [1, 1, 1, 0, 0]


def test_start_token_in_each_piece():
    text = pieces([[3, 9, 1], [4, 1]])
    ids = layout.lay_out_targets(*text, 6, 0, start=50, packing=True)["input_ids"]
    assert ids.tolist() == [[50, 3, 9, 50, 4, 0]]


# Cutting and fitting


def test_cut_leaves_one_shorter_piece_at_a_random_place():
    window = packing.Window(np.arange(97), np.array([0, 5, 15, 39, 97]))
    last = set()
    for epoch in range(40):
        start, size = packing.cut(window, 10, window_random(epoch))
        assert start.tolist() == [0, *np.cumsum(size)[:-1]] and size.sum() == 97
        assert size[:2].tolist() == [5, 10]
        assert sorted(size[2:5]) == [4, 10, 10] and sorted(size[5:]) == [8, *[10] * 5]
        last.add(int(np.argmin(size[5:])))
    assert last == set(range(6))


def plain_best_fit(sizes, capacity):
    left = []
    for size in sorted(sizes, reverse=True):
        fits = [row for row in range(len(left)) if left[row] >= size]
        if not fits:
            left.append(capacity)
            fits = [len(left) - 1]
        best = min(fits, key=lambda row: (left[row], row))
        left[best] -= size
    return sorted(left)


@pytest.mark.parametrize("largest", [7, 30, 60, 100])
def test_best_fit_is_best_fit(largest):
    sizes = np.random.default_rng(largest).integers(1, largest + 1, 400)
    rows = packing.best_fit(sizes[None], [100])
    assert sorted(100 - np.bincount(rows, sizes).astype(int)) == plain_best_fit(sizes, 100)


def test_best_fit_keeps_every_capacity():
    random = np.random.default_rng(0)
    costs, capacity = random.integers(1, 20, (3, 500)), [64, 40, 21]
    rows = packing.best_fit(costs, capacity)
    used = np.stack([np.bincount(rows, cost) for cost in costs])
    assert (used <= np.array(capacity)[:, None]).all() and used.min() > 0
    assert (used.sum(axis=1) / capacity / used.shape[1]).max() > 0.97


def test_many_costs_are_rounded_up():
    costs = np.random.default_rng(0).integers(1, 513, (2, 20_000))
    rounded = packing.coarse(costs, [512, 512])
    assert len(np.unique(rounded, axis=1).T) <= packing._MAX_COSTS
    assert (rounded >= costs).all() and rounded.max() <= 512 and (rounded - costs).max() < 20
    assert packing.coarse(costs[:, :50], [512, 512]).tolist() == costs[:, :50].tolist()


# Tables


@each_objective
@each_layout
def test_every_token_is_in_one_row(name, packed):
    records = synthetic.records(30, counting=True)
    sampling, window, table = table_of(name, packed, records)
    batch = sampling.assemble(window, table)
    found = np.sort(layout.pieces_of(batch))
    ends = found == synthetic.SPECIALS.sep
    documents = sum(len(record.document_ids) for record in records)
    assert ends.sum() == (documents if isinstance(sampling, packing.Documents) else 0)
    tokens = np.concatenate([record.tokens for record in records])
    assert found[~ends].tolist() == tokens.tolist()
    assert table["size"].shape[1] == (LENGTH // 8 if packed else 1)


# Denoisers are drawn for a row, and the two layouts fill rows with other pieces.
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "denoisers"])
def test_both_layouts_hold_the_same_pieces(name):
    records = synthetic.records(30)
    tables = [table_of(name, packed, records)[2] for packed in (True, False)]
    packed, alone = ({n: t[n][t["size"] > 0] for n in t.dtype.names} for t in tables)
    orders = [np.argsort(found["start"]) for found in (packed, alone)]
    for column in packed:
        assert packed[column][orders[0]].tolist() == alone[column][orders[1]].tolist()
    assert len(tables[0]) < len(tables[1])


@each_objective
def test_pieces_do_not_mix_documents(name):
    _, window, table = table_of(name, True, synthetic.records(30))
    start, size = table["start"][table["size"] > 0], table["size"][table["size"] > 0]
    document = np.searchsorted(window.edges, start, side="right")
    assert (start + size <= window.edges[document]).all()
    # The columns of a row are filled from the front.
    assert (np.diff((table["size"] > 0).astype(int), axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("name", "fill"),
    [
        ("causal_lm", 0.97),
        ("span_corruption", 0.97),
        ("prefix_lm_encoder", 0.9),
        ("denoisers", 0.95),
    ],
)
def test_rows_are_full(name, fill):
    module, config = objective(name, True)
    sampling, window, table = table_of(name, True, synthetic.records(800))
    batch = sampling.assemble(window, table)
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(len(table))))
    batch = module.transform(config, LENGTH, VOCABULARY, batch, random)
    sides = [(value > 0).mean() for name, value in batch.items() if name.endswith("segment_ids")]
    assert max(sides) > fill, sides


@each_objective
def test_another_epoch_packs_otherwise(name):
    records = synthetic.records(20)
    first, again, other = (table_of(name, True, records, epoch=epoch)[2] for epoch in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:20], other[:20])


@each_objective
@each_layout
def test_batches_are_pure(name, packed):
    stream, other = make_stream(name, packed), make_stream(name, packed)
    assert stream.samples_per_epoch > 40
    for step in (7, 0, 3):
        whole = stream.batch(step)
        for rows in (slice(0, 8), slice(8, 16), np.array([11, 2, 5])):
            part = other.batch(step, rows)
            assert part.keys() == whole.keys()
            for feature, value in whole.items():
                np.testing.assert_array_equal(part[feature], value[rows], err_msg=feature)
    changed = make_stream(name, packed, seed=1).batch(0)["targets"]
    assert not np.array_equal(changed, stream.batch(0)["targets"])


@each_objective
def test_evaluation_fills_up_with_rows_of_no_weight(name):
    module, config = objective(name, True)
    batches = list(
        loader.eval_batches(
            synthetic.Dataset(synthetic.records(5)),
            module.sampling(config, LENGTH, VOCABULARY),
            functools.partial(module.transform, config, LENGTH, VOCABULARY),
            batch_size=16,
            seed=0,
        )
    )
    last = batches[-1]
    empty = last["example_weights"] == 0
    assert empty.any() and not last["loss_weights"][empty].any()
    assert not last["segment_ids"][empty].any()
