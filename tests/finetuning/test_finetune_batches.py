"""Batches of labelled rows, and the examples that become train and dev."""

import itertools

import numpy as np
import pytest

from bertjax.finetuning import batching, data_warnings, rows
from bertjax.finetuning.examples import splits, types
from bertjax.finetuning.task_types import classification
from tests.helpers.task_types import bind

FEATURES = {
    "input_ids": rows.Feature(np.int32),
    "targets": rows.Feature(np.int32, "target_length"),
    "label": rows.Feature(np.float32, ""),
}


LENGTHS = rows.Lengths(100, 50)


def _batches(sizes, batch_size=8, lengths=LENGTHS, targets=None, passes=0):
    rows = [
        {"input_ids": np.full(n, i + 1), "targets": np.full(t, i), "label": np.array(i)}
        for i, (n, t) in enumerate(zip(sizes, targets or [3] * len(sizes), strict=True))
    ]
    return batching.Batches(rows, FEATURES, lengths, batch_size, passes)


SIZES = [5, 60, 20, 90, 33, 8, 70, 31, 32, 64] * 7


def test_an_epoch_has_every_row_once_for_each_seed():
    made = _batches(SIZES)
    epochs = [list(made.epoch(seed, 1)) for seed in (3, 4)]
    for epoch in epochs:
        assert len(epoch) == made.steps_per_epoch == 9  # 70 / 8
        seen = [
            label
            for batch in epoch
            for label, weight in zip(batch["label"], batch["example_weights"], strict=True)
            if weight
        ]
        assert sorted(seen) == list(range(70))
    (rest,) = [batch for batch in epochs[0] if batch["example_weights"].min() == 0]
    assert rest["input_ids"].shape[-1] == 32  # the shortest: what fills it up is computed too
    first, _ = epochs
    shapes = [[batch["input_ids"].shape for batch in epoch] for epoch in epochs]
    assert shapes[0] == shapes[1]  # one compiled step after the other, the same for every seed
    assert any((a["label"] != b["label"]).any() for a, b in zip(*epochs, strict=True))
    rest_of_it = list(made.epoch(3, 1, start=4))
    assert len(rest_of_it) == 5
    for a, b in zip(first[4:], rest_of_it, strict=True):
        assert all((a[name] == b[name]).all() for name in a)
    other = list(made.epoch(3, 2))
    assert any((a["label"] != b["label"]).any() for a, b in zip(first, other, strict=True))


def test_tokens_of_each_length():
    made = _batches([5, 30, 40, 60, 70], batch_size=2)
    assert made.tokens_per_length() == {32: 2 * 32, 64: 2 * 64, 96: 96}


def test_one_batch_of_each_shape():
    made = _batches(SIZES)
    for in_order, batches_of_it in ((False, made.epoch(3, 5)), (True, made.in_order())):
        met = {
            (each["input_ids"] if not in_order else each[1]["input_ids"]).shape[-1]
            for each in batches_of_it
        }
        found = [each["input_ids"].shape for each in made.one_of_each_shape(in_order=in_order)]
        assert len(found) == len(met)
        assert {shape[-1] for shape in found} == met and {shape[0] for shape in found} == {8}


def test_rest_that_the_shortest_bucket_does_not_fill_is_filled_by_the_next():
    sizes = [5] * 3 + [60] * 11  # 14 rows in eights: 6 are the rest
    epoch = list(_batches(sizes).epoch(0, 0))
    assert sorted(batch["example_weights"].sum() for batch in epoch) == [6, 8]
    seen = np.concatenate([b["label"][b["example_weights"] > 0] for b in epoch])
    assert sorted(seen) == list(range(14))


@pytest.mark.parametrize(
    ("rows", "length", "shards", "count"),
    [(32, 24, 1, 1), (32, 48, 1, 1), (32, 68, 1, 2), (32, 128, 1, 4), (32, 128, 16, 2),
     (31, 64, 1, 1), (31, 512, 1, 1)],
)  # fmt: skip
def test_a_cpu_takes_a_batch_in_parts_that_are_not_small(rows, length, shards, count):
    batch = {"input_ids": np.zeros((rows, length)), "example_weights": np.ones(rows)}
    assert batching.micro_batches(batch, shards) == count


def test_rows_keep_their_content_and_batches_are_short():
    lengths = []
    for batch in _batches(SIZES).epoch(0, 0):
        ids_BL = batch["input_ids"]
        lengths.append(ids_BL.shape[1])
        for label, row in zip(batch["label"], ids_BL, strict=True):
            size = SIZES[int(label)]
            assert (row[:size] == label + 1).all() and (row[size:] == 0).all()
        assert batch["targets"].shape[-1] == 32
    assert set(lengths) <= {32, 64, 96, 100} and lengths.count(32) == 4  # 35 rows fit into 32


def test_first_texts_have_the_length_of_the_longest_one_of_their_bucket():
    features = {"input_ids": FEATURES["input_ids"], "mask": rows.Feature(np.int32, "first_length")}
    sizes = [(20, 3), (30, 9), (90, 17), (80, 2), (100, 99)]
    made = [{"input_ids": np.ones(n, int), "mask": np.ones(first, int)} for n, first in sizes]
    batches = batching.Batches(made, features, LENGTHS, batch_size=1)
    epoch = batches.epoch(0, 0)
    shapes = {batch["input_ids"].shape[-1]: batch["mask"].shape[-1] for batch in epoch}
    assert shapes == {32: 16, 96: 24, 100: 100}


def test_no_batch_is_longer_than_the_model():
    made = _batches([5, 100, 97] * 4, lengths=rows.Lengths(100, 40), targets=[40, 3, 1] * 4)
    shapes = {batch["input_ids"].shape[-1] for _, batch in made.in_order()}
    assert shapes == {100}
    assert {batch["targets"].shape[-1] for _, batch in made.in_order()} == {40}
    assert [batching.common(n, 4096) for n in (1, 33, 129, 513, 1025)] == [32, 64, 192, 768, 1536]


def _cost(lengths, sizes, passes):
    """What `fitted` makes small, written down plainly."""
    tokens = sum(min(size for size in sizes if size >= n) for n in lengths)
    return tokens + len(sizes) * max(8_000 / passes, 0.01 * sum(lengths))


def test_fitted_buckets_are_the_cheapest():
    lengths = np.random.default_rng(0).choice([3, 9, 10, 17, 30, 31, 44, 50], 3_000)
    for passes in (1, 5):
        sizes = batching.fitted(lengths, 50, passes)
        below = (4, 12, 20, 32, 44)  # multiples of 4 and the longest
        every = [
            (*chosen, 50)
            for count in range(len(below) + 1)
            for chosen in itertools.combinations(below, count)
        ]
        cheapest = min(every, key=lambda each: _cost(lengths, each, passes))
        assert tuple(sizes) == cheapest
    assert len(batching.fitted(lengths, 50, 1)) < len(batching.fitted(lengths, 50, 5))
    assert batching.fitted(np.array([5, 9, 33]), 100, 3).tolist() == [36]  # few rows: one
    assert batching.fitted(np.array([5, 9, 33]), 34, 3).tolist() == [34]
    assert batching.fitted(np.arange(1, 4097), 4096, 3)[-1] == 4096
    # Where a compilation takes as long as many tokens.
    dear = batching.Price(2_000_000, 32, 128, 0.0)
    assert batching.fitted(lengths, 50, 5, dear).tolist() == [50]
    assert batching.fitted(np.repeat(lengths, 500), 50, 5, dear).tolist() == [32, 50]


def test_tasks_with_common_programs_prefer_common_lengths():
    draw = np.random.default_rng(0)
    few = [draw.integers(3, longest, 300) for longest in (45, 51, 60)]
    assert len({tuple(batching.fitted(lengths, 128, 3)) for lengths in few}) == 3
    shared = [batching.fitted(lengths, 128, 3, tasks=3) for lengths in few]
    assert {int(size) for sizes in shared for size in sizes} <= {8, 16, 24, 32, 48, 64}
    for lengths, sizes in zip(few, shared, strict=True):
        assert sizes[-1] >= lengths.max() and (np.diff(sizes) > 0).all()
    # Where a compilation costs little, the lengths are those of the rows again.
    many = np.repeat(few[0], 1000)
    own = batching.fitted(many, 128, 3)
    mean = [sizes[np.searchsorted(sizes, many)].mean() for sizes in
            (own, batching.fitted(many, 128, 3, tasks=3))]  # fmt: skip
    assert mean[1] < 1.02 * mean[0]
    assert batching.fitted(few[0], 20, 3, tasks=3)[-1] == 20
    assert batching.fitted(np.array([700, 3]), 1000, 3, tasks=3)[-1] == 1000


def test_rows_that_are_read_often_fill_up_less():
    often, once = (
        sum(batch["input_ids"].size for _, batch in _batches(SIZES * 10, passes=n).in_order())
        for n in (20, 0)
    )
    assert 10 * sum(SIZES) <= often < once


def test_outputs_come_in_the_order_of_the_rows():
    def step(params, batch):
        return {"sum": batch["input_ids"] + params, "label": batch["label"]}

    found = batching.forward(step, 1, _batches(SIZES))
    assert (found["sum"][:, 0] == np.arange(70) + 2).all() and found["sum"].shape == (70, 96)
    assert found["sum"][0, 40] == 0  # beyond its batch
    np.testing.assert_array_equal(found["label"], np.arange(70))


def test_a_prompt_is_read_behind_the_first_token_and_told_of_nowhere():
    read = {}

    def apply(input_ids, attention_mask):
        read.update(ids=input_ids, mask=attention_mask)
        return {"token_logits": input_ids[..., None] * 1.0, "class_logits": input_ids[:, :2]}

    ids_BL = np.array([[1, 5, 6], [1, 7, 0]], np.int32)
    bound = bind(classification, classification.Config(), prompt_ids=(90, 91))
    prompted = bound.prompted(apply)
    outputs = prompted(input_ids=ids_BL, attention_mask=np.array([[1, 1, 1], [1, 1, 0]], np.int32))
    assert read["ids"].tolist() == [[1, 90, 91, 5, 6], [1, 90, 91, 7, 0]]
    assert read["mask"].tolist() == [[1] * 5, [1, 1, 1, 1, 0]]
    assert outputs["token_logits"][..., 0].tolist() == ids_BL.tolist()
    assert outputs["class_logits"].tolist() == [[1, 90], [1, 90]]


def _sentences(labels):
    return [types.Sentence((f"text {i}",), label) for i, label in enumerate(labels)]


def test_a_sample_has_every_label_and_their_shares():
    found = _sentences(["a"] * 80 + ["b"] * 19 + ["c"])
    sample = [e.label for e in splits.sample(found, 21)]
    assert (sample.count("a"), sample.count("b"), sample.count("c")) == pytest.approx(
        (16, 4, 1), abs=1
    )
    assert splits.sample(found, 21) == splits.sample(found, 21) != found[:21]
    assert splits.sample(found, 0) == splits.sample(found, 100) == found
    assert {e.label for e in splits.sample(found, 3)} == {"a", "b", "c"}


def test_held_out_is_what_train_does_not_show():
    twice = _sentences(["a", "b"] * 100) * 2
    pairs = [types.Sentence((f"Premise {i // 4}", f"{i}"), "no") for i in range(80)]
    choices = [types.Choice(f"passage {i // 4}", ("a", f"{i}"), 0) for i in range(80)]
    asked = [each._replace(context=f"{each.context} {i}?", passage=each.context)
             for i, each in enumerate(choices)]  # fmt: skip
    for found, text in (
        (twice, lambda e: e.texts[0]),
        (pairs, lambda e: e.texts[0]),
        (choices, lambda e: e.context),
        (asked, lambda e: e.passage),
    ):
        train, dev = splits.held_out(found, 0.1)
        assert 0 < len(dev) <= len(found) // 10 + 4 and len(train) + len(dev) == len(found)
        assert not set(map(text, train)) & set(map(text, dev))
    train, dev = splits.held_out([types.Choice("", ("a", "b"), 0)] * 20, 0.1)
    assert (len(train), len(dev)) == (18, 2)  # no context: nothing in common


def test_train_keeps_an_example_of_every_label():
    rare = _sentences(["common"] * 60 + [f"rare{i}" for i in range(20)])
    train, dev = splits.held_out(rare, 0.3)
    assert {e.label for e in train} == {e.label for e in rare} and len(dev) == 24
    tags = [types.Words((f"w{i}",), (f"B-{i}",)) for i in range(5)]
    assert splits.held_out(tags, 0.5) == (tags, [])


def test_dev_has_two_labels_if_it_can():
    def tagged(count, entities):
        tags = ("B-LOC", "O") if entities else ("O", "O")
        return [types.Words((f"w{i}", f"{entities}"), tags) for i in range(count)]

    for count in range(2, 8):  # of 60 sentences, 6 are held out
        examples = tagged(count, True) + tagged(60 - count, False)
        train, dev = splits.held_out(examples, 0.1)
        assert len(dev) == 6 and len(train) == 54
        assert {tag for example in dev for tag in example.tags} == {"B-LOC", "O"}
        assert "B-LOC" in {tag for example in train for tag in example.tags}
        assert not data_warnings.single_label(train, dev)
    examples = tagged(1, True) + tagged(59, False)  # train keeps the only entity
    train, dev = splits.held_out(examples, 0.1)
    assert len(dev) == 6 and {tag for example in dev for tag in example.tags} == {"O"}
    (warning,) = data_warnings.single_label(train, dev)
    assert warning.startswith("dev has no other label than 'O'")
    assert not data_warnings.single_label(train[1:], dev)  # train has no other label either


def test_questions_on_one_context_are_held_out_together():
    found = [types.Question(str(i), "who", f"context {i // 5}") for i in range(50)]
    train, dev = splits.held_out(found, 0.2)
    assert len(train) == 40 and len(dev) == 10
    assert not {e.context for e in train} & {e.context for e in dev}
    assert (
        splits.held_out(_sentences("ab" * 10), 0.1)[1]
        == splits.held_out(_sentences("ab" * 10), 0.1)[1]
    )
