"""The protocol of the types of examples: what one file of `finetuning/examples` defines.

    kind = types.TYPES[task.reader]
    examples = kind.read(task, "train.tsv", training=True, scored=True, skipped=None)
    example = kind.from_input("I loved this movie")

A type of example is a named tuple that inherits the protocol, in a file of its own. The file is
named as in `Task.reader`, and `types.TYPES` lists the types. An example without its label has None
in that field, or () in fields that hold several.
"""

import abc
import collections
from collections.abc import Collection, Hashable, Sequence
from typing import Any, ClassVar, Protocol, Self

from bertjax import errors
from bertjax.finetuning import task as task_lib


class Example(Protocol):
    """An example of a labelled file, or an input to predict on.

    SUFFIXES: of the files in a folder of a task, in the order in which they are tried.
    LISTS: names of the fields that hold several texts.
    INPUT: the inputs that `Predictor.predict` takes, for an error message.
    FLAGS: the first flag of `bertjax predict` for such an input, and all flags that it needs.
    TEXT_SCORES: the metrics of a task that also exist in its text-to-text form.
    """

    __slots__ = ()  # the fields of the tuple are all that an example has

    SUFFIXES: ClassVar[tuple[str, ...]]
    LISTS: ClassVar[tuple[str, ...]]
    INPUT: ClassVar[str]
    FLAGS: ClassVar[tuple[str, str]]
    TEXT_SCORES: ClassVar[tuple[str, ...]]

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The place "file:line" or "file question ID", which begins error messages; may be ""."""

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
        """Returns the examples of a file, with the labels that it has.

        training: whether the file is of train or dev. Other files may have one text per line.
        scored, skipped: see `tasks.read`. Raises UserError, with file and line, for bad input.
        """

    @classmethod
    def has_columns(cls, path: str) -> bool:
        """Returns whether a file of such examples has named columns.

        A file of one text per line has none in any case.
        """
        del path
        return True

    @classmethod
    def for_prediction(cls, task: task_lib.Task, *, any_texts: bool) -> task_lib.Task:
        """Returns the task for inputs of forms that train may not have; see `tasks.answered`."""
        del any_texts
        return task

    @classmethod
    @abc.abstractmethod
    def from_input(cls, given: Any) -> Self:
        """Returns the example of a text, a tuple of texts or a dict of fields.

        Raises TypeError for an input of another form.
        """

    # Labels

    @abc.abstractmethod
    def is_labelled(self) -> bool:
        """Returns whether the example has a label."""

    @abc.abstractmethod
    def unlabelled(self) -> Self:
        """Returns the example without its label."""

    def class_names(self) -> tuple[str, ...]:
        """Returns the names of the classes; () if the label is none, as a score or an index."""
        return ()

    def classes(self) -> Collection[str]:
        """Returns every class that the example has: its class names, or its tags."""
        return self.class_names()

    # Texts

    @abc.abstractmethod
    def all_texts(self) -> list[str]:
        """Returns the texts that a model reads."""

    def num_texts(self) -> int | None:
        """Returns the number of texts; None for a type that always has the same number."""
        return None

    @abc.abstractmethod
    def group(self) -> Hashable:
        """Returns a key that is equal for all examples about one text; None if there is no text."""


def lines_of_text(task: task_lib.Task, path: str, needed: Sequence[str]) -> errors.UserError:
    """Returns the error for a file of lines of text, for a task that reads these columns."""
    return errors.UserError(
        f"{path}: lines of text, and the task {task.name} reads more than one text: give "
        f"JSON lines with {', '.join(map(repr, needed))}"
    )


def squeezed(text: str) -> str:
    """Normalises case and whitespace, to find near-duplicate texts."""
    return " ".join(text.lower().split())
