"""Trains a student on the predictions of a fine-tuned teacher (Hinton et al., arXiv 1503.02531).

The teacher predicts on train, and on texts without labels if there are any, once before training.
Its outputs are stored in the rows as soft targets (Turc et al., arXiv 1908.08962, section 3). So a
step runs only the student, and the teacher may be of another family, size or vocabulary.

    loss = (1 - w) * loss on the labels + w * teacher_loss,    w = config.teacher_weight

Texts without labels have only the second term. Each task type defines its `teacher_loss`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from bertjax import errors, metrics, sharding
from bertjax.artifact import artifact, loading
from bertjax.finetuning import batching, predictor, reading, rows, sharing, tasks
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.objectives.common import losses

SPLIT = "unlabelled"  # the split of the texts without labels; its rows are part of train's
LOSS = "teacher_loss"


def read_and_encode(
    config: ml_collections.ConfigDict, source: artifact.Artifact, shared: sharing.Shared
) -> tuple[reading.Labelled, reading.Encoded]:
    """Returns the examples of a config and their rows, with the teacher's targets if it has one."""
    labelled = shared.labelled(config, source)
    if not config.teacher:
        return labelled, reading.encode(config, source, labelled, shared.rows)
    teacher, labelled = _read(config, labelled)
    encoded = reading.encode(config, source, labelled, shared.rows)
    return labelled, _with_targets(teacher, labelled.splits, encoded)


def _read(
    config: ml_collections.ConfigDict, labelled: reading.Labelled
) -> tuple[predictor.Predictor, reading.Labelled]:
    """Returns the teacher, and the examples with the teacher's labels and the unlabelled texts.

    The labels are the teacher's, so that train may lack some of them. Raises UserError if the
    teacher is not fine-tuned for the same type of task, or lacks a label of train.
    """
    task_type = labelled.task_type
    source = loading.load(config.teacher)
    if source.task is None:
        raise errors.UserError(
            f"config.teacher = {config.teacher}: is not fine-tuned for a task; fine-tune it first"
        )
    if not task_type.can_be_taught:
        raise errors.UserError(
            f"config.teacher cannot be used with --task={config.task}: only models for labels, "
            "several labels and numbers of whole texts learn from a teacher"
        )
    with sharding.on_one_device():
        teacher = predictor.Predictor(source)
    taught = teacher.task_type
    numbers = tasks.find(config.task).numbers
    if (taught.name, not taught.labels) != (task_type.name, numbers):
        raise errors.UserError(
            f"config.teacher = {config.teacher}: is fine-tuned for {taught.task}, which is another "
            f"type of task than --task={config.task}"
        )
    missing = [name for name in task_type.labels if name not in taught.labels]
    if missing:
        raise errors.UserError(
            f"config.teacher = {config.teacher}: does not know "
            f"{errors.several(map(repr, missing))}, labels of {config.data.train}; its labels are "
            f"{errors.several(taught.labels)}"
        )
    splits = dict(labelled.splits)
    if config.data.unlabelled:
        splits[SPLIT] = _unlabelled(config)
    task_type = dataclasses.replace(task_type, labels=taught.labels)
    return teacher, labelled._replace(task_type=task_type, splits=splits)


def _unlabelled(config: ml_collections.ConfigDict) -> list[examples_lib.Example]:
    """Returns the examples of config.data.unlabelled; labels in the file are ignored."""
    path = config.data.unlabelled
    task = tasks.find(config.task)
    if not path.endswith(".txt"):
        task = tasks.with_columns(task, [path], config.data.text_column, "")
    return [example.unlabelled() for example in tasks.read(task, path, "test", scored=False)]


def _with_targets(
    teacher: predictor.Predictor,
    splits: Mapping[str, Sequence[examples_lib.Example]],
    encoded: reading.Encoded,
) -> reading.Encoded:
    """Returns the rows with soft targets in train, to which the unlabelled texts are added."""
    train, parts = [], dict(encoded.splits)
    for split in ("train", SPLIT):
        if split not in parts:
            continue
        targets = _targets(teacher, splits[split])
        for row, target_C in zip(parts[split].rows, targets, strict=True):
            train.append(row | {rows.TEACHER: target_C})
    parts["train"] = rows.Encoded(train, np.arange(len(train)), parts["train"].truncated)
    return encoded._replace(splits=parts)


def _targets(
    teacher: predictor.Predictor, examples: Sequence[examples_lib.Example]
) -> np.ndarray:
    """Returns float32[examples, C], the teacher's soft targets; C are its labels, in its order."""
    task_type = teacher.task_type
    with sharding.on_one_device():
        encoded = task_type.encode([example.unlabelled() for example in examples])
        batches = task_type.batches(encoded, min(predictor.BATCH_SIZE, len(examples)))
        step = jax.jit(task_type.predict_step(teacher.model))
        outputs = batching.forward(step, teacher.params, batches)
    return task_type.soft_targets(outputs).astype(np.float32)


# In the train step. A batch without soft targets has the loss of its task type alone.


def normalizers(task_type: base.TaskType, batch: base.Batch) -> dict[str, jax.Array]:
    """Returns {loss name: total weight in the batch}, by which the sum of the loss is divided."""
    weights = task_type.normalizers(batch)
    if rows.TEACHER in batch:
        weights |= {LOSS: losses.example_weights(batch).sum()}
    return weights


def scales(
    config: ml_collections.ConfigDict, task_type: base.TaskType, batch: base.Batch
) -> dict[str, float]:
    """Returns {loss name: its factor in the minimised sum of losses}."""
    factors = dict.fromkeys(jax.eval_shape(functools.partial(normalizers, task_type), batch), 1.0)
    if LOSS in factors:
        factors = dict.fromkeys(factors, 1.0 - config.teacher_weight)
        factors[LOSS] = config.teacher_weight
    return factors


def loss(
    config: ml_collections.ConfigDict,
    task_type: base.TaskType,
    task_apply: Callable[[base.Apply, base.Batch], base.Apply],
    apply: base.Apply,
    batch: base.Batch,
) -> metrics.Terms:
    """Returns the terms of the task type and teacher_loss, from one call of the model.

    task_apply: returns the `apply` that the task type calls for a batch.
    """
    apply = task_apply(apply, batch)
    if rows.TEACHER not in batch:
        return task_type.loss(apply, batch)
    outputs: dict[str, Any] = {}

    def recorded(*args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        outputs.update(apply(*args, **kwargs))
        return outputs

    terms = task_type.loss(recorded, batch)
    loss_B = task_type.teacher_loss(outputs, batch[rows.TEACHER], config.teacher_temperature)
    weights_B = losses.example_weights(batch)
    return terms | {LOSS: ((loss_B * weights_B).sum(), weights_B.sum())}
