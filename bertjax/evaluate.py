"""The objective's own numbers on held-out data, and the unigram model to hold them against."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import metrics, sharding
from bertjax.data import store

UNIGRAM_RECORDS = 2048  # records (of 8192 tokens) that the unigram model is counted on, at most


def evaluate(
    eval_step: Callable[[Any, Any], metrics.Terms],
    params: Any,
    batches: Iterable[dict[str, np.ndarray]],
    mesh: jax.sharding.Mesh,
    batch_size: int,
    unigram: np.ndarray | None = None,
) -> dict[str, float]:
    """Means over all batches, "loss" (what training minimises) and "perplexity" (of the MLM).

    unigram: log probabilities, see `unigram_log_probs`; adds "unigram_loss", the nats that a model
    knowing nothing else needs for the same hidden tokens.
    """
    total = None
    for local in batches:
        batch = sharding.global_batch(mesh, batch_size, local)
        terms = dict(eval_step(params, batch))
        if unigram is not None and "masked_ids" in batch:
            terms["unigram"] = _unigram_term(unigram, batch)
        # Waiting here also keeps old CPU backends from deadlock in collectives.
        total = metrics.add(total, jax.tree.map(float, jax.device_get(terms)))
    values = metrics.means(total or {})
    reference = {"unigram_loss": values.pop("unigram")} if "unigram" in values else {}
    values["loss"] = metrics.total_loss(values)
    if "mlm_loss" in values:
        values["perplexity"] = metrics.perplexity(values["mlm_loss"])
    return values | reference


@jax.jit
def _unigram_term(log_probs: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    weights = batch["masked_weights"]
    return -(jnp.take(log_probs, batch["masked_ids"]) * weights).sum(), weights.sum()


def unigram_log_probs(dataset: store.Dataset, vocab_size: int) -> np.ndarray:
    """float32[vocab_size]: log of each id's share of the training text, every count plus one."""
    count = min(dataset.num_records, UNIGRAM_RECORDS)
    chosen = np.linspace(0, dataset.num_records - 1, count).astype(int)
    counts = np.ones(vocab_size)
    for record in chosen:
        counts += np.bincount(dataset.read([record])[0].tokens, minlength=vocab_size)
    return np.log(counts / counts.sum()).astype(np.float32)
