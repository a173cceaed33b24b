"""Finds the files of a task's splits in a folder or in TFDS, by their usual names.

    split_files.find(task, "glue/SST-2")      # {"train": "glue/SST-2/train.tsv", "dev": ...}
    split_files.find(task, "imdb/")           # {"train": "imdb/data/train-*-of-00002.parquet", ...}

A split is one file (train.csv), numbered shards (train-00000-of-00002.parquet), or a folder of
files (train/0000.parquet, or train/*.arrow from `save_to_disk` of Hugging Face's `datasets`). They
are in the folder itself, in its folder `data`, or in the only one of its folders that has a train
split, as in the repositories of data sets on Hugging Face.
"""

import glob
import os
import re
from collections.abc import Mapping, Sequence

from etils import epath

from bertjax import errors, paths
from bertjax.data.corpus import indexed
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import types as examples_lib

_STEMS = {
    "train": ("train", "training"),
    "dev": ("dev", "validation", "valid", "val"),
    "test": ("test",),
}
_TFDS_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
# The part of a shard's name between the split and the suffix, with the number of shards.
_SHARD = r"-\d{5}-of-(\d{5})(?:-[0-9a-f]+)?"


def find(task: task_lib.Task, folder: str) -> dict[str, str]:
    """Returns {split: path or glob} of a task's files in a folder or in TFDS.

    folder: a path or "tfds:NAME/CONFIG". A folder may also be an archive with a folder of the task.
    "train" is always in the result. "dev", "test" and MNLI's "dev_mismatched", "test_mismatched"
    and "ax" are in the result only if they are found. Raises UserError if the folder or its train
    file does not exist, and if several of its folders have a train file.
    """
    if folder.startswith("tfds:"):
        return _in_tfds(task, folder)
    root = paths.of(folder)
    if not root.is_dir():
        problem = "is a file; give it as --train=" if root.exists() else "no such folder"
        raise errors.UserError(f"{folder}: {problem}")
    for inner in (root, *(root / name for name in (*task.folders, "data"))):
        matches = _matches(task, inner)
        if "train" in matches:
            return matches
    inside = {path.name: _matches(task, path) for path in sorted(root.iterdir()) if path.is_dir()}
    inside = {name: matches for name, matches in inside.items() if "train" in matches}
    if len(inside) == 1:
        (matches,) = inside.values()
        return matches
    if inside:
        raise errors.UserError(
            f"{folder}: several of its folders have a train file ({errors.several(inside)}); give "
            f"one of them, such as --data={root / next(iter(inside))}"
        )
    names = ", ".join((task.files or _names(task))["train"][: len(_suffixes(task))])
    raise errors.UserError(
        f"{folder}: contains no train file of the task {task.name} ({names}, or shards such as "
        "train-00000-of-00002.parquet); give the files as --train= --dev= --test="
    )


def _stems(task: task_lib.Task) -> dict[str, tuple[str, ...]]:
    """Returns {split: the names that the split may have in a file name}."""
    splits = dict.fromkeys((*_STEMS, *task.files))
    return {
        split: (*filter(None, [task.tfds_splits.get(split)]), *_STEMS.get(split, ()))
        for split in splits
    }


def _names(task: task_lib.Task) -> dict[str, tuple[str, ...]]:
    """Returns {split: the names that its only file may have, in the order they are tried}."""
    return {
        split: tuple(stem + suffix for stem in stems for suffix in _suffixes(task))
        for split, stems in _stems(task).items()
    }


def _suffixes(task: task_lib.Task) -> tuple[str, ...]:
    return examples_lib.TYPES[task.reader].SUFFIXES


def _matches(task: task_lib.Task, folder: epath.Path) -> dict[str, str]:
    """Returns {split: path or glob} of the splits in a folder itself.

    If there is a train file with the name in the published data, all files have published names.
    """
    entries = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    matches = _files(folder, entries, task.files)
    if "train" in matches:
        return matches
    matches = _files(folder, entries, _names(task))
    for split, stems in _stems(task).items():
        if split not in matches:
            pattern = _shards(entries, stems, _suffixes(task))
            match = _joined(folder, pattern) if pattern else ""
            match = match or _folder_of_files(folder, entries, stems, _suffixes(task))
            matches |= {split: match} if match else {}
    return matches


def _files(
    folder: epath.Path, entries: set[str], names: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Returns {split: path of the first of its names that exists}."""
    matches = {
        split: next((n for n in candidates if n in entries or _exists_by_path(folder, n)), "")
        for split, candidates in names.items()
    }
    return {split: os.fspath(folder / name) for split, name in matches.items() if name}


def _exists_by_path(folder: epath.Path, name: str) -> bool:
    return "/" in name and (folder / name).exists()


def _joined(folder: epath.Path, pattern: str) -> str:
    """Returns the path of `pattern`; escapes the folder's name if `pattern` is a glob."""
    root = os.fspath(folder)
    return os.path.join(glob.escape(root) if glob.has_magic(pattern) else root, pattern)


def _shards(entries: set[str], stems: Sequence[str], suffixes: Sequence[str]) -> str:
    """Returns the glob of a split's shards, or the name of its only shard; "" if it has none."""
    for stem in stems:
        for suffix in suffixes:
            shape = re.compile(re.escape(stem) + _SHARD + re.escape(suffix))
            shards = {name: match[1] for name in entries if (match := shape.fullmatch(name))}
            if len(shards) == 1 and set(shards.values()) == {"00001"}:
                return next(iter(shards))
            if shards:
                total = min(shards.values())
                return f"{stem}-*-of-{total}*{suffix}"
    return ""


def _folder_of_files(
    folder: epath.Path, entries: set[str], stems: Sequence[str], suffixes: Sequence[str]
) -> str:
    """Returns the glob of the files in a folder with the name of the split; "" if it has none."""
    for stem in stems:
        inner = folder / stem
        if stem in entries and inner.is_dir():
            there = [path.name for path in inner.iterdir()]
            for suffix in suffixes:
                if any(name.endswith(suffix) for name in there):
                    return _joined(inner, f"*{suffix}")
    return ""


def _in_tfds(task: task_lib.Task, path: str) -> dict[str, str]:
    names: Mapping[str, str] = _TFDS_SPLITS | dict(task.tfds_splits)
    available = indexed.opened(f"{path}:{names['train']}").dataset_info.splits
    splits = [split for split in _stems(task) if split in names]
    return {split: f"{path}:{names[split]}" for split in splits if names[split] in available}
