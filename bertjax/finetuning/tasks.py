"""Finds tasks by name, and reads their files.

    task = tasks.find("sst2")
    paths = tasks.files(task, "glue/SST-2")             # {"train": ".../train.tsv", "dev": ...}
    examples = tasks.read(task, paths["train"], "train")

Most tasks also exist in the text-to-text form of T5, such as `sst2:text_to_text`. A model then
predicts by writing text.
"""

import collections
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from etils import epath

from bertjax import errors, paths
from bertjax.data.corpus import indexed
from bertjax.finetuning import glue
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import readers, sentences
from bertjax.finetuning.examples import types as examples_lib

Task = task_lib.Task
_TEXT, _PAIRS = sentences.TEXT, sentences.PAIRS
_STEMS = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid", "val"),
    "test": ("test",),
}
_TFDS_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_WORDS = readers.Columns((("words",), ("tokens",)), ("tags", "ner_tags", "ner"))
_SPANS = readers.Columns((("question", "context"),), ("answers",))
_SOURCE = readers.Columns((("source",),), ("targets", "target"))
_ENTITY_SCORES = ("f1", "precision", "recall", "accuracy")
_SQUAD_SCORES = ("f1", "exact_match")
TEXT_TO_TEXT = "text_to_text"
_ROUGE = ("rougeL", "rouge1", "rouge2")


def _squad(version: str) -> dict[str, Any]:
    """Returns fields of a Task: SQuAD's published file names, and its leaderboard's file."""
    names = {
        split: (f"{split}-{version}.json", f"{split}.json", f"{split}.jsonl") for split in _STEMS
    }
    return {"max_length": 384, "files": names, "submissions": {"test": "predictions.json"}}


TASKS: dict[str, Task] = glue.TASKS | {
    task.name: task
    for task in (
        Task("squad", "extractive_qa", "questions", _SPANS, _SQUAD_SCORES, **_squad("v1.1")),
        Task("squad_v2", "extractive_qa", "questions", _SPANS,
             (*_SQUAD_SCORES, "has_answer_f1", "no_answer_accuracy"),
             options={"impossible": True}, **_squad("v2.0")),
        Task("qa", "extractive_qa", "questions", _SPANS, _SQUAD_SCORES, max_length=384),
        Task("ner", "tokens", "words", _WORDS, _ENTITY_SCORES),
        Task("tokens", "tokens", "words", _WORDS, ("accuracy",), text_form=False),
        Task("classification", "classification", "sentences", readers.Columns(_TEXT),
             ("accuracy", "macro_f1")),
        Task("pair", "classification", "sentences", readers.Columns(_PAIRS),
             ("accuracy", "macro_f1")),
        Task("regression", "classification", "sentences",
             readers.Columns((*_PAIRS, *_TEXT), ("score", "label")), ("spearman", "pearson"),
             numbers=True, options={"regression": True}),
        Task("multi_label", "multi_label", "sentences",
             readers.Columns((*_PAIRS, *_TEXT), ("labels", "label")),
             ("micro_f1", "macro_f1", "subset_accuracy"), text_form=False),
        Task("multiple_choice", "multiple_choice", "choices",
             readers.Columns((("context", "question"), ("question",), ("context",))),
             ("accuracy",)),
        Task("text_to_text", "text_to_text", "text_pairs", _SOURCE, ("bleu", *_ROUGE)),
        Task("translation", "text_to_text", "text_pairs", _SOURCE, ("bleu",)),
        Task("summarization", "text_to_text", "text_pairs", _SOURCE, _ROUGE, max_length=512,
             options={"prefix": "summarize: "}),
        Task("generative_qa", "text_to_text", "text_pairs", _SOURCE, _SQUAD_SCORES,
             max_length=512),
        Task("embeddings", "embeddings", "sentences",
             readers.Columns(_PAIRS, refused=("score",)),
             ("accuracy_at_1", "mrr"), labelled=False, text_form=False),
        Task("similarity", "embeddings", "sentences",
             readers.Columns(_PAIRS, ("score", "label")), ("spearman", "pearson"),
             numbers=True, options={"loss": "cosine"}),
    )
}  # fmt: skip


def find(name: str) -> Task:
    """Returns the task NAME, or the text-to-text form of a task for "NAME:text_to_text".

    Raises UserError if NAME is not in TASKS, or if the task has no text-to-text form.
    """
    base, _, kind = name.partition(":")
    if base not in TASKS or kind not in ("", TEXT_TO_TEXT):
        suggestion = errors.did_you_mean(base, TASKS)
        raise errors.UserError(
            f"--task={name}: {suggestion}the tasks are {', '.join(sorted(TASKS))}; most also "
            f"exist as NAME:{TEXT_TO_TEXT}"
        )
    task = TASKS[base]
    if not kind or task.kind == kind:
        return task
    if not task.text_form:
        raise errors.UserError(f"--task={name}: {base} has no text-to-text form")
    return dataclasses.replace(
        task,
        name=name,
        kind=kind,
        options={"task": base} if base in glue.TASKS else {},
        metrics=tuple(score for score in task.metrics if score in _type(task).TEXT_SCORES),
    )


def answered(name: str, *, any_texts: bool) -> Task:
    """Returns the task of a fine-tuned model, changed to accept more inputs than training did.

    Questions without an answer are accepted. any_texts: whether both single texts and pairs are
    accepted, as for embeddings, or if the model does not store how many texts it was trained on.
    """
    task = find(name)
    return _type(task).for_prediction(task, any_texts=any_texts)


def _type(task: Task) -> type[examples_lib.Example]:
    return examples_lib.TYPES[task.reader]


def files(task: Task, folder: str) -> dict[str, str]:
    """Returns {split: path} of a task's files in a folder or in TFDS.

    folder: a path or "tfds:NAME/CONFIG". A folder may also be an archive with a folder of the task.
    "train" is always in the result. "dev", "test" and MNLI's "dev_mismatched", "test_mismatched"
    and "ax" are in the result only if they are found. Raises UserError if the folder or its train
    file does not exist.
    """
    candidates = dict(task.files) or {
        split: tuple(stem + suffix for stem in stems for suffix in _type(task).SUFFIXES)
        for split, stems in _STEMS.items()
    }
    if folder.startswith("tfds:"):
        return _in_tfds(task, folder, list(candidates))
    root = paths.of(folder)
    if not root.is_dir():
        problem = "is a file; give it as --train=" if root.exists() else "no such folder"
        raise errors.UserError(f"{folder}: {problem}")
    for inner in (root, *(root / name for name in task.folders)):
        entries = {path.name for path in inner.iterdir()} if inner.is_dir() else set()
        matches = {
            split: next((n for n in names if n in entries or _exists_by_path(inner, n)), "")
            for split, names in candidates.items()
        }
        if matches["train"]:
            return {split: os.fspath(inner / name) for split, name in matches.items() if name}
    raise errors.UserError(
        f"{folder}: contains no train file of the task {task.name} "
        f"({', '.join(candidates['train'])}); give the files as --train= --dev= --test="
    )


def _exists_by_path(folder: epath.Path, name: str) -> bool:
    return "/" in name and (folder / name).exists()


def _in_tfds(task: Task, path: str, splits: Sequence[str]) -> dict[str, str]:
    names = _TFDS_SPLITS | dict(task.tfds_splits)
    result = {}
    available = indexed.opened(f"{path}:{names[splits[0]]}").dataset_info.splits
    for split in splits:
        if split in names and names[split] in available:
            result[split] = f"{path}:{names[split]}"
    return result


def read(
    task: Task,
    path: str,
    split: str,
    *,
    skipped: collections.Counter[str] | None = None,
    scored: bool = True,
) -> list[examples_lib.Example]:
    """Returns the examples of a file, in the order of the file; at least one.

    split: files of "train" and "dev" need labels. In a file of another split, all examples have
        labels or none has. If the task reads single texts, such a file may be a .txt file with one
        text per line.
    scored: False if labels are not needed. Then labels may be missing; if one is invalid, all are
        ignored. Then a .txt file for a task of words may also have one text per line.
    skipped: counts the damaged rows that are skipped, for a task whose published files have some.
        If it is None, a damaged row raises UserError, because a leaderboard needs a prediction for
        every row of its test data.
    Raises UserError, with file and line, for all other bad input.
    """
    try:
        return _read(task, path, split, skipped, scored=scored)
    except errors.UserError:
        if scored:
            raise
        columns = task.columns._replace(label=(), refused=())
        return _read(dataclasses.replace(task, columns=columns), path, split, skipped, scored=False)


def _read(
    task: Task,
    path: str,
    split: str,
    skipped: collections.Counter[str] | None,
    *,
    scored: bool,
) -> list[examples_lib.Example]:
    training = split == "train" or split.startswith("dev")
    skipped = skipped if task.damaged else None
    examples = _type(task).read(task, path, training=training, scored=scored, skipped=skipped)
    needed = training and task.labelled
    _check_labels(task, path, examples, needed=needed, all_or_none=scored)
    return examples


def _check_labels(
    task: Task,
    path: str,
    examples: Sequence[examples_lib.Example],
    *,
    needed: bool,
    all_or_none: bool,
) -> None:
    if not examples:
        raise errors.UserError(f"{path}: contains no examples")
    unlabelled = [example for example in examples if not example.is_labelled()]
    if unlabelled and (needed or (all_or_none and len(unlabelled) < len(examples))):
        reason = "train and dev need labels" if needed else "other examples in the file have one"
        columns = columns_there(task, path, unlabelled[0].where)
        rename = "; rename the column with the labels" if columns else ""
        label = repr(task.columns.label[0])
        raise errors.UserError(f"{unlabelled[0].where}: has no {label}{columns}; {reason}{rename}")


def can_be_scored(task: Task, examples: Sequence[examples_lib.Example]) -> bool:
    """Returns whether predictions of these examples can be scored.

    They need labels; for a task without labels, they need more than one text.
    """
    if task.labelled:
        return examples[0].is_labelled()
    return examples[0].num_texts() != 1  # the vector of a single text has no score


def columns_there(task: Task, path: str, where: str) -> str:
    """Returns the columns of the record at `where`, as the end of an error message.

    Returns "" if the record has the label's column, and for a file without named columns.
    """
    if not _type(task).has_columns(path) or readers.is_plain(path, task.columns):
        return ""
    ignored: collections.Counter[str] = collections.Counter()
    records = readers.records(path, headerless=task.headerless, skipped=ignored)
    record = next((record for record in records if record.where == where), None)
    if record is None or any(name in record.fields for name in task.columns.label):
        return ""
    return f"; its columns are {readers.column_list(record)}"
