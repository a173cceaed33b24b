"""benchmarks/time_to_loss: its configs, rows, masks, and what it computes from the saved models."""

import jax
import numpy as np
import pytest

from benchmarks import time_to_loss as benchmark
from benchmarks import time_to_loss_config as configs
from benchmarks import time_to_loss_rows as rows_lib
from bertjax import config as config_lib
from bertjax import plugins
from bertjax.data.prepared import store
from tests.helpers import corpora


@pytest.fixture(scope="module")
def loaded():
    """{recipe: config}, each phase with 40 steps."""
    counts = {name: ["40"] * len(phases) for name, phases in configs.PHASES.items()}
    file = f"{corpora.ROOT}/benchmarks/time_to_loss_config.py"
    return {n: config_lib.load(f"{file}:{','.join([n, *steps])}") for n, steps in counts.items()}


def test_all_recipes_train_the_same_number_of_parameters(loaded):
    shapes = [
        plugins.abstract_params(plugins.model(config.family, config.model))
        for config in loaded.values()
    ]
    assert {each.recipe for each in benchmark.CONTENDERS.values()} == set(loaded)
    assert shapes[0] == shapes[1]  # the same model
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(shape)) for shape in shapes]
    assert max(sizes) < 1.02 * min(sizes)
    assert all(phases[-1][1].get("data.length", 128) == 128 for phases in configs.PHASES.values())


def test_shares_of_time_become_steps():
    shares = [share for share, _ in configs.PHASES["best"]]
    seconds = [0.5, 1.0, 2.0]
    cpu = 15 + np.cumsum([*np.repeat(seconds, 2) * 10, 7])  # the middles, the ends, and the end
    points = [{"step": 10 * i, "cpu": at} for i, at in enumerate(cpu.tolist(), 1)]
    timing = benchmark.timing(points)
    assert timing == {"startup": pytest.approx(22), "seconds": seconds}
    steps = benchmark.steps_for("best", timing, 1000)
    spent = np.array(steps) * timing["seconds"]
    np.testing.assert_allclose(spent, np.multiply(shares, 1000 - timing["startup"]), atol=1)


def test_tokens_of_a_run(loaded):
    for name, config in loaded.items():
        steps = range(1, 1 + len(config.phases))
        a_step = [
            phase.get("batch_size", config.batch_size) * phase.get("data.length", configs.LENGTH)
            for phase in config.phases
        ]
        assert benchmark.tokens(name, list(steps)) == np.dot(steps, a_step)


def test_the_time_to_a_loss_lies_between_two_points():
    points = [{"cpu": 60.0, "loss": 6.0}, {"cpu": 120.0, "loss": 5.0}, {"cpu": 180.0, "loss": 4.8}]
    assert benchmark.reached(points, 5.5) == pytest.approx(90)
    assert benchmark.reached(points, 6.5) == 60
    assert benchmark.reached(points, 4.7) is None


def test_the_table_compares_with_the_final_loss_of_transformers():
    def run(contender, losses):
        points = [{"step": s, "cpu": 60.0 * s, "wall": 90.0 * s, "loss": v} for s, v in losses]
        return {"race": 1, "contender": contender, "core": 0, "steps": [2], "tokens": 1e6,
                "points": points}  # fmt: skip

    text = benchmark.table([
        run("transformers", [(1, 6.0), (2, 5.0)]), run("best", [(1, 5.0), (2, 4.0)])
    ])  # fmt: skip
    theirs, ours = text.splitlines()[2:]
    assert theirs.endswith("| 5.000 | 2.0 | 100% |") and ours.endswith("| 4.000 | 1.0 | 50% |")


def test_rows_are_the_text_and_its_masks_are_fixed(tmp_path):
    data = corpora.make(tmp_path) / "prepared"
    rows = rows_lib.rows_of(data, "heldout", 32)
    dataset = store.open_dataset(data, "heldout")
    vocabulary = dataset.load_tokenizer().vocabulary()
    specials = vocabulary.specials
    assert (rows[:, 0] == specials.cls).all() and (rows[:, -1] == specials.sep).all()
    text = np.concatenate([record.tokens for record in dataset.read(range(dataset.num_records))])
    without = rows[:, 1:-1].ravel()
    without = without[without != specials.sep]
    np.testing.assert_array_equal(without, text[: len(without)])
    assert len(text) - len(without) < 30

    questions = rows_lib.mask(rows, vocabulary)
    places = np.zeros(rows.shape, bool)
    np.put_along_axis(places, questions.positions, True, axis=1)
    assert (places.sum(axis=1) == round(0.15 * 30)).all()
    np.testing.assert_array_equal(questions.input_ids[~places], rows[~places])
    np.testing.assert_array_equal(questions.answers.ravel(), rows[places])
    assert not np.isin(questions.answers, (specials.cls, specials.sep)).any()
    share = (questions.input_ids[places] == specials.mask).mean()
    assert 0.7 < share < 0.9
    np.testing.assert_array_equal(rows_lib.mask(rows, vocabulary).input_ids, questions.input_ids)
