"""Numbers about a run: terms that are summed before they are divided, FLOPs, MFU.

A term is (sum, weight). Terms of devices, micro-batches and batches add up; the quotient is taken
once, at the end. A mean of means is another number.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bertjax.runtime import hardware

Terms = dict[str, tuple[Any, Any]]


def add(total: Terms | None, terms: Mapping[str, tuple[Any, Any]]) -> Terms:
    """The sum of two sets of terms; None is the empty set."""
    if total is None:
        return dict(terms)
    return {name: (total[name][0] + s, total[name][1] + w) for name, (s, w) in terms.items()}


def means(terms: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """sum / weight of every term; a term nothing counted in is left out."""
    return {name: float(s) / float(w) for name, (s, w) in terms.items() if float(w) > 0}


def total_loss(values: Mapping[str, Any], scales: Mapping[str, float]) -> Any:
    """The number that is minimised: the sum of the losses that `scales` names, times its factors.

    A loss that nothing counted in is absent from `values` and adds nothing.
    """
    return sum(factor * values[name] for name, factor in scales.items() if name in values)


def mfu(flops_per_second: float, devices: list[jax.Device] | None = None) -> float | None:
    """Model FLOP/s over the peak of all devices; None where the peak is not known."""
    devices = jax.devices() if devices is None else devices
    chip = hardware.chip_of(devices[0].device_kind)
    if chip is None or chip.peak_flops is None:
        return None
    return flops_per_second / (chip.peak_flops * len(devices))


def perplexity(loss: float) -> float:
    """exp(loss), and at most exp(700): JSON has no infinity."""
    return float(np.exp(min(loss, 700.0)))
