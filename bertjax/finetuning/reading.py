"""Reads the files of a fine-tuning as examples, and encodes them as rows of ids.

    labelled = read(config, source)
    encoded = encode(config, source, labelled)
    encoded.splits["train"].rows
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from bertjax import errors, plugins
from bertjax.artifact import artifact
from bertjax.finetuning import recipe, rows, strategies, tasks
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import splits
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.strategies import base as strategies_base
from bertjax.finetuning.task_types import base


class Labelled(NamedTuple):
    """The examples of every split, and the task type with the labels of train. notes: warnings."""

    task_type: base.TaskType
    splits: Mapping[str, Sequence[examples_lib.Example]]
    notes: tuple[str, ...] = ()


class Encoded(NamedTuple):
    """The rows of every split. task_type: bound to the model. longest: see `longest`."""

    task_type: base.TaskType
    strategy: strategies_base.Strategy
    splits: Mapping[str, rows.Encoded]
    longest: int
    notes: tuple[str, ...] = ()


def read(config: ml_collections.ConfigDict, source: artifact.Artifact) -> Labelled:
    """Reads the files of the config.

    Raises UserError for bad files, a model that the task cannot train, and missing libraries.
    """
    task = tasks.find(config.task)
    task_type = recipe.task_type(config)
    found = plugins.family(source.family).KIND
    if found not in task_type.model_kinds:
        raise errors.UserError(
            f"config.task = {config.task!r} is for models of the kind "
            f"{' or '.join(task_type.model_kinds)}, and config.model = {config.model} is a "
            f"{source.family}, of the kind {found}"
        )
    for name in task_type.libraries:  # fails now, not after hours of training
        scores_lib.library(name)
    task_type = task_type.for_model(source)
    notes: list[str] = []
    examples = splits.read(config, notes)
    train = examples["train"]
    labels = tuple(task.labels or task_type.label_names(train))
    examples["train"] = splits.sample(train, config.data.max_train)
    task_type = dataclasses.replace(
        task_type, labels=labels, num_texts=0 if task.any_texts else len(train[0].texts)
    )
    return Labelled(task_type, examples, tuple(notes))


def encode(
    config: ml_collections.ConfigDict, source: artifact.Artifact, labelled: Labelled
) -> Encoded:
    """Turns the examples into rows of ids for the model of `source`."""
    task_type = labelled.task_type
    strategy = strategies.make(
        config.strategy, _fields(config, source, task_type), config.head_rate_factor
    )
    most = longest(source, strategy)
    notes = ()
    if config.max_length > most:
        prompt = len(strategy.prompt_ids())
        beside = f" beside the prompt of {prompt}" if prompt else ""
        notes = (
            f"max_length is {most}, not {config.max_length}: the model reads no more "
            f"tokens{beside}",
        )
    task_type = dataclasses.replace(
        task_type,
        tokenizer=source.tokenizer,
        lengths=task_type.lengths_of(min(config.max_length, most)),
        prompt_ids=strategy.prompt_ids(),
        absent=base.absent(source.fields),
    )
    made = {name: task_type.encode(own) for name, own in labelled.splits.items()}
    return Encoded(task_type, strategy, made, most, notes)


def longest(source: artifact.Artifact, strategy: strategies_base.Strategy) -> int:
    """Returns the maximum tokens of a row that the model can read beside a trained prompt.

    Raises UserError if that is less than `recipe.SHORTEST`.
    """
    reads, prompt = source.fields["max_length"], len(strategy.prompt_ids())
    if prompt:
        allowed = f"{reads - recipe.SHORTEST} or less: the model reads {reads} tokens"
        errors.check(reads - prompt >= recipe.SHORTEST, "strategy.length", prompt, allowed)
    return reads - prompt


def _fields(
    config: ml_collections.ConfigDict, source: artifact.Artifact, task_type: base.TaskType
) -> dict[str, Any]:
    """Returns the fields of the model, without those that the strategy adds."""
    fields = dict(source.fields)
    if task_type.heads:
        fields["num_labels"] = task_type.num_labels()
    if config.dropout_rate >= 0:
        rates = [name for name in fields if name.endswith("dropout_rate")]
        fields |= dict.fromkeys(rates, config.dropout_rate)
    return fields
