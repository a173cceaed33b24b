"""Computes how many seeds fit into the device's memory side by side."""

from typing import Any

import jax

from bertjax.finetuning import parts as parts_lib

MARGIN = 0.9  # the share of the memory to plan with


def seeds_at_once(parts: parts_lib.Parts, seeds: int) -> int:
    """Returns how many seeds to train side by side, at most `seeds`.

    That is `config.seeds_at_once` or, if that is 0, as many as fit into memory. It is then 1 on a
    CPU, which a single seed keeps busy, and on a device that does not report its memory.
    """
    wanted = parts.config.seeds_at_once
    if wanted or seeds <= 1:
        return max(1, min(wanted, seeds))
    device = parts.mesh.devices.flat[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return 1
    shared, each = needs(parts)
    return max(1, min(seeds, int((MARGIN * stats["bytes_limit"] - shared) // each)))


def needs(parts: parts_lib.Parts) -> tuple[int, int]:
    """Returns (bytes that all seeds share, bytes of each seed) of training.

    They are those of the compiled train step on the longest batch.
    """
    seeds = [parts.config.seed]
    state = parts.first_state(seeds)
    batches = parts.train_batches.one_of_each_shape(in_order=False)
    longest = max(batches, key=lambda batch: sum(x.nbytes for x in batch.values()))
    stacked = parts.place_stacked({name: x[None] for name, x in longest.items()})
    step = parts.jitted_train_step(1).lower(state, stacked, parts.frozen, 1e-5)
    analysis = step.compile().memory_analysis()
    shared = _size(parts.frozen)
    state_bytes = analysis.argument_size_in_bytes - shared
    best = _size(state.params)  # a copy of the best parameters
    return shared, max(1, state_bytes + best + analysis.temp_size_in_bytes)


def _size(tree: Any) -> int:
    """Returns the bytes of the tree on one device."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))
