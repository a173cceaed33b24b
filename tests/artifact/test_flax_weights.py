"""Checkpoints of transformers' Flax classes are read: stored files give the stored logits."""

import shutil

import numpy as np
import pytest

from bertjax import errors, plugins
from bertjax.artifact import flax_weights, loading
from tests.golden import make_golden

FOLDER = make_golden.FILE.parent / "flax"


@pytest.fixture(params=["bert", "gpt2", "t5"])
def folder(request, tmp_path):
    copy = shutil.copytree(FOLDER / request.param, tmp_path / request.param)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    (copy / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return copy


def test_logits_are_those_of_the_flax_class(folder):
    source = loading.load(folder)
    stored = np.load(folder / "output.npz")
    inputs = {n: stored[n].astype(np.int32) for n in stored.files if n.endswith("input_ids")}
    model = plugins.model(source.family, source.fields)
    outputs = model.apply({"params": source.params}, **inputs)
    logits = outputs["mlm_logits" if source.family == "bert" else "logits"]
    np.testing.assert_allclose(logits[..., :40], stored["logits"], atol=1e-5)


def test_damaged_file_is_named(folder):
    file = folder / flax_weights.FILE
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(errors.UserError, match=r"flax_model.msgpack: is truncated"):
        loading.load(folder)
