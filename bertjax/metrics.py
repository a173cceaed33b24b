"""Metrics of a run: means of terms, bits per byte, perplexity and model FLOP utilisation (MFU).

A term is (sum, weight). Terms of devices, micro-batches and batches are added; at the end the sum
is divided once by the weight. NOTE: a mean of means would be a different number.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.runtime import hardware

Terms = dict[str, tuple[Any, Any]]
BITS_PER_BYTE = "bits_per_byte"  # the name of the term


def add(total: Terms | None, terms: Mapping[str, tuple[Any, Any]]) -> Terms:
    """Returns the sum of two sets of terms; `terms` if `total` is None.

    Leaves out a name that one of them lacks: `total` may be from a checkpoint that was saved before
    the term was introduced.
    """
    if total is None:
        return dict(terms)
    return {
        name: (total[name][0] + s, total[name][1] + w)
        for name, (s, w) in terms.items()
        if name in total
    }


def means(terms: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Returns sum / weight of every term; omits terms whose weight is 0."""
    return {name: float(s) / float(w) for name, (s, w) in terms.items() if float(w) > 0}


def total_loss(values: Mapping[str, Any], scales: Mapping[str, float]) -> Any:
    """Returns the loss that is minimised: the sum of the losses, each times its factor in `scales`.

    A loss that is absent from `values`, because its weight is 0, is left out of the sum.
    """
    return sum(factor * values[name] for name, factor in scales.items() if name in values)


def predicted(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns (ids, weights) of the tokens to predict in a batch."""
    if "masked_ids" in batch:
        return batch["masked_ids"], batch["masked_weights"]
    return batch["targets"], batch["loss_weights"]


def bits_per_byte(
    nats: jax.Array, batch: Mapping[str, jax.Array], token_bytes: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the term (bits, bytes) of the predicted tokens of a batch.

    Unlike the loss of a token, it compares models with different tokenizers. All tokens that the
    loss counts cost bits, also special ones (the end of a text, T5's sentinels, unknown pieces),
    which have no bytes. For masked models the bytes are those of the masked text.

    nats: the sum of the main loss over the predicted tokens. token_bytes: float32[vocab_size], the
    bytes that each id stands for, see `data.tokenizers.piece_bytes`.
    """
    ids, weights = predicted(batch)
    return nats / math.log(2), (jnp.take(token_bytes, ids) * weights).sum()


def mfu(flops_per_second: float, devices: list[jax.Device] | None = None) -> float | None:
    """Returns model FLOP/s divided by the devices' peak FLOP/s; None if the peak is unknown."""
    devices = jax.devices() if devices is None else devices
    chip = hardware.chip_of(devices[0].device_kind)
    if chip is None or chip.peak_flops is None:
        return None
    return flops_per_second / (chip.peak_flops * len(devices))


def perplexity(loss: float) -> float:
    """Returns exp(loss), at most exp(700), since JSON has no infinity."""
    return float(np.exp(min(loss, 700.0)))
