"""Folders of Hugging Face with a T5: written, read, and made by transformers 5."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from bertjax import errors, plugins
from bertjax.artifact import huggingface
from tests.helpers import tiny_model, tiny_t5


@pytest.mark.parametrize("heads", [("lm",), ()])
@pytest.mark.parametrize("version", tiny_t5.VERSIONS)
def test_folder_comes_back_bit_equal(tmp_path, version, heads):
    first = tiny_t5.make_artifact(version, heads=heads)
    huggingface.write(first, tmp_path / "hf")
    second = huggingface.read(tmp_path / "hf")
    assert second.family == "t5"
    if heads or version == "1.1":  # tied, their bare model has the same file
        assert second.fields == first.fields
    tiny_model.assert_same_params(second.params, first.params)


@pytest.mark.parametrize("heads", [("lm",), ()])
@pytest.mark.parametrize("version", tiny_t5.VERSIONS)
def test_transformers_loads_what_we_write(tmp_path, version, heads):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    ours = tiny_t5.make_artifact(version, heads=heads)
    huggingface.write(ours, tmp_path)
    name = json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    ids, decoder_ids = tiny_t5.ids(2, 9), tiny_t5.ids(2, 5, seed=1)
    with torch.no_grad():
        theirs = model(torch.tensor(ids).long(), decoder_input_ids=torch.tensor(decoder_ids).long())
    apply = jax.jit(plugins.model("t5", ours.fields).apply)
    outputs = apply({"params": ours.params}, ids, None, decoder_ids)
    mine, other = outputs["last_hidden_state"], theirs[0]
    if heads:
        mine = outputs["logits"][..., :tiny_t5.VOCABULARY]
    np.testing.assert_allclose(mine, other.numpy(), atol=1e-4)


def test_published_config_of_version_1_0_is_read(tmp_path):
    """The keys of the released t5-small, in which depth, tying and units are left to defaults."""
    content = {
        "model_type": "t5", "d_ff": 24, "d_kv": 8, "d_model": 16, "num_heads": 3, "num_layers": 2,
        "dropout_rate": 0.1, "initializer_factor": 1.0, "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06, "n_positions": 512, "vocab_size": tiny_t5.VOCABULARY,
        "relative_attention_num_buckets": 32,
    }  # fmt: skip
    huggingface.write(tiny_t5.make_artifact("1.0", num_decoder_layers=2, relative_buckets=32,
                                relative_max_distance=128), tmp_path)  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(content))
    fields = huggingface.read(tmp_path).fields
    assert fields["num_decoder_layers"] == 2 and fields["max_length"] == 512
    assert fields["tied_embeddings"] and fields["activation"] == "relu" and not fields["gated"]
    (tmp_path / "config.json").write_text(json.dumps(content | {"feed_forward_proj": "gated-silu"}))
    with pytest.raises(errors.UserError, match="gated-silu"):
        huggingface.read(tmp_path)


def test_mt5_is_read_as_t5(tmp_path):
    first = tiny_t5.make_artifact("1.1")
    huggingface.write(first, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "mt5"}
    del content["scale_decoder_outputs"]
    content["tie_word_embeddings"] = True  # as transformers 5 writes it
    (tmp_path / "config.json").write_text(json.dumps(content))
    second = huggingface.read(tmp_path)
    assert second.family == "t5" and second.fields == first.fields
    tiny_model.assert_same_params(second.params, first.params)


@pytest.mark.parametrize(
    ("name", "keys", "head"),
    [
        ("T5", {}, "scaled"),
        ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "tied"),
        ("MT5", {}, "tied"),
        ("MT5", {"tie_word_embeddings": False}, "tied"),
        ("MT5", {}, "own"),
        ("T5", {"relative_attention_num_buckets": 4, "decoder_start_token_id": 5}, "scaled"),
    ],
)
def test_what_transformers_5_makes_has_its_head(name, keys, head, tmp_path):
    """It ties the output map of every T5 and mT5, whose file then has none, and scales some."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=tiny_t5.VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=3,
        **{"decoder_start_token_id": 0, **keys},
    )  # fmt: skip
    theirs = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    if head == "own":
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(tiny_t5.VOCABULARY, 16))
    theirs.save_pretrained(tmp_path / "theirs")
    tensors = safetensors.numpy.load_file(tmp_path / "theirs" / huggingface.WEIGHTS)
    assert ("lm_head.weight" in tensors) == (head == "own")
    tiny_model.tokenizer().save(str(tmp_path / "theirs"))
    ours = huggingface.read(tmp_path / "theirs")
    fields = {"scaled_output": head != "tied", "tied_embeddings": head != "own"}
    assert ours.fields["heads"] == ("lm",) and fields.items() <= ours.fields.items()
    start = config.decoder_start_token_id
    assert ours.fields["decoder_start_id"] == (start or -1)
    ids, decoder_ids = tiny_t5.ids(2, 9), tiny_t5.ids(2, 5, seed=1)
    features = {"input_ids": torch.tensor(ids).long(),
                "decoder_input_ids": torch.tensor(decoder_ids).long()}  # fmt: skip
    with torch.no_grad():
        wanted = theirs(**features)

    def logits(model):
        apply = jax.jit(plugins.model("t5", model.fields).apply)
        found = apply({"params": model.params}, ids, None, decoder_ids)["logits"]
        return np.asarray(found[..., :tiny_t5.VOCABULARY])

    np.testing.assert_allclose(logits(ours), wanted.logits.numpy(), atol=1e-4)
    huggingface.write(ours, tmp_path / "ours")  # and back there, and here
    again = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        found = again(**features)
    np.testing.assert_allclose(found.logits.numpy(), wanted.logits.numpy(), atol=1e-4)
    assert again.config.decoder_start_token_id == start
    np.testing.assert_array_equal(logits(huggingface.read(tmp_path / "ours")), logits(ours))


def test_units_that_contradict_each_other_are_refused(tmp_path):
    huggingface.write(tiny_t5.make_artifact("1.1"), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for key, value in (("dense_act_fn", "silu"), ("is_gated_act", False)):
        (tmp_path / "config.json").write_text(json.dumps(content | {key: value}))
        with pytest.raises(errors.UserError, match=key):
            huggingface.read(tmp_path)
