"""Language modelling and denoising: what is read, what is predicted, and that text comes back."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import errors, plugins
from bertjax.data.batches import rng
from bertjax.objectives import (
    causal_lm,
    denoisers,
    prefix_denoisers,
    prefix_lm,
    span_corruption,
)
from bertjax.objectives.common import losses
from tests.helpers import proofs, synthetic, unpacking

LENGTH = 64
VOCABULARY = synthetic.make_vocabulary()
PAD, START, END = 0, synthetic.SPECIALS.cls, synthetic.SPECIALS.sep
CONFIGS = {
    "causal_lm": causal_lm.Config(),
    "causal_lm_unpacked": causal_lm.Config(packing=False),
    "prefix_lm": prefix_lm.Config(),
    "prefix_lm_unpacked": prefix_lm.Config(packing=False),
    "prefix_lm_encoder": prefix_lm.Config(kind="encoder_decoder"),
    "prefix_lm_encoder_unpacked": prefix_lm.Config(kind="encoder_decoder", packing=False),
    "span_corruption": span_corruption.Config(z_loss=1e-4),
    "span_corruption_unpacked": span_corruption.Config(packing=False),
    "denoisers": denoisers.Config(),
    "denoisers_unpacked": denoisers.Config(packing=False, mode_tokens=False),
    "prefix_denoisers": prefix_denoisers.Config(),
    "prefix_denoisers_unpacked": prefix_denoisers.Config(packing=False, mode_tokens=False),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def module_of(config):
    return plugins.objective(type(config).__module__.rpartition(".")[2])


def batches(config, records=None, length=LENGTH, epoch=0):
    """Every row of the records, before and after `transform`."""
    module = module_of(config)
    sampling = module.sampling(config, length, VOCABULARY)
    window = sampling.window(records or synthetic.records(30))
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(0, epoch, np.array([0]))))
    raw = sampling.assemble(window, table)
    random = rng.RowRandom(rng.row_keys(0, epoch, np.arange(len(table))))
    return raw, module.transform(config, length, VOCABULARY, raw, random)


def by_piece(batch, names):
    """The features `names` of each piece of packed rows, without padding."""
    segments = {
        name: batch["decoder_segment_ids" if "decoder_segment_ids" in batch
                    and (name in ("targets", "loss_weights") or name.startswith("decoder_"))
                    else "segment_ids"]
        for name in names
    }  # fmt: skip
    for row in range(len(batch["targets"])):
        for number in range(1, batch["segment_ids"][row].max() + 1):
            yield [batch[name][row][segments[name][row] == number].tolist() for name in names]


def raw_pieces(raw):
    """The text of each piece in the order of `by_piece`."""
    for ids, sizes in zip(raw["input_ids"], raw["piece_sizes"], strict=True):
        edges = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
        for start, stop in itertools.pairwise(edges):
            yield ids[start:stop].tolist()


# What all of them have


@each_config
def test_features_are_what_transform_gives(config):
    module = module_of(config)
    for length in (16, LENGTH):
        _, batch = batches(config, length=length)
        table = module.features(config, length)
        assert batch.keys() == table.keys()
        for name, (shape, dtype) in table.items():
            assert (batch[name].shape[1:], batch[name].dtype) == (shape, dtype), name
        assert batch["targets"].shape[1] == module.predictions(config, length)


@pytest.mark.parametrize(
    "name", proofs.all_but(CONFIGS, "causal_lm", "prefix_lm_unpacked", "span_corruption")
)
def test_loss_is_that_of_the_predicted_tokens(name):
    config = CONFIGS[name]
    module = module_of(config)
    _, batch = batches(config)
    read = {}

    def apply(**features):
        read.update(features)
        right = jax.nn.one_hot(batch["targets"], 310) * jnp.log(3.0)
        return {"logits": jnp.where(batch["loss_weights"][..., None] > 0, right, 7.0)}

    assert module.heads(config) == ("lm",)
    terms = module.loss(config, apply, batch)
    assert set(read) == set(batch) - {"targets", "loss_weights"}
    weight = batch["loss_weights"].sum()
    assert weight > 0
    partition = np.log(3 + 309)
    np.testing.assert_allclose(terms["lm_loss"][0] / weight, partition - np.log(3), rtol=1e-5)
    np.testing.assert_allclose(terms["lm_accuracy"], (weight, weight), rtol=1e-6)
    scales = module.scales(config)
    assert next(iter(scales)) == "lm_loss" and set(terms) == {*scales, "lm_accuracy"}
    if "z_loss" in terms:
        np.testing.assert_allclose(terms["z_loss"][0] / weight, partition**2, rtol=1e-5)
    normalizers = module.normalizers(config, batch)
    assert normalizers.keys() == scales.keys()
    for name, value in normalizers.items():
        assert value == weight == terms[name][1]


@pytest.mark.parametrize("name", ["causal_lm", "prefix_lm", "span_corruption", "denoisers"])
def test_too_short_a_length(name):
    module = plugins.objective(name)
    with pytest.raises(errors.UserError, match="length"):
        config = module.Config(**({"kind": "encoder_decoder"} if name == "prefix_lm" else {}))
        module.sampling(config, 1 if name == "causal_lm" else 2, VOCABULARY)


@pytest.mark.parametrize(
    ("make", "fields", "match"),
    [
        (span_corruption.Config, {"noise_density": 1.0}, "noise_density"),
        (span_corruption.Config, {"mean_noise_span_length": 0.5}, "mean_noise_span_length"),
        (span_corruption.Config, {"z_loss": -1.0}, "z_loss"),
        (denoisers.Config, {"r_rate": 0.7, "s_rate": 0.7}, "r_rate"),
        (prefix_lm.Config, {"kind": "encoder"}, "kind"),
    ],
)
def test_bad_fields(make, fields, match):
    with pytest.raises(errors.UserError, match=match):
        make(**fields)


# Language models


def test_causal_pieces():
    raw, batch = batches(causal_lm.Config())
    found = by_piece(batch, ["input_ids", "targets", "loss_weights"])
    pieces = list(raw_pieces(raw))
    assert sum(END in piece for piece in pieces) > 50
    for (read, targets, weights), text in zip(found, pieces, strict=True):
        assert targets == text and read == [START, *text[:-1]]
        assert set(weights) == {1.0}
        assert END not in text[:-1]


def test_prefix_and_rest():
    _, batch = batches(prefix_lm.Config(), synthetic.records(300))
    splits, sizes = [], []
    for positions, visible, weights in by_piece(
        batch, ["position_ids", "prefix_mask", "loss_weights"]
    ):
        # Position t reads token t - 1 and predicts token t: the last one seen by all predicts.
        split = sum(visible) - 1
        assert visible == [int(t <= split) for t in positions]
        assert weights == [float(t >= split) for t in positions]
        assert 1 <= split < len(positions) or len(positions) == 1
        splits.append(split)
        sizes.append(len(positions))
    full = np.array(splits)[np.array(sizes) == LENGTH]
    assert len(full) > 300
    assert full.min() <= 3 and full.max() >= LENGTH - 3
    shares = np.histogram(full, 3, (1, LENGTH))[0] / len(full)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.08)
    assert not (batch["prefix_mask"] * (batch["segment_ids"] == 0)).any()


class FixedSplits:
    """Random numbers that are not."""

    def __init__(self, *splits):
        self.splits = np.array([splits])

    def integers(self, stream, low, high, n):
        assert ((low <= self.splits) & (self.splits < high)).all()
        return self.splits


def test_prefix_of_the_reference():
    # seqio's feature_converters_test: pad and start are 0.
    specials = dataclasses.replace(synthetic.SPECIALS, bos=0)
    zero = dataclasses.replace(VOCABULARY, specials=specials)
    raw = {"input_ids": np.array([[9, 4, 6, 1, 3, 9, 1, 0, 0]]), "piece_sizes": np.array([[7]])}
    config = prefix_lm.Config(packing=False)
    batch = prefix_lm.transform(config, 9, zero, raw, FixedSplits(4))
    assert batch["targets"].tolist() == [[9, 4, 6, 1, 3, 9, 1, 0, 0]]
    assert batch["input_ids"].tolist() == [[0, 9, 4, 6, 1, 3, 9, 1, 0]]
    assert batch["loss_weights"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0]]
    assert batch["prefix_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0, 0]]

    targets = [[7, 8, 5, 1, 3, 9, 1, 8, 4, 9, 3, 1, 4, 1, 0]]
    raw = {"input_ids": np.array(targets), "piece_sizes": np.array([[7, 7]])}
    batch = prefix_lm.transform(prefix_lm.Config(), 15, zero, raw, FixedSplits(4, 5))
    assert batch["targets"].tolist() == targets
    assert batch["input_ids"].tolist() == [[0, 7, 8, 5, 1, 3, 9, 0, 8, 4, 9, 3, 1, 4, 0]]
    assert batch["loss_weights"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]]
    assert batch["prefix_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[*range(7), *range(7), 0]]
    assert batch["segment_ids"].tolist() == [[1] * 7 + [2] * 7 + [0]]


def test_unpacked_prefix():
    raw, batch = batches(prefix_lm.Config(packing=False))
    split = batch["prefix_mask"].sum(axis=1) - 1
    size = raw["piece_sizes"][:, 0]
    assert ((split >= np.minimum(1, size - 1)) & (split < size)).all()
    np.testing.assert_array_equal(batch["loss_weights"].sum(axis=1), size - split)
    np.testing.assert_array_equal(batch["attention_mask"].sum(axis=1), size)


def test_prefix_for_an_encoder():
    raw, batch = batches(prefix_lm.Config(kind="encoder_decoder"), synthetic.records(100))
    shares = []
    found = by_piece(batch, ["input_ids", "decoder_input_ids", "targets"])
    for (prefix, read, rest), text in zip(found, raw_pieces(raw), strict=True):
        assert prefix[-1] == rest[-1] == END
        assert prefix[:-1] + rest[:-1] == text
        assert read == [PAD, *rest[:-1]]
        shares += [len(prefix[:-1]) / len(text)] * (len(text) > 40)
    assert abs(np.mean(shares) - 0.5) < 0.05 and np.std(shares) > 0.25


# Denoising


def restored(inputs, targets, sentinels):
    """The text of which corrupted inputs and targets are two halves."""
    assert inputs[-1] == targets[-1] == END
    hidden = {}
    for token in targets[:-1]:
        if token in sentinels:
            last = hidden[token] = []
        else:
            last.append(token)
    assert list(hidden) == sentinels[: len(hidden)]
    return [piece for token in inputs[:-1] for piece in hidden.get(token, [token])]


def test_corrupted_text_comes_back():
    raw, batch = batches(span_corruption.Config())
    sentinels = VOCABULARY.sentinels.tolist()
    assert sentinels[0] == 299 and sentinels[-1] == 200  # just above the 200 pieces
    found = by_piece(batch, ["input_ids", "targets", "decoder_input_ids"])
    spans = 0
    for (inputs, targets, read), text in zip(found, raw_pieces(raw), strict=True):
        if len(text) > 1:
            assert restored(inputs, targets, sentinels) == text
            assert targets[-2] not in sentinels  # noise is at the end
        else:
            assert inputs == [*text, END] and targets == [sentinels[0], END]
        assert read == [PAD, *targets[:-1]]
        spans += sum(token in sentinels for token in inputs)
    assert spans > 200


def test_text_is_longer_than_its_row():
    document = synthetic.record({0: [5] * 1000})
    config = span_corruption.Config(packing=False)
    raw, batch = batches(config, [document], length=512)
    sizes = raw["piece_sizes"][:, 0].tolist()
    assert sorted(sizes, reverse=True)[:-1] == [568] * 8
    full = np.array(sizes) == 568
    assert batch["attention_mask"][full].all() and batch["decoder_attention_mask"][full].all()
    assert batch["targets"].shape[1] == 114


def test_corruption_is_another_in_each_epoch():
    document = [synthetic.record({0: [5] * 8})]
    config = span_corruption.Config(packing=False)
    seen = {batches(config, document, epoch=e)[1]["input_ids"].tobytes() for e in range(20)}
    assert len(seen) > 15


def test_denoisers_and_their_modes():
    config = denoisers.Config()
    raw, batch = batches(config, synthetic.records(600))
    sentinels, modes = VOCABULARY.sentinels[:-3].tolist(), VOCABULARY.sentinels[-3:].tolist()
    found = list(by_piece(batch, ["input_ids", "targets"]))
    for (inputs, targets), text in zip(found, raw_pieces(raw), strict=True):
        if len(text) == 1:
            continue
        assert restored(inputs[1:], targets, sentinels) == text
        if inputs[0] == modes[1]:  # the end from the rest
            cut = round(len(text) * 0.75)
            assert inputs[-2] == sentinels[0] and abs(len(inputs) - 3 - cut) <= 1
    rows = np.bincount(raw["noise"], minlength=7) / len(raw["noise"])
    np.testing.assert_allclose(rows, 1 / 7, atol=0.03)
    first = batch["input_ids"][:, 0]
    np.testing.assert_array_equal(first, np.repeat(modes, [2, 1, 4])[raw["noise"]])


def test_rates_of_denoisers():
    only_s = denoisers.Config(r_rate=0.0, s_rate=1.0)
    assert set(batches(only_s)[0]["noise"].tolist()) == {2}
    no_x = batches(denoisers.Config(r_rate=0.5, s_rate=0.5), synthetic.records(300))[0]["noise"]
    assert set(no_x.tolist()) == {0, 1, 2}
    assert abs((no_x == 2).mean() - 0.5) < 0.06


@pytest.mark.parametrize("size", [20, 90, 1000])
def test_rates_hold_for_documents_of_any_length_that_are_not_packed(size):
    """A short document fills one row with every noise, a long one fewer rows with some noises."""
    sampling = denoisers.sampling(denoisers.Config(packing=False), LENGTH, VOCABULARY)
    window = sampling.window([synthetic.record({i: [size] for i in range(4000)})])
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(0, 0, np.array([0]))))
    shares = np.bincount(table["noise"][:, 0], minlength=7) / len(table)
    np.testing.assert_allclose(shares, 1 / 7, atol=0.02)


# Same tokens, another objective


@pytest.mark.parametrize(
    ("family", "objective"),
    proofs.all_but(
        [("gpt2", "causal_lm"), ("gpt2", "prefix_lm"), ("t5", "span_corruption"),
         ("t5", "prefix_lm"), ("t5", "denoisers")],
        ("gpt2", "prefix_lm"), ("t5", "denoisers"),
    ),
)  # fmt: skip
def test_another_objective_is_one_line(family, objective):
    config = config_lib.default(family, "mini", objective)
    config.model.update(plugins.family(family).SMOKE)
    config.model.vocab_size = 320  # sentinels included
    config_lib.smoke(config)
    config.data.length = LENGTH
    config_lib.validate(config)
    module, fields = plugins.objective(objective), plugins.objective_config(config)
    dataset = synthetic.Dataset(synthetic.records(20))
    stream = synthetic.batches_of(
        dataset,
        module.sampling(fields, config.data.length, VOCABULARY),
        functools.partial(module.transform, fields, config.data.length, VOCABULARY),
        batch_size=8,
        seed=0,
    )
    batch = stream.batch(0)
    model = plugins.model(family, config.model)
    params = plugins.init_params(model, jax.random.key(0))
    apply = functools.partial(model.apply, {"params": params}, deterministic=True)
    loss = jax.jit(functools.partial(module.loss, fields, apply))
    total, weight = loss(batch)["lm_loss"]
    assert abs(total / weight - np.log(320)) < 1.5
    # Packed and one piece a row: the same loss.
    assert batch["segment_ids"].max() > 1
    apart = loss(unpacking.unpacked(batch))["lm_loss"]
    np.testing.assert_allclose(total / weight, apart[0] / apart[1], rtol=1e-5)
    assert weight == apart[1]


def test_the_accuracy_counts_the_first_of_equal_logits_as_jax_does():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.integers(-2, 3, (6, 50, 9)), jnp.float32)  # most rows have ties
    labels = jnp.asarray(rng.integers(0, 9, (6, 50)))
    terms = losses.classification("lm", logits, labels, jnp.ones((6, 50)))
    expected = jnp.sum(jnp.argmax(logits, axis=-1) == labels)
    assert terms["lm_accuracy"][0] == expected > 0
