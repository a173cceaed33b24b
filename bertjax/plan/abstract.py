"""The experiment of a config as it would run on another platform, as shapes and dtypes only."""

from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from bertjax import experiment as experiment_lib
from bertjax import plugins, sharding
from bertjax import step as step_lib
from bertjax.artifact import loading


def experiment(config: ml_collections.ConfigDict, platform: str) -> experiment_lib.Experiment:
    """Returns the experiment on tpu, gpu or cpu; dtype "auto" is resolved for that platform.

    If a teacher is set, its files are read, but not its arrays. If it is not set, a BERT with the
    student's sizes and twice its layers is assumed, like DistilBERT's teacher (arXiv 1910.01108,
    section 3).
    """
    return experiment_lib.Experiment(config, _frozen_models(config, platform), platform)


def _frozen_models(config: ml_collections.ConfigDict, platform: str) -> dict[str, Any]:
    if "teacher" not in config.objective:
        return {}
    compute = plugins.compute(config, platform)
    if config.objective.teacher:
        found = loading.load(config.objective.teacher, with_params=False)
        return {"teacher": plugins.model(found.family, found.fields, compute)}
    sizes = ("vocab_size", "hidden_size", "num_heads", "intermediate_size", "max_length")
    fields = {name: config.model[name] for name in sizes}
    fields |= {"num_layers": 2 * config.model.num_layers, "heads": ("mlm",)}
    return {"teacher": plugins.model("bert", fields, compute)}


def mesh(sizes: Mapping[str, int]) -> jax.sharding.AbstractMesh:
    """Returns a mesh of these sizes without devices."""
    ordered = tuple(sizes[axis] for axis in sharding.MESH_AXES)
    return jax.sharding.AbstractMesh(ordered, sharding.MESH_AXES)


def state(experiment: experiment_lib.Experiment) -> Any:
    """Returns the shapes and dtypes of the train state."""
    return jax.eval_shape(experiment.init_state, jax.random.key(0))


def frozen_params(experiment: experiment_lib.Experiment) -> dict[str, Any]:
    """Returns {name: shapes and dtypes of the parameters} of the frozen models."""
    return {name: plugins.abstract_params(m) for name, m in experiment.frozen_models.items()}


def batch(
    experiment: experiment_lib.Experiment, batch_size: int, length: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of a batch from the objective's `transform`."""
    features = experiment.objective.features(experiment.objective_config, length)
    return {
        name: jax.ShapeDtypeStruct((batch_size, *shape), dtype)
        for name, (shape, dtype) in features.items()
    }


def residuals(
    experiment: experiment_lib.Experiment, batch_size: int, length: int
) -> list[jax.ShapeDtypeStruct]:
    """Returns the arrays that the forward pass saves for the backward pass, without its arguments.

    Arrays with the shape and dtype of a parameter count as arguments.
    """
    params, frozen = state(experiment).params, frozen_params(experiment)
    rng = jax.eval_shape(lambda: jax.random.key(0))

    def forward(params, frozen, rows, rng):
        def loss(params):
            def apply(*args, **kwargs):
                return experiment.model.apply(
                    {"params": params}, *args, deterministic=False, rngs={"dropout": rng}, **kwargs
                )

            terms = experiment.loss(apply, rows, **step_lib.bound(experiment.frozen_models, frozen))
            return sum(factor * terms[name][0] for name, factor in experiment.scales.items())

        return jax.vjp(loss, params)[1]

    rows = batch(experiment, batch_size, length)
    kept = jax.tree.leaves(jax.eval_shape(forward, params, frozen, rows, rng))
    arguments = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves((params, frozen))}
    return [leaf for leaf in kept if (leaf.shape, leaf.dtype) not in arguments]
