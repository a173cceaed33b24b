"""What a task is: how its files say examples, and which kind of answer and scores it has.

    Task("sentiment", "classification", "sentences", readers.Columns((("review",),)), ("accuracy",))

`glue` and `tasks` hold the tables of them; `tasks` reads their files.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax.finetuning.examples import readers


@dataclasses.dataclass(frozen=True)
class Task:
    """A task by name.

    name: as in --task.
    kind: module of finetuning/kinds.
    reader: what its examples are: sentences, words, questions, text_pairs or choices.
    columns: where the parts of an example are in a record.
    metrics: names of the kind's scores that it reports; the first one chooses the best.
    options: fields of the kind's Config that differ from their defaults.
    max_length: tokens of a row.
    labels: names in the order of the head's outputs; () for those that occur, as the kind has them.
    spelling: label -> how files write it, where they do not write the name.
    numbers: labels are numbers.
    labelled: training needs a label of every example.
    headerless: columns of TSV files that have no header.
    damaged: the published files have broken rows, which are left out and counted.
    folders: its names in an archive of many tasks.
    files: split -> names of its file, in the order they are looked for.
    tfds_splits: split -> name in TFDS, where it is not the usual one.
    submissions: split -> file that the leaderboard takes.
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
    labelled: bool = True
    headerless: tuple[str, ...] = ()
    damaged: bool = False
    folders: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    tfds_splits: Mapping[str, str] = dataclasses.field(default_factory=dict)
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def any_texts(self) -> bool:
        """Whether examples may have any number of texts: a vector is made of each."""
        return self.reader != "sentences" or self.kind == "embeddings"
