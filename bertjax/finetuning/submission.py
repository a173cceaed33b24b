"""Writes the files to submit to the leaderboards of GLUE and SQuAD."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import errors, files, paths
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import types as examples_lib


def write(
    task: task_lib.Task,
    folder: str,
    examples: Sequence[examples_lib.Example],
    predictions: Sequence[Mapping[str, Any]],
    split: str = "test",
) -> str:
    """Writes the file to submit to the task's leaderboard, and returns its path.

    predictions: one per example, from the task type's `decode`. For GLUE, the file is a table of
    index and prediction (gluebenchmark.com/faq), and scores of STS-B are clipped to the range 0 to
    5. For SQuAD, it is {question id: answer}. Raises UserError if there is no leaderboard for this
    split of the task.
    """
    if split not in task.submissions:
        raise errors.UserError(f"--task={task.name}: no leaderboard accepts predictions on {split}")
    path = paths.of(folder) / task.submissions[split]
    pairs = list(zip(examples, predictions, strict=True))
    if path.suffix == ".json":
        content = json.dumps({e.id: p["answer"] for e, p in pairs}, ensure_ascii=False)
    else:
        rows = [
            (example.id or str(number), _file_label(task, prediction["label"]))
            for number, (example, prediction) in enumerate(pairs)
        ]
        content = "".join(f"{a}\t{b}\n" for a, b in [("index", "prediction"), *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, content)
    return os.fspath(path)


def _file_label(task: task_lib.Task, label: str | float | None) -> str:
    """Returns a label in the leaderboard's spelling.

    None (generated text that is not a label) becomes the first label, or the score 0.
    """
    if task.numbers:
        return f"{min(max(float(label or 0), 0.0), 5.0):.3f}"
    label = task.labels[0] if label is None else str(label)
    return task.spelling[label] if label in task.spelling else label
