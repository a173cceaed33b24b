"""The definition of a task: the format of its files, its task type and its scores.

    Task("sentiment", "classification", "sentences", columns.Columns((("review",),)), ("accuracy",))

`glue` and `tasks` list the tasks; `tasks` reads their files.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax import plugins
from bertjax.finetuning.examples import columns as columns_lib


@dataclasses.dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    name: as in --task.
    kind: the task type, a module of finetuning/task_types.
    reader: the type of its examples, a module of finetuning/examples: sentences, words, questions,
        text_pairs, choices, candidates or mixed.
    columns: the columns of a record that contain the parts of an example.
    metrics: the task type's scores that are reported; the first one selects the best model.
    options: fields of the task type's Config that differ from their defaults.
    max_length: maximum number of tokens in a row.
    labels: names of the labels, in the order of the head's outputs; () means those in train.
    spelling: {label: its spelling in files}, for labels spelled differently there.
    numbers: whether labels are numbers.
    number_lists: whether a label may be several numbers: a list, text with commas, or the numbers
        in the label's column and in `columns.extra`.
    text_form: whether the task also exists as NAME:text_to_text.
    labelled: whether every training example needs a label.
    headerless: names of the columns of TSV files that have no header.
    damaged: whether the published files have invalid rows, which are skipped and counted.
    folders: possible names of the task's folder in an archive of many tasks.
    files: {split: possible names of its file, in the order in which they are tried}.
    tfds_splits: {split: its name in TFDS}, for splits whose name there is not the usual one.
    submissions: {split: name of the file to submit to the leaderboard}.
    """

    name: str
    kind: str
    reader: str
    columns: columns_lib.Columns
    metrics: tuple[str, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_length: int = 128
    labels: tuple[str, ...] = ()
    spelling: Mapping[str, str] = dataclasses.field(default_factory=dict)
    numbers: bool = False
    number_lists: bool = False
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
        """Whether an example may be a single text or a pair, as for embeddings of each text."""
        return self.type.any_texts
