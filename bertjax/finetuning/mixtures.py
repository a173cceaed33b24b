"""Mixtures: several tasks in their text-to-text forms, which one model learns together.

A mixture is a JSON file. Paths are relative to its folder; `data` is a folder as in --data.

    {"tasks": [{"task": "sst2", "data": "SST-2"},
               {"task": "squad", "train": "squad/train.json", "dev": "squad/dev.json"},
               {"task": "translation", "name": "en-de", "data": "wmt14",
                "prefix": "translate English to German: "}]}

    mixtures.splits("tasks.json")                    # {"train": "tasks.json:train", "dev": ...}
    examples = mixtures.read("tasks.json", "train")

Each task has a share of the training examples (Raffel et al., arXiv 1910.10683, section 3.5.2): in
proportion to its number of examples, which counts up to a limit and to the power 1 / temperature,
or in proportion to its `rate`.
"""

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from bertjax import errors, schema
from bertjax.data.batches import rng
from bertjax.finetuning import split_files, tasks
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import mixed

SPLITS = ("train", "dev", "test")
_REMEDY = "correct the mixture"
_TRAIN = "finetune mixture"  # the stream of random numbers


@dataclasses.dataclass(frozen=True)
class Part:
    """A task of a mixture.

    task: as in --task. name: of the task in reports; "": the same. data, train, dev, test: a folder
    with the files of the splits, or the files. prefix: text in front of every source. rate: share
    of the examples, relative to those of the other tasks; 0: by the number of examples.
    """

    task: str
    name: str = ""
    data: str = ""
    train: str = ""
    dev: str = ""
    test: str = ""
    prefix: str = ""
    rate: Annotated[float, schema.Between(0)] = 0.0

    @property
    def title(self) -> str:
        """The name of the task in reports."""
        return self.name or self.task

    @property
    def form(self) -> task_lib.Task:
        """The text-to-text form of the task. Raises UserError if it has none."""
        return tasks.find(f"{self.task}:{tasks.TEXT_TO_TEXT}")


@dataclasses.dataclass(frozen=True)
class _File:
    tasks: tuple[Part, ...]


def load(path: str) -> dict[str, Part]:
    """Returns {name: Part}. Raises UserError that names the file and the task for a bad mixture."""
    parts = schema.typed(schema.read_object(path, _REMEDY), _File, path, _REMEDY).tasks
    names = [part.title for part in parts]
    if not names:
        raise errors.UserError(f"{path}: has no tasks; {_REMEDY}")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise errors.UserError(f"{path}: two tasks are called {repeated!r}: give one a name")
    with_rate = [part.title for part in parts if part.rate]
    if with_rate and len(with_rate) < len(parts):
        without = next(part.title for part in parts if not part.rate)
        raise errors.UserError(
            f"{path}: {with_rate[0]} has a rate and {without} has none: give a rate to all tasks, "
            "or to none"
        )
    return dict(zip(names, parts, strict=True))


def splits(path: str) -> dict[str, str]:
    """Returns {split: "PATH:SPLIT"} for the splits that the tasks have.

    Raises UserError if some tasks have a dev split and others have none.
    """
    by_task = {name: _files(path, part) for name, part in load(path).items()}
    with_dev = [name for name, files in by_task.items() if "dev" in files]
    if with_dev and len(with_dev) < len(by_task):
        without = next(name for name in by_task if name not in with_dev)
        raise errors.UserError(
            f"{path}: {with_dev[0]} has a dev split and {without} has none: give dev files to all "
            "tasks, or to none"
        )
    present = set().union(*by_task.values())
    return {split: f"{path}:{split}" for split in SPLITS if split in present}


def read(
    path: str,
    split: str,
    *,
    scored: bool = True,
    skipped: collections.Counter[str] | None = None,
) -> list[mixed.Mixed]:
    """Returns the examples of a split, task by task. See `tasks.read`, also for the errors."""
    examples = []
    for name, part in load(path).items():
        files = _files(path, part)
        if split in files:
            form = part.form
            own = tasks.read(form, files[split], split, skipped=skipped, scored=scored)
            examples += [mixed.Mixed(e, name, form.name, part.prefix, part.rate) for e in own]
    return examples


def _files(path: str, part: Part) -> dict[str, str]:
    """Returns {split: path of the file}."""
    root = os.path.dirname(path)
    try:
        form = part.form
        files = {}
        if part.data:
            found = split_files.find(form, _joined(root, part.data))
            files = {split: found[split] for split in SPLITS if split in found}
    except errors.UserError as error:
        raise errors.UserError(f"{path}: {part.title}: {error}") from None
    for split in SPLITS:
        if file := getattr(part, split):
            files[split] = _joined(root, file)
    if "train" not in files:
        raise errors.UserError(f"{path}: {part.title}: has neither data nor train; {_REMEDY}")
    return files


def _joined(root: str, path: str) -> str:
    return path if path.startswith("tfds:") or "://" in path else os.path.join(root, path)


def sizes(
    counts: Mapping[str, int], rates: Mapping[str, float], limit: int, temperature: float
) -> dict[str, int]:
    """Returns {task: its examples in an epoch}; their sum is that of the counts, up to the limit.

    counts: {task: its number of examples}. rates: {task: its rate}; if they are 0, a task's share
    is in proportion to min(count, limit) ** (1 / temperature). limit: 0 means none.
    """
    limited = {name: min(count, limit or count) for name, count in counts.items()}
    weights = {name: rates[name] or count ** (1 / temperature) for name, count in limited.items()}
    total, scale = sum(limited.values()), sum(weights.values())
    exact = {name: total * weight / scale for name, weight in weights.items()}
    result = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: result[name] - exact[name])
    for name in by_remainder[: total - sum(result.values())]:
        result[name] += 1
    return {name: max(size, 1) for name, size in result.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """The order in which training reads the rows of several tasks.

    rows: int[rows] of each task. sizes: how many of them an epoch reads. A task begins again, in
    another order, when all of its rows were read; an epoch goes on where the last one ended.
    """

    rows: Sequence[np.ndarray]
    sizes: Sequence[int]

    @property
    def num_rows(self) -> int:
        """The number of rows in an epoch."""
        return sum(self.sizes)

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """Returns the rows of an epoch, shuffled."""
        starts = [(number, epoch * size) for number, size in enumerate(self.sizes)]
        chosen = [self._of_task(number, seed, start) for number, start in starts]
        return np.concatenate(chosen)[rng.permutation(_TRAIN, self.num_rows, seed, epoch)]

    def _of_task(self, number: int, seed: int, start: int) -> np.ndarray:
        """Returns the rows of an epoch. start: how many rows the epochs before it have."""
        rows, size, parts = self.rows[number], self.sizes[number], []
        for again in range(start // len(rows), (start + size - 1) // len(rows) + 1):
            parts.append(rows[rng.permutation(_TRAIN, len(rows), seed, again, number + 1)])
        begin = start % len(rows)
        return np.concatenate(parts)[begin : begin + size]
