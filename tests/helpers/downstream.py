"""Tiny fine-tuned models of every family and task class of transformers, to test both formats."""

import dataclasses
from typing import Any

import jax
import numpy as np

from bertjax import plugins
from bertjax.artifact import artifact, hf_tasks
from tests.helpers import encoders, tiny_model

KINDS = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "extractive_qa",
    "ForMultipleChoice": "multiple_choice",
}
LABELS = ["bad", "so so", "good"]
OUTPUTS = {"classifier": "class_logits", "token_classifier": "token_logits", "span": "span_logits"}
CASES = [(family, end) for family in plugins.families() for end in plugins.family(family).HF_HEADS]
L = 11


def make(family: str, ending: str, **task: Any) -> artifact.Artifact:
    """Returns a model with the heads of a class; all parameters are random, norms near 1.

    task: keys of the task to add or replace.
    """
    labelled = ending in ("ForSequenceClassification", "ForTokenClassification")
    count = {"ForMultipleChoice": 1}.get(ending, 3 if labelled else 0)
    heads = hf_tasks.heads(plugins.family(family), ending)
    source = soft(encoders.make_artifact(family, "bpe", heads=heads, num_labels=count))
    whole = {
        "name": "mine",
        "kind": KINDS[ending],
        "config": {"a": 1},
        "labels": LABELS if labelled else [],
        "max_length": L,
        **task,
    }
    return dataclasses.replace(source, task=whole)


def soft(model: artifact.Artifact) -> artifact.Artifact:
    """Returns the model with norms near 1 and parameters so small that nothing saturates.

    Otherwise a softmax or tanh at its limit would hide differences.
    """
    flat = {
        path: np.asarray(0.3 * leaf + path.endswith("scale"), np.float32)
        for path, leaf in artifact.flatten(model.params).items()
    }
    return dataclasses.replace(model, params=artifact.unflatten(flat))


def batch(tokenizer: Any) -> dict[str, np.ndarray]:
    """Returns four rows of unequal length without special tokens, padded with the pad id."""
    rng = np.random.default_rng(0)
    words = np.flatnonzero(~tokenizer.special_mask())
    mask = (np.arange(L) < np.array([[L], [4], [1], [7]])).astype(np.int32)
    ids = np.where(mask, rng.choice(words, mask.shape), tokenizer.specials.pad)
    return {"input_ids": ids.astype(np.int32), "attention_mask": mask}


def logits(model: artifact.Artifact, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the logits of the model's task head."""
    (name,) = {OUTPUTS[head] for head in model.fields["heads"] if head in OUTPUTS}
    apply = jax.jit(plugins.model(model.family, model.fields).apply)
    return np.asarray(apply({"params": model.params}, **inputs)[name])


def assert_same_logits(model: artifact.Artifact, theirs: Any, inputs: dict[str, Any]) -> None:
    """Asserts that `logits` equal those of a transformers model, except on padding."""
    import torch

    ours = logits(model, inputs)
    features = {k: torch.tensor(v).long() for k, v in inputs.items()}
    if type(theirs).__name__.endswith("ForMultipleChoice"):  # the rows as choices of one question
        features, ours = {k: v[None] for k, v in features.items()}, ours.T
    with torch.no_grad():
        out = theirs.eval()(**features)
    if "start_logits" in out:
        found = torch.stack([out.start_logits, out.end_logits], -1)
    else:
        found = out.logits
    found, real = found.numpy(), np.ones(ours.shape, bool)
    if ours.ndim == 3:
        real &= inputs["attention_mask"][..., None] > 0
    assert abs(ours[real]).max() > 0.1
    np.testing.assert_allclose(found[real], ours[real], atol=1e-4)


assert_same_params = tiny_model.assert_same_params
