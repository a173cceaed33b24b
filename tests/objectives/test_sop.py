"""Sentence order prediction: what is swapped, and ALBERT's released data as an oracle."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import errors
from bertjax.data.batches import rng, samples
from bertjax.data.prepared import store
from bertjax.data.tokenizers import vocabulary
from bertjax.objectives import mlm
from tests.helpers import synthetic

LENGTH = 32
CONFIG = mlm.Config(pair="sop", masking="ngram")


def window_random(epoch: int = 0) -> rng.RowRandom:
    return rng.RowRandom(rng.row_keys(0, epoch, np.array([0])))


def ordered(length=LENGTH, short_rate=0.1) -> samples.OrderedPairs:
    return samples.OrderedPairs(length, synthetic.SPECIALS, short_rate)


def in_order(table):
    """First and second span in the order of the text: start and size of each."""
    swapped = table["label"] == 1
    first = np.where(swapped, table["b"], table["a"])
    second = np.where(swapped, table["a"], table["b"])
    sizes = np.where(swapped, [table["b_size"], table["a_size"]],
                     [table["a_size"], table["b_size"]])  # fmt: skip
    return first, sizes[0], second, sizes[1]


def test_swapped_or_not_the_two_segments_are_neighbours_in_one_document():
    sampling = ordered()
    window = sampling.window(synthetic.records(60))
    table = sampling.spans(window, window_random())
    first, first_size, second, second_size = in_order(table)
    assert min(first_size.min(), second_size.min()) >= 1
    np.testing.assert_array_equal(first + first_size, second)
    edges = window.sentences[window.parts]
    part = np.searchsorted(edges, first, side="right") - 1
    assert (second + second_size <= edges[part + 1]).all()


def test_the_text_is_used_once_and_whole():
    sampling = ordered()
    window = sampling.window(synthetic.records(60))
    first, first_size, _, second_size = in_order(sampling.spans(window, window_random()))
    ends = first + first_size + second_size
    between = np.append(first, len(window.tokens)) - np.insert(ends, 0, 0)
    # Between two samples lies nothing, or sentences of a single token that have no other beside.
    lonely = np.flatnonzero(between)
    assert set(between) <= {0, 1} and len(lonely) < 0.02 * len(first)
    assert np.isin(np.insert(ends, 0, 0)[lonely], window.sentences).all()


@pytest.mark.parametrize("epoch", range(3))
def test_half_are_swapped(epoch):
    sampling = ordered()
    window = sampling.window(synthetic.records(300))
    table = sampling.segment(window, window_random(epoch))
    n = len(table)
    assert n > 2000 and abs(table["label"].mean() - 0.5) < 4 * 0.5 / np.sqrt(n)


def test_documents_of_one_token_give_no_pair_and_are_refused():
    dataset = synthetic.Dataset([synthetic.record({i: [1] for i in range(9)})])
    with pytest.raises(errors.UserError, match=r"give no sample: .* too short for this objective"):
        synthetic.batches_of(dataset, ordered(), lambda batch, rng: batch, batch_size=2, seed=0)


def test_what_is_cut_off_does_not_tell_the_order():
    sampling = ordered()
    window = sampling.window(synthetic.records(1500))
    whole = sampling.spans(window, window_random())
    table = sampling.segment(window, window_random())
    for name in ("a", "b"):
        lost = whole[name + "_size"] - table[name + "_size"]
        for label in (0, 1):
            cut = (lost > 0) & (table["label"] == label)
            share = (table[name] - whole[name])[cut] / lost[cut]  # that went at the front
            assert len(share) > 500
            assert abs(share.mean() - 0.5) < 4 * share.std() / np.sqrt(len(share))


def test_segments_are_whole_sentences_but_for_those_alone():
    sampling = ordered(length=24, short_rate=0.0)
    window = sampling.window([synthetic.record({0: [5, 4, 6, 3, 9, 2], 1: [7], 2: [1], 3: [21]})])
    cuts = set()
    for epoch in range(200):
        table = sampling.spans(window, window_random(epoch))
        first, first_size, _, second_size = in_order(table)
        assert (first_size + second_size).tolist() == [27, 2, 7, 21]
        assert first[0] + first_size[0] in window.sentences
        cuts.add((first_size[2] - 0, int(table["label"][2])))
    # The lone sentence of 7 is cut anywhere, in both orders; the one of 1 token is left out.
    assert cuts == {(size, label) for size in range(1, 7) for label in (0, 1)}


def test_assembled():
    sampling = ordered()
    window = sampling.window(synthetic.records(40, counting=True))
    table = sampling.segment(window, window_random())
    batch = sampling.assemble(window, table)
    np.testing.assert_array_equal(batch["sentence_order_label"], table["label"])
    assert "next_sentence_label" not in batch
    for row, ids in zip(table, batch["input_ids"], strict=True):
        a = window.tokens[row["a"] : row["a"] + row["a_size"]].tolist()
        b = window.tokens[row["b"] : row["b"] + row["b_size"]].tolist()
        assert ids[: len(a) + len(b) + 3].tolist() == [2, *a, 3, *b, 3]
        assert (a[0] > b[0]) == row["label"]  # tokens count up through the text


def test_the_objective_has_the_head_and_the_loss():
    assert mlm.heads(CONFIG) == ("mlm", "sop")
    assert mlm.scales(CONFIG) == {"mlm_loss": 1.0, "sop_loss": 1.0}
    assert "sentence_order_label" in mlm.features(CONFIG, LENGTH)
    batch = {
        "input_ids": jnp.ones((3, 4), jnp.int32),
        "masked_positions": jnp.ones((3, 1), jnp.int32),
        "masked_ids": jnp.zeros((3, 1), jnp.int32),
        "masked_weights": jnp.ones((3, 1)),
        "sentence_order_label": jnp.array([0, 1, 1]),
        "example_weights": jnp.array([1.0, 1.0, 0.0]),
    }
    logits = jnp.log(jnp.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]))

    def apply(**features):
        return {"mlm_logits": jnp.zeros((3, 1, 7)), "sop_logits": logits}

    terms = mlm.loss(CONFIG, apply, batch)
    total, weight = terms["sop_loss"]
    np.testing.assert_allclose(total, -np.log(0.9) - np.log(0.5), rtol=1e-5)
    assert weight == 2 == mlm.normalizers(CONFIG, batch)["sop_loss"]
    assert terms["sop_accuracy"][0] == 1 and "nsp_loss" not in terms


# ALBERT's create_pretraining_data.py


@pytest.fixture(scope="module")
def reference(shared_data):
    """Documents of the sample text, the vocabulary of their pieces, and the instances."""
    folder = shared_data / "oracle"
    rows = [json.loads(line) for line in (folder / "albert_tokenization.jsonl").open()]
    tokens = {row["text"].strip(): row["tokens"] for row in rows}
    paragraphs = (folder / "sample_text.txt").read_text().split("\n\n")
    documents = [[tokens[line.strip()] for line in p.strip().split("\n")] for p in paragraphs]
    pieces = sorted({piece for document in documents for line in document for piece in line})
    names = ["[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]", *pieces]
    size = len(names)
    inside = re.compile(r"[^\u2581\W].*").fullmatch  # neither the mark of a space nor punctuation
    continues = np.array([i >= 5 and inside(name) is not None for i, name in enumerate(names)])
    words = vocabulary.Vocabulary(
        size,
        vocabulary.Specials(pad=0, unk=1, cls=2, sep=3, mask=4),
        continues,
        np.arange(size) < 5,
        vocabulary.sentinels_above(size),
    )
    ids = {name: i for i, name in enumerate(names)}
    lines = [line for document in documents for line in document]
    record = store.Record(
        np.arange(len(documents), dtype=np.uint64),
        np.array([len(document) for document in documents], np.uint32),
        np.array([len(line) for line in lines], np.uint32),
        np.array([ids[piece] for line in lines for piece in line], np.uint16),
    )
    instances = (folder / "albert_pretraining_instances.jsonl").open()
    return record, words, [json.loads(line) for line in instances]


def test_instances_have_the_properties_of_the_reference(reference):
    record, words, expected = reference
    sampling = mlm.sampling(CONFIG, 128, words)
    window = sampling.window([record])
    epochs, batches = 300, []
    for epoch in range(epochs):
        table = sampling.segment(window, window_random(epoch))
        batch = sampling.assemble(window, table)
        random = rng.RowRandom(rng.row_keys(1, epoch, np.arange(len(table))))
        out = mlm.transform(CONFIG, 128, words, batch, random)
        batches.append(out | {"truth": batch["input_ids"]})
    ours = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    lengths = ours["attention_mask"].sum(axis=1)
    their_lengths = np.array([len(e["tokens"]) for e in expected])
    used = ours["masked_weights"] > 0

    # The reference made its instances in 10 passes; a chunk of one sentence, which we cut in two,
    # it pairs with another document's and gives back what it did not use of the chunk.
    per_pass = np.array([len(batch["input_ids"]) for batch in batches])
    assert abs(10 * per_pass.mean() - len(expected)) < 4 * per_pass.std() * np.sqrt(10)
    assert abs(ours["sentence_order_label"].mean() - 0.5) < 0.03
    assert lengths.max() == their_lengths.max() == 128
    error = np.sqrt(their_lengths.var() / len(expected) + lengths.var() / len(lengths))
    assert abs(lengths.mean() - their_lengths.mean()) < 4 * error

    # Counts: theirs are exactly the rounded share; ours too, with 19 slots and not 20.
    limit = mlm.predictions(CONFIG, 128)
    counts = np.clip(np.rint(0.15 * lengths), 1, limit)
    assert (used.sum(axis=1) <= counts).all() and (used.sum(axis=1) == counts).mean() > 0.97
    for instance in expected:
        n = len(instance["tokens"])
        assert len(instance["masked_lm_positions"]) == min(20, max(1, round(0.15 * n)))
    rate = sum(len(e["masked_lm_positions"]) for e in expected) / their_lengths.sum()
    assert abs(used.sum() / lengths.sum() - rate) < 0.003

    # What the hidden tokens became.
    seen = np.take_along_axis(ours["input_ids"], ours["masked_positions"], axis=1)[used]
    kinds = np.where(seen == 4, 0, np.where(seen == ours["masked_ids"][used], 1, 2))
    shares = np.bincount(kinds) / len(kinds)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)
    theirs = np.concatenate([_kinds(e) for e in expected])
    their_shares = np.bincount(theirs) / len(theirs)
    assert (abs(their_shares - shares) < 4 * np.sqrt(shares * (1 - shares) / len(theirs))).all()

    # n-grams: runs of hidden tokens are about as long.
    runs = [_runs(p[w > 0]) for p, w in zip(ours["masked_positions"], used, strict=True)]
    runs = np.concatenate(runs)
    their_runs = np.concatenate([_runs(np.array(e["masked_lm_positions"])) for e in expected])
    error = np.sqrt(their_runs.var() / len(their_runs))
    assert abs(runs.mean() - their_runs.mean()) < 4 * error


def _kinds(instance):
    seen = [instance["tokens"][p] for p in instance["masked_lm_positions"]]
    pairs = zip(seen, instance["masked_lm_labels"], strict=True)
    return [0 if s == "[MASK]" else (1 if s == label else 2) for s, label in pairs]


def _runs(positions):
    """Sizes of the runs of neighbouring positions."""
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return np.diff(breaks, prepend=0, append=len(positions))
