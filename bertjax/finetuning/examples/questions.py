"""Examples of questions about a context, as in SQuAD. `squad` describes the file formats.

    Question("q1", "Who wrote it?", "Ada wrote it.", (("Ada", 0),))
"""

import collections
import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, squad
from bertjax.finetuning.examples import columns as columns_lib


class _Fields(NamedTuple):
    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    where: str = ""


class Question(_Fields, base.Example):
    """A question about a context.

    answers: (text, start) of each annotator's answer, in any order, such that
    context[start : start + len(text)] == text; () if the answer is unknown or does not exist.
    impossible: whether the context is known to contain no answer.
    """

    __slots__ = ()

    SUFFIXES = (".json", ".jsonl", ".parquet", ".arrow")
    LISTS = ("answers",)
    INPUT = "a question about a context"
    FLAGS = ("question", "--question and --context")
    TEXT_SCORES = ("f1", "exact_match")

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
        """Returns the questions of a file. Only some tasks accept questions without an answer."""
        del training, scored, skipped
        impossible = task.kind == "text_to_text" or "impossible" in task.options
        return cls.of_squad(path, impossible=impossible, columns=task.columns)

    @classmethod
    def of_squad(
        cls, path: str, *, impossible: bool, columns: columns_lib.Columns = squad.COLUMNS
    ) -> list[Self]:
        """Returns the questions of a file, in the order of the file.

        columns: of a file with one question per record. impossible: whether questions without an
        answer are allowed (v2.0). Raises UserError for bad files, files without questions, and
        repeated ids.
        """
        questions = [cls._of_entry(entry) for entry in squad.entries(path, columns)]
        if not questions:
            raise errors.UserError(f"{path}: contains no questions")
        ids: set[str] = set()
        for question in questions:
            if question.id in ids:
                raise errors.UserError(f"{question.where}: the id occurs twice in the file")
            ids.add(question.id)
            if question.impossible and not impossible:
                raise errors.UserError(
                    f"{question.where}: has no answer in its context; for such files use "
                    "--task=squad_v2"
                )
        return questions

    @classmethod
    def _of_entry(cls, entry: squad.Entry) -> Self:
        """Converts an entry to a question. Raises UserError if an answer is not in the context."""
        where, context = entry.where, entry.context
        for name, text in (("question", entry.question), ("context", context)):
            if not text.strip():
                raise errors.UserError(f"{where}: the {name} is empty")
        if entry.impossible and entry.answers:
            raise errors.UserError(
                f"{where}: is_impossible is true, but there is an answer; correct one of them"
            )
        for text, start in entry.answers:
            if not text.strip():
                raise errors.UserError(
                    f"{where}: an answer is empty; if there is none, set is_impossible"
                )
            if start < 0 or context[start : start + len(text)] != text:
                index = context.find(text)
                hint = f"the context has it at {index}" if index >= 0 else "the context lacks it"
                raise errors.UserError(
                    f"{where}: the answer {text!r:.60} is not in its context at character {start}, "
                    f"where {context[max(0, start) :][: len(text)]!r:.60} is; {hint}"
                )
        return cls(
            entry.id, entry.question, context, tuple(entry.answers), entry.impossible, where
        )

    @classmethod
    def has_columns(cls, path: str) -> bool:
        """Returns whether the file has one question per record, not SQuAD's own format."""
        return squad.has_records(path)

    @classmethod
    def for_prediction(cls, task: task_lib.Task, *, any_texts: bool) -> task_lib.Task:
        """Returns the task, changed to accept questions without an answer."""
        del any_texts
        return dataclasses.replace(task, options={**task.options, "impossible": True})

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a dict of fields, which may lack the id, to a question."""
        return cls(**({"id": ""} | value))

    def is_labelled(self) -> bool:
        """Returns whether the answer is known, or is known not to exist."""
        return bool(self.answers) or self.impossible

    def unlabelled(self) -> Self:
        """Returns the question without its answers."""
        return self._replace(answers=(), impossible=False)

    def all_texts(self) -> list[str]:
        """Returns the question and the context."""
        return [self.question, self.context]

    def group(self) -> Hashable:
        """Returns the context."""
        return self.context or None
