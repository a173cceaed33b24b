"""The examples of a fine-tuning: train, dev and what is scored at the end.

found = read(config, notes)         # {"train": [...], "dev": [...], "test": [...]}
"""

import collections
from collections.abc import Hashable, Sequence

import numpy as np
from ml_collections import ConfigDict

from bertjax import errors
from bertjax.data import rng
from bertjax.finetuning import examples as examples_lib
from bertjax.finetuning import recipe, tasks

Example = examples_lib.Example


def read(config: ConfigDict, notes: list[str]) -> dict[str, list[Example]]:
    """The examples of every split that the config has a file of; of "train" all.

    notes: gets a line for what was left out of damaged files. UserError for bad files.
    """
    task = tasks.find(config.task)
    if not config.data.train:
        raise errors.UserError("config.data.train is not set: give --data=FOLDER or --train=FILE")
    found = {}
    for split in recipe.splits(task):
        if config.data[split]:
            skipped: collections.Counter[str] = collections.Counter()
            found[split] = tasks.read(task, config.data[split], split, skipped=skipped)
            notes += [f"{config.data[split]}: {n} x {why}" for why, n in skipped.items()]
    if "dev" not in found:
        found["train"], found["dev"] = held_out(found["train"], config.data.dev_fraction)
        if not found["train"]:
            raise errors.UserError(
                f"{config.data.train} has nothing to train on beside a dev set: give --dev=FILE"
            )
    return found


def held_out(examples: Sequence[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """(train, dev): the same cut at every call; questions on one context stay together."""
    groups = _numbered([_together(i, example) for i, example in enumerate(examples)])
    order = _permutation(0, "finetune dev", groups.max() + 1)
    sizes = np.bincount(groups)[order]
    wanted = max(1, round(fraction * len(examples)))
    chosen = order[: int(np.searchsorted(np.cumsum(sizes), wanted)) + 1]
    in_dev = np.isin(groups, chosen)
    return (
        [e for e, dev in zip(examples, in_dev, strict=True) if not dev],
        [e for e, dev in zip(examples, in_dev, strict=True) if dev],
    )


def sample(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """`count` of the examples, in their order: one of each label, then labels in their shares."""
    if not count or count >= len(examples):
        return list(examples)
    order = _permutation(seed, "finetune sample", len(examples))
    labels = _numbered([_label(example) for example in examples])[order]
    sizes, seen = np.bincount(labels), collections.Counter()
    ranks = np.zeros(len(order))
    for place, label in enumerate(labels):
        ranks[place] = seen[label] / sizes[label]  # the first of a label has rank 0
        seen[label] += 1
    chosen = order[np.argsort(ranks, kind="stable")[:count]]
    return [examples[i] for i in sorted(chosen)]


def _together(index: int, example: Example) -> Hashable:
    return example.context if isinstance(example, examples_lib.Question) else index


def _label(example: Example) -> Hashable:
    """The class of an example; one for all where it has none."""
    label = example.label if isinstance(example, examples_lib.Sentence) else None
    return label if isinstance(label, str) else ""


def _numbered(keys: Sequence[Hashable]) -> np.ndarray:
    """int[keys]: equal numbers for equal keys, from 0 on in the order of their first."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], int)


def _permutation(seed: int, stream: str, n: int) -> np.ndarray:
    return rng.RowRandom(rng.row_keys(seed, 0, np.array([0]))).permutation(stream, int(n))[0]
