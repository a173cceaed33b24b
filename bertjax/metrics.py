"""Metrics of a run: means of terms, perplexity and model FLOP utilisation (MFU).

A term is (sum, weight). Terms of devices, micro-batches and batches are added; at the end the sum
is divided once by the weight. NOTE: a mean of means would be a different number.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bertjax.runtime import hardware

Terms = dict[str, tuple[Any, Any]]


def add(total: Terms | None, terms: Mapping[str, tuple[Any, Any]]) -> Terms:
    """Returns the sum of two sets of terms with the same names; `terms` if `total` is None."""
    if total is None:
        return dict(terms)
    return {name: (total[name][0] + s, total[name][1] + w) for name, (s, w) in terms.items()}


def means(terms: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """Returns sum / weight of every term; omits terms whose weight is 0."""
    return {name: float(s) / float(w) for name, (s, w) in terms.items() if float(w) > 0}


def total_loss(values: Mapping[str, Any], scales: Mapping[str, float]) -> Any:
    """Returns the loss that is minimised: the sum of the losses, each times its factor in `scales`.

    A loss that is absent from `values`, because its weight is 0, is left out of the sum.
    """
    return sum(factor * values[name] for name, factor in scales.items() if name in values)


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
