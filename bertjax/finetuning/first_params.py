"""Makes the parameters of a run before its first step, which depend on its seed.

    family, fields, params = first_params.of(source, task_type, strategy, seed=0)
    trained, frozen = first_params.split(strategy, params, seed=0)
"""

from typing import Any

import jax

from bertjax import sharding
from bertjax.artifact import artifact
from bertjax.finetuning import initial_model, projection
from bertjax.finetuning.strategies import base as strategies_base
from bertjax.finetuning.task_types import base


def of(
    source: artifact.Artifact,
    task_type: base.TaskType,
    strategy: strategies_base.Strategy,
    seed: int,
) -> tuple[str, dict[str, Any], Any]:
    """Returns (family, fields, parameters on the host) of the model."""
    heads, fields = task_type.heads, strategy.fields()
    with sharding.alone():  # every process computes the same values
        family, fields, params = initial_model.model(
            source, heads, fields, key(seed, "heads"), task_type.name, task_type.labels,
            task_type.output_bias(),
        )  # fmt: skip
    return family, fields, projection.joined(params, task_type, source)


def split(strategy: strategies_base.Strategy, params: Any, seed: int) -> tuple[Any, Any]:
    """Returns (trained, frozen) parameters, on the host."""
    with sharding.alone():
        return jax.device_get(strategy.split(params, key(seed, "strategy")))


def key(seed: int, purpose: str) -> jax.Array:
    """Returns the random key for one use of a seed: "heads", "strategy" or "steps"."""
    number = {"heads": 0, "strategy": 1, "steps": 2}[purpose]
    return jax.random.fold_in(jax.random.key(seed), number)
