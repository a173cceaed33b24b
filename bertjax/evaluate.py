"""The objective's own numbers on held-out data, and the unigram model to hold them against."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import metrics, sharding

# The unigram model is counted on so many predicted tokens of the training data, at most.
UNIGRAM_TOKENS = 2_000_000
UNIGRAM_BATCHES = 2_000


def evaluate(
    eval_step: Callable[..., metrics.Terms],
    params: Any,
    batches: Iterable[dict[str, np.ndarray]],
    mesh: jax.sharding.Mesh,
    batch_size: int,
    scales: Mapping[str, float],
    unigram: np.ndarray | None = None,
    frozen: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, float]:
    """Means over all batches, and "loss" (what training minimises), "perplexity" (of the main
    loss) and "samples", how many these numbers are of.

    scales: of the objective; the main loss is the first. frozen: parameters of frozen models.
    unigram: log probabilities, see `unigram_log_probs`; adds "unigram_loss", the nats that a model
    knowing nothing else needs for the same predicted tokens.
    """
    total = None
    for local in batches:
        batch = sharding.global_batch(mesh, batch_size, local)
        terms = dict(eval_step(params, batch, dict(frozen)))
        if unigram is not None:
            terms["unigram"] = _unigram_term(unigram, *predicted(batch))
        if "example_weights" in batch:
            terms["samples"] = batch["example_weights"].sum(), 1.0
        # Waiting here also keeps old CPU backends from deadlock in collectives.
        total = metrics.add(total, jax.tree.map(float, jax.device_get(terms)))
    total = total or {}
    samples = {"samples": total.pop("samples")[0]} if "samples" in total else {}
    values = metrics.means(total)
    reference = {"unigram_loss": values.pop("unigram")} if "unigram" in values else {}
    values["loss"] = metrics.total_loss(values, scales)
    main = next(iter(scales))
    if main in values:
        values["perplexity"] = metrics.perplexity(values[main])
    return values | reference | samples


def predicted(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """(ids, weights) of the tokens that a batch asks for."""
    if "masked_ids" in batch:
        return batch["masked_ids"], batch["masked_weights"]
    return batch["targets"], batch["loss_weights"]


@jax.jit
def _unigram_term(
    log_probs: jax.Array, ids: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return -(jnp.take(log_probs, ids) * weights).sum(), weights.sum()


def unigram_log_probs(batches: Iterable[Mapping[str, np.ndarray]], vocab_size: int) -> np.ndarray:
    """float32[vocab_size]: log of each id's share of the predicted tokens, every count plus one.

    batches: of the training data, counted until UNIGRAM_TOKENS predictions or UNIGRAM_BATCHES.
    """
    counts = np.ones(vocab_size)
    for batch in itertools.islice(batches, UNIGRAM_BATCHES):
        ids, weights = predicted(batch)
        counts += np.bincount(ids[weights > 0], minlength=vocab_size)
        if counts.sum() > UNIGRAM_TOKENS:
            break
    return np.log(counts / counts.sum()).astype(np.float32)
