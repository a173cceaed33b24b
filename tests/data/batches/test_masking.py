import dataclasses
import json

import numpy as np
import pytest

from bertjax import errors
from bertjax.data.batches import masking, rng, samples
from bertjax.objectives import mlm
from tests.helpers import synthetic

LENGTH = 64
VOCABULARY = synthetic.make_vocabulary()
SPECIALS = synthetic.SPECIALS


def row_random(rows: int, epoch: int = 0) -> rng.RowRandom:
    return rng.RowRandom(rng.row_keys(0, epoch, np.arange(rows)))


def make_batch(config=None, length=LENGTH, rows=256, seed=0):
    config = config or mlm.Config()
    sampling = mlm.sampling(config, length, VOCABULARY)
    window = sampling.window(synthetic.records(80, seed=seed))
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(seed, 0, np.array([0]))))
    return sampling.assemble(window, table[:rows])


def words_of(ids, mask):
    """Positions of each word, specials and padding left out."""
    words = []
    for position in np.flatnonzero(mask):
        token = ids[position]
        if token in (SPECIALS.cls, SPECIALS.sep):
            continue
        before = ids[position - 1]
        goes_on = VOCABULARY.continuations[token] and before not in (SPECIALS.cls, SPECIALS.sep)
        if goes_on:
            words[-1].append(int(position))
        else:
            words.append([int(position)])
    return words


# Counts


def test_counts_are_those_of_the_reference():
    lengths = np.arange(3, 129)
    expected = [min(19, max(1, int(round(n * 0.15)))) for n in lengths.tolist()]  # noqa: RUF046
    assert masking.counts(lengths, 0.15, 19).tolist() == expected
    assert masking.counts(np.array([10, 30, 50]), 0.15, 99).tolist() == [2, 4, 8]  # half to even


@pytest.mark.parametrize(("length", "expected"), [(5, 1), (64, 10), (128, 19), (512, 77)])
def test_slots(length, expected):
    assert mlm.predictions(mlm.Config(), length) == expected


# Choosing


def test_every_row_has_its_count_of_sorted_distinct_candidates():
    batch = make_batch()
    out = mlm.transform(mlm.Config(), LENGTH, VOCABULARY, batch, row_random(256))
    limit = mlm.predictions(mlm.Config(), LENGTH)
    sizes = batch["attention_mask"].sum(axis=1)
    used = out["masked_weights"] > 0
    assert used.sum(axis=1).tolist() == [
        min(limit, max(1, round(0.15 * size))) for size in sizes.tolist()
    ]
    for ids, size, positions, weights in zip(
        batch["input_ids"], sizes, out["masked_positions"], out["masked_weights"], strict=True
    ):
        k = int(weights.sum())
        assert weights.tolist() == [1] * k + [0] * (limit - k)
        assert positions[k:].tolist() == [0] * (limit - k)
        assert (np.diff(positions[:k]) > 0).all() and positions[k - 1] < size
        assert not np.isin(ids[positions[:k]], [SPECIALS.cls, SPECIALS.sep, SPECIALS.pad]).any()


def test_every_candidate_is_chosen_alike():
    candidates = np.ones((6000, 9), bool)
    candidates[:, [0, 4, 8]] = False
    counts = np.full(6000, 2)
    positions, weights = masking.choose_tokens(candidates, counts, 3, row_random(6000))
    assert weights.sum(axis=1).tolist() == [2] * 6000
    found, times = np.unique(positions[:, :2], return_counts=True)
    assert found.tolist() == [1, 2, 3, 5, 6, 7]
    np.testing.assert_allclose(times, 2000, rtol=0.08)
    _, times = np.unique(positions[:, :2], axis=0, return_counts=True)
    assert len(times) == 15  # all pairs
    np.testing.assert_allclose(times, 400, rtol=0.2)


@pytest.mark.parametrize("words", [False, True])
def test_fewer_candidates_than_counted_is_harmless(words):
    candidates = np.zeros((3, 8), bool)
    candidates[1, 3] = True
    candidates[2, 2:5] = True
    counts = np.full(3, 4)
    if words:
        none = np.zeros_like(candidates)
        positions, weights = masking.choose_words(candidates, none, counts, 5, row_random(3))
    else:
        positions, weights = masking.choose_tokens(candidates, counts, 5, row_random(3))
    assert weights.sum(axis=1).tolist() == [0, 1, 3]
    assert positions.tolist() == [[0] * 5, [3, 0, 0, 0, 0], [2, 3, 4, 0, 0]]


def test_whole_words_are_chosen_as_by_the_reference_loop():
    config = mlm.Config(masking="whole_word")
    batch = make_batch(config)
    out = mlm.transform(config, LENGTH, VOCABULARY, batch, row_random(256))
    limit = mlm.predictions(config, LENGTH)
    scores = row_random(256).bits("masking/score", LENGTH)
    passed_over = 0
    for i, (ids, mask) in enumerate(zip(batch["input_ids"], batch["attention_mask"], strict=True)):
        count = min(limit, max(1, round(0.15 * int(mask.sum()))))
        chosen = []
        for word in sorted(words_of(ids, mask), key=lambda word: scores[i, word[0]]):
            if len(chosen) >= count:
                break
            if len(chosen) + len(word) > count:
                passed_over += 1
                continue
            chosen += word
        used = out["masked_weights"][i] > 0
        assert out["masked_positions"][i][used].tolist() == sorted(chosen)
        assert not out["masked_positions"][i][~used].any()
    assert passed_over > 10


def test_word_longer_than_the_count_leaves_no_prediction():
    candidates = np.array([[False] + [True] * 6 + [False]])
    continues = np.array([[False, False] + [True] * 5 + [False]])
    positions, weights = masking.choose_words(
        candidates, continues, np.array([2]), 3, row_random(1)
    )
    assert not weights.any() and not positions.any()


# Hiding


def test_mask_keep_and_random_shares():
    batch = make_batch(length=128)
    config = mlm.Config()
    ordinary = np.zeros(4, np.int64)
    kinds = []
    for epoch in range(10):
        rows = len(batch["input_ids"])
        out = mlm.transform(config, 128, VOCABULARY, batch, row_random(rows, epoch))
        used = out["masked_weights"] > 0
        truth = np.take_along_axis(batch["input_ids"], out["masked_positions"], axis=1)
        seen = np.take_along_axis(out["input_ids"], out["masked_positions"], axis=1)
        np.testing.assert_array_equal(out["masked_ids"], np.where(used, truth, 0))
        kinds.append(np.where(seen == SPECIALS.mask, 0, np.where(seen == truth, 1, 2))[used])
        drawn = seen[used][kinds[-1] == 2]
        assert drawn.min() >= synthetic.FIRST and drawn.max() < VOCABULARY.size
        ordinary += np.histogram(drawn, bins=4, range=(synthetic.FIRST, VOCABULARY.size))[0]
        # Nothing else is touched.
        changed = out["input_ids"] != batch["input_ids"]
        at = np.zeros_like(changed)
        np.put_along_axis(at, out["masked_positions"], used, axis=1)
        assert not (changed & ~at).any()
    kinds = np.concatenate(kinds)
    n = len(kinds)
    shares = np.bincount(kinds, minlength=3) / n
    # A random piece is now and then the right one.
    expected = np.array([0.8, 0.1 + 0.1 / 195, 0.1 - 0.1 / 195])
    assert n > 20_000
    assert (abs(shares - expected) < 4 * np.sqrt(expected * (1 - expected) / n)).all()
    np.testing.assert_allclose(ordinary, ordinary.mean(), rtol=0.25)


@pytest.mark.parametrize(
    ("mask_share", "random_share", "kind"), [(1.0, 0.0, "mask"), (0.0, 0.0, "keep")]
)
def test_shares_at_their_ends(mask_share, random_share, kind):
    config = mlm.Config(mask_token_rate=mask_share, random_token_rate=random_share)
    batch = make_batch(config)
    out = mlm.transform(config, LENGTH, VOCABULARY, batch, row_random(256))
    if kind == "keep":
        np.testing.assert_array_equal(out["input_ids"], batch["input_ids"])
    else:
        masks = (out["input_ids"] == SPECIALS.mask).sum(axis=1)
        assert masks.tolist() == out["masked_weights"].sum(axis=1).tolist()


def test_batch_given_is_left_as_it_was():
    batch = make_batch()
    copy = {name: value.copy() for name, value in batch.items()}
    mlm.transform(mlm.Config(), LENGTH, VOCABULARY, batch, row_random(256))
    for name, value in copy.items():
        np.testing.assert_array_equal(batch[name], value)


def test_reference_files_have_the_properties_tested_here(shared_data):
    # The counts, the order and the exclusions above are what create_pretraining_data.py wrote.
    for name in ("bert_pretraining_instances.jsonl", "bert_pretraining_instances_wwm.jsonl"):
        with open(shared_data / "oracle" / name) as lines:
            for row in map(json.loads, lines):
                positions = row["masked_lm_positions"]
                size = len(row["tokens"])
                count = masking.counts(np.array([size]), 0.15, 20)[0]
                if "wwm" in name:
                    assert len(positions) <= count
                else:
                    assert len(positions) == count
                assert positions == sorted(set(positions))
                assert not {"[CLS]", "[SEP]"} & {row["tokens"][p] for p in positions}
                first = row["segment_ids"].index(1)
                assert row["segment_ids"] == [0] * first + [1] * (size - first)
                assert [row["tokens"][i] for i in (0, first - 1, -1)] == ["[CLS]", "[SEP]", "[SEP]"]


# The objective


@pytest.mark.parametrize("pair", ["nsp", "sop", "none"])
@pytest.mark.parametrize("choice", mlm.MASKINGS)
@pytest.mark.parametrize("length", [5, 48])
def test_features_are_what_transform_gives(pair, choice, length):
    config = mlm.Config(pair=pair, masking=choice)
    batch = make_batch(config, length)
    rows = len(batch["input_ids"])
    out = mlm.transform(config, length, VOCABULARY, batch, row_random(rows))
    given = {name: (value.shape[1:], value.dtype.type) for name, value in out.items()}
    assert given == mlm.features(config, length)


@pytest.mark.parametrize("choice", mlm.MASKINGS)
def test_row_does_not_depend_on_its_batch(choice):
    config = mlm.Config(masking=choice)
    batch = make_batch(config)
    whole = mlm.transform(config, LENGTH, VOCABULARY, batch, row_random(256))
    some = np.array([200, 3, 77])
    part = {name: value[some] for name, value in batch.items()}
    random = rng.RowRandom(rng.row_keys(0, 0, some))
    for name, value in mlm.transform(config, LENGTH, VOCABULARY, part, random).items():
        np.testing.assert_array_equal(value, whole[name][some], err_msg=name)


def test_sampling_follows_the_config():
    assert isinstance(mlm.sampling(mlm.Config(), 32, VOCABULARY), samples.Pairs)
    config = mlm.Config(pair="none", short_rate=0.0)
    assert mlm.sampling(config, 32, VOCABULARY) == samples.FullSentences(32, SPECIALS, 0.0, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_rate": 1.5}, "objective.mask_rate = 1.5"),
        ({"mask_token_rate": 0.8, "random_token_rate": 0.3}, "at most 0.2"),
        ({"pair": "sos"}, "objective.pair = 'sos'"),
        ({"masking": "words"}, "objective.masking = 'words'"),
        ({"max_ngram": 0}, "objective.max_ngram = 0"),
    ],
)
def test_impossible_values_are_named(fields, message):
    with pytest.raises(errors.UserError, match=message):
        mlm.Config(**fields)


def test_vocabulary_without_mask_is_named():
    vocabulary = synthetic.make_vocabulary()
    specials = dataclasses.replace(vocabulary.specials, mask=-1)
    lacking = dataclasses.replace(vocabulary, specials=specials)
    with pytest.raises(errors.UserError, match="no mask token"):
        mlm.sampling(mlm.Config(), 32, lacking)
    with pytest.raises(errors.UserError, match=r"config.data.length = 4"):
        mlm.sampling(mlm.Config(), 4, vocabulary)
