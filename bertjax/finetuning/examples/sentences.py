"""Examples of one or more texts and a label, as in GLUE.

    Sentence(("How so?", "Why?"), "duplicate")

Files are tables (see `readers`) with a column for each text, or one text per line.
"""

import collections
import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.data.corpus import words
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, readers
from bertjax.finetuning.examples import columns as columns_lib

# Alternative names of the column of a single text, and of the two columns of a pair.
TEXT = (("sentence",), ("text",))
PAIRS = (
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("source", "target"),
    ("anchor", "positive"),
    ("query", "positive"),
)
_HIDDEN = -1  # the label in files of a test split whose labels are not published
# A class name, a score, or several of either; None if the label is unknown.
Label = str | float | tuple[str, ...] | tuple[float, ...] | None


class _Fields(NamedTuple):
    texts: tuple[str, ...]
    label: Label = None
    id: str = ""
    where: str = ""


class Sentence(_Fields, base.Example):
    """One or two texts and a label: a class name, a score, or several of either.

    For embeddings, texts that do not match the first one may follow the two that match.
    id: the id of the example in the file, for leaderboard submissions; "" if it has none.
    """

    __slots__ = ()

    SUFFIXES = (".tsv", ".jsonl", ".csv", ".parquet", ".arrow", ".json")
    LISTS = ("texts",)
    INPUT = "a text, or a pair of texts"
    FLAGS = ("text", "--text")
    TEXT_SCORES = ("accuracy", "macro_f1", "f1", "mcc", "spearman", "pearson")

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
        """Returns the examples of a table, or of a file with one text per line.

        If `skipped` is not None, rows with an empty text are skipped and counted in it.
        """
        del scored
        columns = task.columns
        if not training and columns_lib.is_plain(path, columns):
            if all(len(names) > 1 for names in columns.texts) and not task.any_texts:
                raise base.lines_of_text(task, path)
            return [cls((text,), where=where) for where, text in readers.plain(path)]
        examples = []
        for record in base.records(task, path, skipped):
            names = columns_lib.text_columns(record, columns)
            if skipped is not None and not all(str(record.fields[name]).strip() for name in names):
                skipped["rows with an empty text"] += 1
                continue
            columns_lib.check_refused(record, columns)
            texts = [readers.text(record, name, empty=task.damaged) for name in names[:2]]
            if len(texts) > 1:
                texts += columns_lib.further_texts(record, columns, names[2:], needed=training)
            label, record_id = _label(task, record), columns_lib.record_id(record, columns)
            examples.append(cls(tuple(texts), label, record_id, record.where))
        return examples

    @classmethod
    def for_prediction(cls, task: task_lib.Task, *, any_texts: bool) -> task_lib.Task:
        """Returns the task. If `any_texts`, it accepts both pairs and single texts."""
        if not any_texts:
            return task
        return dataclasses.replace(task, columns=task.columns._replace(texts=(*PAIRS, *TEXT)))

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a text, a tuple of texts or a dict of fields to an example."""
        if isinstance(value, str):
            return cls((value,))
        return cls(value) if isinstance(value, tuple) else cls(**value)

    def is_labelled(self) -> bool:
        """Returns whether the example has a label."""
        return self.label is not None

    def unlabelled(self) -> Self:
        """Returns the example without its label."""
        return self._replace(label=None)

    def class_names(self) -> tuple[str, ...]:
        """Returns the class names in the label; () if it is a score or unknown."""
        labels = self.label if isinstance(self.label, tuple) else (self.label,)
        return tuple(label for label in labels if isinstance(label, str))

    def all_texts(self) -> list[str]:
        """Returns the texts."""
        return list(self.texts)

    def num_texts(self) -> int | None:
        """Returns the number of texts."""
        return len(self.texts)

    def group(self) -> Hashable:
        """Returns the first text with its case and white space normalised."""
        return words.squeezed(self.texts[0])


def _label(task: task_lib.Task, record: readers.Record) -> Label:
    value, read_label = columns_lib.value(record, task.columns.label), task.type.read_label
    if value is not None and read_label is not None:
        return read_label(record, value)
    if value is None or str(value).strip() == "":
        return None
    if task.number_lists:
        return _numbers(task, record, value)
    return _number(task, record, value) if task.numbers else _name(task, record, value)


def _numbers(task: task_lib.Task, record: readers.Record, value: Any) -> float | tuple[float, ...]:
    """Returns the number in `value` and in the extra columns; a tuple if there are several."""
    extra = [record.fields[name] for name in task.columns.extra if name in record.fields]
    parts: list[Any] = []
    for part in (value, *extra):
        part = part.split(",") if isinstance(part, str) else part
        parts += part if isinstance(part, list) else [part]
    numbers = tuple(readers.number(record, part) for part in parts)
    return numbers if len(numbers) > 1 else numbers[0]


def _number(task: task_lib.Task, record: readers.Record, value: Any) -> float | None:
    score = readers.number(record, value)
    is_leaderboard = bool(task.submissions) or record.where.startswith("tfds:glue/")
    return None if is_leaderboard and score == _HIDDEN else score


def _name(task: task_lib.Task, record: readers.Record, value: Any) -> str | None:
    if type(value) is int and task.labels and _HIDDEN <= value < len(task.labels):
        return None if value == _HIDDEN else task.labels[value]  # as in Hugging Face's datasets
    label = readers.name(record, value)
    if task.labels and label == str(_HIDDEN):
        return None
    names = {text: name for name, text in task.spelling.items()}
    label = names[label] if label in names else label
    if task.labels and label not in task.labels:
        allowed = ", ".join([*task.labels, *names])
        raise errors.UserError(
            f"{record.where}: label {label!r:.40} is not a label of the task {task.name} "
            f"({allowed}); for other labels use --task=classification or --task=pair"
        )
    return label
