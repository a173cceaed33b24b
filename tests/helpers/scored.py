"""Tiny models whose scores differ between texts, and simple reference loops for the scores."""

import dataclasses
import functools

import jax
import numpy as np

from bertjax import plugins
from bertjax.artifact import artifact
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.inference import pretrained
from bertjax.models.common import layers
from tests.helpers import tiny_model


@functools.cache
def make(family, kind="wordpiece", **fields):
    """Returns a tiny model whose random parameters are so large that tokens score differently."""
    module = plugins.family(family)
    tokenizer = tokenizer_lib.of_bytes() if kind == "bytes" else tiny_model.tokenizer(kind)
    size = max(tokenizer.size, *(tokenizer.sentinels + 1) if family == "t5" else (0,))
    whole = module.Config(**{**module.SMOKE, "max_length": 40, "vocab_size": int(size), **fields})
    compute = {field.name for field in dataclasses.fields(layers.Compute)}
    fields = {k: v for k, v in dataclasses.asdict(whole).items() if k not in compute}
    rng = np.random.default_rng(0)
    params = {
        path: np.float32(path.endswith("scale")) + 0.2 * rng.standard_normal(leaf.shape, np.float32)
        for path, leaf in artifact.flatten(
            plugins.abstract_params(plugins.model(family, fields))
        ).items()
    }
    params = artifact.unflatten(params)
    return pretrained.Pretrained(artifact.Artifact(family, fields, params, tokenizer))


def trained_by(model, **objective):
    """Returns the model, marked as pretrained with this objective."""
    return pretrained.Pretrained(dataclasses.replace(model.source, objective=objective))


@functools.partial(jax.jit, static_argnames=("model", "name"))
def outputs(model, params, name, features):
    return model.apply({"params": params}, **features)[name]


def apply(model, name, **features):
    """Returns the output `name` for rows of equal length without padding."""
    features = {key: np.array(value, np.int32) for key, value in features.items()}
    return np.asarray(outputs(model.model, model.params, name, features))


def log_softmax(logits):
    return np.asarray(jax.nn.log_softmax(logits.astype(np.float64)))


def encode(model, text):
    return model.tokenizer.encode(text)


def causal_loop(model, ids, start):
    """Returns the log probability of each id, given `start` and the ids before it."""
    logits = apply(model, "logits", input_ids=[[start, *ids]])[0]
    return [log_softmax(row)[i] for row, i in zip(logits, ids, strict=False)]
