"""Measures the size and the speed of a fine-tuned model on this device, for the report.

    speed.measure(predictor, examples)
    # {"parameters": 22_713_216, "bytes": 90_852_864, "latency_ms": 5.1, "texts_per_second": 410.0,
    #  "batch_size": 32, "tokens": 16, "device": "cpu: ..."}

The times are those of `predict`, from text to prediction, in float32, without compilation. Text
generation is not timed, because its time depends on the text.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.artifact import artifact
from bertjax.finetuning import batching, predictor

SECONDS = 0.2  # of each of the two measurements, besides its first call, which compiles
_MIN_CALLS = 3


def size(model: predictor.Predictor) -> dict[str, int]:
    """Returns the number of parameters and their bytes, as stored."""
    leaves = jax.tree.leaves(model.params)
    return {
        "parameters": artifact.num_params(model.params, model.config.vocab_size),
        "bytes": sum(leaf.nbytes for leaf in leaves),
    }


def measure(model: predictor.Predictor, examples: Sequence[Any]) -> dict[str, Any]:
    """Returns the size, and the times for examples of about the median length.

    latency_ms: the median time of one example. texts_per_second: for batches of `batch_size`.
    tokens: the length of the median example. The times are missing for generated text.
    """
    result: dict[str, Any] = size(model)
    if model.task_type.loops or not examples:
        return result
    examples = examples[: 8 * predictor.BATCH_SIZE]
    encoded = model.task_type.encode(examples)
    lengths = np.bincount(encoded.owners, [row["input_ids"].size for row in encoded.rows])
    order = np.argsort(lengths, kind="stable")
    count = min(predictor.BATCH_SIZE, len(order))
    middle = order[(len(order) - count) // 2 :][:count]
    typical = order[len(order) // 2]
    step = jax.jit(model.task_type.predict_step(model.model))

    def predict(part: Sequence[Any]) -> None:
        rows = model.task_type.encode(part)
        batches = model.task_type.batches(rows, min(predictor.BATCH_SIZE, len(rows.rows)))
        outputs = batching.forward(step, model.params, batches)
        model.task_type.decode(part, rows, outputs)

    several = [examples[i] for i in middle]
    latency, batch_time = _time(predict, [examples[typical]]), _time(predict, several)
    device = next(iter(jax.tree.leaves(model.params)[0].devices()))
    return result | {
        "latency_ms": 1000 * latency,
        "texts_per_second": count / batch_time,
        "batch_size": count,
        "tokens": int(lengths[typical]),
        "device": f"{device.platform}: {device.device_kind}",
    }


def _time(predict: Callable[[Sequence[Any]], None], examples: Sequence[Any]) -> float:
    """Returns the median time of a call in seconds."""
    predict(examples)
    times: list[float] = []
    while len(times) < _MIN_CALLS or sum(times) < SECONDS:
        start = time.perf_counter()
        predict(examples)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def line(speed: Mapping[str, Any]) -> str:
    """Returns the measurements as one line of text."""
    text = f"{speed['parameters']:,} parameters, {speed['bytes'] / 1e6:,.1f} MB"
    if "latency_ms" in speed:
        text += (
            f"; {speed['latency_ms']:.1f} ms for a text of {speed['tokens']} tokens, "
            f"{speed['texts_per_second']:,.0f} texts/s in batches of {speed['batch_size']} "
            f"({speed['device']})"
        )
    return text
