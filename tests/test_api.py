"""The functions of `import bertjax`."""

import pathlib

import jax
import jax.numpy as jnp
import pytest

import bertjax
from bertjax import config as config_lib
from bertjax import errors, train

SMOKE = str(pathlib.Path(__file__).resolve().parent.parent / "configs" / "bert_tiny.py:smoke")


def test_a_family_is_built_with_fields_of_ones_own():
    model = bertjax.build("bert", "mini", num_layers=2, vocab_size=64, dropout_rate=0.0)
    assert (model.config.num_layers, model.config.hidden_size) == (2, 256)
    ids = jnp.ones((1, 4), jnp.int32)
    params = model.init(jax.random.key(0), ids, ids, ids)
    assert "params" in params


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("brt",), "family = 'brt'"),
        (("bert", "enormous"), "bert has no variant 'enormous'; its variants are tiny, "),
    ],
)
def test_a_name_that_there_is_not_is_one_line(words, message):
    with pytest.raises(errors.UserError, match=message):
        bertjax.build(*words)
    with pytest.raises(errors.UserError, match="the Config of bert has no field 'num_layer'; did"):
        bertjax.build("bert", num_layer=2)


def test_pretrain_takes_a_file_or_a_config(monkeypatch):
    seen = []

    def trained(*args, origin):
        seen.append((*args, origin))
        return {"loss": 1}

    monkeypatch.setattr(train, "train_and_evaluate", trained)
    config = config_lib.load(SMOKE)
    for given in (SMOKE, config):
        assert bertjax.pretrain(given, "run", {"data.path": "here", "seed": 3}) == {"loss": 1}
    assert [workdir for _, workdir, _ in seen] == ["run", "run"]
    assert seen[0][2].recipe == SMOKE and seen[0][2].changed == {"data.path": "", "seed": "0"}
    assert seen[1][2] is None, "the recipe of a config in memory is unknown"
    assert seen[0][0] == seen[1][0] and seen[0][0].data.path == "here" and seen[0][0].seed == 3
    assert config.seed == 0 and seen[0][0].is_locked
    with pytest.raises(errors.UserError, match="unknown config key 'sed'; did you mean seed"):
        bertjax.pretrain(config, "run", {"sed": 1})
