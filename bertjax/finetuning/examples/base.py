"""The protocol that every type of example in `finetuning/examples` implements.

    kind = types.TYPES[task.reader]
    examples = kind.read(task, "train.tsv", training=True, scored=True, skipped=None)
    example = kind.from_input("I loved this movie")

A type of example is a named tuple that inherits from the protocol, in a separate file.
`Task.reader` is the name of that file. `types.TYPES` lists the types. If the label of an example is
unknown, its field is None. The exceptions are `Question.answers` and `TextPair.targets`, which are
then ().
"""

import abc
import collections
from collections.abc import Collection, Hashable, Iterator
from typing import Any, ClassVar, Protocol, Self

from bertjax import errors
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import readers


class Example(Protocol):
    """An example of a labelled file, or an input to predict on.

    SUFFIXES: file suffixes to look for in the folder of a task, in the order in which they are
        tried.
    LISTS: names of the fields that contain several texts.
    INPUT: describes the inputs that `Predictor.predict` accepts, for an error message.
    FLAGS: the main flag of `bertjax predict` for such an input, and a text that names all the
        flags that are needed.
    TEXT_SCORES: the metrics of a task that also exist in its text-to-text form.
    """

    __slots__ = ()  # an example has no attributes besides the fields of its tuple

    SUFFIXES: ClassVar[tuple[str, ...]]
    LISTS: ClassVar[tuple[str, ...]]
    INPUT: ClassVar[str]
    FLAGS: ClassVar[tuple[str, str]]
    TEXT_SCORES: ClassVar[tuple[str, ...]]

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The example's place, "file:line" or "file question ID", for error messages; may be ""."""

    # Files and inputs

    @classmethod
    @abc.abstractmethod
    def read(
        cls,
        task: task_lib.Task,
        path: str,
        *,
        training: bool,
        scored: bool,
        skipped: collections.Counter[str] | None,
    ) -> list[Self]:
        """Returns the examples of a file, with their labels if it contains them.

        training: whether the file is the train or the dev file. Other files may have one text per
        line. scored, skipped: see `tasks.read`. Raises UserError, with file and line, for bad
        input.
        """

    @classmethod
    def has_columns(cls, path: str) -> bool:
        """Returns whether files of this type have named columns.

        The caller must first rule out files with one text per line, which have none.
        """
        del path
        return True

    @classmethod
    def for_prediction(cls, task: task_lib.Task, *, any_texts: bool) -> task_lib.Task:
        """Returns the task, changed to accept inputs in forms that the training data may lack.

        See `tasks.answered`.
        """
        del any_texts
        return task

    @classmethod
    @abc.abstractmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a text, a tuple of texts or a dict of fields to an example.

        Raises TypeError if the input is not in a form that the type accepts.
        """

    # Labels

    @abc.abstractmethod
    def is_labelled(self) -> bool:
        """Returns whether the example has a label."""

    @abc.abstractmethod
    def unlabelled(self) -> Self:
        """Returns the example without its label."""

    def class_names(self) -> tuple[str, ...]:
        """Returns the class names in the label; () for a label without names, such as a score."""
        return ()

    def classes(self) -> Collection[str]:
        """Returns the different classes of the example: its class names, or its tags."""
        return self.class_names()

    # Texts

    @abc.abstractmethod
    def all_texts(self) -> list[str]:
        """Returns the texts that a model reads."""

    def num_texts(self) -> int | None:
        """Returns the number of texts; None if all examples of the type have the same number."""
        return None

    @abc.abstractmethod
    def group(self) -> Hashable:
        """Returns a key that is equal for all examples about one text; None if there is no text."""


def lines_of_text(task: task_lib.Task, path: str) -> errors.UserError:
    """Returns the error for a file with one text per line if the task needs several columns."""
    return errors.UserError(
        f"{path}: has one text per line, but an example of the task {task.name} has several texts: "
        f"give JSON lines with {', '.join(map(repr, task.columns.texts[0]))}"
    )


def records(
    task: task_lib.Task, path: str, skipped: collections.Counter[str] | None = None
) -> Iterator[readers.Record]:
    """Yields the records of a file, with the columns that the task reads."""
    return readers.records(
        path, reads=task.columns.reads, headerless=task.headerless, skipped=skipped
    )
