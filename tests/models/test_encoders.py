"""What holds for every encoder family: packing, padding, chosen positions, folders both ways."""

import functools

import jax
import numpy as np
import pytest
import safetensors.numpy

from bertjax import plugins
from bertjax.artifact import huggingface
from tests.helpers import encoders, proofs, tiny_model

FAMILIES = [name for name in plugins.families() if plugins.family(name).KIND == "encoder"]
some_families = pytest.mark.parametrize(
    "family", proofs.all_but(FAMILIES, "bert", "deberta", "modernbert")
)
L = 20
PACKED = encoders.packed(((9, 4, 7), (11, 6), (20,)), L)


@functools.cache
def _model(family):
    return encoders.make(family)


@functools.cache
def _jitted(family):
    model, _ = _model(family)
    apply = functools.partial(model.apply, output_hidden_states=True)
    return jax.jit(lambda params, batch: apply({"params": params}, **batch))


def _apply(family, batch):
    return jax.device_get(_jitted(family)(_model(family)[1], batch))


@some_families
def test_a_packed_example_has_the_states_it_has_alone(family):
    together = _apply(family, PACKED)["last_hidden_state"]
    for row, segments in enumerate(PACKED["segment_ids"]):
        for number in range(1, segments.max() + 1):
            place = np.flatnonzero(segments == number)
            ids, mask = np.zeros((2, 3, L), np.int32)
            ids[0, : len(place)] = PACKED["input_ids"][row, place]
            mask[0, : len(place)] = 1
            alone = _apply(family, {"input_ids": ids, "attention_mask": mask})
            alone = alone["last_hidden_state"][0, : len(place)]
            np.testing.assert_allclose(together[row, place], alone, atol=2e-5)


@some_families
def test_what_stands_in_the_padding_changes_nothing(family):
    batch = {
        "input_ids": PACKED["input_ids"],
        "attention_mask": (PACKED["segment_ids"] == 1).astype(np.int32),
    }
    real = batch["attention_mask"].astype(bool)
    a = _apply(family, batch)["hidden_states"]
    b = _apply(family, batch | {"input_ids": np.where(real, batch["input_ids"], 77)})
    np.testing.assert_array_equal(a[:, real], b["hidden_states"][:, real])
    assert abs(a - b["hidden_states"])[:, ~real].max() > 0.01


@some_families
def test_states_go_from_the_embeddings_to_the_last_layer(family):
    outputs = _apply(family, PACKED)
    states = outputs["hidden_states"]
    assert states.shape == (4, 3, L, 16)
    np.testing.assert_array_equal(states[-1], outputs["last_hidden_state"])
    assert (abs(np.diff(states, axis=0)).max(axis=(1, 2, 3)) > 0.01).all()


@some_families
def test_masked_positions_give_the_logits_that_stand_there(family):
    model, params = _model(family)
    if "mlm" not in model.config.heads:
        pytest.skip("no head for hidden tokens")
    positions = np.array([[0, 3], [2, 9], [19, 1]], np.int32)
    apply = jax.jit(lambda batch: model.apply({"params": params}, **batch)["mlm_logits"])
    whole, chosen = apply(PACKED), apply(PACKED | {"masked_positions": positions})
    there = np.take_along_axis(np.asarray(whole), positions[:, :, None], axis=1)
    np.testing.assert_allclose(chosen, there, atol=1e-4)
    assert chosen.dtype == np.float32 and chosen.shape == (3, 2, 128)
    assert (chosen.argmax(-1) < 100).all() and (jax.nn.softmax(chosen)[..., 100:] == 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_smoke_shrinks_every_variant(family):
    module = plugins.family(family)
    for fields in module.VARIANTS.values():
        config = plugins.model(family, {**fields, **module.SMOKE}).config
        assert (config.num_layers, config.hidden_size, config.max_length) == (2, 64, 64)
        assert config.num_heads == 2 and config.intermediate_size == 128


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_count_every_layer_and_prediction(family):
    module = plugins.family(family)
    flops = module.flops_per_sequence
    three, four = (
        plugins.model(family, {**encoders.FIELDS, "num_layers": n}).config for n in (3, 4)
    )
    assert flops(four, 20, 3) > flops(three, 20, 3) > flops(three, 20, 2) > flops(three, 19, 2)


def _for_hugging_face(family):
    """A model with the heads of BertForPreTraining or, in other families, with that for tokens."""
    heads = ("pooler", "mlm", "nsp") if family == "bert" else ("mlm",)
    return encoders.make_artifact(family, "bpe", heads=heads)


@some_families
def test_hugging_face_folder_comes_back(family, tmp_path):
    model = _for_hugging_face(family)
    huggingface.write(model, tmp_path / "hf")
    read = huggingface.read(tmp_path / "hf")
    assert read.fields == {name: model.fields[name] for name in read.fields}
    tiny_model.assert_same_params(read.params, model.params)
    huggingface.write(read, tmp_path / "again")
    for name in ("config.json", huggingface.WEIGHTS):
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_finds_every_weight_and_no_other(family, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = _for_hugging_face(family)
    name = plugins.family(family).HF_CONFIG["architectures"][model.fields["heads"]]
    huggingface.write(model, tmp_path / "hf")
    theirs, info = getattr(transformers, name).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], kind
    state = theirs.state_dict()
    for key, tensor in safetensors.numpy.load_file(tmp_path / "hf" / huggingface.WEIGHTS).items():
        np.testing.assert_array_equal(state[key].numpy(), tensor, err_msg=key)
