"""Reads the examples of a fine-tuning run: train, dev and the test splits scored at the end.

found = read(config, notes)         # {"train": [...], "dev": [...], "test": [...]}
"""

import collections
from collections.abc import Collection, Hashable, Sequence

import numpy as np
from ml_collections import ConfigDict

from bertjax import errors
from bertjax.data.batches import rng
from bertjax.finetuning import recipe, tasks
from bertjax.finetuning.examples import types as examples_lib

Example = examples_lib.Example


def read(config: ConfigDict, notes: list[str]) -> dict[str, list[Example]]:
    """Returns the examples of every split with a file in the config. Holds out dev if it has none.

    Reads all of "train", whatever config.data.max_train is. notes: gets a line for each kind of row
    skipped in damaged files of train and dev; such a row in a test file is an error. Raises
    UserError without a train file, for bad files, and if train cannot be split.
    """
    task = tasks.find(config.task)
    if not config.data.train:
        raise errors.UserError("config.data.train is not set: give --data=FOLDER or --train=FILE")
    found = {}
    for split in recipe.splits(task):
        if config.data[split]:
            skipped: collections.Counter[str] = collections.Counter()
            answered = split.startswith("test")
            found[split] = tasks.read(
                task, config.data[split], split, skipped=None if answered else skipped
            )
            notes += [f"{config.data[split]}: {n} {why}, left out" for why, n in skipped.items()]
    if "dev" not in found:
        found["train"], found["dev"] = held_out(found["train"], config.data.dev_fraction)
        if not (found["train"] and found["dev"]):
            whole = found["train"] + found["dev"]
            labels = {label for example in whole for label in _labels(example)}
            several = f" with {len(labels):,} labels" if labels else ""
            raise errors.UserError(
                f"{config.data.train} cannot be cut into train and dev: {len(whole):,} examples"
                f"{several}; give --dev=FILE" + " (is the label in its own column?)" * bool(labels)
            )
    return found


def held_out(examples: Sequence[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Returns (train, dev), the same split at every call.

    All questions about one text land in the same split. Train keeps at least one example of each
    label.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(_together(i, example), []).append(i)
    members = list(groups.values())
    left = collections.Counter(label for example in examples for label in _labels(example))
    wanted, in_dev = max(1, round(fraction * len(examples))), np.zeros(len(examples), bool)
    for group in _permutation("finetune dev", len(members)):
        if wanted <= 0:
            break
        own = collections.Counter(x for i in members[group] for x in _labels(examples[i]))
        if all(left[label] > count for label, count in own.items()):
            left.subtract(own)
            in_dev[members[group]] = True
            wanted -= len(members[group])
    return (
        [e for e, dev in zip(examples, in_dev, strict=True) if not dev],
        [e for e, dev in zip(examples, in_dev, strict=True) if dev],
    )


def sample(examples: Sequence[Example], count: int) -> list[Example]:
    """Returns `count` of the examples, in their order; all if `count` is 0.

    Takes one example of each label first, then keeps the shares of the labels. Every call returns
    the same sample.
    """
    if not count or count >= len(examples):
        return list(examples)
    order = _permutation("finetune sample", len(examples))
    labels = _numbered([_class(example) for example in examples])[order]
    sizes, seen = np.bincount(labels), collections.Counter()
    ranks = np.zeros(len(order))
    for place, label in enumerate(labels):
        ranks[place] = seen[label] / sizes[label]  # the first of a label has rank 0
        seen[label] += 1
    chosen = order[np.argsort(ranks, kind="stable")[:count]]
    return [examples[i] for i in sorted(chosen)]


def _together(index: int, example: Example) -> Hashable:
    """Returns a key that is the same for all examples about one text."""
    match example:
        case examples_lib.Sentence():
            return examples_lib.squeezed(example.texts[0])
        case examples_lib.Words():
            return example.words
        case examples_lib.TextPair():
            return example.source
        case examples_lib.Choice() if example.passage:
            return example.passage
    return example.context or index


def _labels(example: Example) -> Collection[str]:
    """Returns the classes of an example: its tags or its label; empty if it has none."""
    if isinstance(example, examples_lib.Words):
        return set(example.tags or ())
    return [_class(example)] if _class(example) else []


def _class(example: Example) -> str:
    """Returns the class of an example; "" if it has none."""
    label = example.label if isinstance(example, examples_lib.Sentence) else None
    return label if isinstance(label, str) else ""


def _numbered(keys: Sequence[Hashable]) -> np.ndarray:
    """Returns int[keys]: numbers from 0 in order of first occurrence, equal for equal keys."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], int)


def _permutation(stream: str, n: int) -> np.ndarray:
    return rng.RowRandom(rng.row_keys(0, 0, np.array([0]))).permutation(stream, int(n))[0]
