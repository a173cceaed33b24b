"""Examples of a context (or question) and several choices, one of which is right.

    Choice("It rained. Why?", ("Clouds.", "Sun."), 0, passage="It rained.")

Files are JSON lines or Parquet, in which "choices" is a list of texts.
"""

import collections
from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, readers
from bertjax.finetuning.examples import columns as columns_lib


class _Fields(NamedTuple):
    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: str = ""
    where: str = ""
    passage: str = ""


class Choice(_Fields, base.Example):
    """A context (or question), its continuations or answers, and the index of the right one.

    passage: the passage, if the context consists of a passage and a question; else "". Several
    questions may share a passage.
    """

    __slots__ = ()

    SUFFIXES = (".jsonl", ".parquet", ".arrow", ".json")
    LISTS = ("choices",)
    INPUT = "a context with choices"
    FLAGS = ("choice", "--choice, several times, and --context")
    TEXT_SCORES = ("accuracy",)

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
        """Returns the examples of a file. Raises UserError if it has one text per line."""
        del scored
        if not training and columns_lib.is_plain(path, task.columns):
            raise base.lines_of_text(task, path)
        records = base.records(task, path, skipped)
        return [cls.of_record(record, task.columns) for record in records]

    @classmethod
    def of_record(cls, record: readers.Record, columns: columns_lib.Columns) -> Self:
        """Converts a record with a context or question (or both), choices, and perhaps a label.

        The last text column is that of the choices. The label is the index of a choice, from 0.
        Raises UserError for fewer than two choices, a blank choice, and a label that is not the
        index of a choice.
        """
        *names, last = columns_lib.text_columns(record, columns)
        options = record.fields[last]
        label = columns_lib.value(record, columns.label)
        if not (isinstance(options, list) and all(isinstance(c, str) for c in options)):
            raise errors.UserError(f"{record.where}: {last!r} is not a list of texts")
        if len(options) < 2 or not all(choice.strip() for choice in options):
            raise errors.UserError(f"{record.where}: {last!r} needs at least two non-empty texts")
        is_int = isinstance(label, int) and not isinstance(label, bool)
        if label is not None and not (is_int and 0 <= label < len(options)):
            raise errors.UserError(
                f"{record.where}: label {label!r:.40} is not the number of a choice, "
                f"0 to {len(options) - 1}"
            )
        texts = [readers.text(record, name) for name in names]
        return cls(
            " ".join(texts),
            tuple(options),
            label,
            columns_lib.record_id(record, columns),
            record.where,
            texts[0] if len(texts) > 1 else "",
        )

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a dict of fields to an example."""
        return cls(**value)

    def is_labelled(self) -> bool:
        """Returns whether the right choice is known."""
        return self.label is not None

    def unlabelled(self) -> Self:
        """Returns the example without the index of the right choice."""
        return self._replace(label=None)

    def all_texts(self) -> list[str]:
        """Returns the context and the choices."""
        return [self.context, *self.choices]

    def group(self) -> Hashable:
        """Returns the passage or, if there is none, the context."""
        return self.passage or self.context or None
