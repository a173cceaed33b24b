"""Task types: how a model learns and predicts a type of task. Each file defines one.

    task_type = task_types.load("classification")("sst2", config)
    task_type = task_types.of_artifact(source)      # the task type of a fine-tuned model

`base` describes what a task type must define.
"""

import dataclasses
import importlib
import pkgutil
from typing import Any

from bertjax import errors, schema
from bertjax.artifact import artifact, weight_files
from bertjax.finetuning import projection, rows
from bertjax.finetuning.task_types import base


def names() -> list[str]:
    """Returns the names of the task types: the files of this package except `base`."""
    return [module.name for module in pkgutil.iter_modules(__path__) if module.name != "base"]


def load(name: str) -> type[base.TaskType]:
    """Returns the class of a task type. Raises UserError if there is none of that name."""
    if name not in names():
        raise errors.UserError(f"kind {name!r} does not exist: use {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}").TaskType


def of_artifact(source: artifact.Artifact) -> base.TaskType:
    """Returns the task type of an artifact. Raises UserError if the model is not fine-tuned."""
    task = source.task
    if task is None:
        raise errors.UserError(
            "this model is not fine-tuned for a task: fine-tune it with "
            "`bertjax finetune`"
        )
    task_class = load(task["kind"])
    fields: dict[str, Any] = {**task_class.former, **task["config"]}
    config = schema.typed(fields, task_class.Config, "task: config", weight_files.REMEDY)
    unbound = task_class(task["name"], config)
    return dataclasses.replace(
        unbound,
        labels=tuple(task["labels"]),
        tokenizer=source.tokenizer,
        lengths=unbound.lengths_of(task["max_length"]),
        prompt_ids=tuple(task["prompt_ids"]) if "prompt_ids" in task else (),
        absent=rows.absent(source.fields),
        projection=projection.kinds(unbound, source),
        num_texts=task["num_texts"] if "num_texts" in task else 0,
    )
