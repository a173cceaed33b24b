"""The labelled examples that probes are trained and scored on.

    task = labelled.find_task("", {"train": "train.conll", "dev": "dev.conll"}, "", "")
    examples = labelled.read(task, {"train": "train.conll", "dev": "dev.conll"})
    task_type = labelled.bind(task, examples, source, max_length=256)
    items = labelled.items(task_type, examples)["train"]

An item is what has a label: a word of a sentence, at its first piece, or a whole text.

Shapes: N items, L length of a row, C labels.
"""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax import errors
from bertjax.artifact import artifact
from bertjax.data.batches import rng
from bertjax.data.corpus import corpus_files
from bertjax.finetuning import rows, tasks
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import readers
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.probing import controls
from bertjax.finetuning.task_types import base, classification, tokens

KINDS = ("tokens", "classification")  # the task types whose labels can be probed
_CONLL = (".conll", ".conllu", ".iob2", ".bio")
_NAMES = ("tokens", "pair", "classification")  # in the order in which they are tried
_ADVICE = "give --task=tokens, --task=classification or --task=pair, and name your columns"

Examples = Mapping[str, Sequence[Any]]


class Items(NamedTuple):
    """The items of a split.

    encoded: the rows that contain the items. targets_N: int32, indices of labels. keys: of the
    control task. num_unread: words without an item, because the tokenizer gives them no piece.
    """

    encoded: rows.Encoded
    targets_N: np.ndarray
    keys: list[str]
    num_unread: int


def find_task(
    name: str, paths: Mapping[str, str], text_column: str, label_column: str
) -> task_lib.Task:
    """Returns the task `name`, with the user's columns; "": the task that fits the files.

    paths: {split: path}. Raises UserError if the task has no labels of words or texts, if the files
    do not show what they contain, or if they are of different kinds.
    """
    if not name and text_column:
        name = "pair" if "," in text_column else "classification"
    if not name:
        found = {split: _kind_of(path) for split, path in paths.items()}
        if len(set(found.values())) > 1:
            kinds = " and ".join(f"{paths[split]} is a file of {_described(kind)}"
                                 for split, kind in found.items())  # fmt: skip
            raise errors.UserError(f"{kinds}: give files of one kind")
        name = found["train"]
    task = tasks.find(name)
    if task.kind not in KINDS or task.numbers:
        raise errors.UserError(
            f"--task={name}: a probe predicts the labels of words or of texts; use --task=tokens, "
            "--task=classification, --task=pair, or another task with such labels"
        )
    return tasks.with_columns(task, list(paths.values()), text_column, label_column)


def _kind_of(path: str) -> str:
    """Returns the name of the task that reads a file, judging by its suffix and its columns."""
    if corpus_files.suffix(path) in _CONLL:
        return "tokens"
    has_fields = readers.has_fields(path)
    if has_fields:
        columns = set(next(iter(readers.records(path))).columns)
    else:
        file = corpus_files.expand(path, lambda name: True)[0]
        _, header = next(corpus_files.text_lines(file))
        separator = "," if corpus_files.suffix(path) == ".csv" else "\t"
        columns = {cell.strip(' "') for cell in header.split(separator)}
    for name in _NAMES:
        if any(columns.issuperset(names) for names in tasks.find(name).columns.texts):
            return name
    if not has_fields and _has_blocks(file):
        return "tokens"
    there = errors.several(map(repr, sorted(columns)), 6)[:200]
    raise errors.UserError(f"{path}: contains neither CoNLL columns nor a column of texts with a "
                           f"usual name (its columns: {there}); {_ADVICE}")  # fmt: skip


def _has_blocks(path: str) -> bool:
    """Returns whether a file has a blank line between other lines, as CoNLL columns have."""
    blank = [not line.strip() for _, line in corpus_files.text_lines(path)]
    return any(a and not b for a, b in itertools.pairwise(blank))


def _described(name: str) -> str:
    return {"tokens": "tagged words", "pair": "pairs of texts"}.get(name, "labelled texts")


def read(task: task_lib.Task, paths: Mapping[str, str]) -> dict[str, list[Any]]:
    """Returns the examples of train and dev. Raises UserError if any has no label."""
    skipped: collections.Counter[str] = collections.Counter()
    examples = {split: tasks.read(task, path, split, skipped=skipped)
                for split, path in paths.items()}  # fmt: skip
    for reason, count in skipped.items():
        errors.tell(f"{count:,} {reason}, left out")
    return examples


def sample(examples: Sequence[Any], count: int, max_items: int, seed: int = 0) -> list[Any]:
    """Returns a random sample of the examples, in their order, or all of them.

    count: maximum number of examples; 0: no maximum. max_items: maximum number of items.
    """
    order = rng.permutation("probe sample", len(examples), seed)[: count or None]
    sizes = [_num_items(examples[i]) for i in order]
    order = order[np.cumsum(sizes) <= max_items]
    return [examples[i] for i in sorted(order)]


def _num_items(example: Any) -> int:
    return len(example.words) if isinstance(example, examples_lib.Words) else 1


def bind(
    task: task_lib.Task, examples: Examples, source: artifact.Artifact, max_length: int
) -> base.TaskType:
    """Returns the task type for the labels that occur and for the model of `source`.

    max_length: maximum number of tokens of a row. A longer sentence is split into windows if its
    words have labels, otherwise truncated. Raises UserError if train has fewer than two labels.
    """
    unbound = task.type(task.name, task.type.Config(**task.options))
    occurring = {split: set(unbound.label_names(part)) & _occurring(part)
                 for split, part in examples.items()}  # fmt: skip
    if len(occurring["train"]) < 2:
        only = errors.several(map(repr, occurring["train"])) or "none"
        raise errors.UserError(
            f"{examples['train'][0].where}: a probe needs two labels or more, but the labels of "
            f"train are: {only}"
        )
    # Labels that only dev has are never predicted.
    everything = set.union(*occurring.values())
    names = unbound.label_names([example for part in examples.values() for example in part])
    return dataclasses.replace(
        unbound,
        labels=tuple(name for name in names if name in everything),
        tokenizer=source.tokenizer,
        lengths=rows.Lengths(min(max_length, source.fields["max_length"])),
        absent=rows.absent(source.fields),
        num_texts=examples["train"][0].num_texts() or 0,
    )


def _occurring(examples: Sequence[Any]) -> set[str]:
    return {str(label) for example in examples for label in example.classes()}


def items(task_type: base.TaskType, examples: Examples) -> dict[str, Items]:
    """Returns {split: its items}, in the order of the rows."""
    if isinstance(task_type, tokens.TaskType):
        return {split: _of_words(task_type, part) for split, part in examples.items()}
    assert isinstance(task_type, classification.TaskType)
    texts = {split: [e.texts for e in part] for split, part in examples.items()}
    keys = dict(zip(("train", "dev"), controls.text_keys(texts["train"], texts["dev"]),
                    strict=True))  # fmt: skip
    found = {}
    for split, part in examples.items():
        encoded = task_type.encode(part)
        targets_N = np.array([row["label"] for row in encoded.rows], np.int32)
        found[split] = Items(encoded, targets_N, keys[split], 0)
    return found


def places(row: rows.Row) -> np.ndarray:
    """Returns the positions of a row's items in the row; [] for a row of a whole text."""
    return np.flatnonzero(row["words"]) if "words" in row else np.zeros(0, int)


def _of_words(task_type: base.TaskType, examples: Sequence[Any]) -> Items:
    encoded = task_type.encode(examples)
    targets, keys = [], []
    for row, owner in zip(encoded.rows, encoded.owners, strict=True):
        for place in places(row):
            word = examples[owner].words[row["words"][place] - 1]
            targets.append(row["targets"][place])
            keys.append(controls.word_key(word))
    num_words = sum(len(example.words) for example in examples)
    return Items(encoded, np.array(targets, np.int32), keys, num_words - len(targets))
