import json

import numpy as np
import pytest

from bertjax.data.batches import rng, samples
from bertjax.data.prepared import store
from tests.helpers import synthetic

LENGTH = 32


def window_random(epoch: int = 0) -> rng.RowRandom:
    return rng.RowRandom(rng.row_keys(0, epoch, np.array([0])))


def pairs(length=LENGTH, short_rate=0.1, random_next_rate=0.5) -> samples.Pairs:
    return samples.Pairs(length, synthetic.SPECIALS, short_rate, random_next_rate)


def full(length=LENGTH, short_rate=0.1, cross_documents=True) -> samples.FullSentences:
    return samples.FullSentences(length, synthetic.SPECIALS, short_rate, cross_documents)


def part_of(window: samples.Window, token: np.ndarray) -> np.ndarray:
    return np.searchsorted(window.sentences[window.parts], token, side="right") - 1


# Pairs


def reference_chunks(window: samples.Window, sampling: samples.Pairs, random: rng.RowRandom):
    """The loop of create_instances_from_document with the draws that `spans` makes."""
    n = len(window.sentences) - 1
    sizes = np.diff(window.sentences)
    short = random.uniform("samples/short", n)[0] < sampling.short_rate
    targets = random.integers("samples/target", 2, sampling.max_tokens + 1, n)[0]
    foreign = random.uniform("pairs/foreign", n)[0] < sampling.random_next_rate
    for first, last in zip(window.parts, window.parts[1:], strict=False):
        chunk, i = [], first
        while i < last:
            chunk.append(i)
            s = chunk[0]
            target = targets[s] if short[s] else sampling.max_tokens
            if i == last - 1 or sizes[chunk].sum() >= target:
                # The draw for column s: the others do not matter.
                a_end = random.integers("pairs/a", 1, len(chunk), n)[0][s]
                if len(chunk) == 1 or foreign[s]:
                    yield s, s + a_end, None, target
                    i -= len(chunk) - a_end
                else:
                    yield s, s + a_end, i + 1, target
                chunk = []
            i += 1


@pytest.mark.parametrize("epoch", range(3))
def test_pairs_are_those_of_the_reference_loop(epoch):
    sampling = pairs(short_rate=0.3)
    window = sampling.window(synthetic.records(20))
    table = sampling.spans(window, window_random(epoch))
    expected = list(reference_chunks(window, sampling, window_random(epoch)))
    assert len(table) == len(expected) > 100
    for row, (s, a_end, b_end, target) in zip(table, expected, strict=True):
        a, b, z = window.sentences[s], window.sentences[a_end], row["b"] + row["b_size"]
        assert (row["a"], row["a_size"]) == (a, b - a)
        assert row["label"] == (b_end is None)
        if b_end is not None:
            assert (row["b"], z) == (b, window.sentences[b_end])
            continue
        # Another document's sentences, from any one on, until they fill what A leaves.
        own, other = part_of(window, a), part_of(window, row["b"])
        assert window.document_ids[own] != window.document_ids[other]
        assert row["b"] in window.sentences and z in window.sentences
        last = window.sentences[np.searchsorted(window.sentences, z) - 1]
        assert last - row["b"] < max(1, target - row["a_size"])
        assert z - row["b"] >= target - row["a_size"] or (
            z == window.sentences[window.parts[other + 1]]
        )


@pytest.mark.parametrize("random_next_rate", [0.0, 0.5, 1.0])
def test_first_and_actual_second_segments_tile_the_text(random_next_rate):
    sampling = pairs(random_next_rate=random_next_rate)
    window = sampling.window(synthetic.records(30))
    table = sampling.spans(window, window_random())
    actual = table[table["label"] == 0]
    spans = np.concatenate([table["a"], actual["b"]])
    ends = np.concatenate([table["a"] + table["a_size"], actual["b"] + actual["b_size"]])
    assert np.sort(spans).tolist() == [0, *np.sort(ends)[:-1]]
    assert ends.max() == len(window.tokens)


def test_truncation_is_that_of_the_reference():
    # truncate_seq_pair by its loop, in lengths only.
    def loop(a, b, limit):
        while a + b > limit:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        return a, b

    sizes = [(a, b) for a in range(1, 24) for b in range(24)]
    table = np.zeros(len(sizes), samples.SAMPLE)
    table["a_size"], table["b_size"] = np.transpose(sizes)
    for limit in (12, 13):
        short = samples.truncate(table, limit, np.full(len(table), 0.5))
        kept = list(zip(short["a_size"], short["b_size"], strict=True))
        assert kept == [loop(a, b, limit) for a, b in sizes]


def test_truncation_takes_from_front_and_back():
    table = np.zeros(3000, samples.SAMPLE)
    table["a"], table["a_size"], table["b"], table["b_size"] = 100, 12, 500, 3
    front = window_random().uniform("front", len(table))[0]
    short = samples.truncate(table, 11, front)
    assert set(short["a_size"]) == {8} and set(short["b_size"]) == {3}
    assert set(short["b"]) == {500}
    starts, counts = np.unique(short["a"], return_counts=True)
    assert starts.tolist() == [100, 101, 102, 103, 104]
    np.testing.assert_allclose(counts, 600, rtol=0.2)


def test_other_document_is_uniform_and_never_the_own():
    # Document 1 has three parts, and they are not side by side; ids are not in order.
    made = [
        synthetic.record({9: [3, 3], 1: [5, 5, 5]}),
        synthetic.record({1: [5], 7: [4, 4, 4]}),
        synthetic.record({1: [2], 8: [6]}),
    ]
    sampling = pairs(length=8, random_next_rate=1.0)
    window = sampling.window(made)
    parts = np.arange(6)
    rngs = (window_random(epoch) for epoch in range(900))
    drawn = [samples._foreign_sentences(window, parts, rng) for rng in rngs]
    part = np.searchsorted(window.parts, np.array(drawn), side="right") - 1
    for own in parts:
        others = np.flatnonzero(window.document_ids != window.document_ids[own])
        found, counts = np.unique(part[:, own], return_counts=True)
        assert found.tolist() == others.tolist()
        np.testing.assert_allclose(counts, 900 / len(others), rtol=0.25)
    sentences, counts = np.unique(np.array(drawn)[part == 3], return_counts=True)
    assert len(sentences) == 3
    np.testing.assert_allclose(counts, counts.mean(), rtol=0.2)


def test_one_document_gives_actual_pairs_only():
    sampling = pairs(length=16)
    made = [synthetic.record({4: [5] * 10}), synthetic.record({4: [5]})]
    window = sampling.window(made)
    table = sampling.segment(window, window_random())
    assert not table["label"].any()
    last = table[-1]  # the lone sentence has no next one
    assert (last["a"], last["a_size"], last["b_size"]) == (50, 5, 0)
    batch = sampling.assemble(window, table[-1:])
    ids = batch["input_ids"][0]
    assert ids[[0, 6, 7]].tolist() == [2, 3, 3] and batch["attention_mask"].sum() == 8


def test_assembled_pairs():
    sampling = pairs()
    window = sampling.window(synthetic.records(20, counting=True))
    table = sampling.segment(window, window_random())
    assert 0.4 < table["label"].mean() < 0.8
    batch = sampling.assemble(window, table)
    assert {name: value.dtype for name, value in batch.items()} == dict.fromkeys(
        ["input_ids", "attention_mask", "token_type_ids", "next_sentence_label"], np.int32
    )
    np.testing.assert_array_equal(batch["next_sentence_label"], table["label"])
    for row, ids, mask, types in zip(
        table, batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], strict=True
    ):
        a = window.tokens[row["a"] : row["a"] + row["a_size"]].tolist()
        b = window.tokens[row["b"] : row["b"] + row["b_size"]].tolist()
        expected = [2, *a, 3, *b, 3]
        padding = [0] * (LENGTH - len(expected))
        assert len(a) >= 1 and len(b) >= 1
        assert ids.tolist() == expected + padding
        assert mask.tolist() == [1] * len(expected) + padding
        assert types.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + padding


# Full sentences


def test_full_sentences_tile_the_text():
    sampling = full()
    window = sampling.window(synthetic.records(30))
    table = sampling.segment(window, window_random())
    start, end = table["a"], table["a"] + table["a_size"]
    assert start[0] == 0 and table["a_size"].min() >= 1
    assert table["a_size"].max() <= LENGTH - 2
    # Between two samples lies nothing, or the [SEP] of the document that ends there.
    skipped = np.append(start[1:], len(window.tokens)) - end
    assert set(skipped) == {0, 1}
    assert (window.tokens[end[skipped == 1]] == synthetic.SPECIALS.sep).all()
    assert np.isin(start, window.sentences).all()


def test_full_sentences_take_all_that_fit():
    sampling = full(length=12, short_rate=0.0)
    window = sampling.window([synthetic.record({0: [4, 5, 2], 1: [3, 4], 2: [9]})])
    # With the [SEP]s that close documents: 4 5 3 | 3 5 | 10.
    table = sampling.segment(window, window_random())
    assert table["a_size"].tolist() == [9, 6, 4, 9]
    ids = sampling.assemble(window, table)["input_ids"]
    assert np.flatnonzero(ids[1] == synthetic.SPECIALS.sep).tolist() == [3, 7]
    assert np.flatnonzero(ids[2] == synthetic.SPECIALS.sep).tolist() == [5]


def test_assembled_full_sentences():
    sampling = full()
    window = sampling.window(synthetic.records(20, counting=True))
    table = sampling.segment(window, window_random())
    batch = sampling.assemble(window, table)
    assert set(batch) == {"input_ids", "attention_mask"}
    crossing = 0
    for row, ids, mask in zip(table, batch["input_ids"], batch["attention_mask"], strict=True):
        text = window.tokens[row["a"] : row["a"] + row["a_size"]].tolist()
        padding = [0] * (LENGTH - 2 - len(text))
        assert ids.tolist() == [2, *text, 3, *padding]
        assert mask.tolist() == [1] * (len(text) + 2) + padding
        real = ids[mask == 1]
        assert not ((real[1:] == 3) & (real[:-1] == 3)).any()
        crossing += 3 in text
    assert crossing > 10


def test_text_of_one_document_ends_with_it():
    sampling = full(length=12, short_rate=0.0, cross_documents=False)
    window = sampling.window([synthetic.record({0: [4, 5, 2], 1: [3, 4], 2: [9]}, token=5)])
    table = sampling.segment(window, window_random())
    assert table["a_size"].tolist() == [9, 2, 7, 9]
    np.testing.assert_array_equal(part_of(window, table["a"]), [0, 0, 1, 2])
    ids = sampling.assemble(window, table)["input_ids"]
    assert ((ids == synthetic.SPECIALS.sep).sum(axis=1) == 1).all()
    many = sampling.window(synthetic.records(30))
    table = sampling.segment(many, window_random())
    last = table["a"] + table["a_size"] - 1
    np.testing.assert_array_equal(part_of(many, table["a"]), part_of(many, last))
    assert table["a_size"].sum() == len(many.tokens)


# Both


@pytest.mark.parametrize("sampling", [pairs(length=16), full(length=16)])
def test_over_long_sentences_are_cut_in_equal_pieces(sampling):
    made = [synthetic.record({0: [3, 40, 2], 5: [100]}, token=5), synthetic.record({5: [1]}, 200)]
    window = sampling.window(made)
    sizes = np.diff(window.sentences)
    assert sizes.max() <= sampling.max_tokens and sizes.sum() == len(window.tokens)
    text = window.tokens[window.tokens != synthetic.SPECIALS.sep]
    assert text.tolist() == np.concatenate([r.tokens for r in made]).tolist()
    pieces = {13: [10, 10, 10, 10], 14: [13, 13, 14]}[sampling.max_tokens]
    assert sizes[1 : 1 + len(pieces)].tolist() == pieces
    ends = window.sentences[window.parts]
    assert len(ends) == 4 and ends[-1] == len(window.tokens)
    table = sampling.segment(window, window_random())
    assert table["a_size"].min() >= 1


@pytest.mark.parametrize("sampling", [pairs(length=5), full(length=5)])
def test_shortest_length(sampling):
    window = sampling.window(synthetic.records(5))
    batch = sampling.assemble(window, sampling.segment(window, window_random()))
    assert batch["input_ids"].shape[1] == 5
    assert (batch["input_ids"][:, 0] == synthetic.SPECIALS.cls).all()


@pytest.mark.parametrize("sampling", [pairs(), full()])
def test_another_epoch_cuts_the_text_elsewhere(sampling):
    window = sampling.window(synthetic.records(10))
    first, again, other = (sampling.segment(window, window_random(e)) for e in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:50], other[:50])


def test_matches_the_distribution_of_the_reference_instances(shared_data):
    folder = shared_data / "oracle"
    with open(folder / "bert_uncased_tokenization.jsonl") as lines:
        ids = {row["text"].strip(): row["ids"] for row in map(json.loads, lines)}
    paragraphs = (folder / "sample_text.txt").read_text().split("\n\n")
    documents = [[ids[line.strip()] for line in p.strip().split("\n")] for p in paragraphs]
    sentences = [sentence for document in documents for sentence in document]
    record = store.Record(
        np.arange(len(documents), dtype=np.uint64),
        np.array([len(document) for document in documents], np.uint32),
        np.array([len(sentence) for sentence in sentences], np.uint32),
        np.concatenate(sentences).astype(np.uint16),
    )
    sampling = pairs(length=128)
    window = sampling.window([record])
    epochs = 400
    tables = [sampling.segment(window, window_random(e)) for e in range(epochs)]
    table = np.concatenate(tables)
    lengths = table["a_size"] + table["b_size"] + 3
    assert lengths.max() == 128
    for name in ("bert_pretraining_instances.jsonl", "bert_pretraining_instances_wwm.jsonl"):
        with open(folder / name) as lines:
            expected = [json.loads(line) for line in lines]  # of 10 epochs
        # Tolerances: three standard deviations of ten epochs of the reference loop over this text
        # (7.7 instances, share 0.051, length 3.9), measured on 300 seeds of it.
        assert abs(len(table) * 10 / epochs - len(expected)) < 23
        assert abs(table["label"].mean() - np.mean([e["is_random_next"] for e in expected])) < 0.15
        assert abs(lengths.mean() - np.mean([len(e["tokens"]) for e in expected])) < 11.7
        sizes = [e["segment_ids"].index(1) - 2 for e in expected]
        assert abs(table["a_size"].mean() - np.mean(sizes)) < 9
