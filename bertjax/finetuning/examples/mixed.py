"""Examples of several tasks in their text-to-text forms, which one model learns together.

    Mixed(Sentence(("a great film",), "positive"), task="sst2", form="sst2:text_to_text")

`finetuning.mixtures` describes the file that lists the tasks.
"""

import collections
from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, text_pairs


class _Fields(NamedTuple):
    example: Any
    task: str = ""
    form: str = "text_to_text"
    prefix: str = ""
    rate: float = 0.0


class Mixed(_Fields, base.Example):
    """An example of one of the tasks.

    task: the name of the task in the mixture; "" for a text that belongs to none of them. form: the
    name of the task in `tasks`. prefix: text in front of the source. rate: share of the task in
    training, relative to those of the others; 0 if it depends on the number of examples.
    """

    __slots__ = ()

    SUFFIXES = (".json",)
    LISTS = ()
    INPUT = text_pairs.TextPair.INPUT
    FLAGS = text_pairs.TextPair.FLAGS
    TEXT_SCORES = ()

    @property
    def where(self) -> str:
        """The place of the example in its own file."""
        return self.example.where

    @classmethod
    def read(
        cls,
        task: task_lib.Task,
        path: str,
        *,
        training: bool,
        scored: bool,
        skipped: collections.Counter[str] | None,
    ) -> list[Self]:
        """Returns the examples of one split of a mixture ("tasks.json:dev").

        Other files have sources and targets of no task.
        """
        file, _, split = path.rpartition(":")
        if file.endswith(cls.SUFFIXES):
            return task.type.read(file, split, scored=scored, skipped=skipped)
        if path.endswith(cls.SUFFIXES):
            raise errors.UserError(
                f"{path}: is the list of a mixture: train on it with --data={path}, and evaluate "
                f"on one of its splits with --data={path}:test"
            )
        pairs = text_pairs.TextPair.read(
            task, path, training=training, scored=scored, skipped=skipped
        )
        return [cls(pair) for pair in pairs]

    @classmethod
    def has_columns(cls, path: str) -> bool:
        """Returns whether it is not a mixture."""
        return not path.rpartition(":")[0].endswith(cls.SUFFIXES)

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a dict of the fields, or an input of a TextPair, which belongs to no task."""
        if isinstance(value, dict) and isinstance(value.get("example"), tuple):
            return cls(**value)
        return cls(text_pairs.TextPair.from_input(value))

    def is_labelled(self) -> bool:
        """Returns whether the example has a label or a target."""
        return self.example.is_labelled()

    def unlabelled(self) -> Self:
        """Returns the example without its label or target."""
        return self._replace(example=self.example.unlabelled())

    def class_names(self) -> tuple[str, ...]:
        """Returns the names TASK/LABEL, or the task for an example without class names."""
        names = self.example.class_names()
        return tuple(f"{self.task}/{name}" for name in names) or (self.task,)

    def all_texts(self) -> list[str]:
        """Returns the texts of the example."""
        return self.example.all_texts()

    def group(self) -> Hashable:
        """Returns a key that is equal for all examples of the task about one text."""
        group = self.example.group()
        return None if group is None else (self.task, group)
