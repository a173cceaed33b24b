"""Tiny models of T5 1.0 and 1.1."""

import dataclasses
import functools

import jax
import numpy as np

from bertjax import plugins
from bertjax.artifact import artifact
from bertjax.models import t5
from tests.helpers import tiny_model

VOCABULARY = 90
TINY = {
    **t5.SMOKE, "hidden_size": 16, "head_dim": 8, "num_heads": 3, "intermediate_size": 24,
    "num_decoder_layers": 3, "vocab_size": VOCABULARY, "relative_buckets": 8,
    "relative_max_distance": 9, "dropout_rate": 0.0,
}  # fmt: skip
V1_1 = {"activation": "gelu_tanh", "gated": True, "tied_embeddings": False}
VERSIONS = {"1.0": TINY, "1.1": {**TINY, **V1_1}}


@functools.cache
def params(**fields):
    """Returns fresh parameters on the host."""
    model = plugins.model("t5", fields)
    return jax.device_get(plugins.init_params(model, jax.random.key(0)))


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, shape).astype(np.int32)


def make_artifact(version, **fields):
    compute = {field.name for field in dataclasses.fields(t5.layers.Compute)}
    config = t5.Config(**{**VERSIONS[version], **fields})
    fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in compute}
    return artifact.Artifact("t5", fields, params(**fields), tiny_model.tokenizer())
