"""Reads the labelled files of a config as examples, and encodes them as rows of ids.

    labelled = read(config, source)
    encoded = encode(config, source, labelled)
    encoded.splits["train"].rows
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections

from bertjax import errors, plugins
from bertjax.artifact import artifact, text_encoding
from bertjax.data.corpus import beir
from bertjax.finetuning import projection, recipe, rows, strategies, tasks
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import columns, queries, splits
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.strategies import base as strategies_base
from bertjax.finetuning.task_types import base

_GROUPS = ("group", "groups", "group_id")  # columns of examples that belong to one split


class Labelled(NamedTuple):
    """The examples of each split, and the task type with the labels. notes: warnings."""

    task_type: base.TaskType
    splits: Mapping[str, Sequence[examples_lib.Example]]
    notes: tuple[str, ...] = ()


class Encoded(NamedTuple):
    """The rows of each split.

    task_type: the task type, bound to the model. longest: the result of `longest`. notes: warnings.
    """

    task_type: base.TaskType
    strategy: strategies_base.Strategy
    splits: Mapping[str, rows.Encoded]
    longest: int
    notes: tuple[str, ...] = ()


def read(config: ml_collections.ConfigDict, source: artifact.Artifact) -> Labelled:
    """Reads the files of the config.

    Raises UserError for bad files, missing libraries, and a model of a kind (such as decoder) that
    the task does not support.
    """
    task = tasks.find(config.task)
    task_type = recipe.task_type(config)
    model_kind = plugins.family(source.family).KIND
    if model_kind not in task_type.model_kinds:
        raise errors.UserError(
            f"config.task = {config.task!r} needs a model of the kind "
            f"{' or '.join(task_type.model_kinds)}, but config.model = {config.model}, of the "
            f"family {source.family}, is of the kind {model_kind}"
        )
    for name in task_type.libraries:  # fails now, not after hours of training
        scores_lib.library(name)
    task_type = task_type.for_model(source)
    notes = _pooling_notes(config, task_type, source)
    examples = _examples(config, notes)
    train = examples["train"]
    task_type = task_type.for_train(train)
    labels = tuple(task.labels or task_type.label_names(train))
    examples["train"] = splits.sample(train, config.data.max_train)
    num_texts = None if task.any_texts else train[0].num_texts()
    task_type = dataclasses.replace(task_type, labels=labels, num_texts=num_texts or 0)
    return Labelled(task_type, examples, tuple(notes))


def _pooling_notes(
    config: ml_collections.ConfigDict, task_type: base.TaskType, source: artifact.Artifact
) -> list[str]:
    """Returns a warning if vectors are pooled differently than those of the model before."""
    encoding = text_encoding.of(source) if task_type.pooling else None
    if encoding is None or encoding.pooling == task_type.pooling:
        return []
    return [
        f"the vectors of {config.model} were pooled by {encoding.pooling!r}, and are trained with "
        f"{task_type.pooling!r}; to keep the pooling, give --config.kind.pooling={encoding.pooling}"
    ]


def _examples(
    config: ml_collections.ConfigDict, notes: list[str]
) -> dict[str, list[examples_lib.Example]]:
    """Returns the examples of every split that has a file. Without a dev file, splits train in two.

    There is no dev if config.data.folds is set and config.data.fold is 0.
    Ignores config.data.max_train. Skips invalid rows of damaged files, and appends a line to
    `notes` for each kind of these rows; in a test file, such a row is an error. Raises UserError if
    there is no train file, for bad files, and if train cannot be split.
    """
    if not config.data.train:
        raise errors.UserError("config.data.train is not set: give --data=FOLDER or --train=FILE")
    task, files = _with_columns(config)
    if beir.is_collection(config.data.train):
        raise _no_collection("train", config.data.train)
    if not config.data.dev:
        _check_ungrouped(task, config.data.train)
    examples = {}
    for split in recipe.splits(task):
        if config.data[split] and beir.is_collection(config.data[split]):
            examples[split] = _queries(config, split)
        elif config.data[split]:
            skipped: collections.Counter[str] = collections.Counter()
            is_test = split.startswith("test")
            examples[split] = tasks.read(
                task, config.data[split], split, skipped=None if is_test else skipped
            )
            notes += [f"{config.data[split]}: {n} {kind}, left out" for kind, n in skipped.items()]
    unused = tasks.unused_columns(task, files)
    notes += [unused] if unused else []
    if config.data.folds and not config.data.fold:
        return examples
    if "dev" not in examples:
        if config.data.folds:
            parts = splits.fold(examples["train"], config.data.folds, config.data.fold)
        else:
            parts = splits.held_out(examples["train"], config.data.dev_fraction)
        examples["train"], examples["dev"] = parts
        if not (examples["train"] and examples["dev"]):
            pool = examples["train"] + examples["dev"]
            labels = {label for example in pool for label in example.classes()}
            suffix = f" with {errors.count(len(labels), 'label')}" if labels else ""
            if len(pool) > 1 and len({example.group() for example in pool} - {None}) == 1:
                suffix += ", all about the same text"
            raise errors.UserError(
                f"{config.data.train} cannot be split into train and dev: it has "
                f"{errors.count(len(pool), 'example')}{suffix}; "
                + ("give more examples" if config.data.folds else "give --dev=FILE")
                + " (is the label in its own column?)"
                * any(example.class_names() for example in pool)
            )
    queries.check_same_form(examples)
    return examples


def _queries(config: ml_collections.ConfigDict, split: str) -> queries.Queries:
    """Returns the queries of a split that is a collection for retrieval."""
    path = config.data[split]
    if not tasks.find(config.task).type.searches:
        raise _no_collection(split, path)
    scores_lib.library("pytrec_eval")
    return queries.read(path, split)


def _no_collection(split: str, path: str) -> errors.UserError:
    return errors.UserError(
        f"--{split}={path}: is a collection for retrieval, which only dev and test of the tasks "
        "embeddings and similarity can be"
    )


def _with_columns(config: ml_collections.ConfigDict) -> tuple[task_lib.Task, list[str]]:
    """Returns the task with the columns of the config, and the files of the config."""
    task = tasks.find(config.task)
    files = [config.data[split] for split in recipe.splits(task) if config.data[split]]
    files = [path for path in files if not beir.is_collection(path)]
    task = tasks.with_columns(task, files, config.data.text_column, config.data.label_column)
    return task, files


def _check_ungrouped(task: task_lib.Task, path: str) -> None:
    """Raises UserError if train, which is to be split, has a column with groups of examples."""
    for name in columns.unused(tasks.column_names(task, path), task.columns):
        if name.lower() in _GROUPS:
            raise errors.UserError(
                f"{path}: has the column {name!r}, but a split into train and dev does not keep "
                "groups together: give --dev=FILE, or rename the column if it means something else"
            )


def rows_of(task_type: base.TaskType, labelled: Labelled) -> Mapping[str, rows.Encoded]:
    """Returns the rows of every split for a task type that is bound to a model."""
    return {name: task_type.encode(examples) for name, examples in labelled.splits.items()}


def encode(
    config: ml_collections.ConfigDict,
    source: artifact.Artifact,
    labelled: Labelled,
    make_rows: Callable[[base.TaskType, Labelled], Mapping[str, rows.Encoded]] = rows_of,
) -> Encoded:
    """Encodes the examples as rows of ids for the model of `source`.

    make_rows: returns the rows of every split, as `rows_of` does.
    """
    task_type = labelled.task_type
    strategy = strategies.make(
        config.strategy, _fields(config, source, task_type), config.head_rate_factor
    )
    max_length = longest(source, strategy)
    notes = ()
    if config.max_length > max_length:
        prompt = len(strategy.prompt_ids())
        prompt_note = f" in addition to a prompt of {prompt}" if prompt else ""
        notes = (
            f"max_length is {max_length}, not {config.max_length}: the model can read no more "
            f"tokens{prompt_note}",
        )
    task_type = dataclasses.replace(
        task_type,
        tokenizer=source.tokenizer,
        lengths=task_type.lengths_of(min(config.max_length, max_length)),
        prompt_ids=strategy.prompt_ids(),
        absent=rows.absent(source.fields),
        projection=projection.kinds(task_type, source),
    )
    return Encoded(task_type, strategy, make_rows(task_type, labelled), max_length, notes)


def longest(source: artifact.Artifact, strategy: strategies_base.Strategy) -> int:
    """Returns the maximum number of tokens per row that the model can read besides the prompt.

    Raises UserError if that is fewer than `recipe.SHORTEST` tokens.
    """
    limit, prompt = source.fields["max_length"], len(strategy.prompt_ids())
    if prompt:
        allowed = f"{limit - recipe.SHORTEST} or less: the model reads {limit} tokens"
        errors.check(limit - prompt >= recipe.SHORTEST, "strategy.length", prompt, allowed)
    return limit - prompt


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
