"""Examples of a query and documents that may answer it, to train and score rerankers.

    Candidates("Who?", ("Ada wrote it.", "It rained."), (1.0, 0.0))

Files are tables (see `readers`) of one of these forms:

    query, document           a number "label" from 0 to 1
    query, positive           with negatives in columns such as negative_1, or as a list "negatives"
    query, documents          lists of documents and of "labels" from 0 to 1

In the second form, the label is what a teacher says: its score of each document, in the order of
the columns; or its margins, the score of the positive minus that of each negative.
"""

import collections
from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.data.corpus import words
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, readers
from bertjax.finetuning.examples import columns as columns_lib

POSITIVE = "positive"  # the column with a document that is relevant, with or without negatives


class _Fields(NamedTuple):
    query: str
    documents: tuple[str, ...]
    labels: tuple[float, ...] | None = None
    teacher: tuple[float, ...] | None = None
    id: str = ""
    where: str = ""


class Candidates(_Fields, base.Example):
    """A query and its candidates, with a label from 0 to 1 for each; None if they are unknown.

    teacher: the scores of the documents by another model, whose mean has no meaning; None if
    there are none.
    """

    __slots__ = ()

    SUFFIXES = (".jsonl", ".tsv", ".csv", ".parquet", ".arrow", ".json")
    LISTS = ("documents", "labels", "teacher")
    INPUT = "a query with documents"
    FLAGS = ("pair", "--text, the query, and --pair, the document")
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
        """Returns the examples of a table. Raises UserError if it has one text per line."""
        del scored
        if not training and columns_lib.is_plain(path, task.columns):
            raise base.lines_of_text(task, path)
        records = base.records(task, path, skipped)
        return [cls.of_record(record, task.columns) for record in records]

    @classmethod
    def of_record(cls, record: readers.Record, columns: columns_lib.Columns) -> Self:
        """Converts a record. Raises UserError for an empty text, and for labels that do not fit."""
        first, second, *named = columns_lib.text_columns(record, columns)
        columns_lib.check_refused(record, columns)
        query, numbers = readers.text(record, first), _numbers(record, columns)
        labels: tuple[float, ...] | None = numbers
        teacher = None
        if isinstance(record.fields[second], list):
            documents = _documents(record, second)
        else:
            documents = (readers.text(record, second),)
            negatives = columns_lib.further_texts(record, columns, named)
            if negatives:
                documents += tuple(negatives)
                labels = (1.0, *[0.0] * len(negatives))
                teacher = _teacher(record, numbers, len(documents))
            elif second == POSITIVE and numbers is None:
                labels = (1.0,)
        if labels is not None:
            _check_labels(record, labels, len(documents))
        record_id = columns_lib.record_id(record, columns)
        return cls(query, documents, labels, teacher, record_id, record.where)

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a tuple of a query and documents, or a dict of fields, to an example."""
        if isinstance(value, tuple) and len(value) > 1:
            return cls(value[0], tuple(value[1:]))
        if isinstance(value, dict):
            return cls(**value)
        raise TypeError

    def is_labelled(self) -> bool:
        """Returns whether the relevance of the documents is known."""
        return self.labels is not None

    def unlabelled(self) -> Self:
        """Returns the example without labels and without a teacher's scores."""
        return self._replace(labels=None, teacher=None)

    def all_texts(self) -> list[str]:
        """Returns the query and the documents."""
        return [self.query, *self.documents]

    def group(self) -> Hashable:
        """Returns the query with its case and white space normalised."""
        return words.squeezed(self.query)


def _documents(record: readers.Record, name: str) -> tuple[str, ...]:
    texts = record.fields[name]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise errors.UserError(f"{record.where}: {name!r} must be a list of non-empty texts")
    return tuple(texts)


def _numbers(record: readers.Record, columns: columns_lib.Columns) -> tuple[float, ...] | None:
    """Returns the numbers in the label column: a number, a list, or a text with commas."""
    value = columns_lib.value(record, columns.label)
    if value is None or value == "":
        return None
    values = value.split(",") if isinstance(value, str) else value
    values = values if isinstance(values, list) else [values]
    return tuple(readers.number(record, number) for number in values)


def _teacher(
    record: readers.Record, numbers: tuple[float, ...] | None, count: int
) -> tuple[float, ...] | None:
    """Returns a teacher's score of each document, from scores or from margins."""
    if numbers is None or len(numbers) == count:
        return numbers
    if len(numbers) == count - 1:
        return (0.0, *(-margin for margin in numbers))
    raise errors.UserError(
        f"{record.where}: has {len(numbers)} scores of a teacher for {count} documents; give one "
        "for each document, or one margin for each negative"
    )


def _check_labels(record: readers.Record, labels: tuple[float, ...], count: int) -> None:
    if len(labels) != count:
        raise errors.UserError(
            f"{record.where}: has {len(labels)} labels for {count} documents; give one for each"
        )
    for label in labels:
        if not 0 <= label <= 1:
            raise errors.UserError(
                f"{record.where}: label {label:g} is not between 0 (not relevant) and 1; scores of "
                "a teacher need the columns query, positive and negative"
            )
