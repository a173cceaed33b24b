"""Probes every layer of a frozen model: reads, encodes once, trains all probes, reports.

    run.probe("bert-base-uncased/", "train.conll", "dev.conll", output="probe/")

Shapes: M layers with the embeddings, T tasks (the real one and the control), N items.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, files, progress
from bertjax.artifact import artifact, loading
from bertjax.data.corpus import corpus_files
from bertjax.finetuning import report as report_lib
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.probing import controls, features, labelled, report, training
from bertjax.finetuning.task_types import base
from bertjax.inference import pretrained
from bertjax.models.common import layers
from bertjax.runtime import backend

_MIN_KNOWN = 50.0  # percent; below it, the control task says little, and a note tells so


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `probe`.

    pooling: how the states of a text's tokens become one vector, one of `heads.POOLINGS`; "": the
        model's own pooling, or the mean. Only for labels of texts.
    seeds: how many times the probes are trained, each with another control task.
    max_train: maximum number of sentences or texts of train to use; 0: as many as fit in memory.
    max_length: maximum number of tokens of a row, at most the model's.
    dtype: type of the model's computation, float32 or bfloat16.
    """

    pooling: str = ""
    seeds: int = 1
    max_train: int = 0
    max_length: int = 256
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, lowest in (("seeds", 1), ("max_train", 0), ("max_length", 8)):
            if getattr(self, name) < lowest:
                raise errors.UserError(f"{name} = {getattr(self, name)}: must be {lowest} or more")


_DEFAULT = Options()


class Encoded(NamedTuple):
    """What the probes are trained and scored on.

    states: {split: float32[M, N, D]}, standardised. items: {split: its items}. notes: what the user
    should know about the data.
    """

    source: artifact.Artifact
    task_type: base.TaskType
    used: Mapping[str, Sequence[Any]]
    items: Mapping[str, labelled.Items]
    states: Mapping[str, np.ndarray]
    pooling: str
    notes: list[str]


def probe(
    model: str | os.PathLike,
    train: str | os.PathLike,
    dev: str | os.PathLike,
    *,
    task: str = "",
    text_column: str = "",
    label_column: str = "",
    output: str | os.PathLike | None = None,
    options: Options = _DEFAULT,
) -> report.Probed:
    """Returns the scores on `dev` of linear probes that are trained on `train`.

    model: as in `bertjax.load`. task: a task of `finetuning/tasks.py` with labels of words or
    texts; "": the one that fits the files. text_column, label_column: as in `bertjax.finetune`.
    output: folder for probe.json and probe.png; None: writes nothing. Raises UserError for bad
    files or options, and for a model whose layers cannot be read.
    """
    paths = {"train": os.fspath(train), "dev": os.fspath(dev)}
    found_task = labelled.find_task(task, paths, text_column, label_column)
    folder = None if output is None else report.output_folder(output)
    encoded = encode(model, found_task, paths, options)
    probed = fit(model, found_task, paths, encoded, options)
    for note in encoded.notes:
        errors.tell(f"note: {note}")
    if folder is not None:
        probed.write(folder)
    return probed


def encode(
    model: str | os.PathLike, task: task_lib.Task, paths: Mapping[str, str], options: Options
) -> Encoded:
    """Returns the states of all layers for the items of train and dev. Raises as `probe` does.

    paths: {"train": its path, "dev": its path}.
    """
    scores_lib.library("sklearn")  # fails now, not after the work
    is_tokens = task.kind == "tokens"
    if is_tokens and options.pooling:
        raise errors.UserError(
            f"pooling = {options.pooling!r}: the labels are of words, which are not pooled; "
            "remove it"
        )
    examples = labelled.read(task, paths)
    backend.configure(options.dtype)
    with progress.stage(f"reading {model}"):
        source = loading.load(model)
    loaded = pretrained.Pretrained(source, layers.Compute(dtype=options.dtype))
    pooling = "" if is_tokens else loaded.encoding(options.pooling).pooling
    room = features.max_items(*features.shape(loaded))
    used, notes = _within(examples, options.max_train, room)
    notes += _prompt_notes(source)
    task_type = labelled.bind(task, used, source, options.max_length)
    items = labelled.items(task_type, used)
    states = {}
    for split, part in items.items():
        notes += _unread_notes(split, part, task_type)
        with progress.stage(f"encoding {split}") as done:
            states[split] = features.encode(loaded, task_type, part, pooling, done)
    features.standardise(states["train"], states["dev"])
    return Encoded(source, task_type, used, items, states, pooling, notes)


def fit(
    model: str | os.PathLike,
    task: task_lib.Task,
    paths: Mapping[str, str],
    encoded: Encoded,
    options: Options,
) -> report.Probed:
    """Trains and scores the probes. Appends to the notes of `encoded`."""
    task_type, items, source = encoded.task_type, encoded.items, encoded.source
    fitted = _fitted(task.kind, encoded, options.seeds)
    content = {
        "model": {
            "path": os.fspath(model),
            "summary": source.summary(),
            "source": source.source,
            "fingerprint": artifact.fingerprint(source),
        },
        "task": task.name,
        "items": "words" if task.kind == "tokens" else "texts",
        "files": {
            split: _file(path, encoded.used[split], items[split]) for split, path in paths.items()
        },
        "labels": list(task_type.labels),
        "options": {
            **dataclasses.asdict(options),
            "pooling": encoded.pooling,
            "max_length": task_type.lengths.length,
        },
        **fitted,
        "notes": encoded.notes,
    }
    return report.Probed(content)


def _within(
    examples: Mapping[str, Sequence[Any]], max_train: int, room: int
) -> tuple[dict[str, list[Any]], list[str]]:
    """Returns the examples whose states fit in memory, and notes on those that are left out."""
    used, notes = {}, []
    for split, part in examples.items():
        wanted = labelled.sample(part, max_train if split == "train" else 0, room)
        if not wanted:
            raise errors.UserError(
                f"{part[0].where}: the states of one sentence take more than "
                f"{features.MAX_BYTES / 2**30:g} GiB in all layers; split it"
            )
        if len(wanted) < len(part):
            notes.append(f"{split}: {len(wanted):,} of {len(part):,} examples are used, drawn at "
                         "random")  # fmt: skip
        used[split] = wanted
    return used, notes


def _prompt_notes(source: artifact.Artifact) -> list[str]:
    if not (source.task and "prompt_ids" in source.task and source.task["prompt_ids"]):
        return []
    return ["the model was fine-tuned with a prompt, which the probed inputs do not have"]


def _unread_notes(split: str, items: labelled.Items, task_type: base.TaskType) -> list[str]:
    notes = []
    if cut := int(items.encoded.truncated.sum()):
        notes.append(
            f"{split}: {cut:,} texts are longer than {task_type.lengths.length} tokens, and were "
            "truncated"
        )
    if items.num_unread:
        notes.append(
            f"{split}: the tokenizer gives {items.num_unread:,} words no piece of their own; they "
            "are left out"
        )
    return notes


def _file(path: str, examples: Sequence[Any], items: labelled.Items) -> dict[str, Any]:
    """Returns path, checksums and sizes of a split. A dataset of TFDS has no checksums."""
    is_dataset = path.startswith("tfds:")
    names = [] if is_dataset else corpus_files.expand(path, lambda name: True)
    return {
        "path": path,
        "sha256": {name: files.sha256(name) for name in names},
        "examples": len(examples),
        "items": len(items.targets_N),
    }


def _fitted(kind: str, encoded: Encoded, seeds: int) -> dict[str, Any]:
    """Returns the part of the report with the scores of all seeds. Appends to the notes."""
    labels, items = encoded.task_type.labels, encoded.items
    train, dev = items["train"], items["dev"]
    counts_C = np.bincount(train.targets_N, minlength=len(labels))
    on_device = {split: jnp.asarray(x_MND) for split, x_MND in encoded.states.items()}
    by_seed, epochs, majorities = [], [], []
    with progress.stage("training the probes") as done:
        for seed in range(seeds):
            control = {s: controls.labels(part.keys, counts_C, seed) for s, part in items.items()}
            fitted = training.fit(
                on_device["train"], np.stack([train.targets_N, control["train"]]),
                on_device["dev"], np.stack([dev.targets_N, control["dev"]]),
                num_labels=len(labels), seed=seed,
            )  # fmt: skip
            real_MN, control_MN = np.moveaxis(fitted.predictions_MTN, 1, 0)
            by_seed.append(report.scores(real_MN, dev.targets_N, control_MN, control["dev"]))
            epochs.append(fitted.num_epochs)
            control_counts_C = np.bincount(control["train"], minlength=len(labels))
            majorities.append(report.majority(control_counts_C, control["dev"])[1])
            done(seed + 1, seeds)
    label, accuracy = report.majority(counts_C, dev.targets_N)
    known_keys = set(train.keys)
    known = 100.0 * sum(key in known_keys for key in dev.keys) / len(dev.keys)
    if known < _MIN_KNOWN:
        encoded.notes.append(
            f"only {known:.1f}% of dev have a type that occurs in train: the other control labels "
            "cannot be known, so the control task shows little of what the probe memorises"
        )
    return {
        "seeds": list(range(seeds)),
        "epochs": epochs,
        "majority": {"label": labels[label], "accuracy": accuracy},
        "control": {
            "kind": report.CONTROLS[kind],
            "known": known,
            "majority": report_lib.summary(majorities),
        },
        "layers": report.layers(by_seed),
        "device": jax.devices()[0].device_kind,
    }
