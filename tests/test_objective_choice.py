"""The command line chooses another objective for any config: one changed line."""

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import errors, plugins
from bertjax.data.batches import rng
from bertjax.data.tokenizers import tokenizer
from bertjax.objectives import span_corruption

PAIRS = [
    (family, objective)
    for family in plugins.families()
    for objective in plugins.objectives_of(plugins.family(family).KIND)
]


@pytest.mark.parametrize(("family", "objective"), PAIRS)
def test_every_objective_of_the_kind(tmp_path, family, objective):
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax import config as config_lib\n"
        f"def get_config(arg=''):\n    return config_lib.default({family!r}, 'mini')\n"
    )
    load = lambda: config_lib.load(file, {"seed": "3", "objective.name": objective})  # noqa: E731
    config = load()
    module = plugins.objective(objective)
    assert set(module.heads(plugins.objective_config(config))) <= set(config.model.heads)
    assert config.objective.name == objective and config.seed == 3
    assert config.to_dict() == {
        **config_lib.default(family, "mini", objective).to_dict(), "seed": 3
    }  # fmt: skip


def test_keys_of_another_objective_are_named():
    config = config_lib.default("t5", "mini")
    config.objective.name = "denoisers"
    with pytest.raises(errors.UserError, match="its other keys belong to another objective"):
        config_lib.validate(config)


def test_keys_of_the_new_objective_may_be_set(tmp_path):
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax import config as config_lib\n"
        "def get_config(arg=''):\n    return config_lib.default('bert', 'mini')\n"
    )
    config = config_lib.load(
        file, {"objective.teacher": "a-folder", "objective.name": "distillation"}
    )
    assert config.objective.teacher == "a-folder" and config.model.heads == ("mlm",)


def test_byt5_hides_spans_of_20_bytes_and_its_sentinels_are_bytes(tmp_path):
    default = config_lib.default
    assert default("t5", "byt5_small").objective.mean_noise_span_length == 20.0
    assert default("t5", "small").objective.mean_noise_span_length == 3.0
    assert default("t5", "byt5_small", "denoisers").objective.name == "denoisers"
    file = tmp_path / "config.py"
    file.write_text(
        "from bertjax import config as config_lib\n"
        "def get_config(arg=''):\n    return config_lib.default('t5', 'byt5_small')\n"
    )
    config = config_lib.load(file, {"objective.name": "span_corruption"})
    assert config.objective.mean_noise_span_length == 20.0
    objective, vocabulary = plugins.objective_config(config), tokenizer.of_bytes().vocabulary()
    sampling = span_corruption.sampling(objective, 400, vocabulary)
    text = np.full((1, 400), 100, np.int32)
    batch = {"input_ids": np.zeros((1, sampling.width), np.int32),
             "piece_sizes": np.array([[400]]), "noise": np.zeros(1, np.int64)}  # fmt: skip
    batch["input_ids"][:, :400] = text
    found = sampling.corrupt(batch, rng.RowRandom([0]))
    sentinels = found["input_ids"][found["input_ids"] > 200].tolist()
    assert sentinels == [258, 257, 256]  # 60 bytes in 3 spans
