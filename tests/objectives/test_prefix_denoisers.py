"""UL2 for decoders: the rows are T5's inputs and targets in one sequence, behind a prefix mask."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import errors, experiment
from bertjax.data.batches import rng, spans
from bertjax.inference import pretrained
from bertjax.objectives import denoisers, prefix_denoisers
from tests.helpers import encoders, synthetic, tiny_runs

LENGTH = 64
VOCABULARY = synthetic.make_vocabulary()
START, END = synthetic.SPECIALS.cls, synthetic.SPECIALS.sep
SENTINELS = VOCABULARY.sentinels.tolist()
MODES = dict(zip(SENTINELS[-3:], "RSX", strict=True))
NOISES = [(mode, noise) for mode, noises in denoisers.DENOISERS.items() for noise in noises]


@functools.cache
def batches(packing=True, records=200):
    """All rows of the records before and after `transform`."""
    config = prefix_denoisers.Config(packing=packing)
    sampling = prefix_denoisers.sampling(config, LENGTH, VOCABULARY)
    window = sampling.window(synthetic.records(records))
    table = sampling.segment(window, rng.RowRandom(rng.row_keys(0, 0, np.array([0]))))
    raw = sampling.assemble(window, table)
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(len(table))))
    return raw, prefix_denoisers.transform(config, LENGTH, VOCABULARY, raw, random)


def pieces():
    """(text, kind of noise, inputs, targets, columns of the piece) of every piece."""
    raw, batch = batches()
    for row, (ids, sizes) in enumerate(zip(raw["input_ids"], raw["piece_sizes"], strict=True)):
        edges = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
        for number, (start, stop) in enumerate(itertools.pairwise(edges), 1):
            columns = {name: x[row][batch["segment_ids"][row] == number].tolist()
                       for name, x in batch.items()}  # fmt: skip
            split = sum(columns["prefix_mask"]) - 1
            whole = columns["targets"]
            text = ids[start:stop].tolist()
            yield text, NOISES[raw["noise"][row]], whole[:split], whole[split:], columns


def test_a_piece_is_its_inputs_and_then_its_targets():
    counts = {"R": 0, "S": 0, "X": 0}
    for text, (mode, noise), inputs, targets, _ in pieces():
        assert MODES[inputs[0]] == mode and targets[-1] == END
        counts[mode] += 1
        read, predicted = inputs[1:], targets[:-1]
        num_noise, num_spans = (int(n) for n in noise.counts(np.array(len(text)), 97))
        if mode == "S":  # the rest of the text after its first three quarters; no sentinels
            assert read + predicted == text
            assert len(predicted) == num_noise and abs(num_noise - len(text) / 4) <= 1
            continue
        # T5's own definition: a sentinel for each span, and the spans behind their sentinels.
        hidden = {}
        for token in predicted:
            if token in SENTINELS:
                hidden[token] = []
            else:
                hidden[next(reversed(hidden))].append(token)
        assert list(hidden) == SENTINELS[: len(hidden)]
        restored = [piece for token in read for piece in hidden.get(token, [token])]
        assert restored == text
        if len(text) > 1:
            assert (sum(map(len, hidden.values())), len(hidden)) == (num_noise, num_spans)
    assert min(counts.values()) > 20


def test_the_prefix_is_seen_whole_and_only_the_targets_are_predicted():
    for _, _, inputs, targets, columns in pieces():
        size = len(inputs) + len(targets)
        assert columns["input_ids"] == [START, *inputs, *targets[:-1]]
        assert columns["position_ids"] == list(range(size))
        assert columns["prefix_mask"] == [1] * (len(inputs) + 1) + [0] * (len(targets) - 1)
        assert columns["loss_weights"] == [0.0] * len(inputs) + [1.0] * len(targets)


def test_spans_are_those_of_the_encoder_decoder_with_the_same_random_numbers():
    raw, _ = batches()
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(len(raw["noise"]))))
    config = prefix_denoisers.Config()
    ours = prefix_denoisers.sampling(config, LENGTH, VOCABULARY)
    theirs = denoisers.sampling(denoisers.Config(), LENGTH, VOCABULARY)
    for side in (0, 1):
        for a, b in zip(ours.split(raw, random)[side], theirs.split(raw, random)[side],
                        strict=True):  # fmt: skip
            np.testing.assert_array_equal(a, b)


def test_every_denoiser_has_its_share_and_rows_are_full():
    raw, batch = batches()
    shares = np.bincount(raw["noise"], minlength=7) / len(raw["noise"])
    np.testing.assert_allclose(shares, 1 / 7, atol=0.05)
    assert (batch["segment_ids"] > 0).mean() > 0.85
    raw, batch = batches(packing=False, records=60)
    np.testing.assert_array_equal(
        batch["attention_mask"].sum(axis=1) >= raw["piece_sizes"][:, 0] + 2, True
    )


def test_the_longest_pieces_fit_and_one_token_more_does_not():
    for packing in (True, False):
        config = prefix_denoisers.Config(packing=packing)
        sampling = prefix_denoisers.sampling(config, LENGTH, VOCABULARY)
        for i, limit in enumerate(sampling.limits):
            cost, more = sampling.costs(i, np.array([limit, limit + 1]))[0]
            assert cost <= LENGTH < more
    noise = spans.Noise(0.25, float("inf"))
    assert denoisers.DENOISERS["S"] == (noise,)  # table 1: one span of a quarter of the text


def test_gpt2_trains_on_it_from_one_changed_word(tmp_path):
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax import config as config_lib\n"
        "def get_config(arg=''):\n    return config_lib.default('gpt2', 'mini')\n"
    )
    config = config_lib.load(file, {"objective.name": "prefix_denoisers"})
    assert config.model.heads == ("lm",)
    config.model.vocab_size = 250
    with pytest.raises(errors.UserError, match=r"300 pieces and sentinels, .* set that to 300"):
        experiment.check_vocabulary(config, tiny_runs.VOCABULARY)
    for family in ("bert", "t5"):
        with pytest.raises(errors.UserError, match="which can train"):
            config_lib.default(family, "mini", "prefix_denoisers")


def test_prompts_start_with_the_token_of_mode_s():
    made = encoders.make_artifact("gpt2", vocab_size=200)
    objective = {"name": "prefix_denoisers", "mode_tokens": True}
    model = pretrained.Pretrained(dataclasses.replace(made, objective=objective))
    assert model.reads_prefixes()
    sentinels = made.tokenizer.sentinels
    assert model.prompt_start(()) == [sentinels[-2]]
    assert model.prompt_start([sentinels[-3]]) == []  # a mode that the prompt names
    plain = pretrained.Pretrained(dataclasses.replace(made, objective={"name": "prefix_lm"}))
    assert plain.prompt_start(()) == []
