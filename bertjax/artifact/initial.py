"""Starts a run from another model: its parameters, and without a config file also its config.

`config.init_from` is the path of the model, in any format that `loading.load` reads.

    config = initial.run_config("", {"init_from": "bert-base-uncased/", "data.path": "prepared/"})
    model = loading.load(config.init_from)
    initial.check(model, config, data)  # compiles nothing
    params = initial.params(model, config, data, fresh_params)
"""

import os
from collections.abc import Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax import errors, hub, objective_choice, plugins, sharding
from bertjax.artifact import artifact, growth, loading, vocabulary_transfer
from bertjax.data.prepared import store
from bertjax.objectives.common import hooks


def run_config(
    config: ml_collections.ConfigDict | str | os.PathLike | None, overrides: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """Returns the validated config with overrides {"a.b": "value"}.

    config: a config file as FILE or FILE:ARG, or a config itself, which is not changed; None or "":
    the config of `config_of` for the model at overrides["init_from"]. Raises UserError if there is
    neither, or if a value is invalid.
    """
    overrides = {key: str(value) for key, value in overrides.items()}
    if isinstance(config, ml_collections.ConfigDict):
        return config_lib.overridden(config, overrides)
    if config:
        return config_lib.load(os.fspath(config), overrides)
    if not overrides.get("init_from"):
        raise errors.UserError(
            "give --config=FILE, or --config.init_from=MODEL to make the config from a model"
        )
    return config_lib.overridden(config_of(overrides["init_from"]), overrides)


def config_of(path: str | os.PathLike) -> ml_collections.ConfigDict:
    """Returns a config that continues the pretraining of the model at `path` on other text.

    Family and sizes are the model's. The objective is that of its training if bertjax trained it.
    Otherwise it is the family's published one, without a task on sentence pairs, or "mlm" if the
    model lacks heads of the published one. Parameters of heads that the model lacks are random.

    The optimizer is that of Gururangan et al., "Don't Stop Pretraining" (arXiv 2004.10964, table
    13). Batch and rate, 256 sequences and 1e-4, are theirs for the text of a task; the 12,500 steps
    are theirs for a domain, with batches of 2,048 and a rate of 5e-4. Their table does not clip the
    gradient; their command does, at 1. T5 uses Adafactor with the constant rate of its fine-tuning
    (arXiv 1910.10683, section 3.1.2).
    """
    model = loading.load(path, with_params=False)
    family = plugins.family(model.family)
    config = _with_objective(model)
    config.init_from = os.fspath(path)
    config.model.update({k: v for k, v in model.fields.items() if k in config.model})
    config.model.num_labels = 0
    heads = objective_choice.needed_heads(config) | {"pooler"} & set(model.fields["heads"])
    config.model.heads = tuple(head for head in family.HEADS if head in heads)
    if "decoder_start_id" in config.model:
        config.model.decoder_start_id = -1

    config.data.length = min(512, config.model.max_length)
    config.batch_size = 256
    config.num_steps = 12_500
    config.optimizer.update(
        name="adamw", learning_rate=1e-4, schedule="linear", start_rate=0.0, warmup_steps=750,
        end_rate=0.0, weight_decay=0.01, b1=0.9, b2=0.98, eps=1e-6, clip_norm=1.0,
    )  # fmt: skip
    if family.KIND == "encoder_decoder":
        config.optimizer.update(
            name="adafactor", learning_rate=1e-3, schedule="constant", warmup_steps=0,
            weight_decay=0.0, clip_norm=0.0,
        )  # fmt: skip
    config.eval.every = 500
    config.checkpoint.every = 500
    return config


def _with_objective(model: artifact.Artifact) -> ml_collections.ConfigDict:
    """Returns a config of the model's family with the objective that `config_of` documents."""
    family = plugins.family(model.family)
    variant = _variant(model)

    def default(name: str = "") -> ml_collections.ConfigDict:
        config = config_lib.default(model.family, variant, name)
        module = plugins.objective(config.objective.name)
        config.objective.update(hooks.of(module).fields_for(family.KIND, ()))
        return config

    configs = [default()]
    if model.objective is not None:
        trained = default(model.objective["name"])
        stored = artifact.model_fields(model.objective, "objective")
        trained.objective.update({k: v for k, v in stored.items() if k in trained.objective})
        configs.insert(0, trained)
    for config in configs:
        frozen = hooks.of(plugins.objective(config.objective.name)).FROZEN
        if not frozen and objective_choice.needed_heads(config) <= set(model.fields["heads"]):
            return config
    return default("mlm" if family.KIND == "encoder" else "")


def _variant(model: artifact.Artifact) -> str:
    """Returns the variant with the model's sizes; the family's first one if there is none."""
    variants = plugins.family(model.family).VARIANTS
    for name, fields in variants.items():
        sizes = {key: fields[key] for key in growth.SIZES if key in fields and key != "max_length"}
        if sizes and sizes.items() <= model.fields.items():
            return name
    return next(iter(variants))


def check(model: artifact.Artifact, config: ml_collections.ConfigDict, data: store.Dataset) -> None:
    """Raises UserError if a run with this config cannot start from the model.

    Compares families, tokenizers, fields and shapes. Does not use the values of the parameters.
    """
    loading.check_family(model, config.family)
    keeps_vocabulary = config.init_vocabulary == "same"
    if keeps_vocabulary:
        loading.check_data(
            model,
            data,
            f"config.init_from = {config.init_from}",
            "; or, to keep the embeddings of the pieces that both tokenizers have, add "
            "--config.init_vocabulary=shared_pieces",
        )
    may_grow = config.init_model == "extended"
    may_differ = growth.check_fields(model.fields, config.model) if may_grow else ()
    loading.check_fields(model, config.model, may_differ)
    shapes = _shapes(plugins.abstract_params(plugins.model(config.family, config.model)))
    if may_grow:
        growth.check(model, config.model, shapes)
    for path, shape in _shapes(model.params).items():
        if path not in shapes:
            continue
        for name, old, new in zip(sharding.param_axes(path), shape, shapes[path], strict=True):
            if name == "vocab" and keeps_vocabulary and old != new:
                size = model.fields["vocab_size"]
                errors.check(False, "model.vocab_size", config.model.vocab_size,
                             f"{size}, the vocabulary size of config.init_from")  # fmt: skip
            if name != "vocab" and not may_grow and old != new:
                raise errors.UserError(
                    f"config.init_from has {path} of shape {shape}, but config.model needs "
                    f"{shapes[path]}{_advice(model, config)}"
                )


def _advice(model: artifact.Artifact, config: ml_collections.ConfigDict) -> str:
    old, new = model.fields["max_length"], config.model.max_length
    if old == new:
        return ""
    longer = loading.EXTENDED if new > old else ""
    return f": set config.model.max_length to {old}{longer}"


def params(
    model: artifact.Artifact, config: ml_collections.ConfigDict, data: store.Dataset, fresh: Any
) -> Any:
    """Returns the initial parameters of a run: those of the model, or `fresh` where it lacks them.

    The model must have passed `check`. If its vocabulary differs, pieces that both tokenizers have
    keep their parameters. fresh: newly initialized parameters for `config.model`.
    """
    if config.init_model == "extended":
        fresh = sharding.fetch(fresh)  # its arrays may be on devices of other processes
        model = growth.grown(model, config.model, fresh)
    if config.init_vocabulary != "same":
        tokenizer = data.load_tokenizer()
        size = config.model.vocab_size
        model = vocabulary_transfer.carry_over(model, tokenizer, fresh, size)
    return loading.overlay_params(model, config.family, fresh)


def pinned(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns the config with the revisions of the models that were read from the Hub.

    These are `init_from` and the frozen models of the objective, such as its teacher.
    """
    config = config.copy_and_resolve_references()
    config.init_from = hub.pinned(config.init_from)
    for name in hooks.of(plugins.objective(config.objective.name)).FROZEN:
        config.objective[name] = hub.pinned(config.objective[name])
    return config


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {path: leaf.shape for path, leaf in artifact.flatten(tree).items()}
