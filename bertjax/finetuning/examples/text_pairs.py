"""Examples of a source text and its target texts, such as translations.

    TextPair("Hi.", ("Hola.", "Buenas."))
"""

import collections
from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, readers
from bertjax.finetuning.examples import columns as columns_lib


class _Fields(NamedTuple):
    source: str
    targets: tuple[str, ...] = ()
    id: str = ""
    where: str = ""


class TextPair(_Fields, base.Example):
    """A source text and its targets.

    Training uses the first target. Scores use all targets as references.
    """

    __slots__ = ()

    SUFFIXES = (".jsonl", ".tsv", ".csv", ".parquet", ".arrow", ".json")
    LISTS = ("targets",)
    INPUT = "a text"
    FLAGS = ("text", "--text")
    TEXT_SCORES = ()

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
        """Returns the examples of a table, or of a file with one text per line."""
        del scored
        if not training and columns_lib.is_plain(path, task.columns):
            return [cls(text, where=where) for where, text in readers.plain(path)]
        records = base.records(task, path, skipped)
        return [cls.of_record(record, task.columns) for record in records]

    @classmethod
    def of_record(cls, record: readers.Record, columns: columns_lib.Columns) -> Self:
        """Converts a record with a source and perhaps targets, which are a text or a list of texts.

        Raises UserError for targets of another type or with a blank text.
        """
        (column,) = columns_lib.text_columns(record, columns)
        value = columns_lib.value(record, columns.label)
        targets = [] if value is None or value == "" else value
        targets = [targets] if isinstance(targets, str) else targets
        are_texts = isinstance(targets, list) and all(isinstance(t, str) for t in targets)
        if not are_texts or not all(t.strip() for t in targets):
            raise errors.UserError(
                f"{record.where}: the target must be a non-empty text or a list of non-empty texts"
            )
        record_id = columns_lib.record_id(record, columns)
        return cls(readers.text(record, column), tuple(targets), record_id, record.where)

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a text or a dict of fields to an example."""
        return cls(value) if isinstance(value, str) else cls(**value)

    def is_labelled(self) -> bool:
        """Returns whether there is a target."""
        return bool(self.targets)

    def unlabelled(self) -> Self:
        """Returns the example without its targets."""
        return self._replace(targets=())

    def all_texts(self) -> list[str]:
        """Returns the source."""
        return [self.source]

    def group(self) -> Hashable:
        """Returns the source."""
        return self.source
