"""Building blocks of losses. A term is (sum, weight), to be divided once for the whole batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax import metrics

Batch = dict[str, jax.Array]
# Features that are inputs of language models. Each family and each batch has some of them.
SEQUENCES = (
    "input_ids", "attention_mask", "segment_ids", "position_ids", "prefix_mask",
    "decoder_input_ids", "decoder_attention_mask", "decoder_segment_ids", "decoder_position_ids",
)  # fmt: skip


def classification(
    name: str, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> metrics.Terms:
    """Returns {NAME_loss: cross entropy in nats, NAME_accuracy}, each as (sum, weight).

    The sums are over all axes except the class axis. logits: float32 [..., C]; labels: int32
    [...]; weights: [...].
    """
    # The label's logit is a masked sum, not a gather: C may be sharded, and a gather would need the
    # logits of all classes on each device.
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    is_label = classes == labels[..., None]
    nll = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1)
    correct = _argmax(jax.lax.stop_gradient(logits), classes) == labels
    total = weights.sum()
    return {
        f"{name}_loss": ((nll * weights).sum(), total),
        f"{name}_accuracy": ((correct * weights).sum(), total),
    }


def _argmax(logits: jax.Array, classes: jax.Array) -> jax.Array:
    """Returns int32[...]: the first class with the largest logit, as `jnp.argmax` does.

    The maximum is that of the logsumexp, and the minimum over classes is a plain reduction. On CPUs
    XLA computes `jnp.argmax` in one thread and without vector instructions, which took 10% of the
    CPU time of a small model's train step. A row with a NaN has no maximum and returns the number
    of classes. classes: int32 [..., C], the index of each logit's class.
    """
    largest = jnp.max(logits, axis=-1, keepdims=True)
    return jnp.min(jnp.where(logits == largest, classes, logits.shape[-1]), axis=-1)


def log_probs(logits: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns float32 [...]: the log probabilities of given classes, in nats, for evaluation.

    logits: float32 [..., C]; ids: int32 [...]. NOTE: gathers the logits of `ids`, which is faster
    than the masked sum in `classification` if C is not sharded.
    """
    id_logits = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    return id_logits - jax.nn.logsumexp(logits, axis=-1)


def softened_divergence(
    teacher_logits: jax.Array, student_logits: jax.Array, temperature: float
) -> jax.Array:
    """Returns T^2 KL(teacher, student) in nats over the last axis, both at temperature T.

    The gradient of the KL shrinks as T grows; the factor T^2 compensates for that (Hinton et al.,
    arXiv 1503.02531, section 2).
    """
    log_p = jax.nn.log_softmax(teacher_logits / temperature)
    log_q = jax.nn.log_softmax(student_logits / temperature)
    return temperature**2 * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def example_weights(batch: Batch) -> jax.Array:
    """Returns float32[B]: 0 for rows that only fill up an evaluation's last batch, 1 for others."""
    if "example_weights" in batch:
        return batch["example_weights"]
    return jnp.ones(batch["input_ids"].shape[0], jnp.float32)


def label_weights(batch: Batch) -> jax.Array:
    """Returns float32[B]: `label_weight` times `example_weights`."""
    return example_weights(batch) * batch["label_weight"]


def target_weights(batch: Batch) -> jax.Array:
    """Returns float32[B, L]: `loss_weights` times `example_weights`."""
    return batch["loss_weights"] * example_weights(batch)[:, None]


def token_weights(batch: Batch) -> jax.Array:
    """Returns float32[B, L]: `example_weights` on tokens, special ones included; 0 on padding."""
    if "segment_ids" in batch:
        real_BL = batch["segment_ids"] > 0
    else:
        real_BL = batch["attention_mask"] > 0
    return real_BL * example_weights(batch)[:, None]


def inputs(batch: Batch, names: tuple[str, ...]) -> Batch:
    """Returns the features of the batch that are listed in `names`, as arguments for a model."""
    return {name: batch[name] for name in names if name in batch}


def next_tokens(
    apply: Callable[..., Batch], batch: Batch, *, z_loss: bool = False
) -> metrics.Terms:
    """Returns lm_loss and lm_accuracy of a decoder's `targets`, weighted by `loss_weights`.

    z_loss: whether to return the term z_loss too, the squared log of the softmax's denominator
    (Mesh TensorFlow; PaLM, arXiv 2204.02311, section 5).
    """
    logits = apply(**inputs(batch, SEQUENCES))["logits"]
    weights = batch["loss_weights"]
    terms = classification("lm", logits, batch["targets"], weights)
    if z_loss:
        squared_log_z = jax.nn.logsumexp(logits, axis=-1) ** 2
        terms["z_loss"] = (squared_log_z * weights).sum(), weights.sum()
    return terms
