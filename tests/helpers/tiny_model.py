"""A BERT of a few thousand random parameters with a tokenizer, for tests of what uses a model."""

import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np

from bertjax import plugins
from bertjax.artifact import artifact
from bertjax.data.tokenizers import tokenizer as tokenizer_lib

TEXTS = ("the cat sat on the mat", "a dog ran home and saw the cat", "letters make many words")
FIELDS = {
    "num_labels": 0,
    "adapter_size": 0,
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_size": 24,
    "max_length": 40,
    "type_vocab_size": 2,
    "activation": "gelu",
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.2,
    "layer_norm_eps": 1e-7,
    "init_std": 0.03,
    "heads": ("pooler", "mlm", "nsp"),
}


@functools.cache
def tokenizer(kind: str = "wordpiece") -> tokenizer_lib.Tokenizer:
    """Returns a tokenizer trained on three sentences (TEXTS)."""
    sizes = {"wordpiece": 60, "bpe": 280, "unigram": 28}
    return tokenizer_lib.train(kind, list(TEXTS) * 20, sizes[kind])


def gpt2_tokenizer(folder: pathlib.Path) -> tokenizer_lib.Tokenizer:
    """Writes and loads a byte-level BPE whose only special token is the end of text."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", "\u0120", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    return tokenizer_lib.load(folder)


def make(kind: str = "wordpiece", seed: int = 0, **fields: Any) -> artifact.Artifact:
    """Returns the model with `fields` changed; padding rows of the vocabulary are zero."""
    fields = {"vocab_size": tokenizer(kind).size, **FIELDS, **fields}
    flat = artifact.flatten(plugins.abstract_params(plugins.model("bert", fields)))
    rng = np.random.default_rng(seed)
    params = {}
    for path, leaf in flat.items():
        real = artifact.real_shape(path, leaf.shape, fields["vocab_size"])
        pads = [(0, whole - used) for whole, used in zip(leaf.shape, real, strict=True)]
        params[path] = np.pad(rng.standard_normal(real, np.float32), pads)
    return artifact.Artifact(
        family="bert",
        fields=fields,
        params=artifact.unflatten(params),
        tokenizer=tokenizer(kind),
        step=7,
        objective={"name": "mlm", "mask_rate": 0.15},
        config={"seed": 3, "model": {"heads": ["pooler", "mlm", "nsp"]}},
    )


def assert_same_params(a: Any, b: Any) -> None:
    """Asserts that names, dtypes and values of the parameters are equal."""
    a, b = artifact.flatten(jax.device_get(a)), artifact.flatten(jax.device_get(b))
    assert a.keys() == b.keys()
    for path in a:
        assert a[path].dtype == b[path].dtype, path
        np.testing.assert_array_equal(a[path], b[path], err_msg=path)
