"""What the losses are made of: sums and weights, divided only once, over the whole batch."""

import jax
import jax.numpy as jnp

from bertjax import metrics

Batch = dict[str, jax.Array]


def classification(
    name: str, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> metrics.Terms:
    """NAME_loss, cross entropy in nats, and NAME_accuracy.

    Sums over all but the class axis of logits float32 [..., C]; labels int32 and weights [...].
    """
    # The label's logit as a masked sum, not a gather: C may be sharded, and no device needs it all.
    own = jnp.arange(logits.shape[-1]) == labels[..., None]
    nll = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(own, logits, 0.0), axis=-1)
    right = jnp.argmax(logits, axis=-1) == labels
    total = weights.sum()
    return {
        f"{name}_loss": ((nll * weights).sum(), total),
        f"{name}_accuracy": ((right * weights).sum(), total),
    }


def example_weights(batch: Batch) -> jax.Array:
    """float32[B]: 0 for the rows that only fill up the last batch of an evaluation."""
    if "example_weights" in batch:
        return batch["example_weights"]
    return jnp.ones(batch["input_ids"].shape[0], jnp.float32)


def token_weights(batch: Batch) -> jax.Array:
    """float32[B, L]: 1 on all tokens, specials included, 0 on padding."""
    if "segment_ids" in batch:
        real_BL = batch["segment_ids"] > 0
    else:
        real_BL = batch["attention_mask"] > 0
    return real_BL * example_weights(batch)[:, None]


def inputs(batch: Batch, names: tuple[str, ...]) -> Batch:
    """The features of these names that the batch has, as arguments of a model."""
    return {name: batch[name] for name in names if name in batch}
