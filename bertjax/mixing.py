"""Reads from a config which sources of text a phase mixes, and with which weights.

    config.data.sources = {"web": {"path": "prepared/web", "weight": 0.7},
                           "books": {"path": "prepared/books", "weight": 0.3}}

A source's share of the samples is in proportion to weight * tokens ** `data.size_exponent`. With
the exponent 0 these are the weights alone. With equal weights, the exponent 1 reads all sources
equally often, and exponents in between favour small ones, as multilingual models do (Conneau et
al., arXiv 1911.02116, section 3.1).
"""

import math
import re
from collections.abc import Mapping

from ml_collections import ConfigDict

from bertjax import errors, phases

SOURCES = "data.sources"  # the key whose value is a dict of the user's own keys


def use_float_weights(config: ConfigDict) -> None:
    """Changes the weights of sources from int to float, so that a phase or a flag may set 0.5."""
    for source in config.data.sources.values():
        if isinstance(source, ConfigDict) and "weight" in source and type(source.weight) is int:
            with source.ignore_type():
                source.weight = float(source.weight)


def paths(config: ConfigDict) -> dict[str, str]:
    """Returns {name: folder} of the sources; {} if the run has one dataset, `data.path`."""
    return {name: source.path for name, source in config.data.sources.items()}


def weights(config: ConfigDict, num_tokens: Mapping[str, int]) -> dict[str, float]:
    """Returns {name: share of the samples}, which add up to 1.

    num_tokens: {name: number of tokens in the source}.
    """
    exponent = config.data.size_exponent
    products = {
        name: source.weight * num_tokens[name] ** exponent
        for name, source in config.data.sources.items()
    }
    total = sum(products.values())
    return {name: product / total for name, product in products.items()}


def mean_scores(
    by_source: Mapping[str, Mapping[str, float]], shares: Mapping[str, float]
) -> dict[str, float]:
    """Returns the means of held-out metrics over the sources, and "SOURCE/METRIC" of each source.

    by_source: {source: {metric: value}}; for a run with one dataset, {"": values}, which are
    returned. shares: {source: weight in the mean}. "samples" is a sum, and the mean of perplexities
    is the geometric one, which belongs to the mean of the losses. A metric that a source lacks has
    no mean: a source of unknown pieces only has no bits per byte.
    """
    if list(by_source) == [""]:
        return dict(by_source[""])
    names = [name for name in by_source if shares[name] > 0]
    total = sum(shares[name] for name in names)
    result = {}
    for metric in by_source[names[0]]:
        if any(metric not in by_source[name] for name in names):
            continue
        values = [by_source[name][metric] for name in names]
        if metric == "samples":
            result[metric] = sum(values)
            continue
        logs = [math.log(value) for value in values] if metric == "perplexity" else values
        mean = sum(shares[name] * x for name, x in zip(names, logs, strict=True)) / total
        result[metric] = math.exp(mean) if metric == "perplexity" else mean
    for name, values in by_source.items():
        result |= {f"{name}/{metric}": value for metric, value in values.items()}
    return result


def check_sources(config: ConfigDict) -> None:
    """Raises UserError if a source lacks its path or its weight, or if `data.path` is set too."""
    data = config.data
    if not data.sources:
        return
    for key in ("path", "heldout_path"):
        errors.check(not data[key], f"data.{key}", data[key],
                     'empty ("") if config.data.sources is set')  # fmt: skip
    for name, source in data.sources.items():
        key = f"data.sources.{name}"
        errors.check(not config.ema_decay or name != "ema", "data.sources", name,
                     "named otherwise: eval/ema is for the moving average")  # fmt: skip
        errors.check(bool(re.fullmatch(r"[A-Za-z0-9_-]+", name)), "data.sources", name,
                     "a dict whose keys consist of letters, digits, _ and -")  # fmt: skip
        if not isinstance(source, ConfigDict) or sorted(source) != ["path", "weight"]:
            raise errors.UserError(
                f'config.{key}: must be a dict with the keys "path" (a folder written by '
                '`bertjax prepare`) and "weight" (in proportion to its share of the samples)'
            )
        errors.check(isinstance(source.path, str) and source.path != "", f"{key}.path",
                     source.path, "a folder written by `bertjax prepare`")  # fmt: skip


def check_weights(phase: phases.Phase) -> None:
    """Raises UserError if a weight of the phase is negative, or if all are 0."""
    data = phase.config.data
    errors.check(0 <= data.size_exponent <= 1, phase.place("data.size_exponent"),
                 data.size_exponent, "between 0 and 1")  # fmt: skip
    for name, source in data.sources.items():
        number = isinstance(source.weight, int | float) and not isinstance(source.weight, bool)
        errors.check(number and 0 <= source.weight < math.inf,
                     phase.place(f"data.sources.{name}.weight"), source.weight,
                     "a number, 0 or more")  # fmt: skip
    if data.sources and not any(source.weight for source in data.sources.values()):
        raise errors.UserError(
            f"config.data.sources: all weights are 0 in phase {phase.number + 1}; give at least "
            "one source a weight above 0"
        )
