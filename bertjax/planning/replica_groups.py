"""Reads which devices take part in a collective of a compiled program."""

import math
import re

import numpy as np

from bertjax.planning import hlo


def first(op: hlo.Instruction) -> list[int]:
    """Returns the ids of the devices in a collective's first group; [] means all devices.

    Raises ValueError if replica_groups has an unknown format.
    """
    pair = re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", op.attributes)
    if pair:
        return [int(pair[1]), int(pair[2])]
    pattern = r"replica_groups=(\{.*?\}|\[.*?\]<=.*?|mesh\[.*?\})(?:, [a-z_]+=|$)"
    groups_match = re.search(pattern, op.attributes)
    text = groups_match[1] if groups_match else ""
    id_list = re.match(r"\{\{([\d,]+)\}", text)
    if id_list:
        return list(map(int, id_list[1].split(",")))
    iota = re.match(r"\[(\d+),(\d+)\]<=(.*)", text)
    if iota:
        return _iota(iota[3]).reshape(int(iota[1]), int(iota[2]))[0].tolist()
    if text.startswith("mesh["):
        return _mesh_group(text)
    if text not in ("", "{}"):
        raise ValueError(f"unknown form of replica_groups: {text[:100]}")
    return []


def _iota(text: str) -> np.ndarray:
    """Parses a text like "[4,8]T(1,0)": 0 ... 31 reshaped to [4, 8], transposed and flattened."""
    dims, _, axes = text.partition("T")
    sizes = tuple(map(int, re.findall(r"\d+", dims)))
    order = tuple(map(int, re.findall(r"\d+", axes))) or None
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(-1)


def _mesh_group(text: str) -> list[int]:
    """Returns the first group of a text like "mesh['a'=4,'b'=8] {'a','b':(2)4}".

    In this example, the axis `b` of size 8 is split into 2 x 4, and a group spans the axis `a` and
    the part of `b` that has size 4. If the text contains, for example, "device_ids=([4,8]T(1,0))"
    before the brace, this lists the devices of the mesh in order (see `_iota`).
    """
    mesh, _, tail = text.partition("]")
    devices, _, axes = tail.partition("{")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    names, group = list(sizes), [0]
    for name, pre_size, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
        inner = math.prod(sizes[later] for later in names[names.index(name) + 1 :])
        count = int(size or sizes[name])
        stride = inner * sizes[name] // (int(pre_size or 1) * count)
        group = [device + stride * index for device in group for index in range(count)]
    ids = re.search(r"device_ids=\((.*)\)", devices)
    return _iota(ids[1])[group].tolist() if ids else group
