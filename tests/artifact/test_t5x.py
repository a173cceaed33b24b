"""Checkpoints of T5X: a real one of theirs, and ours written in both of their layouts."""

import dataclasses

import jax
import numpy as np
import pytest
import tensorstore
from flax import serialization

from bertjax import errors, plugins
from bertjax.artifact import artifact, loading, t5x
from bertjax.models import t5
from tests.helpers import tiny_model

SIZES = {
    "vocab_size": 300, "hidden_size": 16, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 2,
    "head_dim": 12, "intermediate_size": 24,
}  # fmt: skip
VERSIONS = {
    "1.0": SIZES,
    "1.1": {**SIZES, "activation": "gelu_tanh", "gated": True, "tied_embeddings": False},
}


def _params(fields):
    model = plugins.model("t5", fields)
    params = plugins.init_params(model, jax.random.key(0))
    return artifact.flatten(jax.device_get(params))


def _target(flat, fields, scanned):
    """Our parameters under their names: heads joined and layers apart, or neither."""
    target = {}
    for path, array in flat.items():
        name = t5x._their_name(path)
        if path == "embeddings/word/embedding":
            array = array[: fields["vocab_size"]]
        elif path == "lm_head/kernel":
            array = array[:, : fields["vocab_size"]]
        elif path.endswith("relative_bias/embedding"):
            array = array.T
        stack, inside, rest = name.partition("/layers/")
        if not inside:
            target[name] = array
        elif scanned:
            target[f"{stack}/{stack}/{rest}"] = np.moveaxis(array, 0, 1)
        else:
            for number, one in enumerate(array):
                if one.ndim == 3:
                    width = fields["hidden_size"]
                    shape = (-1, width) if rest.endswith("out/kernel") else (width, -1)
                    one = one.reshape(shape)
                target[f"{stack}/layers_{number}/{rest}"] = one
    return target


def _write(file, target):
    state = {"version": 3, "optimizer": {"target": artifact.unflatten(target), "state": {}}}
    file.write_bytes(serialization.msgpack_serialize(state))


@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_both_layouts_come_back_bit_equal(tmp_path, version, scanned):
    fields = VERSIONS[version]
    flat = _params(fields)
    _write(tmp_path / "checkpoint", _target(flat, fields, scanned))
    found, params = t5x.read_checkpoint(tmp_path / "checkpoint")
    tiny_model.assert_same_params(params, artifact.unflatten(flat))
    assert found.items() >= fields.items()
    assert dataclasses.asdict(t5.Config(**found)).items() >= found.items()


def test_large_arrays_lie_in_folders(tmp_path):
    fields = VERSIONS["1.1"]
    flat = _params(fields)
    target = _target(flat, fields, scanned=True)
    for name in ("token_embedder/embedding", "decoder/decoder/mlp/wi_0/kernel"):
        folder = f"target.{name.replace('/', '.')}"
        store = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path / folder}/"}}
        array = tensorstore.open(
            store, create=True, dtype=tensorstore.float32, shape=target[name].shape
        ).result()
        array.write(target[name]).result()
        target[name] = {"driver": "zarr", "kvstore": {"driver": "gfile", "path": folder}}
    _write(tmp_path / "checkpoint", target)
    _, params = t5x.read_checkpoint(tmp_path / "checkpoint")
    tiny_model.assert_same_params(params, artifact.unflatten(flat))
    (tmp_path / "target.token_embedder.embedding" / ".zarray").unlink()
    with pytest.raises(errors.UserError, match=r"target\.token_embedder\.embedding"):
        t5x.read_checkpoint(tmp_path / "checkpoint")


def test_folder_with_a_tokenizer_is_a_model(tmp_path):
    fields = VERSIONS["1.1"]
    flat = _params(fields)
    _write(tmp_path / "checkpoint", _target(flat, fields, scanned=False))
    with pytest.raises(errors.UserError, match=str(tmp_path)):
        loading.load(tmp_path)
    tiny_model.tokenizer("unigram").save(tmp_path, max_length=512)
    model = loading.load(tmp_path)
    assert model.family == "t5" and model.tokenizer.size == tiny_model.tokenizer("unigram").size
    tiny_model.assert_same_params(model.params, artifact.unflatten(flat))
    shapes = loading.load(tmp_path, with_params=False).params
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(np.shape, model.params)


def test_checkpoint_of_theirs(shared_data):
    file = shared_data / "checkpoints/t5x_test_t5_tiny.checkpoint_0"
    fields, params = t5x.read_checkpoint(file)
    assert fields["gated"] and not fields["tied_embeddings"]
    sizes = ("vocab_size", "hidden_size", "num_layers", "num_decoder_layers", "num_heads",
             "head_dim", "intermediate_size")  # fmt: skip
    assert [fields[name] for name in sizes] == [32128, 8, 2, 2, 4, 3, 16]
    raw = serialization.msgpack_restore(file.read_bytes())["optimizer"]["target"]
    kernel = params["decoder"]["layers"]["cross_attention"]["query"]["kernel"]
    theirs = raw["decoder"]["layers_1"]["encoder_decoder_attention"]["query"]["kernel"]
    np.testing.assert_array_equal(kernel[1].reshape(8, 12), theirs)
    ids = np.arange(6, dtype=np.int32)[None]
    logits = plugins.model("t5", fields).apply({"params": params}, ids, None, ids)["logits"]
    assert logits.shape == (1, 6, 32128) and np.isfinite(logits).all()


def test_what_is_not_a_checkpoint_is_named(tmp_path):
    file = tmp_path / "checkpoint"
    with pytest.raises(errors.UserError, match="checkpoint: cannot be read"):
        t5x.read_checkpoint(file)
    file.write_bytes(b"\xc1 no msgpack")
    with pytest.raises(errors.UserError, match="not a msgpack"):
        t5x.read_checkpoint(file)
    file.write_bytes(serialization.msgpack_serialize({"params": {}}))
    with pytest.raises(errors.UserError, match="optimizer/target"):
        t5x.read_checkpoint(file)
    fields = VERSIONS["1.0"]
    target = _target(_params(fields), fields, scanned=False)
    for change, says in (
        ({"encoder/encoder_norm/scale": None}, "does not contain encoder/encoder_norm/scale"),
        ({"decoder/extra/scale": np.ones(3)}, "decoder/extra/scale"),
        ({"encoder/layers_1/mlp/wo/kernel": None}, r"only for the layers \[0, 2\]"),
        ({"decoder/decoder_norm/scale": np.ones(3)}, r"decoder_norm/scale has shape \(3,\)"),
    ):
        _write(file, {k: v for k, v in (target | change).items() if v is not None})
        with pytest.raises(errors.UserError, match=says):
            t5x.read_checkpoint(file)
