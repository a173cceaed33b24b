"""Batches whose rows are packed: each row once, in one shape, with the loss of plain batches."""

import json
import random

import jax
import numpy as np
import pytest

from bertjax import sharding
from bertjax.artifact import loading
from bertjax.finetuning import batching, job, packed_batches, rows, sharing
from tests.helpers import toy_tasks

FEATURES = {"input_ids": rows.Feature(np.int32), "label": rows.Feature(np.float32, "")}
RNG = np.random.default_rng(0)
SIZES = np.minimum(RNG.geometric(0.08, 150) + 2, 60).tolist()


def _batches(sizes=SIZES, batch_size=16, shards=1, micro_batches=1):
    made = [
        {"input_ids": 1000 * (i + 1) + np.arange(n), "label": np.array(i)}
        for i, n in enumerate(sizes)
    ]
    plain = batching.Batches(made, FEATURES, rows.Lengths(100), batch_size, passes=3)
    return packed_batches.PackedBatches(plain, shards, micro_batches), plain


def _rows(batch, shards, parts):
    """The labels of a batch that are no padding, each with the tokens of its packed row."""
    found = {}
    size = len(batch["label"])
    for device in range(shards):
        for part in range(parts):
            # A step takes the rows m, m + parts ... of a device as its micro-batch m.
            numbers = np.arange(size).reshape(shards, -1)[device, part::parts]
            ids, sources = batch["input_ids"][numbers], batch["packed_from"][device * parts + part]
            for packed_row in sources:
                for place in np.unique(packed_row[packed_row >= 0] // ids.shape[1]):
                    mine = packed_row[packed_row // ids.shape[1] == place]
                    assert mine[0] % ids.shape[1] == 0 and (np.diff(mine) == 1).all()
                    assert batch["example_weights"][numbers[place]] == 1
                    found[int(batch["label"][numbers[place]])] = ids.ravel()[mine]
    assert len(found) == batch["example_weights"].sum()
    return found


@pytest.mark.parametrize(("shards", "parts"), [(1, 1), (1, 4), (2, 2), (8, 1)])
def test_an_epoch_has_every_row_once_whole_and_in_one_shape(shards, parts):
    made, _ = _batches(shards=shards, micro_batches=parts)
    (one,) = made.one_of_each_shape(in_order=False)
    for seed, epoch in ((0, 0), (3, 1)):
        batches, seen = list(made.epoch(seed, epoch)), {}
        assert len(batches) == made.steps_per_epoch == 10  # 150 / 16
        for batch in batches:
            assert {n: x.shape for n, x in batch.items()} == {n: x.shape for n, x in one.items()}
            assert batch["example_weights"].sum() in range(12, 17)  # about the same number of rows
            new = _rows(batch, shards, parts)
            assert not new.keys() & seen.keys()
            seen |= new
        assert sorted(seen) == list(range(150))
        for label, ids in seen.items():
            assert ids.tolist() == (1000 * (label + 1) + np.arange(SIZES[label])).tolist()
    (count,) = made.tokens_per_length().values()
    assert count == 10 * batching.num_tokens(one)
    assert batching.micro_batches(one, shards) == parts


def test_epochs_and_seeds_differ_and_an_epoch_can_go_on_in_the_middle():
    made, _ = _batches()
    epochs = [list(made.epoch(*key)) for key in ((0, 0), (0, 1), (1, 0))]
    companions = [
        {frozenset(batch["label"][batch["example_weights"] > 0].tolist()) for batch in epoch}
        for epoch in epochs
    ]
    assert not companions[0] & companions[1] and not companions[0] & companions[2]
    for a, b in zip(epochs[0][6:], made.epoch(0, 0, start=6), strict=True):
        assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def test_hardly_any_padding_is_computed_and_it_is_cheaper():
    made, plain = _batches()
    (tokens,) = made.tokens_per_length().values()
    assert tokens < 1.1 * sum(SIZES) < sum(plain.tokens_per_length().values())
    assert packed_batches.cheaper(plain, 1, 1).__class__ is packed_batches.PackedBatches
    _, equal = _batches([60] * 64)  # nothing can be packed, and packed rows are no better
    assert packed_batches.cheaper(equal, 1, 1) is equal


def test_an_epoch_whose_order_does_not_fit_takes_that_of_a_trial(monkeypatch):
    made, _ = _batches()
    real, asked = made._groups, []

    def crowded(seed, epoch, attempt):
        asked.append(attempt)
        dealt = real(seed, epoch, attempt)
        return np.sort(dealt.ravel())[::-1].reshape(dealt.shape)  # all the empty places last

    monkeypatch.setattr(made, "_groups", crowded)
    found = [_rows(batch, 1, 1) for batch in made.epoch(0, 0)]
    assert asked == list(range(8))
    assert sorted(label for each in found for label in each) == list(range(150))


def test_a_row_of_several_texts_is_packed_text_by_text():
    made, expected = [], set()
    for number, sizes in enumerate(RNG.integers([1, 0, 0], 20, (40, 3))):  # tokens of each text
        starts = 1000 * number + 100 * np.arange(3) + 1
        mask = np.arange(sizes.max()) < sizes[:, None]
        ids = np.where(mask, starts[:, None] + np.arange(sizes.max()), 0)
        made.append({"input_ids": ids, "attention_mask": mask.astype(np.int32)})
        expected |= {(start, size) for start, size in zip(starts, sizes, strict=True) if size}
    features = dict.fromkeys(("input_ids", "attention_mask"), rows.Feature(np.int32))
    plain = batching.Batches(made, features, rows.Lengths(100), batch_size=8, passes=3)
    packed = packed_batches.PackedBatches(plain, shards=2, micro_batches=2)
    assert packed.packed.rows * packed.packed.length < 2 * 3 * plain.lengths.mean()
    found = []
    for batch in packed.epoch(0, 0):
        for group, sources in enumerate(batch["packed_from"]):
            device, part = divmod(group, 2)
            ids = batch["input_ids"].reshape(2, 2, 2, 3, -1)[device, :, part].ravel()
            for packed_row in sources:
                tokens = ids[packed_row[packed_row >= 0]]
                for text in np.split(tokens, np.flatnonzero(tokens % 100 == 1)[1:]):
                    assert (np.diff(text) == 1).all()
                    found.append((text[0], len(text)))
    assert len(found) == len(expected) and set(found) == expected


def test_outputs_come_back_in_the_order_of_the_rows():
    made, _ = _batches(batch_size=16, shards=2, micro_batches=1)
    numbers = np.concatenate([n for n, _ in made.in_order()])
    assert sorted(numbers[numbers >= 0].tolist()) == list(range(150)) and (numbers < 0).any()
    outputs = batching.forward(lambda _, batch: {"label": batch["label"]}, None, made)
    assert outputs["label"].tolist() == list(range(150))


# Through the step


def _packs(root, monkeypatch, shared=None, **values):
    config = toy_tasks.config("ner", root / "model", root, **values)
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    monkeypatch.setattr(packed_batches, "cheaper", packed_batches.PackedBatches)
    with jax.set_mesh(mesh):
        made = job.make(config, loading.load(config.model), mesh, shared)
    return isinstance(made.train_batches, packed_batches.PackedBatches)


def test_prompts_cached_features_and_programs_of_several_tasks_need_plain_batches(
    root, monkeypatch
):
    assert _packs(root, monkeypatch) and _packs(root, monkeypatch, strategy__name="lora")
    assert not _packs(root, monkeypatch, strategy__name="prompts")
    assert not _packs(root, monkeypatch, strategy__name="features")
    assert not _packs(root, monkeypatch, shared=sharing.Shared(tasks=2))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = toy_tasks.entities(tmp_path_factory.mktemp("packed"), count=32)
    toy_tasks.model(root)
    return root


def _step(task, root, batches, num_devices=1, **values):
    """Returns (tokens of a step, loss, first moments, dev outputs) with batches of this class."""
    values |= {"data__max_train": 16, "batch_size": 16, "num_epochs": 1}
    config = toy_tasks.config(task, root / "model", root, **values)
    mesh = sharding.make_mesh("data:-1", jax.devices()[:num_devices])
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(mesh):
        choose = (lambda plain, *_: plain) if batches is batching.Batches else batches
        patch.setattr(packed_batches, "cheaper", choose)
        made = job.make(config, loading.load(config.model), mesh)
        assert isinstance(made.train_batches, batches)
        (batch,) = made.batches(seed=0)
        loss, moments = toy_tasks.first_step(made, batch)
        outputs = made.outputs(made.place_trained(made.trained), "dev")
        # The first axis has tokens or, for several texts, these: the empty ones come last.
        masks = [row["attention_mask"] for row in made.encoded["dev"].rows]
        sizes = [mask.reshape(len(mask), -1).any(axis=1).sum() for mask in masks]
    by_row = {n: [x[:k] for x, k in zip(xs, sizes, strict=True)] for n, xs in outputs.items()}
    return batching.num_tokens(batch), loss, moments, by_row


@pytest.mark.parametrize(("num_devices", "size"), [(1, 0), (1, 4), (2, 8)])
def test_a_step_has_the_gradients_and_the_predictions_of_plain_batches(root, num_devices, size):
    _compare("ner", root, num_devices, {}, micro_batch_size=size)


def _compare(task, root, num_devices, common, tolerance=1e-5, **values):
    plain_tokens, plain_loss, plain_moments, plain = _step(task, root, batching.Batches, **common)
    tokens, loss, moments, outputs = _step(
        task, root, packed_batches.PackedBatches, num_devices, **common, **values
    )
    assert tokens < plain_tokens and loss == pytest.approx(plain_loss, rel=1e-5)
    limit = tolerance * np.abs(plain_moments).max()
    np.testing.assert_allclose(moments, plain_moments, rtol=0, atol=limit)
    assert outputs.keys() == plain.keys()
    for name, by_row in outputs.items():
        for mine, theirs in zip(by_row, plain[name], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Folders with texts of 1 to 9 words: some of the examples lack a negative, or a choice."""
    root = tmp_path_factory.mktemp("texts")
    for name in ("texts", "choices"):
        toy_tasks.model(root / name)
    draw = random.Random(0)

    def text():
        return " ".join(draw.choices(toy_tasks.WORDS, k=draw.choice([1, 2, 3, 9])))

    for split in ("train", "dev"):
        lines = []
        for number in range(16):
            found = [f"{text()} {n} {number}" for n in range(4)]
            lines.append({"query": found[0], "positive": found[1], "label": number % 2,
                          "negatives": found[2 : 3 + number % 2], "context": text(),
                          "choices": found[: 2 + number % 3]})  # fmt: skip
        keys_of = {"texts": ("query", "positive", "negatives"),
                   "choices": ("context", "choices", "label")}  # fmt: skip
        for name, keys in keys_of.items():
            records = [json.dumps({key: line[key] for key in keys}) for line in lines]
            (root / name / f"{split}.jsonl").write_text("\n".join(records))
    return root


@pytest.mark.parametrize(
    ("task", "num_devices", "values"),
    [
        ("embeddings", 1, {}),
        ("embeddings", 1, {"kind__chunk_size": 4, "kind__symmetric": True}),
        ("embeddings", 2, {"kind__chunk_size": 4, "kind__pooling": "max"}),
        ("rerank", 1, {"micro_batch_size": 4}),
        ("rerank", 2, {}),
        ("multiple_choice", 2, {"micro_batch_size": 8}),
    ],
)
def test_so_has_a_step_on_rows_of_several_texts(texts, task, num_devices, values):
    common = {name: x for name, x in values.items() if name.startswith("kind__")}
    config = {name: x for name, x in values.items() if name not in common}
    data = texts / ("choices" if task == "multiple_choice" else "texts")
    _compare(task, data, num_devices, common, 5e-5, **config)
