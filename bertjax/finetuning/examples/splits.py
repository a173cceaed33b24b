"""Splits examples into train and dev, and draws samples. Repeated calls give the same result.

    train, dev = splits.held_out(examples, 0.1)
    few = splits.sample(train, 1000)
"""

import collections
from collections.abc import Hashable, Sequence

import numpy as np

from bertjax.data.batches import rng
from bertjax.finetuning.examples import types as examples_lib

Example = examples_lib.Example


def held_out(examples: Sequence[Example], fraction: float) -> tuple[list[Example], list[Example]]:
    """Returns (train, dev), the same split in every call. fraction: the share of dev.

    All questions about one text land in the same split. Train keeps at least one example of each
    label. Dev has at least two labels if it can: scores of sentences without entities, for example,
    cannot tell models apart.
    """
    order = _shuffled_groups(examples, "finetune dev")
    size = max(1, round(fraction * len(examples)))
    drawn = _draw(examples, order, size)
    labels = {label for group in drawn for label in _labels(examples, group)}
    if len(labels) == 1:
        others = [group for group in order if not labels.issuperset(_labels(examples, group))]
        first = _draw(examples, others, 1)
        drawn = _draw(examples, [*first, *(g for g in order if g not in first)], size)
    return _parts(examples, drawn)


def fold(
    examples: Sequence[Example], count: int, number: int
) -> tuple[list[Example], list[Example]]:
    """Returns (train, dev), where dev is part `number`, from 1, of `count` equal parts.

    All questions about one text land in the same part, and the labels are spread over the parts. An
    example whose label would be missing in train stays in train, and is in no part.
    """
    order = _shuffled_groups(examples, "finetune folds")
    order.sort(key=lambda members: sorted(map(str, examples[members[0]].class_names())))
    return _parts(examples, _draw(examples, order[number - 1 :: count], len(examples)))


def sample(examples: Sequence[Example], count: int) -> list[Example]:
    """Returns `count` of the examples in unchanged order; if `count` is 0, returns all of them.

    Takes one example of each label first. The other examples keep the proportions of the labels. An
    example with several labels counts only for its rarest label. Every call returns the same
    sample.
    """
    if not count or count >= len(examples):
        return list(examples)
    order = rng.permutation("finetune sample", len(examples))
    counts = collections.Counter(name for example in examples for name in example.class_names())
    rarest = [min(e.class_names(), key=counts.__getitem__, default="") for e in examples]
    labels = _numbers(rarest)[order]
    sizes, num_seen = np.bincount(labels), collections.Counter()
    ranks = np.zeros(len(order))
    for place, label in enumerate(labels):
        ranks[place] = num_seen[label] / sizes[label]  # the first example of a label has rank 0
        num_seen[label] += 1
    first_places: dict[str, int] = {}
    for place in np.argsort(ranks, kind="stable"):
        for name in examples[order[place]].class_names():
            first_places.setdefault(name, int(place))
    missing = set(counts)
    for name in sorted(counts, key=counts.__getitem__):  # a label may be no example's rarest
        if name in missing:
            ranks[first_places[name]] = -1
            missing -= set(examples[order[first_places[name]]].class_names())
    chosen = order[np.argsort(ranks, kind="stable")[:count]]
    return [examples[i] for i in sorted(chosen)]


def _numbers(keys: Sequence[Hashable]) -> np.ndarray:
    """Returns int[keys]: numbers from 0 in order of first occurrence, equal for equal keys."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], int)


def _shuffled_groups(examples: Sequence[Example], name: str) -> list[list[int]]:
    """Returns the indices of the examples about each text, in an order that `name` determines."""
    groups: dict[Hashable, list[int]] = {}
    for i, example in enumerate(examples):
        group = example.group()
        groups.setdefault(i if group is None else group, []).append(i)
    members = list(groups.values())
    return [members[i] for i in rng.permutation(name, len(members))]


def _draw(examples: Sequence[Example], groups: Sequence[list[int]], size: int) -> list[list[int]]:
    """Returns the first groups that together have `size` examples and leave train all its labels.

    groups: the indices of the examples of each.
    """
    train_labels = collections.Counter(label for example in examples for label in example.classes())
    drawn: list[list[int]] = []
    for group in groups:
        if size <= 0:
            break
        labels = _labels(examples, group)
        if all(train_labels[label] > count for label, count in labels.items()):
            train_labels.subtract(labels)
            drawn.append(group)
            size -= len(group)
    return drawn


def _labels(examples: Sequence[Example], group: Sequence[int]) -> collections.Counter[str]:
    """Returns how many examples of a group have each label."""
    return collections.Counter(label for i in group for label in examples[i].classes())


def _parts(
    examples: Sequence[Example], drawn: Sequence[list[int]]
) -> tuple[list[Example], list[Example]]:
    """Returns (train, dev). drawn: the groups of dev."""
    dev = {i for group in drawn for i in group}
    return (
        [example for i, example in enumerate(examples) if i not in dev],
        [example for i, example in enumerate(examples) if i in dev],
    )
