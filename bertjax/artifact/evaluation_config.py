"""Makes the config that a model is evaluated with on held-out text.

    config = evaluation_config.of(loading.load("run/"), "--model=run/")
"""

import ml_collections

from bertjax import config as config_lib
from bertjax import errors, objective_choice, plugins
from bertjax.artifact import artifact
from bertjax.objectives.common import hooks

# {kind of a family: the objective assumed for a model without the config of a run}
OBJECTIVES = {"encoder": "mlm", "decoder": "causal_lm", "encoder_decoder": "span_corruption"}


def of(model: artifact.Artifact, label: str) -> ml_collections.ConfigDict:
    """Returns the config of the model's run, with an objective that the model can be scored with.

    A model without the config of a run is scored with the objective that it was trained with; if
    this is unknown, with the one of OBJECTIVES. The latter also replaces an objective whose heads
    the model no longer has, since export to Hugging Face's layout drops some.

    label: the model's name in error messages. Raises UserError if the model cannot be scored.
    """
    config = config_lib.from_dict(model.config) if model.config else _config_of_fields(model)
    name = hooks.of(plugins.objective(config.objective.name)).SCORED_BY
    if not name and not objective_choice.needed_heads(config) <= set(config.model.heads):
        name = OBJECTIVES[plugins.family(model.family).KIND]
    if name:
        _change_objective(config, name)
    if name == "mlm" and "mlm" not in config.model.heads:
        raise errors.UserError(
            f"{label} has no head 'mlm', so --data cannot be used; "
            "ELECTRA's discriminator can be scored with --task=blimp:FILE"
        )
    return config


def _config_of_fields(model: artifact.Artifact) -> ml_collections.ConfigDict:
    family = plugins.family(model.family)
    stored = {"name": OBJECTIVES[family.KIND]}
    if model.objective is not None:
        stored = artifact.model_fields(model.objective, "objective")
    config = config_lib.default(model.family, next(iter(family.VARIANTS)), stored["name"])
    config.model.update(model.fields)
    _update_objective(config, stored)
    return config


def _change_objective(config: ml_collections.ConfigDict, name: str) -> None:
    """Sets the objective to `name`, with the values of the fields that both objectives have."""
    former = {key: value for key, value in config.objective.items() if key != "name"}
    heads = config.model.heads
    config_lib.choose_objective(config, name)
    config.model.heads = heads  # those that the model has
    _update_objective(config, former)


def _update_objective(config: ml_collections.ConfigDict, values: dict) -> None:
    """Sets the fields of the objective to those of `values`, except those that the heads decide."""
    config.objective.update({k: v for k, v in values.items() if k in config.objective})
    kind = plugins.family(config.family).KIND
    fields_for = hooks.of(plugins.objective(config.objective.name)).fields_for
    config.objective.update(fields_for(kind, config.model.heads))
