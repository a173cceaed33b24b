"""The objective's own numbers on held-out data, and the unigram model to hold them against."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
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
) -> dict[str, float]:
    """Means over all batches, "loss" (what training minimises) and "perplexity" (of the MLM)."""
    total = None
    for batch in batches:
        terms = eval_step(params, sharding.global_batch(mesh, batch_size, batch))
        # Waiting here also keeps old CPU backends from deadlock in collectives.
        total = metrics.add(total, jax.tree.map(float, jax.device_get(terms)))
    values = metrics.means(total or {})
    values["loss"] = metrics.total_loss(values)
    if "mlm_loss" in values:
        values["perplexity"] = metrics.perplexity(values["mlm_loss"])
    return values


def unigram_log_probs(dataset: store.Dataset, vocab_size: int) -> np.ndarray:
    """float64[vocab_size]: log of each id's share of the training text, every count plus one."""
    count = min(dataset.num_records, UNIGRAM_RECORDS)
    chosen = np.linspace(0, dataset.num_records - 1, count).astype(int)
    counts = np.ones(vocab_size)
    for record in chosen:
        counts += np.bincount(dataset.read([record])[0].tokens, minlength=vocab_size)
    return np.log(counts / counts.sum())


def unigram_loss(log_probs: np.ndarray, batches: Iterable[dict[str, np.ndarray]]) -> float:
    """Mean nats of the hidden tokens of `batches` under the unigram model."""
    nats = weight = 0.0
    for batch in batches:
        nats -= float((log_probs[batch["masked_ids"]] * batch["masked_weights"]).sum())
        weight += float(batch["masked_weights"].sum())
    return nats / weight if weight else math.nan
