"""Evaluates an objective's metrics on held-out data, and a unigram model as a baseline."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import metrics, sharding

# `unigram_log_probs` stops after about this many predicted tokens, or after this many batches.
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
    token_bytes: Any = None,
) -> dict[str, float]:
    """Returns {name: mean over all batches} of every term, and some derived metrics.

    The derived metrics are "loss" (the loss that training minimises), "perplexity" (of the main
    loss) and "samples" (the number of samples).
    scales: {loss: factor} of the objective; the first loss is the main one. frozen: {name:
    parameters} of the frozen models. unigram: the result of `unigram_log_probs`; if given, the
    result contains "unigram_loss", the unigram model's loss in nats on the same predicted tokens.
    token_bytes: float32[vocab_size], the bytes of text that each id stands for; if given, the
    result contains "bits_per_byte", see `metrics.bits_per_byte`.
    """
    total, main = None, next(iter(scales))
    for local_batch in batches:
        batch = sharding.global_batch(mesh, batch_size, local_batch)
        terms = dict(eval_step(params, batch, dict(frozen)))
        if token_bytes is not None:
            terms[metrics.BITS_PER_BYTE] = _bits_term(terms[main][0], batch, token_bytes)
        if unigram is not None:
            terms["unigram"] = _unigram_term(unigram, *metrics.predicted(batch))
        if "example_weights" in batch:
            terms["samples"] = batch["example_weights"].sum(), 1.0
        # NOTE: fetches the results of each batch before the next one is dispatched, as
        # `runtime.dispatch` requires on a CPU.
        total = metrics.add(total, jax.tree.map(float, jax.device_get(terms)))
    total = total or {}
    samples = {"samples": total.pop("samples")[0]} if "samples" in total else {}
    values = metrics.means(total)
    reference = {"unigram_loss": values.pop("unigram")} if "unigram" in values else {}
    values["loss"] = metrics.total_loss(values, scales)
    if main in values:
        values["perplexity"] = metrics.perplexity(values[main])
    return values | reference | samples


_bits_term = jax.jit(metrics.bits_per_byte)


@jax.jit
def _unigram_term(
    log_probs: jax.Array, ids: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return -(jnp.take(log_probs, ids) * weights).sum(), weights.sum()


def unigram_log_probs(batches: Iterable[Mapping[str, np.ndarray]], vocab_size: int) -> np.ndarray:
    """Returns float32[vocab_size]: the log frequency of each id among predicted tokens.

    Uses add-one smoothing, and stops after UNIGRAM_TOKENS tokens or UNIGRAM_BATCHES batches.
    batches: training batches.
    """
    counts = np.ones(vocab_size)
    for batch in itertools.islice(batches, UNIGRAM_BATCHES):
        ids, weights = metrics.predicted(batch)
        counts += np.bincount(ids[weights > 0], minlength=vocab_size)
        if counts.sum() > UNIGRAM_TOKENS:
            break
    return np.log(counts / counts.sum()).astype(np.float32)
