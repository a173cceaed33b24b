"""The tasks of GLUE (Wang et al., arXiv 1804.07461), with the file formats of its archive.

The archive's folders are CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI and diagnostic. The
last one contains AX, which has no training data and is a split of MNLI here. The files have a
header, except CoLA's train and dev. Files with the columns `sentence` or `sentence1 sentence2`, and
`label`, are also accepted. Metrics are those of the paper's table 1. The first metric of each task
is the one that Devlin et al. (arXiv 1810.04805, table 1) report.
"""

from collections.abc import Sequence
from typing import Any

from bertjax.finetuning import task
from bertjax.finetuning.examples import columns

_SINGLE = ("sentence",)
_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
_FILES = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}


def _task(
    name: str,
    folder: str,
    metrics: tuple[str, ...],
    *texts: tuple[str, ...],
    label: tuple[str, ...] = ("label",),
    binary: tuple[str, str] | None = None,
    **fields: Any,
) -> task.Task:
    """Returns a task. texts: see `columns.Columns`. fields: other fields of the task.

    binary: the names of the labels that the files write as 0 and 1. TFDS uses the same names.
    """
    if binary:
        fields |= {"labels": binary, "spelling": dict(zip(binary, "01", strict=True))}
    return task.Task(
        name,
        "classification",
        "sentences",
        columns.Columns(texts, label),
        metrics,
        folders=(folder, name),
        **{"files": _FILES, "submissions": {"test": f"{folder}.tsv"}} | fields,
    )


def _by_name(tasks: Sequence[task.Task]) -> dict[str, task.Task]:
    return {entry.name: entry for entry in tasks}


TASKS = _by_name(
    (
        _task("cola", "CoLA", ("mcc", "accuracy"), _SINGLE, binary=("unacceptable", "acceptable"),
              headerless=("source", "label", "mark", "sentence")),
        _task("sst2", "SST-2", ("accuracy",), _SINGLE, binary=("negative", "positive")),
        _task("mrpc", "MRPC", ("f1", "accuracy"), ("#1 String", "#2 String"), _PAIR,
              label=("Quality", "label"), binary=("not_equivalent", "equivalent")),
        _task("stsb", "STS-B", ("spearman", "pearson"), _PAIR, label=("score", "label"),
              numbers=True, options={"regression": True}),
        _task("qqp", "QQP", ("f1", "accuracy"), ("question1", "question2"), _PAIR,
              label=("is_duplicate", "label"), binary=("not_duplicate", "duplicate"),
              damaged=True),
        _task("mnli", "MNLI", ("accuracy",), _PAIR, ("premise", "hypothesis"),
              label=("gold_label", "label"), labels=_INFERENCE,
              files={"train": ("train.tsv",),
                     "dev": ("dev_matched.tsv", "dev.tsv"),
                     "test": ("test_matched.tsv", "test.tsv"),
                     "dev_mismatched": ("dev_mismatched.tsv",),
                     "test_mismatched": ("test_mismatched.tsv",),
                     "ax": ("diagnostic.tsv", "../diagnostic/diagnostic.tsv")},
              tfds_splits={"dev": "validation_matched", "test": "test_matched",
                           "dev_mismatched": "validation_mismatched",
                           "test_mismatched": "test_mismatched"},
              submissions={"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv",
                           "ax": "AX.tsv"}),
        _task("qnli", "QNLI", ("accuracy",), ("question", "sentence"), _PAIR, labels=_ENTAILMENT),
        _task("rte", "RTE", ("accuracy",), _PAIR, labels=_ENTAILMENT),
        _task("wnli", "WNLI", ("accuracy",), _PAIR, binary=("not_entailment", "entailment")),
    )
)  # fmt: skip
