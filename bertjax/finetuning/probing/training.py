"""Trains the probes of all layers and tasks together, and predicts the labels of dev.

    fitted = training.fit(train_MND, targets_TN, dev_MND, dev_targets_TN, num_labels=9, seed=0)
    fitted.predictions_MTN          # of dev

A probe is multinomial logistic regression: one weight matrix and a bias, with the L2 penalty that
scikit-learn's LogisticRegression has by default (C = 1). One jitted step trains the probes of all
layers and tasks; they share the batches, and nothing else. Adam's rate is halved, for each probe by
itself, after each epoch that does not lower the probe's dev loss; after `MAX_HALVINGS` the probe is
finished. Hewitt and Liang (arXiv 1909.03368) train their probes in this way. The predictions are
those after the epoch with the lowest dev loss.

Shapes: M layers, T tasks, N items, B items of a batch, S steps of an epoch, D model, C labels.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.data.batches import rng

RATE = 1e-3
PENALTY = 1.0  # the inverse strength of the L2 penalty, scikit-learn's `C`
MAX_EPOCHS = 100
MAX_HALVINGS = 4
MIN_GAIN = 1e-3  # by what share of itself the dev loss must fall in an epoch
_STEPS = 64  # steps of an epoch, at least, unless batches would have fewer than _MIN_BATCH items
_MIN_BATCH, _MAX_BATCH = 16, 256
_CHUNK = 2048  # items that are scored at once


class Fitted(NamedTuple):
    """predictions_MTN: int32, the likeliest labels of dev. epochs_MT: int, the epoch they are of.

    num_epochs: how many epochs ran.
    """

    predictions_MTN: np.ndarray
    epochs_MT: np.ndarray
    num_epochs: int


def fit(
    x_MND: Any, targets_TN: np.ndarray, dev_MND: Any, dev_targets_TN: np.ndarray, *,
    num_labels: int, seed: int,
) -> Fitted:  # fmt: skip
    """Trains a probe for each layer and task; returns its predictions for dev.

    x_MND, dev_MND: float32, standardised; on the device if they are used again. targets_TN,
    dev_targets_TN: int32, indices of labels. seed: of the order of the items.
    """
    num_layers, count, width = x_MND.shape
    batch = int(np.clip(count // _STEPS, _MIN_BATCH, _MAX_BATCH))
    steps = -(-count // batch)
    probes = num_layers, len(targets_TN)
    params = {
        "kernel": jnp.zeros((*probes, width, num_labels)),
        "bias": jnp.zeros((*probes, num_labels)),
    }
    moments = optax.scale_by_adam().init(params)
    rates_MT, best_MT = np.full(probes, RATE, np.float32), np.full(probes, np.inf)
    halvings_MT, epochs_MT = np.zeros(probes, int), np.zeros(probes, int)
    predictions_MTN = np.zeros((*probes, dev_targets_TN.shape[1]), np.int32)
    epoch = 0
    while epoch < MAX_EPOCHS and (halvings_MT < MAX_HALVINGS).any():
        epoch += 1
        order = np.resize(rng.permutation("probe items", count, seed, epoch), (steps, batch))
        params, moments = _epoch(params, moments, rates_MT, x_MND, targets_TN, order)
        losses_MT, found_MTN = jax.device_get(_score(params, dev_MND, dev_targets_TN))
        active_MT = halvings_MT < MAX_HALVINGS
        better_MT = active_MT & (losses_MT < best_MT * (1 - MIN_GAIN))
        best_MT[better_MT] = losses_MT[better_MT]
        epochs_MT[better_MT] = epoch
        predictions_MTN[better_MT] = found_MTN[better_MT]
        halvings_MT += active_MT & ~better_MT
        rates_MT = np.where(halvings_MT < MAX_HALVINGS, RATE * 0.5**halvings_MT, 0.0)
        rates_MT = rates_MT.astype(np.float32)
    return Fitted(predictions_MTN, epochs_MT, epoch)


def _loss(params: Any, x_BD: jax.Array, targets_B: jax.Array, count: int) -> jax.Array:
    """Returns the loss of one probe: the mean cross entropy in nats, and the penalty."""
    logits_BC = x_BD @ params["kernel"] + params["bias"][None]
    nats_B = optax.softmax_cross_entropy_with_integer_labels(logits_BC, targets_B)
    return nats_B.mean() + (params["kernel"] ** 2).sum() / (2 * PENALTY * count)


def _of_all(function: Any, *batch_axes: int | None) -> Any:
    """Maps a function of (params, x, targets, ...) over layers and, inside, over tasks."""
    by_task = jax.vmap(function, (0, None, 0, *batch_axes))
    return jax.vmap(by_task, (0, 0, None, *batch_axes))


@jax.jit
def _epoch(
    params: Any, moments: Any, rates_MT: jax.Array, x_MND: jax.Array, targets_TN: jax.Array,
    order_SB: jax.Array,
) -> tuple[Any, Any]:  # fmt: skip
    """Returns the parameters and Adam's moments after the steps of an epoch."""
    count = x_MND.shape[1]

    def step(state: Any, numbers_B: jax.Array) -> tuple[Any, None]:
        params, moments = state

        def total(params: Any) -> jax.Array:
            x_MBD, targets_TB = x_MND[:, numbers_B], targets_TN[:, numbers_B]
            return _of_all(_loss, None)(params, x_MBD, targets_TB, count).sum()

        # The gradient of the sum has each probe's own gradient, since no parameters are shared.
        updates, moments = optax.scale_by_adam().update(jax.grad(total)(params), moments)
        scaled = jax.tree.map(
            lambda p, u: p - u * rates_MT.reshape(*rates_MT.shape, *[1] * (u.ndim - 2)),
            params, updates,
        )  # fmt: skip
        return (scaled, moments), None

    (params, moments), _ = jax.lax.scan(step, (params, moments), order_SB)
    return params, moments


@jax.jit
def _score(params: Any, x_MND: jax.Array, targets_TN: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (mean cross entropy [M, T], likeliest labels [M, T, N])."""
    count = x_MND.shape[1]
    chunks = -(-count // _CHUNK)
    size = -(-count // chunks)

    def one(params: Any, x_BD: jax.Array, targets_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_BC = x_BD @ params["kernel"] + params["bias"][None]
        nats_B = optax.softmax_cross_entropy_with_integer_labels(logits_BC, targets_B)
        return nats_B, jnp.argmax(logits_BC, axis=-1).astype(jnp.int32)

    def chunk(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_MBD = jax.lax.dynamic_slice_in_dim(x_MND, start, size, axis=1)
        targets_TB = jax.lax.dynamic_slice_in_dim(targets_TN, start, size, axis=1)
        return _of_all(one)(params, x_MBD, targets_TB)

    # The last chunk starts earlier, so that it is full; what it repeats is dropped below.
    starts = np.minimum(np.arange(chunks) * size, count - size)
    nats, labels = jax.lax.map(chunk, jnp.asarray(starts))  # [chunks, M, T, size]
    kept = [np.arange(max(0, i * size - starts[i]), size) for i in range(chunks)]
    nats_MTN, labels_MTN = (
        jnp.concatenate([x[i][..., kept[i]] for i in range(chunks)], axis=-1)
        for x in (nats, labels)
    )
    return nats_MTN.mean(axis=-1), labels_MTN
