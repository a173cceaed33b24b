"""Finds tasks by name, and reads their files.

    task = tasks.find("sst2")
    examples = tasks.read(task, "train.tsv", "train")

Most tasks also exist in the text-to-text form of T5, such as `sst2:text_to_text`. A model then
predicts by writing text.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from bertjax import errors
from bertjax.finetuning import glue, ranking_scores
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, columns, queries, sentences, squad
from bertjax.finetuning.examples import types as examples_lib

Task = task_lib.Task
_TEXT, _PAIRS = sentences.TEXT, sentences.PAIRS
_WORDS = columns.Columns((("words",), ("tokens",)), ("tags", "ner_tags", "ner"), extra=("text",))
_SOURCE = columns.Columns((("source",),), ("targets", "target"))
_CHOICES = columns.Columns(
    (("context", "question", "choices"), ("question", "choices"), ("context", "choices"))
)
_NEGATIVE = r"(hard_?)?neg(ative)?s?_?\d*"  # a text that does not match, beside a pair that does
_TEACHER_SCORES = ("positive_score", "negative_score", "negative_scores")
_TEXTS_ADVICE = (
    "give negatives as texts in columns such as negative_1, or as a list of texts in the column "
    "negatives"
)
_MATCHES = columns.Columns(
    _PAIRS,
    more=_NEGATIVE,
    refused=(
        ("score", "use --task=similarity or --task=regression, or --task=embedding_distillation if "
         "it is of a teacher, or remove the column"),
        ("|".join(("scores", *_TEACHER_SCORES)), "use --task=embedding_distillation for the scores "
         "of a teacher, or remove the column"),
        (rf"(?!{_NEGATIVE}$).*negative.*", _TEXTS_ADVICE),
    ),
)  # fmt: skip
_TAUGHT = columns.Columns(
    _PAIRS,
    ("scores", "score", "label", _TEACHER_SCORES[0]),
    extra=_TEACHER_SCORES[1:],
    more=_NEGATIVE,
    refused=((rf"(?!({_NEGATIVE}|negative_scores?)$).*negative.*", _TEXTS_ADVICE),),
)
_CANDIDATES = columns.Columns(
    (("query", "documents"), ("query", "document"), ("query", "positive"), ("query", "passage"),
     *_PAIRS),
    ("label", "labels", "score", "scores"), more=_NEGATIVE,
    refused=(
        (r"(positive|negative)_scores?", "give a teacher's scores as one column scores, with that "
         "of the positive first"),
        (rf"(?!{_NEGATIVE}$).*negative.*", "give negatives as texts in columns such as negative_1, "
         "or as a list of texts in the column negatives"),
    ),
)  # fmt: skip
_ENTITY_SCORES = ("f1", "precision", "recall", "accuracy")
_SQUAD_SCORES = ("f1", "exact_match")
TEXT_TO_TEXT = "text_to_text"
_FIRST = 100  # records whose columns are looked at; those of JSON lines may differ
_ROUGE = ("rougeL", "rouge1", "rouge2")


def _squad(version: str) -> dict[str, Any]:
    """Returns fields of a Task: SQuAD's published file names, and its leaderboard's file."""
    names = {
        split: (f"{split}-{version}.json", f"{split}.json", f"{split}.jsonl")
        for split in ("train", "dev", "test")
    }
    return {"max_length": 384, "files": names, "submissions": {"test": "predictions.json"}}


TASKS: dict[str, Task] = glue.TASKS | {
    task.name: task
    for task in (
        Task("squad", "extractive_qa", "questions", squad.COLUMNS, _SQUAD_SCORES, **_squad("v1.1")),
        Task("squad_v2", "extractive_qa", "questions", squad.COLUMNS,
             (*_SQUAD_SCORES, "has_answer_f1", "no_answer_accuracy"),
             options={"impossible": True}, **_squad("v2.0")),
        Task("qa", "extractive_qa", "questions", squad.COLUMNS, _SQUAD_SCORES, max_length=384),
        Task("ner", "tokens", "words", _WORDS, _ENTITY_SCORES),
        Task("tokens", "tokens", "words", _WORDS, ("accuracy",), text_form=False),
        Task("classification", "classification", "sentences", columns.Columns(_TEXT),
             ("accuracy", "macro_f1")),
        Task("pair", "classification", "sentences", columns.Columns(_PAIRS),
             ("accuracy", "macro_f1")),
        Task("regression", "classification", "sentences",
             columns.Columns((*_PAIRS, *_TEXT), ("score", "label")), ("spearman", "pearson"),
             numbers=True, options={"regression": True}),
        Task("multi_label", "multi_label", "sentences",
             columns.Columns((*_PAIRS, *_TEXT), ("labels", "label")),
             ("micro_f1", "macro_f1", "subset_accuracy"), text_form=False),
        Task("multiple_choice", "multiple_choice", "choices", _CHOICES, ("accuracy",)),
        Task("text_to_text", "text_to_text", "text_pairs", _SOURCE, ("bleu", *_ROUGE)),
        Task("translation", "text_to_text", "text_pairs", _SOURCE, ("bleu",)),
        Task("summarization", "text_to_text", "text_pairs", _SOURCE, _ROUGE, max_length=512,
             options={"prefix": "summarize: "}),
        Task("generative_qa", "text_to_text", "text_pairs", _SOURCE, _SQUAD_SCORES,
             max_length=512),
        Task("mixture", "mixture", "mixed", _SOURCE, ("average",), max_length=512, text_form=False),
        Task("embeddings", "embeddings", "sentences", _MATCHES, ("accuracy_at_1", "mrr"),
             labelled=False, text_form=False),
        Task("embedding_distillation", "embeddings", "sentences", _TAUGHT,
             ("mrr", "accuracy_at_1", "spearman"), number_lists=True, text_form=False,
             options={"loss": "margin_mse"}),
        Task("similarity", "embeddings", "sentences",
             columns.Columns(_PAIRS, ("score", "label")), ("spearman", "pearson"),
             numbers=True, options={"loss": "cosine"}),
        Task("rerank", "rerank", "candidates", _CANDIDATES, ranking_scores.NAMES[:3],
             max_length=256, text_form=False),
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


def with_columns(task: Task, files: Sequence[str], texts: str, label: str) -> Task:
    """Returns the task with the names that the user gives its columns, see `columns.named`.

    files: the files to read. Raises UserError if none of them has named columns.
    """
    if (texts or label) and not any(_has_columns(task, path) for path in files):
        flag = f"{columns.TEXT_FLAG}={texts}" if texts else f"{columns.LABEL_FLAG}={label}"
        raise errors.UserError(f"{flag}: {files[0]} has no columns with names; remove the flag")
    if label and not task.labelled:
        raise errors.UserError(
            f"{columns.LABEL_FLAG}={label}: the task {task.name} has no labels; remove the flag"
        )
    headerless = () if texts or label else task.headerless
    new = columns.named(task.columns, texts, label)
    return dataclasses.replace(task, columns=new, headerless=headerless)


def _has_columns(task: Task, path: str) -> bool:
    return _type(task).has_columns(path) and not columns.is_plain(path, task.columns)


def column_names(task: Task, path: str) -> list[str]:
    """Returns the names of a file's columns, from its first records; [] if they have no names."""
    if not _has_columns(task, path):
        return []
    ignored: collections.Counter[str] = collections.Counter()
    records = itertools.islice(base.records(task, path, ignored), _FIRST)
    return list(dict.fromkeys(name for record in records for name in record.columns))


def unused_columns(task: Task, files: Iterable[str]) -> str:
    """Returns a line that names the columns that the task does not read; "" if there are none.

    Returns "" for a task with published files: these have columns that nobody uses.
    """
    if task.files:
        return ""
    names = [n for path in files for n in columns.unused(column_names(task, path), task.columns)]
    unused = dict.fromkeys(map(repr, names))
    return f"columns that are not used: {errors.several(unused)}" if unused else ""


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
        unlabelled = dataclasses.replace(
            task, columns=task.columns._replace(label=(), refused=())
        )
        return _read(unlabelled, path, split, skipped, scored=False)


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
        gap = label_gap(task, path, unlabelled[0].where)
        label = repr(task.columns.label[0])
        raise errors.UserError(f"{unlabelled[0].where}: has no {label}{gap}; {reason}")


def measured(task: Task, dev: Sequence[examples_lib.Example]) -> Task:
    """Returns the task with ranking metrics if `dev` is a collection for retrieval."""
    if not isinstance(dev, queries.Queries):
        return task
    return dataclasses.replace(task, metrics=ranking_scores.NAMES)


def can_be_scored(task: Task, examples: Sequence[examples_lib.Example]) -> bool:
    """Returns whether predictions of these examples can be scored.

    They need labels; for a task without labels, they need more than one text. The queries of a
    collection need judgements.
    """
    if isinstance(examples, queries.Queries):
        return bool(examples.collection.qrels)
    if task.labelled:
        return examples[0].is_labelled()
    return examples[0].num_texts() != 1  # the vector of a single text has no score


def label_gap(task: Task, path: str, where: str) -> str:
    """Returns why the record at `where` has no label, as the end of an error message.

    Returns "" for a file without named columns.
    """
    if not _has_columns(task, path):
        return ""
    ignored: collections.Counter[str] = collections.Counter()
    records = base.records(task, path, ignored)
    record = next((r for r in records if f"{where} ".startswith(f"{r.where} ")), None)
    return columns.label_gap(record, task.columns) if record else ""
