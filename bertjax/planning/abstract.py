"""Builds the experiment of a config for any platform, with shapes and dtypes instead of arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from bertjax import errors, plugins, sharding
from bertjax import experiment as experiment_lib
from bertjax import step as step_lib
from bertjax.artifact import loading
from bertjax.objectives.common import hooks


def experiment(config: ml_collections.ConfigDict, platform: str) -> experiment_lib.Experiment:
    """Returns the experiment of `config` on `platform` (tpu, gpu or cpu).

    The platform decides which dtype "auto" stands for. If the path of one of the objective's frozen
    models is set, the model's config and shapes are read, but not its arrays. If the path is not
    set, the objective's stand-in replaces the model.
    """
    return experiment_lib.Experiment(config, _frozen_models(config, platform), platform)


def stand_ins(config: ml_collections.ConfigDict) -> dict[str, hooks.StandIn]:
    """Returns {name: stand-in} for the frozen models whose path is not set in the config.

    Raises UserError if the objective has no stand-in for one of them.
    """
    objective_hooks, models = hooks.of(plugins.objective(config.objective.name)), {}
    for name in objective_hooks.FROZEN:
        if not config.objective[name]:
            models[name] = objective_hooks.stand_in(name, config.model)
            if models[name] is None:
                raise errors.UserError(
                    f"config.objective.{name} is not set: give the folder of a model"
                )
    return models


def _frozen_models(config: ml_collections.ConfigDict, platform: str) -> dict[str, Any]:
    compute, replacements = plugins.compute(config, platform), stand_ins(config)

    def model(name: str) -> Any:
        source = replacements.get(name) or loading.load(config.objective[name], with_params=False)
        return plugins.model(source.family, source.fields, compute)

    names = hooks.of(plugins.objective(config.objective.name)).FROZEN
    return {name: model(name) for name in names}


def mesh(sizes: Mapping[str, int]) -> jax.sharding.AbstractMesh:
    """Returns a mesh without devices. sizes: {axis: size}."""
    shape = tuple(sizes[axis] for axis in sharding.MESH_AXES)
    return jax.sharding.AbstractMesh(shape, sharding.MESH_AXES)


def state(experiment: experiment_lib.Experiment) -> Any:
    """Returns the shapes and dtypes of the train state."""
    return jax.eval_shape(experiment.init_state, jax.random.key(0))


def frozen_params(experiment: experiment_lib.Experiment) -> dict[str, Any]:
    """Returns {name: shapes and dtypes of the parameters} of the frozen models."""
    return {name: plugins.abstract_params(m) for name, m in experiment.frozen_models.items()}


def batch(
    experiment: experiment_lib.Experiment, batch_size: int, length: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of a batch, as the objective's `transform` makes it."""
    features = experiment.objective.features(experiment.objective_config, length)
    return {
        name: jax.ShapeDtypeStruct((batch_size, *shape), dtype)
        for name, (shape, dtype) in features.items()
    }


def residuals(
    experiment: experiment_lib.Experiment, batch_size: int, length: int
) -> list[jax.ShapeDtypeStruct]:
    """Returns the arrays that the forward pass saves for the backward pass, except parameters.

    An array is assumed to be a parameter if a parameter has the same shape and dtype.
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
    saved = jax.tree.leaves(jax.eval_shape(forward, params, frozen, rows, rng))
    param_types = {(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves((params, frozen))}
    return [leaf for leaf in saved if (leaf.shape, leaf.dtype) not in param_types]
