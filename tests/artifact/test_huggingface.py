"""Hugging Face folders: theirs come in whole or with a clear error, ours load in transformers."""

import json
import os
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from bertjax import errors, plugins
from bertjax.artifact import artifact, huggingface
from bertjax.models import bert
from tests.helpers import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "model"
    huggingface.write(tiny_model.make(), folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def _tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def _rewrite(folder, tensors):
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _configure(folder, **changes):
    content = json.loads((folder / "config.json").read_text()) | changes
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(content))


def _assert_error(folder, *words):
    with pytest.raises(errors.UserError) as caught:
        huggingface.read(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize(
    "heads", [("pooler", "mlm", "nsp"), ("mlm",), ("pooler",), (), ("pooler", "mlm")]
)
def test_round_trips(tmp_path, heads, activation):
    model = tiny_model.make(heads=heads, activation=activation)
    huggingface.write(model, tmp_path / "hf")
    read = huggingface.read(tmp_path / "hf")
    assert read.fields == model.fields
    assert read.tokenizer.fingerprint == model.tokenizer.fingerprint
    tiny_model.assert_same_params(read.params, model.params)
    huggingface.write(read, tmp_path / "again")
    names = sorted(os.listdir(tmp_path / "hf"))
    assert names == sorted(os.listdir(tmp_path / "again"))
    names.remove("README.md")  # the folder does not keep the facts of the training
    for name in names:
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_padding_rows_stay_here(folder):
    vocab_size = tiny_model.tokenizer().size
    assert vocab_size % 128
    tensors = _tensors(folder)
    assert tensors["bert.embeddings.word_embeddings.weight"].shape == (vocab_size, 16)
    assert tensors["cls.predictions.bias"].shape == (vocab_size,)
    params = huggingface.read(folder).params
    assert params["embeddings"]["word"]["embedding"].shape == (128, 16)
    assert not params["embeddings"]["word"]["embedding"][vocab_size:].any()
    assert not params["mlm_head"]["bias"][vocab_size:].any()


def test_every_variant_has_a_line_for_every_parameter():
    params = plugins.abstract_params(bert.Model(bert.Config(**bert.VARIANTS["tiny"])))
    assert artifact.flatten(params).keys() == {path for path, _, _ in bert.HF_NAMES}


def test_bare_encoder_has_no_prefix(tmp_path):
    huggingface.write(tiny_model.make(heads=("pooler",)), tmp_path / "hf")
    assert "embeddings.LayerNorm.weight" in _tensors(tmp_path / "hf")
    assert json.loads((tmp_path / "hf/config.json").read_text())["architectures"] == ["BertModel"]


def test_reads_prefixed_encoder_and_buffers(copy):
    tensors = {n: t for n, t in _tensors(copy).items() if not n.startswith("cls.")}
    ids = np.arange(40, dtype=np.int64)[None]
    _rewrite(copy, tensors | {"bert.embeddings.position_ids": ids})
    assert huggingface.read(copy).fields["heads"] == ("pooler",)
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    _rewrite(copy, bare | {"embeddings.position_ids": ids})
    model = huggingface.read(copy)
    assert model.fields["heads"] == ("pooler",)
    tiny_model.assert_same_params(
        model.params["encoder"], tiny_model.make().params["encoder"]
    )


def test_reads_old_layer_norm_names(copy):
    endings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for name, tensor in _tensors(copy).items():
        for new, before in endings.items():
            name = name.replace(new, before)
        old[name] = tensor
    assert any(name.endswith("gamma") for name in old)
    _rewrite(copy, old)
    tiny_model.assert_same_params(huggingface.read(copy).params, tiny_model.make().params)


def test_tied_tensors_may_be_there_twice_or_under_the_other_name(copy):
    tensors = _tensors(copy)
    words, bias = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
    twice = {"cls.predictions.decoder.weight": tensors[words]}
    twice["cls.predictions.decoder.bias"] = tensors[bias]
    _rewrite(copy, tensors | twice)
    tiny_model.assert_same_params(huggingface.read(copy).params, tiny_model.make().params)
    _rewrite(copy, {n: t for n, t in (tensors | twice).items() if n != bias})
    tiny_model.assert_same_params(huggingface.read(copy).params, tiny_model.make().params)
    twice["cls.predictions.decoder.weight"] = tensors[words] + 1
    _rewrite(copy, tensors | twice)
    _assert_error(copy, "cls.predictions.decoder.weight", "tied")


def test_reads_shards(copy):
    tensors = _tensors(copy)
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2]}
    parts["model-00002-of-00002.safetensors"] = names[1::2]
    for file, inside in parts.items():
        safetensors.numpy.save_file({name: tensors[name] for name in inside}, copy / file)
    index = {name: file for file, inside in parts.items() for name in inside}
    file = copy / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    tiny_model.assert_same_params(huggingface.read(copy).params, tiny_model.make().params)
    (copy / "model-00002-of-00002.safetensors").unlink()
    _assert_error(copy, "model-00002-of-00002.safetensors")
    file.write_text(json.dumps({"weight_map": {"a": "../../elsewhere.safetensors"}}))
    _assert_error(copy, file, "weight_map")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_becomes_float32(copy, dtype):
    half = {name: tensor.astype(jax.numpy.dtype(dtype)) for name, tensor in _tensors(copy).items()}
    _rewrite(copy, half)
    params = huggingface.read(copy).params
    bias = params["pooler"]["dense"]["bias"]
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, half["bert.pooler.dense.bias"].astype(np.float32))


def test_keys_that_are_absent_have_their_usual_value(copy):
    absent = dict.fromkeys(("layer_norm_eps", "hidden_act", "pad_token_id", "type_vocab_size"), ...)
    _configure(copy, **absent)
    fields = huggingface.read(copy).fields
    assert (fields["layer_norm_eps"], fields["activation"]) == (1e-12, "gelu")


def test_config_json_reads_other_names_of_one_activation(copy):
    _configure(copy, hidden_act="gelu_new")
    assert huggingface.read(copy).fields["activation"] == "gelu_tanh"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bart"}, ["model_type", "'bart'"]),
        ({"model_type": ...}, ["model_type"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
        ({"is_decoder": True}, ["is_decoder"]),
        ({"add_cross_attention": True}, ["add_cross_attention"]),
        ({"hidden_act": "silu"}, ["hidden_act", "silu", "gelu"]),
        ({"hidden_act": ["gelu"]}, ["hidden_act", "['gelu']"]),
        ({"hidden_size": "16"}, ["hidden_size", "'16'"]),
        ({"num_attention_heads": 3}, ["num_heads", "3"]),
        ({"num_hidden_layers": 3}, ["encoder.layer.2", "do not contain"]),
        ({"num_hidden_layers": 1}, ["encoder.layer.1"]),
        ({"intermediate_size": 25}, ["intermediate.dense", "(25,"]),
        ({"vocab_size": 61}, ["word_embeddings", "(61, 16)"]),
    ],
)
def test_config_that_is_not_supported_or_does_not_fit(copy, change, words):
    _configure(copy, **change)
    _assert_error(copy, copy, *words)


def test_unknown_and_missing_tensors(copy):
    tensors = _tensors(copy)
    _rewrite(copy, tensors | {"classifier.weight": np.zeros((2, 16), np.float32)})
    _assert_error(copy, "classifier.weight")
    _rewrite(copy, {n: t for n, t in tensors.items() if "layer.1.output.dense.bias" not in n})
    _assert_error(copy, "bert.encoder.layer.1.output.dense.bias")
    _rewrite(copy, {n: t for n, t in tensors.items() if n != "cls.predictions.bias"})
    _assert_error(copy, "cls.predictions.bias")


def test_damaged_and_missing_files(copy, tmp_path):
    weights = copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    _assert_error(copy, weights)
    weights.rename(copy / "pytorch_model.bin")
    _assert_error(copy, "pytorch_model.bin", "safetensors", "convert")
    (copy / "pytorch_model.bin").unlink()
    _assert_error(copy, "model.safetensors")
    (copy / "config.json").write_text("{")
    _assert_error(copy, copy / "config.json")
    (copy / "config.json").unlink()
    _assert_error(copy, copy / "config.json")


def test_folder_without_or_with_too_large_a_tokenizer(copy):
    tokenizer_files = [p for p in copy.iterdir() if p.suffix != ".safetensors"]
    for path in tokenizer_files:
        if path.name != "config.json":
            path.unlink()
    _assert_error(copy, copy, "tokenizer")
    tiny_model.tokenizer("bpe").save(str(copy))
    _assert_error(copy, copy, "279", "60 embeddings")


# From here on transformers is the judge.


def _transformers():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers


HEAD_TENSORS = ("cls.", "bert.pooler.", "pooler.")


@pytest.mark.parametrize(
    ("heads", "classes"),
    [
        (("pooler", "mlm", "nsp"), ["BertForPreTraining", "BertForMaskedLM", "AutoModel"]),
        (("mlm",), ["BertForMaskedLM"]),
        (("pooler",), ["BertModel", "AutoModel"]),
        (("pooler", "nsp"), ["BertForNextSentencePrediction"]),
    ],
)
def test_transformers_loads_what_we_write(tmp_path, heads, classes):
    transformers = _transformers()
    model = tiny_model.make(heads=heads)
    huggingface.write(model, tmp_path / "hf")
    for name in classes:
        loaded, info = getattr(transformers, name).from_pretrained(
            tmp_path / "hf", output_loading_info=True
        )
        assert not info["missing_keys"] and not info["mismatched_keys"]
        own = name in json.loads((tmp_path / "hf/config.json").read_text())["architectures"]
        # A class without one of the heads leaves that head out and says so.
        assert all(not own and n.startswith(HEAD_TENSORS) for n in info["unexpected_keys"])
        state = {name: tensor.numpy() for name, tensor in loaded.state_dict().items()}
        for key, tensor in _tensors(tmp_path / "hf").items():
            found = state.get(key, state.get(key.removeprefix("bert.")))
            assert found is not None or key in info["unexpected_keys"], key
            if found is not None:
                np.testing.assert_array_equal(found, tensor, err_msg=key)
        assert loaded.config.layer_norm_eps == model.fields["layer_norm_eps"]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_transformers_loads_the_tokenizer(tmp_path, kind):
    transformers = _transformers()
    model = tiny_model.make(kind)
    huggingface.write(model, tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.model_max_length == model.fields["max_length"]
    assert theirs.mask_token_id == model.tokenizer.specials.mask
    assert theirs.pad_token_id == model.tokenizer.specials.pad
    for text in tiny_model.TEXTS:
        specials = model.tokenizer.specials
        ids = [specials.cls, *model.tokenizer.encode(text), specials.sep]
        assert theirs(text)["input_ids"] == ids


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertForMaskedLM", "BertModel"])
def test_we_load_what_transformers_writes(tmp_path, name):
    transformers = _transformers()
    config = transformers.BertConfig(
        vocab_size=70, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=20, max_position_embeddings=32,
    )  # fmt: skip
    theirs = getattr(transformers, name)(config)
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="5KB")
    tiny_model.tokenizer().save(str(tmp_path / "hf"))
    assert (tmp_path / "hf/model.safetensors.index.json").exists()
    model = huggingface.read(tmp_path / "hf")
    ours = huggingface.to_tensors(bert, model.params, 70)
    state = {key: tensor.numpy() for key, tensor in theirs.state_dict().items()}
    for key, tensor in ours.items():
        np.testing.assert_array_equal(tensor, state[key], err_msg=key)
    assert set(state) - set(ours) <= set(bert.HF_TIED)


COUNTS = {  # with the pretraining heads; of the encoder with its pooler
    "tiny": (4_433_468, 4_385_920),
    "mini": (11_267_900, 11_170_560),
    "small": (29_058_876, 28_763_648),
    "medium": (41_668_412, 41_373_184),
    "base": (110_106_428, 109_482_240),
    "large": (336_226_108, 335_141_888),
}


@pytest.mark.parametrize("variant", bert.VARIANTS)
def test_parameter_counts(variant):
    kinds = (("pooler", "mlm", "nsp"), ("pooler",))
    for heads, expected in zip(kinds, COUNTS[variant], strict=True):
        fields = {**bert.VARIANTS[variant], "heads": heads}
        params = plugins.abstract_params(plugins.model("bert", fields))
        assert artifact.num_params(params, 30522) == expected, heads


@pytest.mark.parametrize("variant", bert.VARIANTS)
def test_parameter_counts_are_those_of_transformers(variant):
    transformers = _transformers()
    torch = pytest.importorskip("torch")
    config = bert.Config(**bert.VARIANTS[variant])
    fields = {key: getattr(config, ours) for key, ours in bert.HF_CONFIG["fields"].items()}
    theirs = transformers.BertConfig(**fields)
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in model_class(theirs).parameters())
            for model_class in (transformers.BertForPreTraining, transformers.BertModel)
        ]
    assert tuple(counts) == COUNTS[variant]
