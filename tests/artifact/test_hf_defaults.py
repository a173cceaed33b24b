"""A config.json that leaves keys out has transformers' values, by its model_type."""

import json

import pytest

from bertjax import errors, plugins
from bertjax.artifact import hf_config, hf_defaults, huggingface
from tests.helpers import encoders

# Keys that transformers 5 has no field for: it reads their older form, or never had them.
_NO_FIELD = {
    "modernbert": {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta",
                   "layer_types", "rope_parameters", "rope_scaling"},
}  # fmt: skip


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("model_type", hf_defaults.DEFAULTS)
def test_the_table_is_that_of_the_installed_transformers(model_type, transformers):
    theirs = transformers.AutoConfig.for_model(model_type)
    absent = _NO_FIELD.get(model_type, set())
    for key, value in hf_defaults.DEFAULTS[model_type].items():
        if key in absent or not hasattr(theirs, key):
            continue
        found = getattr(theirs, key)
        if key == "n_inner" or (key == "num_decoder_layers" and value is None):
            assert found in (None, theirs.num_hidden_layers), key
        elif (model_type, key) == ("mt5", "tie_word_embeddings"):
            assert found == transformers.__version__.startswith("5"), key
        else:
            assert found == value, key
    if model_type == "modernbert" and transformers.__version__.startswith("5"):
        rope = theirs.rope_parameters
        table = hf_defaults.DEFAULTS[model_type]
        assert rope["full_attention"]["rope_theta"] == table["global_rope_theta"]
        assert rope["sliding_attention"]["rope_theta"] == table["local_rope_theta"]
        assert theirs.layer_types[:4] == ["full_attention", *["sliding_attention"] * 2,
                                          "full_attention"]  # fmt: skip


@pytest.mark.parametrize("model_type", hf_defaults.DEFAULTS)
def test_the_table_has_every_key_that_is_read(model_type):
    """Of the fields and of the keys with one value only."""
    spec = plugins.family(dict(hf_config.readers())[model_type]).HF_CONFIG
    read = {*spec["fields"], *spec["fixed"]}
    for keys in spec.get("fixed_in_class", {}).values():
        read |= set(keys)
    if model_type in ("t5", "mt5"):  # no key of transformers'; 1024 where a file says nothing
        read.remove("n_positions")
    assert read <= hf_defaults.DEFAULTS[model_type].keys()
    assert spec["model_type"] in hf_defaults.DEFAULTS


@pytest.mark.parametrize(
    ("family", "keys", "values"),
    [
        ("albert", ("num_attention_heads", "num_hidden_groups", "hidden_act"),
         {"num_heads": 64, "num_groups": 1, "activation": "gelu_tanh"}),
        ("roberta", ("layer_norm_eps", "pad_token_id"), {"layer_norm_eps": 1e-12, "pad_id": 1}),
    ],
)  # fmt: skip
def test_absent_keys_are_theirs(family, keys, values, tmp_path):
    fields = {"hidden_size": 64, "num_heads": 64} if family == "albert" else {}
    model = encoders.make_artifact(family, "bpe", **fields)
    huggingface.write(model, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert all(key in content for key in keys)
    content = {key: value for key, value in content.items() if key not in keys}
    (tmp_path / "config.json").write_text(json.dumps(content))
    read = huggingface.read(tmp_path).fields
    assert {name: read[name] for name in values} == values


def test_sizes_of_mt5_are_its_own(tmp_path):
    """MT5Config() has 8 layers and gated units, T5Config() 6 layers and relu."""
    fields = {"activation": "gelu_tanh", "gated": True, "tied_embeddings": False,
              "num_layers": 8, "num_decoder_layers": 8}  # fmt: skip
    huggingface.write(encoders.make_artifact("t5", **fields), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for key in ("num_layers", "num_decoder_layers", "feed_forward_proj", "is_gated_act",
                "scale_decoder_outputs", "decoder_start_token_id"):  # fmt: skip
        del content[key]
    (tmp_path / "config.json").write_text(json.dumps(content | {"model_type": "mt5"}))
    read = huggingface.read(tmp_path).fields
    assert {name: read[name] for name in fields} == fields
    (tmp_path / "config.json").write_text(json.dumps(content))  # of a T5 with as few keys
    with pytest.raises(errors.UserError):
        huggingface.read(tmp_path)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", "n_inner", "many"),
        ("roberta", "pad_token_id", None),
        ("t5", "feed_forward_proj", ["relu"]),
        ("t5", "num_decoder_layers", "2"),
        ("t5", "decoder_start_token_id", "<pad>"),
        ("modernbert", "layer_types", "full_attention"),
        ("modernbert", "layer_types", [1, 2]),
        ("modernbert", "rope_parameters", {"rope_type": "default", "rope_theta": 10_000.0}),
        ("modernbert", "global_attn_every_n_layers", 0),
        ("bert", "architectures", "BertModel"),
        ("bert", "architectures", [1]),
    ],
)
def test_a_value_of_another_type_is_one_line(family, key, value, tmp_path):
    model = encoders.make_artifact(family, "bpe" if family in ("gpt2", "roberta") else "wordpiece")
    huggingface.write(model, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {key: value}))
    with pytest.raises(errors.UserError, match=rf"config\.json: {key}") as caught:
        huggingface.read(tmp_path)
    assert "\n" not in str(caught.value)
