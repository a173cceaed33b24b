"""Probes every layer of a frozen model: reads, encodes once, trains all probes, reports.

    run.probe("bert-base-uncased/", "train.conll", "dev.conll", output="probe/")

Shapes: M layers with the embeddings, T tasks (the real one and the control), N items.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, files, progress
from bertjax.artifact import artifact, loading
from bertjax.data.corpus import corpus_files
from bertjax.finetuning import report as report_lib
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.probing import controls, features, labelled, report, training
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
                raise errors.UserError(
                    f"{name} = {getattr(self, name)}: must be {lowest} or more"
                )


def probe(
    model: str | os.PathLike,
    train: str | os.PathLike,
    dev: str | os.PathLike,
    *,
    task: str = "",
    text_column: str = "",
    label_column: str = "",
    output: str | os.PathLike | None = None,
    options: Options = Options(),
) -> report.Probed:
    """Returns the scores on `dev` of linear probes that are trained on `train`.

    model: as in `bertjax.load`. task: a task of `finetuning/tasks.py` with labels of words or
    texts; "": the one that fits the files. text_column, label_column: as in `bertjax.finetune`.
    output: folder for probe.json and probe.png; None: writes nothing. Raises UserError for bad
    files or options, and for a model whose layers cannot be read.
    """
    scores_lib.library("sklearn")  # fails now, not after the work
    paths = {"train": os.fspath(train), "dev": os.fspath(dev)}
    found_task = labelled.find_task(task, paths, text_column, label_column)
    is_tokens = found_task.kind == "tokens"
    if is_tokens and options.pooling:
        raise errors.UserError(
            f"pooling = {options.pooling!r}: the labels are of words, which are not pooled; "
            "remove it"
        )
    examples = labelled.read(found_task, paths)
    folder = None if output is None else report.output_folder(output)
    backend.configure(options.dtype)
    with progress.stage(f"reading {model}"):
        source = loading.load(model)
    loaded = pretrained.Pretrained(source, layers.Compute(dtype=options.dtype))
    pooling = "" if is_tokens else loaded.encoding(options.pooling).pooling
    room = features.max_items(*features.shape(loaded))
    used, notes = _within(examples, options.max_train, room)
    notes += _prompt_notes(source)
    task_type = labelled.bind(found_task, used, source, options.max_length)
    items = labelled.items(task_type, used)
    for split, part in items.items():
        if cut := int(part.encoded.truncated.sum()):
            notes.append(f"{split}: {cut:,} texts are longer than {task_type.lengths.length} "
                         "tokens, and were truncated")  # fmt: skip
        if part.num_unread:
            notes.append(f"{split}: the tokenizer gives {part.num_unread:,} words no piece of "
                         "their own; they are left out")  # fmt: skip
    states = {}
    for split, part in items.items():
        with progress.stage(f"encoding {split}") as done:
            states[split] = features.encode(loaded, task_type, part, pooling, done)
    features.standardise(states["train"], states["dev"])
    content = {
        "model": {
            "path": os.fspath(model),
            "summary": source.summary(),
            "source": source.source,
            "fingerprint": artifact.fingerprint(source),
        },
        "task": found_task.name,
        "pooling": pooling,
        "items": "words" if is_tokens else "texts",
        "files": {split: _file(path, used[split], items[split]) for split, path in paths.items()},
        "labels": list(task_type.labels),
        "max_length": task_type.lengths.length,
        **_fitted(task_type.labels, found_task.kind, items, states, options.seeds, notes),
        "notes": notes,
    }
    for note in notes:
        errors.tell(f"note: {note}")
    probed = report.Probed(content)
    if folder is not None:
        probed.write(folder)
    return probed


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


def _fitted(
    labels: Sequence[str],
    kind: str,
    items: Mapping[str, labelled.Items],
    states: Mapping[str, np.ndarray],
    seeds: int,
    notes: list[str],
) -> dict[str, Any]:
    """Returns the part of the report with the scores of all seeds. Appends to `notes`."""
    train, dev = items["train"], items["dev"]
    counts_C = np.bincount(train.targets_N, minlength=len(labels))
    on_device = {split: jnp.asarray(x_MND) for split, x_MND in states.items()}
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
        notes.append(
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
