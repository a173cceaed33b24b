"""benchmarks/time_to_loss: its configs, rows, masks, and what it computes from the saved models."""

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
    """{recipe: config of 40 steps}."""
    file = f"{corpora.ROOT}/benchmarks/time_to_loss_config.py"
    return {name: config_lib.load(f"{file}:{name},40") for name in ("same", "best")}


def test_both_recipes_train_the_same_parameters_on_rows_of_one_length(loaded):
    shapes = [
        plugins.abstract_params(plugins.model(config.family, config.model))
        for config in loaded.values()
    ]
    assert shapes[0] == shapes[1]
    assert {config.data.length for config in loaded.values()} == {configs.LENGTH}


def test_the_time_of_a_step_gives_the_number_of_steps():
    points = [{"step": step, "cpu": cpu} for step, cpu in ((10, 15.0), (20, 20.0), (21, 22.0))]
    timing = benchmark.timing(points)
    assert timing == {"startup": 12.0, "seconds": 0.5}
    assert benchmark.steps_for(timing, 1000) == 2 * (1000 - 12)


def test_tokens_of_a_step(loaded):
    for name, config in loaded.items():
        assert configs.tokens(name) == config.batch_size * config.data.length


def test_the_time_to_a_loss_lies_between_two_points():
    points = [{"cpu": 60.0, "loss": 6.0}, {"cpu": 120.0, "loss": 5.0}, {"cpu": 180.0, "loss": 4.8}]
    assert benchmark.reached(points, 5.5) == pytest.approx(90)
    assert benchmark.reached(points, 6.5) == 60
    assert benchmark.reached(points, 4.7) is None


def test_the_table_compares_with_the_final_loss_of_transformers():
    def run(contender, losses):
        points = [{"step": s, "cpu": 60.0 * s, "wall": 90.0 * s, "loss": v} for s, v in losses]
        return {"race": 1, "contender": contender, "core": 0, "steps": 2, "tokens": 1e6,
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
