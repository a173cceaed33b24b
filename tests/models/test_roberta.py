"""RoBERTa: where its positions start, its one token type, and their numbers in config.json."""

import json

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import errors, experiment
from bertjax.artifact import huggingface
from tests.helpers import encoders, synthetic, tiny_model

L = 8
LENGTHS = np.array([8, 5, 2])
MASK = (np.arange(L) < LENGTHS[:, None]).astype(np.int32)
IDS = np.random.default_rng(0).integers(5, 99, (3, L), np.int32)


@pytest.fixture(scope="module")
def made():
    return encoders.make("roberta", pad_id=2)


def _states(made, **batch):
    model, params = made
    apply = jax.jit(lambda: model.apply({"params": params}, **batch)["last_hidden_state"])
    return np.asarray(apply())


def test_positions_start_behind_the_padding(made):
    model, params = made

    def real_states(params):
        states = model.apply({"params": params}, IDS, MASK)["last_hidden_state"]
        return (states * MASK[:, :, None]).sum()

    tables = jax.jit(jax.grad(real_states))(params)["embeddings"]
    rows = tables["position"]["embedding"]
    assert rows.shape == (2 + 1 + 24, 16)
    used = np.asarray(abs(rows).max(axis=1) > 0)
    np.testing.assert_array_equal(used, (np.arange(27) >= 3) & (np.arange(27) < 3 + L))
    assert tables["token_type"]["embedding"].shape == (1, 16)
    assert abs(tables["token_type"]["embedding"]).max() > 0, "the one type is always added"


def test_padding_may_be_on_the_left(made):
    right = _states(made, input_ids=IDS, attention_mask=MASK)
    left = _states(
        made,
        input_ids=np.stack([np.roll(row, L - n) for row, n in zip(IDS, LENGTHS, strict=True)]),
        attention_mask=MASK[:, ::-1],
    )
    for row, n in enumerate(LENGTHS):
        np.testing.assert_allclose(left[row, L - n :], right[row, :n], atol=2e-5)


def test_positions_that_are_given_count_from_zero(made):
    alone = _states(made, input_ids=IDS)
    places = np.broadcast_to(np.arange(L, dtype=np.int32), IDS.shape)
    given = _states(made, input_ids=IDS, position_ids=places)
    np.testing.assert_allclose(alone, given, atol=1e-5)
    assert abs(alone - _states(made, input_ids=IDS, position_ids=places + 1)).max() > 0.01


def test_reads_no_token_types(made):
    typed = _states(made, input_ids=IDS, token_type_ids=np.ones_like(IDS))
    np.testing.assert_array_equal(typed, _states(made, input_ids=IDS))


@pytest.mark.parametrize("pad_id", [0, 1])
def test_padding_of_the_tokenizer_is_that_of_the_model(pad_id):
    config = config_lib.default("roberta", "mini")
    config.model.pad_id = pad_id
    vocabulary = synthetic.make_vocabulary()
    assert vocabulary.specials.pad == 0
    if pad_id == 0:
        experiment.check_vocabulary(config, vocabulary)
        return
    with pytest.raises(errors.UserError, match=r"config.model.pad_id = 1: must be 0") as caught:
        experiment.check_vocabulary(config, vocabulary)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("activation", "relu"), ("heads", ("mlm", "pooler")), ("pad_id", -1)],
)
def test_fields_that_it_cannot_have(field, value):
    with pytest.raises(errors.UserError, match=f"config.model.{field} = "):
        encoders.make("roberta", **{field: value})


# --- Hugging Face folders -------------------------------------------------------------------------


@pytest.mark.parametrize("pad_id", [0, 1, 3])
def test_config_json_counts_the_rows_before_the_first_position(tmp_path, pad_id):
    model = encoders.make_artifact("roberta", "bpe", pad_id=pad_id)
    huggingface.write(model, tmp_path / "hf")
    content = json.loads((tmp_path / "hf/config.json").read_text())
    assert content["max_position_embeddings"] == 24 + pad_id + 1
    assert content["pad_token_id"] == pad_id
    read = huggingface.read(tmp_path / "hf")
    assert (read.fields["max_length"], read.fields["pad_id"]) == (24, pad_id)
    tiny_model.assert_same_params(read.params, model.params)


@pytest.mark.parametrize("heads", [("pooler", "mlm"), ("pooler",), ()])
def test_heads_are_those_in_the_folder(tmp_path, heads):
    model = encoders.make_artifact("roberta", "bpe", heads=heads)
    huggingface.write(model, tmp_path / "hf")
    read = huggingface.read(tmp_path / "hf")
    assert read.fields == model.fields
    tiny_model.assert_same_params(read.params, model.params)


@pytest.mark.parametrize("key", ["max_position_embeddings", "pad_token_id"])
def test_positions_that_are_no_numbers(tmp_path, key):
    huggingface.write(encoders.make_artifact("roberta", "bpe"), tmp_path / "hf")
    file = tmp_path / "hf/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: None}))
    with pytest.raises(errors.UserError, match=f"{key}: None"):
        huggingface.read(tmp_path / "hf")
