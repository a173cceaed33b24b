"""The definition of a task: how its files hold examples, its kind of prediction and its scores.

    Task("sentiment", "classification", "sentences", readers.Columns((("review",),)), ("accuracy",))

`glue` and `tasks` have the tables of tasks; `tasks` reads their files.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax import plugins
from bertjax.finetuning.examples import readers


@dataclasses.dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    name: as in --task.
    kind: a task type, module of finetuning/task_types.
    reader: the type of its examples, module of finetuning/examples: sentences, words, questions,
        text_pairs or choices.
    columns: the columns of a record that hold the parts of an example.
    metrics: the task type's scores that are reported; the first one selects the best model.
    options: fields of the task type's Config that differ from their defaults.
    max_length: maximum tokens of a row.
    labels: names in the order of the head's outputs; (): those of train.
    spelling: label -> its spelling in files, if that is not its name.
    numbers: whether labels are numbers.
    text_form: whether it also exists as NAME:text_to_text.
    labelled: whether every training example needs a label.
    headerless: columns of TSV files that have no header.
    damaged: whether the published files have broken rows, which are skipped and counted.
    folders: names of its folder in an archive of many tasks.
    files: split -> names of its file, in the order in which they are tried.
    tfds_splits: split -> its name in TFDS, if that is not the usual one.
    submissions: split -> name of the file that the leaderboard takes.
    """

    name: str
    kind: str
    reader: str
    columns: readers.Columns
    metrics: tuple[str, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_length: int = 128
    labels: tuple[str, ...] = ()
    spelling: Mapping[str, str] = dataclasses.field(default_factory=dict)
    numbers: bool = False
    text_form: bool = True
    labelled: bool = True
    headerless: tuple[str, ...] = ()
    damaged: bool = False
    folders: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    tfds_splits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def type(self) -> Any:
        """The class of the task type."""
        return plugins.task_type(self.kind)

    @property
    def any_texts(self) -> bool:
        """Whether sentences may have any number of texts, as for embeddings of each text."""
        return self.type.any_texts
