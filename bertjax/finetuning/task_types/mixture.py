"""A mixture of tasks: one model learns several tasks in their text-to-text forms, as T5 did.

Raffel et al., arXiv 1910.10683, section 3.5.2. `finetuning.mixtures` describes the file that lists
the tasks. The score that selects the best model is the mean of the tasks' main scores. The trained
model reads a source as it was in training, with its prefix: "cola sentence: He love it."
"""

import collections
import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.finetuning import batching, mixtures, rows, tasks
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import mixed
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import text_to_text

AVERAGE = "average"  # the mean of the main scores of all tasks


@dataclasses.dataclass(frozen=True)
class Config(text_to_text.Config):
    """Options of `text_to_text`, and of the shares of the tasks."""

    limit: int = 0  # examples of a task that count for its share; 0: all
    temperature: float = 1.0  # shares are those of counts ** (1 / temperature); large: equal

    def __post_init__(self):
        super().__post_init__()
        errors.check(self.answer == "write", "kind.answer", self.answer, "'write' in a mixture")
        errors.check(not self.task, "kind.task", self.task, "empty in a mixture")
        errors.check(self.limit >= 0, "kind.limit", self.limit, "0 or more")
        errors.check(self.temperature >= 1, "kind.temperature", self.temperature, "1 or more")


@dataclasses.dataclass(frozen=True)
class Encoded(text_to_text.Encoded):
    """One row per example. tasks: int[rows] of each task. rates: {task: its rate}."""

    tasks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)


class _Group(NamedTuple):
    """The examples of one task. numbers: their places among all examples."""

    name: str
    form: task_lib.Task
    rate: float
    numbers: np.ndarray
    examples: list[Any]
    part: text_to_text.TaskType


class TaskType(text_to_text.TaskType):
    """Predicts texts for several tasks. `labels` are TASK/LABEL, for tasks with labels."""

    Config = Config
    find_files = staticmethod(lambda task, path: mixtures.splits(path))
    read = staticmethod(mixtures.read)

    def label_names(self, examples: Sequence[mixed.Mixed]) -> list[str]:
        """Returns the names TASK/LABEL."""
        return [
            f"{group.name}/{label}"
            for group in self._groups(examples)
            for label in group.form.labels or group.part.label_names(group.examples)
        ]

    def check(self, examples: Sequence[mixed.Mixed]) -> None:
        """Raises UserError for a label that its task does not have."""
        for group in self._groups(examples):
            group.part.check(group.examples)

    def _encode(self, examples: Sequence[mixed.Mixed]) -> Encoded:
        encoded = super()._encode(examples)
        groups = list(self._groups(examples))
        numbers = {group.name: group.numbers for group in groups}
        rates = {group.name: group.rate for group in groups}
        return Encoded(encoded.rows, encoded.owners, encoded.truncated, (), numbers, rates)

    def _pairs(self, examples: Sequence[mixed.Mixed]) -> list[examples_lib.TextPair]:
        pairs: dict[int, examples_lib.TextPair] = {}
        for group in self._groups(examples):
            prefix = group.part.config.prefix
            for number, pair in zip(group.numbers, group.part._pairs(group.examples), strict=True):
                pairs[number] = pair._replace(source=prefix + pair.source)
        return [pairs[number] for number in range(len(examples))]

    def order(self, encoded: rows.Encoded) -> batching.Order:
        """Returns the order in which training reads the rows of all tasks."""
        return mixtures.Order(list(encoded.tasks.values()), list(self._sizes(encoded).values()))

    def shares(self, encoded: rows.Encoded) -> list[str]:
        """Returns a text for each task: its share of the examples of an epoch, and its passes."""
        sizes = self._sizes(encoded)
        total = sum(sizes.values())
        return [
            f"{name} {size / total:.0%} ({size / len(encoded.tasks[name]):.2g} passes an epoch)"
            for name, size in sizes.items()
        ]

    def decode(
        self,
        examples: Sequence[mixed.Mixed],
        encoded: rows.Encoded,
        outputs: Mapping[str, np.ndarray],
    ) -> list[dict[str, Any]]:
        """Returns the predictions of each example's own task, see `text_to_text`."""
        predictions: dict[int, dict[str, Any]] = {}
        for group in self._groups(examples):
            own = {name: values[group.numbers] for name, values in outputs.items()}
            decoded = group.part.decode(group.examples, encoded, own)
            predictions |= zip(group.numbers, decoded, strict=True)
        return [predictions[number] for number in range(len(examples))]

    def scores(
        self, examples: Sequence[mixed.Mixed], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns the mean of the tasks' main scores, and the scores of each task.

        The names are "average", "average/TASK SCORE" for the main score of a task, and "TASK/SCORE"
        for its other scores.
        """
        mains, others = {}, {}
        for group in self._groups(examples):
            own = [predictions[number] for number in group.numbers]
            scores = group.part.scores(group.examples, own)
            main, *rest = group.form.metrics
            if main in scores:
                mains[f"{AVERAGE}/{group.name} {main}"] = scores[main]
                others |= {f"{group.name}/{name}": scores[name] for name in rest if name in scores}
        return {AVERAGE: statistics.fmean(mains.values()), **mains, **others} if mains else {}

    def report_notes(self) -> list[str]:
        """Returns a line on the mean."""
        return [f"{AVERAGE} is the mean of the first scores of all tasks, which follow it."]

    def _sizes(self, encoded: rows.Encoded) -> dict[str, int]:
        counts = {name: len(numbers) for name, numbers in encoded.tasks.items()}
        return mixtures.sizes(counts, encoded.rates, self.config.limit, self.config.temperature)

    def _groups(self, examples: Sequence[mixed.Mixed]) -> Iterator[_Group]:
        numbers: dict[str, list[int]] = collections.defaultdict(list)
        for number, example in enumerate(examples):
            numbers[example.task].append(number)
        for name, values in numbers.items():
            first, own = examples[values[0]], [examples[number].example for number in values]
            form = tasks.find(first.form)
            part = self._part(name, form, first.prefix)
            yield _Group(name, form, first.rate, np.array(values), own, part)

    def _part(self, name: str, form: task_lib.Task, prefix: str) -> text_to_text.TaskType:
        """Returns the task type of one task."""
        options = {
            field.name: getattr(self.config, field.name)
            for field in dataclasses.fields(text_to_text.Config)
        }
        # Without a prefix, the task's name stands in front of sentences, to tell the tasks apart.
        options |= {"task": name} | form.options
        options |= {"prefix": prefix, "task": ""} if prefix else {}
        start = f"{name}/"
        labels = [label.removeprefix(start) for label in self.labels if label.startswith(start)]
        return text_to_text.TaskType(
            form.name,
            text_to_text.Config(**options),
            labels=tuple(labels),
            tokenizer=self.tokenizer,
            lengths=self.lengths,
        )

    @classmethod
    def hf_config(cls, model: artifact.Artifact) -> dict[str, Any]:
        """Returns {}: every task has its own prefix."""
        del model
        return {}
